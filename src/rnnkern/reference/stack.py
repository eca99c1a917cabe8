"""The one loop: any cell over time, layers, directions, lengths and resets, and back again.

Sizes: T steps, B rows (batch), I inputs, H hidden units, P outputs of a direction (H unless a
cell projects), L layers, D directions. Inside, arrays of a sequence are time first, (T, B, ...),
and the state of a cell is a dictionary of matrices: h (B, P), which is also the output, and c
(B, H). Direction d of layer l is sweep number l * D + d, which is also the order of the initial
states (L*D, B, ...) and of torch's parameter names.

Lengths and resets are marks on the grid of steps and rows. `real[t, b]` says that step t is
within the length of row b; the cell only ever sees real steps, so that nothing behind a length,
NaN included, can reach a result. `restart[t, b]` says that a sweep forgets its state before it
takes step t, and continues from the restart state.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt

from .dropout import Mask, Plan, StepMasks, SweepMasks

Array = npt.NDArray[Any]
States = dict[str, Array]  # by name, h or c
Weights = dict[str, Array]  # the parameters of one sweep by kind, or their gradients

BIASES = ("bias_ih", "bias_hh")


class Sizes(NamedTuple):
    """What the shapes of the parameters of one sweep follow from."""

    inputs: int  # I in the first layer, D*P in the others
    H: int
    P: int
    G: int  # rows of weight_ih, the cell's blocks of H rows each


class Cell(ABC):
    """One step of some rows. All that this module knows about gates is their number."""

    name: str
    blocks: int  # of H rows each, in weight_ih
    states: tuple[str, ...]  # what it carries from step to step: h, or h and c, or c
    optional: tuple[tuple[str, ...], ...]  # kinds of parameters that come together or not at all
    masks: tuple[str, ...]  # the regularisation that it has, beside that between layers

    @abstractmethod
    def shapes(self, s: Sizes) -> dict[str, tuple[int, ...]]:
        """Of all kinds of parameters, in their order."""

    @abstractmethod
    def forward(self, w: Weights, x: Array, state: States, m: Array) -> tuple[States, Any]:
        """From x (rows, I) and the state to the next h, and c if it has one; and a cache.

        The state holds beside h also "hd", the h that goes into the recurrent product: behind
        hidden dropout. m are the factors of the candidate. A missing bias is zeros in w, other
        parameters that were not given are missing.
        """

    @abstractmethod
    def backward(self, w: Weights, cache: Any, dafter: States) -> tuple[Array, States, Weights]:
        """From the gradient of what forward returned to those of x, the state and the weights."""


class ForwardOptions(TypedDict, total=False):
    """Keyword arguments of `forward`, which says what they mean."""

    batch_first: bool
    lengths: npt.ArrayLike | None
    resets: npt.ArrayLike | None
    restart_state: Any
    dropout: float
    regularization: Any
    seed: int
    first_step: int
    record: bool
    all_layers: bool


# One step: the cell between its masks


def step_forward(
    cell: Cell, w: Weights, masks: StepMasks, x: Array, before: States
) -> tuple[States, Any]:
    state = {**before, "hd": masks.hidden * before["h"]} if "h" in before else before
    after, cache = cell.forward(w, x, state, masks.candidate)
    for name, z in masks.zoneout.items():
        after[name] = z * before[name] + (1 - z) * after[name]
    return after, cache


def step_backward(
    cell: Cell, w: Weights, masks: StepMasks, cache: Any, dafter: States
) -> tuple[Array, States, Weights]:
    held = {name: z * dafter[name] for name, z in masks.zoneout.items()}
    through = {name: (1 - z) * dafter[name] for name, z in masks.zoneout.items()}
    dx, dbefore, dw = cell.backward(w, cache, {**dafter, **through})
    if "hd" in dbefore:
        dbefore["h"] = dbefore.get("h", 0) + masks.hidden * dbefore.pop("hd")
    for name, d in held.items():
        dbefore[name] = dbefore[name] + d
    return dx, dbefore, dw


# One direction of one layer


@dataclass
class Sweep:
    """What a sweep must remember for the way back."""

    w: Weights  # behind weight dropout
    masks: SweepMasks
    order: Sequence[int]  # of the steps
    restart: Array  # (T, B)
    caches: dict[int, Any]  # by step


def sweep_forward(
    cell: Cell,
    w: Weights,
    masks: SweepMasks,
    x: Array,
    state: States,
    restart_state: States,
    real: Array,
    resets: Array,
    reverse: bool,
) -> tuple[Array, States, Sweep]:
    """Returns the outputs, the final state and what backward needs."""
    T, B = real.shape
    order = range(T)[::-1] if reverse else range(T)
    restart = resets & real  # marks at or behind a length mean nothing
    if reverse:  # a border lies between t-1 and t: coming from above, it is met before t-1
        restart = np.concatenate([restart[1:], np.zeros_like(restart[:1])])
    if masks.weight is not None:
        w = {**w, "weight_hh": w["weight_hh"] * masks.weight}

    y = np.zeros((T, B, cell_sizes(cell, w).P), x.dtype)
    caches = {}
    for t in order:
        on = real[t]
        state = {
            name: np.where(restart[t, :, None], restart_state[name], s) for name, s in state.items()
        }
        before = {name: s[on] for name, s in state.items()}
        after, caches[t] = step_forward(cell, w, masks.at(t, on), x[t, on], before)
        for name, s in state.items():
            s[on] = after[name]
        y[t, on] = after["h"]
    return y, state, Sweep(w, masks, order, restart, caches)


def sweep_backward(
    cell: Cell, sweep: Sweep, real: Array, dy: Array, dstate: States, clip: float
) -> tuple[Array, States, States, Weights, Array]:
    """Returns the gradients of x, the initial state, the restart state (per row), the weights.

    And the norms of those of the states, (states, T, B).
    """
    dx = np.zeros((*real.shape, cell_sizes(cell, sweep.w).inputs), dy.dtype)
    dw = {kind: np.zeros_like(p) for kind, p in sweep.w.items()}
    dstate = {name: d.copy() for name, d in dstate.items()}
    drestart_state = {name: np.zeros_like(d) for name, d in dstate.items()}
    norms = np.zeros((len(dstate), *real.shape), dy.dtype)
    for t in reversed(sweep.order):
        on = real[t]
        dafter = {name: d[on] for name, d in dstate.items()}
        dafter["h"] = dafter.get("h", 0) + dy[t, on]
        norms[:, t, on] = [np.sqrt(np.sum(dafter[name] ** 2, axis=1)) for name in dstate]
        dx[t, on], dbefore, dw_t = step_backward(
            cell, sweep.w, sweep.masks.at(t, on), sweep.caches[t], dafter
        )
        for kind, part in dw_t.items():
            dw[kind] += part
        cut = sweep.restart[t]
        for name, d in dstate.items():
            d[on] = np.clip(dbefore[name], -clip, clip)
            drestart_state[name][cut] += d[cut]  # here the state came from the restart state,
            d[cut] = 0  # and nothing goes back across the border
    if sweep.masks.weight is not None:
        dw["weight_hh"] *= sweep.masks.weight
    return dx, dstate, drestart_state, dw, norms


# The stack of layers and directions


@dataclass
class Tape:
    """What forward leaves for backward. It shares no memory with the caller's arrays."""

    cell: Cell
    layout: "Layout"
    directions: int
    names: list[dict[str, str]]  # of the parameters by kind, for each sweep
    real: Array  # (T, B)
    sweeps: list[Sweep]
    masks: list[Mask]  # L + 1: before each layer, and behind the last
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
    regularization: Any = None,
    seed: int = 0,
    first_step: int = 0,
    record: bool = True,
    all_layers: bool = False,
) -> tuple[Array, Any, Tape]:
    """Run a stack of layers over a batch of sequences.

    x              (T, B, I), or (B, T, I) with batch_first, or one sequence (T, I)
    params         torch's names, weight_ih_l0 and so on; they say how many layers and directions
                   there are, and whether there are biases, projections, peepholes, normalisation
    hx             initial states h (L*D, B, P), for one sequence (L*D, P); for an LSTM a tuple of
                   h and c, of H elements; for an SRU c alone; None for zeros
    lengths        real steps of each row (B,), 0 to T; for one sequence an integer
    resets         bool, (T, B) or as x: a border between steps t-1 and t of row b. The forward
                   direction restarts before step t, the reverse direction before step t-1
    restart_state  what a restart loads, for each row as hx, or (L*D, P) for all; None for zeros
    dropout        probability of dropping an output of any layer but the last
    regularization None, or an object with the attributes of `rnnkern.Regularization`; see `dropout`
    seed           key of all masks
    first_step     number of the first step in the masks: where a chunk of a sequence starts
    record         False: as for inference, without dropout and with the expectation of zoneout
    all_layers     return the outputs of all layers (before dropout), with one more axis in front

    Returns the outputs y of the last layer, (T, B, D*P) or as x; the final states, as hx; and a
    tape. Outputs behind a row's length are zero, and its final state is the one after its last
    step: of the forward direction its last in time, of the reverse direction step 0.
    """
    x = np.asarray(x)
    dtype = np.dtype(x.dtype.type)  # in the machine's byte order
    if dtype not in (np.float32, np.float64):
        raise TypeError(f"x: expected float32 or float64, got {x.dtype}")
    names, weights, D = read_params(cell, params, dtype)
    sizes = cell_sizes(cell, weights[0])
    layout = Layout.of(x, batch_first)
    x = layout.read("x", x, dtype, sizes.inputs)
    T, B, _ = x.shape
    L, widths = len(weights) // D, state_widths(cell, sizes)
    plan = Plan.of(cell.name, cell.masks, dropout, regularization, seed, first_step, record, dtype)

    real = np.arange(T)[:, None] < layout.read_lengths(lengths)
    if resets is None:
        reset = np.zeros((T, B), bool)
    else:
        reset = layout.read("resets", resets, np.dtype(bool))
    state = layout.read_states("hx", hx, dtype, widths, L * D)
    restart = layout.read_states("restart_state", restart_state, dtype, widths, L * D, shared=True)
    masks = [plan.sequence("input_dropout", 0, T, B, sizes.inputs)]
    masks += [plan.sequence("dropout", layer, T, B, sizes.P, D) for layer in range(L - 1)]
    masks += [Mask() if all_layers else plan.sequence("output_dropout", L - 1, T, B, sizes.P, D)]
    tape = Tape(cell, layout, D, names, real, [], masks, all_layers)
    if restart_state is not None:
        given = restart_state if len(widths) > 1 else (restart_state,)
        tape.restart_shared = [np.ndim(s) == 2 for s in given]

    finals, of_layers = [], []
    x = masks[0](x)
    for layer in range(L):
        outputs = []
        for d in range(D):
            k = layer * D + d
            hh = weights[k].get("weight_hh")
            y, final, sweep = sweep_forward(
                cell,
                weights[k],
                plan.sweep(layer, d, T, B, sizes.H, widths, None if hh is None else hh.shape),
                x,
                {name: s[k] for name, s in state.items()},
                {name: r[k] for name, r in restart.items()},
                real,
                reset,
                reverse=d == 1,
            )
            outputs.append(y)
            finals.append(final)
            tape.sweeps.append(sweep)
        x = np.concatenate(outputs, axis=2)
        of_layers.append(layout.give(x))
        x = masks[layer + 1](x)
    y = np.stack(of_layers) if all_layers else layout.give(x)
    return y, layout.give_states(finals), tape


def backward(
    tape: Tape,
    dy: npt.ArrayLike | None = None,
    dhx_n: Any = None,
    *,
    clip_state_grad: float = np.inf,
) -> tuple[Array, Any, dict[str, Array]]:
    """From the gradients of y and the final states (None: zeros) to those of x, hx and params.

    The same for all cells, since the tape knows which it is of: `lstm_backward` and so on.

    What dy holds behind a length is ignored, and the gradient of x is zero there. Every step cuts
    each element of the gradient that it hands on, of the state before it, to what clip_state_grad
    allows (Graves, "Generating sequences with recurrent neural networks", 2013).

    Sets tape.restart_state_grad, in the shape in which the restart state was given; and
    tape.state_grad_norms, of the gradients of the states after each step.
    """
    cell, layout, D, sweeps = tape.cell, tape.layout, tape.directions, tape.sweeps
    sizes, dtype = cell_sizes(cell, sweeps[0].w), sweeps[0].w["weight_ih"].dtype
    P, L = sizes.P, len(sweeps) // D
    nothing = np.zeros((layout.T, layout.B, D * P), dtype)
    dys, from_above = [nothing] * L, nothing
    if dy is not None and tape.all_layers:
        dys = [layout.read("dy", of_layer, dtype, D * P) for of_layer in np.asarray(dy)]
    elif dy is not None:
        from_above = layout.read("dy", dy, dtype, D * P)
    dstate = layout.read_states("dhx_n", dhx_n, dtype, state_widths(cell, sizes), L * D)

    dhx: list[Any] = [None] * len(sweeps)
    drestart: list[Any] = [None] * len(sweeps)
    grads: dict[str, Array] = {name: np.empty(0) for names in tape.names for name in names.values()}
    norms: list[Any] = [None] * len(sweeps)
    for layer in reversed(range(L)):
        dy_of_layer = dys[layer] + tape.masks[layer + 1](from_above)
        dx = []
        for d in range(D):
            k = layer * D + d
            dx_d, dhx[k], drestart[k], dw, norms[k] = sweep_backward(
                cell,
                sweeps[k],
                tape.real,
                dy_of_layer[:, :, d * P : (d + 1) * P],
                {name: s[k] for name, s in dstate.items()},
                clip_state_grad,
            )
            dx.append(dx_d)
            grads.update({name: dw[kind] for kind, name in tape.names[k].items()})
        from_above = sum(dx[1:], start=dx[0])
    from_above = tape.masks[0](from_above)
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
    cell: Cell, params: Mapping[str, npt.ArrayLike], dtype: np.dtype[Any]
) -> tuple[list[dict[str, str]], list[Weights], int]:
    """The names and the values of each sweep's parameters by kind, and the number of directions."""
    layers = sum(name.startswith("weight_ih") and name[-1].isdigit() for name in params)
    suffixes = ["", "_reverse"] if "weight_ih_l0_reverse" in params else [""]
    left_out = {kind for group in cell.optional for kind in group if f"{group[0]}_l0" not in params}
    all_kinds = cell.shapes(Sizes(0, 0, 0, 0))
    names = [
        {kind: f"{kind}_l{layer}{suffix}" for kind in all_kinds if kind not in left_out}
        for layer in range(max(layers, 1))
        for suffix in suffixes
    ]
    want = {name for sweep in names for name in sweep.values()}
    if want != set(params):
        raise ValueError(
            f"params: expected names of {cell.name} layers, missing {sorted(want - set(params))},"
            f" unexpected {sorted(set(params) - want)}"
        )

    D = len(suffixes)
    for kind in ("weight_ih", "weight_hr"):
        if kind in names[0] and np.ndim(params[f"{kind}_l0"]) != 2:
            shape = np.shape(params[f"{kind}_l0"])
            raise ValueError(f"{kind}_l0: expected 2 axes, got shape {shape}")
    first = cell_sizes(cell, {kind: np.asarray(params[name]) for kind, name in names[0].items()})
    weights = []
    for k, sweep in enumerate(names):
        shapes = cell.shapes(first if k < D else first._replace(inputs=D * first.P))
        w = {kind: checked(name, params[name], dtype, shapes[kind]) for kind, name in sweep.items()}
        missing = [kind for kind in BIASES if kind in shapes and kind not in sweep]
        weights.append(w | {kind: np.zeros(shapes[kind], dtype) for kind in missing})
    return names, weights, D


def cell_sizes(cell: Cell, w: Weights) -> Sizes:
    """As weight_ih and, if the cell projects, weight_hr tell."""
    rows, inputs = w["weight_ih"].shape
    H = rows // cell.blocks
    P = w["weight_hr"].shape[0] if "weight_hr" in w else H
    return Sizes(inputs, H, P, cell.blocks * H)


def state_widths(cell: Cell, sizes: Sizes) -> dict[str, int]:
    return {name: sizes.P if name == "h" else sizes.H for name in cell.states}


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
        widths: dict[str, int],
        sweeps: int,
        shared: bool = False,
    ) -> States:
        """The states of all sweeps, each (L*D, B, width), or (L*D, 1, width) if shared."""
        if value is None:
            return {state: np.zeros((sweeps, self.B, n), dtype) for state, n in widths.items()}
        values = (value,) if len(widths) == 1 else tuple(value)
        if len(values) != len(widths):
            raise ValueError(f"{name}: expected {len(widths)} arrays, got {len(values)}")
        states = {}
        for (state, n), v in zip(widths.items(), values, strict=True):
            shapes = [(sweeps, self.B, n) if self.batched else (sweeps, n)]
            if shared and self.batched:
                shapes.append((sweeps, n))
            a = checked(name, v, dtype, *shapes)
            states[state] = a if a.ndim == 3 else a[:, None]
        return states

    def give_states(self, sweeps: list[States]) -> Any:
        stacked = stack_states(sweeps)
        return bare(stacked if self.batched else [s[:, 0] for s in stacked])


def stack_states(sweeps: list[States]) -> list[Array]:
    """From the states of each sweep to arrays over all sweeps, (L*D, B, ...)."""
    return [np.stack([of_sweep[name] for of_sweep in sweeps]) for name in sweeps[0]]


def bare(states: Sequence[Array]) -> Any:
    """As a caller sees a state: one array alone, more than one as a tuple."""
    return states[0] if len(states) == 1 else tuple(states)
