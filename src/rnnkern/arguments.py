"""What the arguments of a call mean: arrays as the kernels want them.

Parameters come as a mapping of torch's names; sequences, states, lengths and resets in the caller's
layout. The checks of single values are in `validation`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from . import _core, isa, threads
from .validation import (
    MAX_AXIS,
    Array,
    Shape,
    as_array,
    as_floats,
    as_integers,
    as_target,
    boolean,
    check_mapping,
    check_names,
    check_shape,
    described,
    one_of,
)

States = Array | tuple[Array, Array]
Checkpoint = Literal["gates", "auto"] | int | None

GATES = {"rnn_tanh": 1, "rnn_relu": 1, "lstm": 4, "gru": 3, "gru_before": 3}
_KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


# ---- parameters


def nonlinearity_of(name: str, value: Any) -> str:
    return one_of(name, value, ("tanh", "relu"))


def kernel_cell(cell: str, *, nonlinearity: str = "tanh", reset_after: bool = True) -> str:
    """The kernels' name of a cell, from that of the layer and its options."""
    one_of("cell", cell, ("rnn", "lstm", "gru"))
    nonlinearity_of("nonlinearity", nonlinearity)
    boolean("reset_after", reset_after)
    if cell == "rnn":
        return f"rnn_{nonlinearity}"
    return cell if cell == "lstm" or reset_after else "gru_before"


def parameter_count(
    gates: int, input_size: int, hidden_size: int, num_layers: int, num_directions: int, bias: bool
) -> tuple[int, int]:
    """How many arrays the parameters are, and how many numbers those have."""
    stack, kinds = num_layers * num_directions, 4 if bias else 2
    columns = input_size + (num_layers - 1) * num_directions * hidden_size  # of all weight_ih
    own = num_layers * (hidden_size + kinds - 2)  # of all weight_hh and biases
    return stack * kinds, num_directions * gates * hidden_size * (columns + own)


def parameter_names(num_layers: int, num_directions: int, bias: bool) -> list[str]:
    """torch's parameter names in torch's order."""
    return [
        f"{kind}_l{layer}{suffix}"
        for layer in range(num_layers)
        for suffix in ("", "_reverse")[:num_directions]
        for kind in _KINDS[: 4 if bias else 2]
    ]


def parameter_shapes(
    gates: int, input_size: int, hidden_size: int, num_layers: int, num_directions: int, bias: bool
) -> dict[str, Shape]:
    """torch's parameter names and their shapes, in torch's order."""

    def shape(name: str) -> Shape:
        if name.startswith("bias"):
            return (gates * hidden_size,)
        if name.startswith("weight_hh"):
            return (gates * hidden_size, hidden_size)
        first = name in ("weight_ih_l0", "weight_ih_l0_reverse")
        return (gates * hidden_size, input_size if first else num_directions * hidden_size)

    return {name: shape(name) for name in parameter_names(num_layers, num_directions, bias)}


def initial_shapes(
    cell: str, hidden_size: int, num_layers: int, num_directions: int
) -> dict[str, Shape]:
    """Names and shapes of learned initial states: initial_h_l0 (H,) ..., for the LSTM also c."""
    return {
        f"initial_{part}_l{layer}{suffix}": (hidden_size,)
        for part in state_names(cell)
        for layer in range(num_layers)
        for suffix in ("", "_reverse")[:num_directions]
    }


def state_names(cell: str) -> tuple[str, ...]:
    return ("h", "c") if cell == "lstm" else ("h",)


class Network(NamedTuple):
    """A stack as the kernels take it."""

    net: _core.Net
    weights: list[Array | None]  # four by four, None for missing biases
    initial: Array | None  # learned initial states (h or h and c, L*D, H)


def network(cell: str, params: Mapping[str, Array]) -> Network:
    """What a mapping of parameters describes."""
    check_mapping("params", params, "a mapping of names to arrays, or what pack returns")
    for name in ("weight_ih_l0", "weight_hh_l0"):
        if name not in params:
            has = ", ".join(map(str, params)) or "nothing"
            raise ValueError(f"params: expected {name!r} among its names, got {has}")
    arrays = {name: as_array(name, a) for name, a in params.items()}
    dtype = arrays["weight_ih_l0"].dtype.newbyteorder("=")
    if dtype not in _core.DTYPES:
        raise TypeError(f"weight_ih_l0: expected float32 or float64, got {dtype}")
    directions = 2 if "weight_ih_l0_reverse" in arrays else 1
    layers = 1
    while f"weight_ih_l{layers}" in arrays:
        layers += 1
    bias = "bias_ih_l0" in arrays
    for name in ("weight_ih_l0", "weight_hh_l0"):
        if arrays[name].ndim != 2 or 0 in arrays[name].shape:
            raise ValueError(f"{name}: expected a non-empty matrix, got shape {arrays[name].shape}")
    sizes = (arrays["weight_ih_l0"].shape[1], arrays["weight_hh_l0"].shape[1])
    shapes = parameter_shapes(GATES[cell], *sizes, layers, directions, bias)
    learned = initial_shapes(cell, sizes[1], layers, directions) if "initial_h_l0" in arrays else {}
    weights = list(shapes)
    shapes |= learned
    check_names(f"params of {layers} layer(s) and {directions} direction(s)", arrays, shapes)
    for name, expected in shapes.items():
        check_shape(name, arrays[name], expected)
        if (found := arrays[name].dtype.newbyteorder("=")) != dtype:
            raise TypeError(f"{name}: expected {dtype} as weight_ih_l0 is, got {found}")
    net = _core.Net(cell, dtype, isa.level(), bias, *sizes, layers, directions)
    dense = {name: _dense(arrays[name], dtype) for name in shapes}
    initial = stacked_initial(cell, [dense[name] for name in learned])
    return Network(net, by_kind([dense[name] for name in weights], bias), initial)


def stacked_initial(cell: str, arrays: Sequence[Array]) -> Array | None:
    """Learned initial states in the order of initial_shapes as (h or h and c, L*D, H), a copy."""
    return np.array(arrays).reshape(len(state_names(cell)), -1, arrays[0].size) if arrays else None


def by_kind(arrays: Sequence[Array], bias: bool) -> list[Array | None]:
    """Arrays in the order of parameter_names as the kernels take them: None for missing biases."""
    if bias:
        return list(arrays)
    return [a for i in range(0, len(arrays), 2) for a in (arrays[i], arrays[i + 1], None, None)]


def _dense(a: Array, dtype: np.dtype[Any]) -> Array:
    """A C-contiguous, aligned, native array; ``a`` itself where it is one."""
    return np.require(a, dtype, ["C", "A"])


def new_block(size: int) -> Array:
    """Aligned memory for the kernels, at least one byte; not initialised."""
    size = max(size, 1)  # NumPy would not keep the alignment of an empty slice
    memory = np.empty(size + _core.ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _core.ALIGNMENT
    return memory[start : start + size]


# ---- sequences and states


def strided_rows(a: Array) -> Array:
    """A view that the kernels can stride over (dense last axis, whole elements), or a copy."""
    item = a.itemsize
    dense = a.shape[-1] <= 1 or a.strides[-1] == item
    whole = a.strides[0] % item == 0 and a.strides[1] % item == 0 and a.strides[-2] % item == 0
    if dense and whole and a.flags.aligned:
        return a
    return np.array(a, order="C")  # np.ascontiguousarray would return some arrays as they are


class Layout:
    """How the caller's arrays map to (T, B, F) and (L*D, B, H)."""

    def __init__(self, net: _core.Net, shape: Shape, batch_first: bool) -> None:
        """``shape`` is that of x."""
        if len(shape) not in (2, 3):
            raise ValueError(f"x: expected 2 (unbatched) or 3 dimensions, got shape {shape}")
        if shape[-1] != net.input_size:
            raise ValueError(
                f"x: expected input_size = {net.input_size} on the last axis, got shape {shape}"
            )
        self.net, self.batched = net, len(shape) == 3
        self.batch_first = boolean("batch_first", batch_first)
        self.steps, self.rows = shape[0], shape[1] if self.batched else 1
        if self.batched and self.batch_first:
            self.steps, self.rows = self.rows, self.steps
        if self.steps > MAX_AXIS or self.rows > MAX_AXIS:
            raise ValueError(f"x: expected at most 2**31-1 steps and rows, got shape {shape}")

    def time_major(self, a: Array, stacked: bool = False) -> Array:
        """(T, B, ...) view of an array laid out as the caller's x, or (n, T, B, ...) of a stack."""
        if not self.batched:
            return a[:, :, None] if stacked else a[:, None]
        return a.swapaxes(stacked, stacked + 1) if self.batch_first else a

    def empty(self, *shape: int) -> tuple[Array, Array]:
        """A new sequence (or stack) as the caller sees it, and its view as time_major gives it.

        shape: features, or (n, features).
        """
        full = np.empty(self.shape(*shape), self.net.dtype)
        return full, self.time_major(full, len(shape) > 1)

    def sequence(self, name: str, a: ArrayLike, *shape: int) -> Array:
        """The view as time_major gives it of a sequence argument."""
        array = as_floats(name, a, self.net.dtype)
        check_shape(name, array, self.shape(*shape))
        return strided_rows(self.time_major(array, len(shape) > 1))

    def shape(self, *shape: int) -> Shape:
        """That of a sequence with so many features, or of a stack (n, ...) of sequences."""
        *stack, features = shape
        if not self.batched:
            return (*stack, self.steps, features)
        steps = (self.rows, self.steps) if self.batch_first else (self.steps, self.rows)
        return (*stack, *steps, features)

    def as_caller(self, stack: Array) -> Array:
        """A stack (n, T, B, ...) laid out as the caller's x."""
        if not self.batched:
            return stack[:, :, 0]
        return stack.swapaxes(1, 2) if self.batch_first else stack

    @property
    def state_shape(self) -> Shape:
        n = self.net.num_layers * self.net.num_directions
        return (n, self.rows, self.net.hidden_size) if self.batched else (n, self.net.hidden_size)

    @property
    def state_names(self) -> tuple[str, ...]:
        return state_names(self.net.cell)

    def states(self, name: str, s: Any, *shapes: Shape) -> tuple[Array, ...] | None:
        """States as a tuple of dense arrays, all of one of the shapes (default: state_shape)."""
        if s is None:
            return None
        if self.net.cell == "lstm":
            if not isinstance(s, tuple | list) or len(s) != 2:
                raise TypeError(f"{name}: expected a tuple (h, c), got {described(s)}")
            parts = {f"h of {name}": s[0], f"c of {name}": s[1]}
        elif isinstance(s, tuple | list):
            raise TypeError(f"{name}: expected one array, got {described(s)}")
        else:
            parts = {name: s}
        dtype = self.net.dtype
        dense = tuple(_dense(as_floats(part, a, dtype), dtype) for part, a in parts.items())
        for part, a in zip(parts, dense, strict=True):
            check_shape(part, a, *shapes or (self.state_shape,))
        if dense[0].shape != dense[-1].shape:
            got = f"{dense[0].shape} and {dense[-1].shape}"
            raise ValueError(f"{name}: expected h and c of the same shape, got {got}")
        return dense

    def learned(
        self, initial: Array, hx: tuple[Array, ...] | None, restart: tuple[Array, ...] | None
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """hx and restart_state, where None stands for the learned states."""
        if hx is None:
            start = initial[:, :, None] if self.batched else initial
            shape = (len(initial), *self.state_shape)
            hx = tuple(np.array(np.broadcast_to(start, shape), order="C"))
        return hx, tuple(initial) if restart is None else restart

    def new_states(self) -> tuple[Array, ...]:
        return tuple(np.empty(self.state_shape, self.net.dtype) for _ in self.state_names)


def as_states(parts: tuple[Array, ...]) -> States:
    """One array, or for the LSTM the tuple of two."""
    return parts[0] if len(parts) == 1 else (parts[0], parts[1])


def as_lengths(lengths: ArrayLike | None, layout: Layout) -> Array | None:
    """int64 (B,), a copy."""
    if lengths is None:
        return None
    array = as_integers("lengths", lengths, 0, layout.steps)
    if layout.batched:
        check_shape("lengths", array, (layout.rows,))
    elif array.shape not in ((), (1,)):
        got = f"shape {array.shape}"
        raise ValueError(f"lengths: expected one integer for an unbatched x, got {got}")
    return array.reshape(-1)


def as_resets(resets: ArrayLike | None, layout: Layout) -> Array | None:
    """uint8 (T, B), a copy."""
    if resets is None:
        return None
    array = as_array("resets", resets, "booleans or integers")
    if array.dtype.kind not in "biu" and array.size:
        raise TypeError(f"resets: expected booleans or integers, got dtype {array.dtype}")
    check_shape("resets", array, layout.shape(1)[:-1])
    return np.array(layout.time_major(array) != 0, np.uint8, order="C")


def as_output(out: Array | None, layout: Layout, *shape: int) -> tuple[Array, Array]:
    """Where the outputs go: as the caller sees it, and its view as layout.time_major gives it."""
    if out is None:
        return layout.empty(*shape)
    as_target("out", out, layout.shape(*shape), layout.net.dtype)
    if out.size == 0:
        return out, layout.empty(*shape)[1]  # its own strides may be anything
    view = layout.time_major(out, len(shape) > 1)
    if strided_rows(view) is not view or _overlaps_itself(view):
        raise ValueError(
            "out: expected an aligned array with a dense last axis and no overlapping elements, "
            f"got strides {out.strides}"
        )
    return out, view


def _overlaps_itself(a: Array) -> bool:
    """Whether elements may share memory: by stride, each axis must step over those before it."""
    extent = a.itemsize
    for stride, n in sorted((abs(s), n) for s, n in zip(a.strides, a.shape, strict=True) if n > 1):
        if stride < extent:
            return True
        extent = stride * n
    return False


# ---- options


def new_call(
    steps: int,
    rows: int,
    lengths: Array | None = None,
    resets: Array | None = None,
    restart_kind: int = _core.RESTART_ZERO,
    checkpoint: Checkpoint = None,
    record: bool = False,
    dropout: float = 0.0,
    seed: int = 0,
    num_threads: int | None = None,
) -> _core.Call:
    keep, segment = _core.KEEP_NONE, 1
    if record:
        longest = steps if lengths is None else int(lengths.max(initial=0))
        keep, segment = _checkpoint(checkpoint, longest)
    n = threads.chosen(num_threads)
    return _core.Call(steps, rows, lengths, resets, restart_kind, keep, segment, dropout, seed, n)


def _checkpoint(checkpoint: Checkpoint, steps: int) -> tuple[int, int]:
    """What to keep, and the steps of a segment."""
    if checkpoint is None:
        return _core.KEEP_GATES, 1
    if isinstance(checkpoint, str):
        if checkpoint == "gates":
            return _core.KEEP_STATES, 1
        if checkpoint == "auto":
            return _core.KEEP_SEGMENTS, max(1, math.isqrt(steps))
    elif (
        isinstance(checkpoint, int | np.integer)
        and not isinstance(checkpoint, bool)
        and checkpoint > 0
    ):
        return _core.KEEP_SEGMENTS, int(min(checkpoint, max(1, steps)))
    raise ValueError(
        f"checkpoint: expected None, 'gates', 'auto' or a positive integer, got {checkpoint!r}"
    )
