"""The one loop: any cell over time, layers, directions, lengths and resets, and back again.

Sizes: T steps, B rows (batch), I inputs, H hidden units, L layers, D directions. Inside, arrays
of a sequence are time first, (T, B, ...), and the state of a cell is a tuple of (B, H) matrices,
of which the first is the output. Direction d of layer l is sweep number l * D + d, which is also
the order of the initial states (L*D, B, H) and of torch's parameter names.

Lengths and resets are marks on the grid of steps and rows. `real[t, b]` says that step t is
within the length of row b; the cell only ever sees real steps, so that nothing behind a length,
NaN included, can reach a result. `restart[t, b]` says that a sweep forgets its state before it
takes step t, and continues from the restart state.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypedDict

import numpy as np
import numpy.typing as npt

from . import dropout as dropout_

Array = npt.NDArray[Any]
States = tuple[Array, ...]


class Weights(NamedTuple):
    """The parameters of one sweep, or their gradients. A missing bias is zeros."""

    ih: Array  # (blocks*H, I)
    hh: Array  # (blocks*H, H)
    bias_ih: Array  # (blocks*H,)
    bias_hh: Array  # (blocks*H,)


class Cell(Protocol):
    """One step of some rows. All that this module knows about gates is their number."""

    blocks: int  # of H rows each, in the weights
    states: int  # matrices in the state

    def forward(self, w: Weights, x: Array, state: States) -> tuple[States, Any]:
        """From x (rows, I) and the state to the next state, and a cache for backward."""

    def backward(self, w: Weights, cache: Any, dstate: States) -> tuple[Array, States, Weights]:
        """From the gradient of the next state to those of x, the state and the weights."""


class ForwardOptions(TypedDict, total=False):
    """Keyword arguments of `forward`, which says what they mean."""

    batch_first: bool
    lengths: npt.ArrayLike | None
    resets: npt.ArrayLike | None
    restart_state: Any
    dropout: float
    seed: int
    all_layers: bool


class BackwardOptions(TypedDict, total=False):
    """Keyword arguments of `backward`."""

    clip_state_grad: float


# One direction of one layer


@dataclass
class Sweep:
    """What a sweep must remember for the way back."""

    w: Weights
    order: Sequence[int]  # of the steps
    restart: Array  # (T, B)
    caches: dict[int, Any]  # by step


def sweep_forward(
    cell: Cell,
    w: Weights,
    x: Array,
    state: Sequence[Array],
    restart_state: Sequence[Array],
    real: Array,
    resets: Array,
    reverse: bool,
) -> tuple[Array, Sequence[Array], Sweep]:
    """Returns the outputs, the final state and what backward needs."""
    T, B = real.shape
    order = range(T)[::-1] if reverse else range(T)
    restart = resets & real  # marks at or behind a length mean nothing
    if reverse:  # a border lies between t-1 and t: coming from above, it is met before t-1
        restart = np.concatenate([restart[1:], np.zeros_like(restart[:1])])

    y = np.zeros((T, B, state[0].shape[-1]), x.dtype)
    caches = {}
    for t in order:
        on = real[t]
        state = [
            np.where(restart[t, :, None], r, s) for r, s in zip(restart_state, state, strict=True)
        ]
        after, caches[t] = cell.forward(w, x[t, on], tuple(s[on] for s in state))
        for s, a in zip(state, after, strict=True):
            s[on] = a
        y[t, on] = after[0]
    return y, state, Sweep(w, order, restart, caches)


def sweep_backward(
    cell: Cell, sweep: Sweep, real: Array, dy: Array, dstate: Sequence[Array], clip: float
) -> tuple[Array, Sequence[Array], Sequence[Array], Weights, Array]:
    """Returns the gradients of x, the initial state, the restart state (per row), the weights.

    And the norms of those of the states, (states, T, B).
    """
    dx = np.zeros((*real.shape, sweep.w.ih.shape[1]), dy.dtype)
    dw = Weights(*(np.zeros_like(p) for p in sweep.w))
    dstate = [d.copy() for d in dstate]
    drestart_state = [np.zeros_like(d) for d in dstate]
    norms = np.zeros((len(dstate), *real.shape), dy.dtype)
    for t in reversed(sweep.order):
        on = real[t]
        dh, *others = (d[on] for d in dstate)
        after = (dh + dy[t, on], *others)
        norms[:, t, on] = [np.sqrt(np.sum(d * d, axis=1)) for d in after]
        dx[t, on], before, dw_t = cell.backward(sweep.w, sweep.caches[t], after)
        before = tuple(np.clip(d, -clip, clip) for d in before)
        for total, part in zip(dw, dw_t, strict=True):
            total += part
        cut = sweep.restart[t]
        for d, b, dr in zip(dstate, before, drestart_state, strict=True):
            d[on] = b
            dr[cut] += d[cut]  # here the step's state came from the restart state,
            d[cut] = 0  # and nothing goes back across the border
    return dx, dstate, drestart_state, dw, norms


# The stack of layers and directions


@dataclass
class Tape:
    """What forward leaves for backward. It shares no memory with the caller's arrays."""

    cell: Cell
    layout: "Layout"
    directions: int
    names: list[list[str]]  # of the parameters, for each sweep
    real: Array  # (T, B)
    sweeps: list[Sweep]
    dropout: float
    masks: list[Array]  # (T, B, D*H), for each layer but the last; empty without dropout
    all_layers: bool
    restart_shared: list[bool] | None = None  # for each state, as given; None if none was given
    restart_state_grad: Any = None  # set by backward; structure of the given restart_state
    state_grad_norms: Array | None = None  # set by backward: (states, L*D, T, B)


def forward(
    cell: Cell,
    x: npt.ArrayLike,
    params: Mapping[str, npt.ArrayLike],
    hx: Any,
    *,
    batch_first: bool = False,
    lengths: npt.ArrayLike | None = None,
    resets: npt.ArrayLike | None = None,
    restart_state: Any = None,
    dropout: float = 0.0,
    seed: int = 0,
    all_layers: bool = False,
) -> tuple[Array, Any, Tape]:
    """Run a stack of layers over a batch of sequences.

    x              (T, B, I), or (B, T, I) with batch_first, or one sequence (T, I)
    params         torch's names, weight_ih_l0 and so on; they say how many layers and directions
                   there are and whether there are biases
    hx             initial states (L*D, B, H), for one sequence (L*D, H); a tuple of two for an
                   LSTM; None for zeros
    lengths        real steps of each row (B,), 0 to T; for one sequence an integer
    resets         bool, (T, B) or as x: a border between steps t-1 and t of row b. The forward
                   direction restarts before step t, the reverse direction before step t-1
    restart_state  what a restart loads, for each row as hx, or (L*D, H) for all; None for zeros
    dropout, seed  probability and key of the masks on the outputs of all layers but the last
    all_layers     return the outputs of all layers (before dropout), with one more axis in front

    Returns the outputs y of the last layer, (T, B, D*H) or as x; the final states, as hx; and a
    tape. Outputs behind a row's length are zero, and its final state is the one after its last
    step: of the forward direction its last in time, of the reverse direction step 0.
    """
    x = np.asarray(x)
    dtype = np.dtype(x.dtype.type)  # in the machine's byte order
    if dtype not in (np.float32, np.float64):
        raise TypeError(f"x: expected float32 or float64, got {x.dtype}")
    names, weights, D = read_params(params, dtype, cell.blocks)
    H = weights[0].hh.shape[1]
    layout = Layout.of(x, batch_first)
    x = layout.read("x", x, dtype, weights[0].ih.shape[1])
    T, B, _ = x.shape

    real = np.arange(T)[:, None] < layout.read_lengths(lengths)
    if resets is None:
        reset = np.zeros((T, B), bool)
    else:
        reset = layout.read("resets", resets, np.dtype(bool))
    state = layout.read_states("hx", hx, dtype, cell.states, (len(weights), B, H))
    restart = layout.read_states(
        "restart_state", restart_state, dtype, cell.states, (len(weights), B, H), shared=True
    )
    tape = Tape(cell, layout, D, names, real, [], dropout, [], all_layers)
    if restart_state is not None:
        given = restart_state if cell.states > 1 else (restart_state,)
        tape.restart_shared = [np.ndim(s) == 2 for s in given]

    finals, of_layers = [], []
    for k in range(0, len(weights), D):
        outputs = []
        for d in range(D):
            y, final, sweep = sweep_forward(
                cell,
                weights[k + d],
                x,
                [s[k + d] for s in state],
                [r[k + d] for r in restart],
                real,
                reset,
                reverse=d == 1,
            )
            outputs.append(y)
            finals.append(final)
            tape.sweeps.append(sweep)
        x = np.concatenate(outputs, axis=2)
        of_layers.append(layout.give(x))
        if dropout and k + D < len(weights):
            tape.masks.append(dropout_.kept(dropout, seed, k // D, x.shape))
            x = np.where(tape.masks[-1], x * dropout_.scale(dropout, dtype), 0)
    return np.stack(of_layers) if all_layers else of_layers[-1], layout.give_states(finals), tape


def backward(
    tape: Tape, dy: npt.ArrayLike | None, dhx_n: Any, *, clip_state_grad: float = np.inf
) -> tuple[Array, Any, dict[str, Array]]:
    """From the gradients of y and the final states (None: zeros) to those of x, hx and params.

    What dy holds behind a length is ignored, and the gradient of x is zero there. Every step cuts
    each element of the gradient that it hands on, of the state before it, to what clip_state_grad
    allows (Graves, "Generating sequences with recurrent neural networks", 2013).

    Sets tape.restart_state_grad, in the shape in which the restart state was given; and
    tape.state_grad_norms, of the gradients of the states after each step.
    """
    layout, D, sweeps = tape.layout, tape.directions, tape.sweeps
    w = sweeps[0].w
    H, dtype = w.hh.shape[1], w.hh.dtype
    layers = len(sweeps) // D
    dys: list[Array] = [np.zeros((layout.T, layout.B, D * H), dtype)] * layers
    if dy is not None:
        last = layers - 1
        for layer, given in enumerate(np.asarray(dy), 0) if tape.all_layers else [(last, dy)]:
            dys[layer] = layout.read("dy", given, dtype, D * H)
    dstate = layout.read_states("dhx_n", dhx_n, dtype, tape.cell.states, (len(sweeps), layout.B, H))

    dhx: list[Any] = [None] * len(sweeps)
    drestart: list[Any] = [None] * len(sweeps)
    grads: dict[str, Array] = {name: np.empty(0) for names in tape.names for name in names}
    norms: list[Any] = [None] * len(sweeps)
    from_above = np.zeros((layout.T, layout.B, D * H), dtype)
    for k in reversed(range(0, len(sweeps), D)):
        if k // D < len(tape.masks):
            scale = dropout_.scale(tape.dropout, dtype)
            from_above = np.where(tape.masks[k // D], from_above * scale, 0)
        dy_k = dys[k // D] + from_above
        dx = []
        for d in range(D):
            dx_d, dhx[k + d], drestart[k + d], dw, norms[k + d] = sweep_backward(
                tape.cell,
                sweeps[k + d],
                tape.real,
                dy_k[:, :, d * H : (d + 1) * H],
                [s[k + d] for s in dstate],
                clip_state_grad,
            )
            dx.append(dx_d)
            grads.update(zip(tape.names[k + d], dw, strict=False))  # without biases, two names
        from_above = sum(dx[1:], start=dx[0])
    tape.state_grad_norms = np.stack(norms, axis=1)

    if tape.restart_shared is not None:
        by_row = stack_states(drestart)
        tape.restart_state_grad = bare(
            [
                g.sum(axis=1) if shared else g
                for g, shared in zip(by_row, tape.restart_shared, strict=True)
            ]
        )
    return layout.give(from_above), layout.give_states(dhx), grads


# Reading and giving arrays


def checked(name: str, value: Any, dtype: np.dtype[Any], *shapes: tuple[int, ...]) -> Array:
    """A copy of value, which must have this dtype and one of these shapes."""
    array = np.asarray(value)
    if array.shape not in shapes:
        raise ValueError(
            f"{name}: expected shape {' or '.join(map(str, shapes))}, got {array.shape}"
        )
    if array.dtype.newbyteorder("=") != dtype and array.size:
        raise TypeError(f"{name}: expected {dtype}, got {array.dtype}")
    return array.astype(dtype)


def read_params(
    params: Mapping[str, npt.ArrayLike], dtype: np.dtype[Any], blocks: int
) -> tuple[list[list[str]], list[Weights], int]:
    """The names and the values of each sweep's parameters, and the number of directions."""
    if not {"weight_ih_l0", "weight_hh_l0"} <= set(params):
        raise ValueError(f"params: expected weight_ih_l0 and weight_hh_l0, got {sorted(params)}")
    layers = sum(name.startswith("weight_ih") and name[-1].isdigit() for name in params)
    suffixes = ["", "_reverse"] if "weight_ih_l0_reverse" in params else [""]
    kinds = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
    if "bias_ih_l0" not in params:
        kinds = kinds[:2]
    names = [
        [f"{kind}_l{layer}{suffix}" for kind in kinds]
        for layer in range(layers)
        for suffix in suffixes
    ]
    wrong = set(params) ^ {name for sweep in names for name in sweep}
    if wrong:
        raise ValueError(f"params: missing or unexpected {sorted(wrong)}")

    D, H = len(suffixes), np.shape(params["weight_hh_l0"])[-1]
    G = blocks * H
    weights = []
    for k, sweep in enumerate(names):
        inputs = np.shape(params["weight_ih_l0"])[-1] if k < D else D * H
        shapes = [(G, inputs), (G, H), (G,), (G,)]
        values = [
            checked(name, params[name], dtype, shape)
            for name, shape in zip(sweep, shapes, strict=False)
        ]
        weights.append(Weights(*values, *(np.zeros(s, dtype) for s in shapes[len(values) :])))
    return names, weights, D


@dataclass(frozen=True)
class Layout:
    """How the caller's axes lie."""

    T: int
    B: int
    batched: bool
    batch_first: bool

    @classmethod
    def of(cls, x: Array, batch_first: bool) -> "Layout":
        if x.ndim == 2:
            return cls(T=x.shape[0], B=1, batched=False, batch_first=False)
        if x.ndim != 3:
            raise ValueError(f"x: expected 2 or 3 axes, got shape {x.shape}")
        B, T = x.shape[:2] if batch_first else x.shape[1::-1]
        return cls(T, B, True, batch_first)

    def read(self, name: str, value: Any, dtype: np.dtype[Any], *features: int) -> Array:
        """A sequence, as (T, B, *features)."""
        if not self.batched:
            return checked(name, value, dtype, (self.T, *features))[:, None]
        if self.batch_first:
            return checked(name, value, dtype, (self.B, self.T, *features)).swapaxes(0, 1)
        return checked(name, value, dtype, (self.T, self.B, *features))

    def give(self, sequence: Array) -> Array:
        if not self.batched:
            return sequence[:, 0]
        return sequence.swapaxes(0, 1) if self.batch_first else sequence

    def read_lengths(self, lengths: npt.ArrayLike | None) -> Array:
        if lengths is None:
            return np.full(self.B, self.T)
        array = np.asarray(lengths)
        if array.size and array.dtype.kind not in "iu":
            raise TypeError(f"lengths: expected integers, got {array.dtype}")
        array = checked("lengths", array, array.dtype, (self.B,) if self.batched else ())
        if np.any((array < 0) | (array > self.T)):
            raise ValueError(f"lengths: expected 0 to {self.T}, got {array}")
        return array

    def read_states(
        self,
        name: str,
        value: Any,
        dtype: np.dtype[Any],
        count: int,
        shape: tuple[int, int, int],
        shared: bool = False,
    ) -> list[Array]:
        """A state for each sweep, as `count` arrays (L*D, B, H), or (L*D, 1, H) if shared."""
        LD, _, H = shape
        if value is None:
            return [np.zeros(shape, dtype)] * count
        values = (value,) if count == 1 else tuple(value)
        if len(values) != count:
            raise ValueError(f"{name}: expected {count} arrays, got {len(values)}")
        shapes = [shape if self.batched else (LD, H)]
        if shared and self.batched:
            shapes.append((LD, H))
        arrays = [checked(name, v, dtype, *shapes) for v in values]
        return [a if a.ndim == 3 else a[:, None] for a in arrays]

    def give_states(self, sweeps: list[Sequence[Array]]) -> Any:
        stacked = stack_states(sweeps)
        return bare(stacked if self.batched else [s[:, 0] for s in stacked])


def stack_states(sweeps: list[Sequence[Array]]) -> list[Array]:
    """From the states of each sweep to arrays over all sweeps, (L*D, B, H)."""
    return [np.stack(s) for s in zip(*sweeps, strict=True)]


def bare(states: Sequence[Array]) -> Any:
    """As a caller sees a state: one array alone, more than one as a tuple."""
    return states[0] if len(states) == 1 else tuple(states)
