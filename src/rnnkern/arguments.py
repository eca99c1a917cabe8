"""What the arguments of a call mean: checks with errors that name the argument, and arrays as the
kernels want them. Parameters come as a mapping of torch's names; sequences, states, lengths and
resets in the caller's layout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _core, isa, threads

Array = NDArray[Any]
States = Array | tuple[Array, Array]
Checkpoint = Literal["gates", "auto"] | int | None

GATES = {"rnn_tanh": 1, "rnn_relu": 1, "lstm": 4, "gru": 3, "gru_before": 3}
_KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


# ---- parameters


def kernel_cell(cell: str, *, nonlinearity: str = "tanh", reset_after: bool = True) -> str:
    """The kernels' name of a cell, from that of the layer and its options."""
    if nonlinearity not in ("tanh", "relu"):
        raise ValueError(f"nonlinearity must be 'tanh' or 'relu', got {nonlinearity!r}")
    names = {
        "rnn": f"rnn_{nonlinearity}",
        "lstm": "lstm",
        "gru": "gru" if reset_after else "gru_before",
    }
    if cell not in names:
        raise ValueError(f"cell must be 'rnn', 'lstm' or 'gru', got {cell!r}")
    return names[cell]


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
) -> dict[str, tuple[int, ...]]:
    """torch's parameter names and their shapes, in torch's order."""

    def shape(name: str) -> tuple[int, ...]:
        if name.startswith("bias"):
            return (gates * hidden_size,)
        if name.startswith("weight_hh"):
            return (gates * hidden_size, hidden_size)
        first = name in ("weight_ih_l0", "weight_ih_l0_reverse")
        return (gates * hidden_size, input_size if first else num_directions * hidden_size)

    return {name: shape(name) for name in parameter_names(num_layers, num_directions, bias)}


def check_names(what: str, expected: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Raises one ValueError that lists the names that are missing and those that are unexpected."""
    missing, unexpected = expected.keys() - given.keys(), given.keys() - expected.keys()
    if missing or unexpected:
        raise ValueError(
            f"{what}: missing {sorted(missing) or 'nothing'}, "
            f"unexpected {sorted(unexpected) or 'nothing'}"
        )


def network(cell: str, params: Mapping[str, Array]) -> tuple[_core.Net, list[Array | None]]:
    """The description of the stack, and its weights four by four with None for missing biases."""
    if not isinstance(params, Mapping):
        raise TypeError(
            f"params must be a mapping of names to arrays or a Packed, got {type(params).__name__}"
        )
    for name in ("weight_ih_l0", "weight_hh_l0"):
        if name not in params:
            raise ValueError(
                f"params lacks {name!r}; it has {', '.join(map(str, params)) or 'nothing'}"
            )
    arrays = {name: np.asarray(a) for name, a in params.items()}
    dtype = arrays["weight_ih_l0"].dtype.newbyteorder("=")
    if dtype not in _core.DTYPES:
        raise TypeError(f"params must be float32 or float64, got {dtype} for 'weight_ih_l0'")
    directions = 2 if "weight_ih_l0_reverse" in arrays else 1
    layers = 1
    while f"weight_ih_l{layers}" in arrays:
        layers += 1
    bias = "bias_ih_l0" in arrays
    for name in ("weight_ih_l0", "weight_hh_l0"):
        if arrays[name].ndim != 2 or 0 in arrays[name].shape:
            raise ValueError(f"{name!r} must be a non-empty matrix, got shape {arrays[name].shape}")
    sizes = (arrays["weight_ih_l0"].shape[1], arrays["weight_hh_l0"].shape[1])
    shapes = parameter_shapes(GATES[cell], *sizes, layers, directions, bias)
    check_names(f"params of {layers} layer(s) and {directions} direction(s)", shapes, arrays)
    for name, expected in shapes.items():
        if arrays[name].shape != expected:
            raise ValueError(f"{name!r} must have shape {expected}, got {arrays[name].shape}")
        if arrays[name].dtype.newbyteorder("=") != dtype:
            raise TypeError(
                f"{name!r} must be {dtype} as 'weight_ih_l0' is, got {arrays[name].dtype}"
            )
    net = _core.Net(cell, dtype, isa.level(), bias, *sizes, layers, directions)
    return net, by_kind([_dense(arrays[name], dtype) for name in shapes], bias)


def by_kind(arrays: Sequence[Array], bias: bool) -> list[Array | None]:
    """Arrays in the order of parameter_names as the kernels take them: None for missing biases."""
    if bias:
        return list(arrays)
    return [a for i in range(0, len(arrays), 2) for a in (arrays[i], arrays[i + 1], None, None)]


def _dense(a: ArrayLike, dtype: np.dtype[Any]) -> Array:
    """A C-contiguous, aligned, native array; ``a`` itself where it is one."""
    return np.require(a, dtype, ["C", "A"])


def new_block(size: int) -> Array:
    """Aligned memory for the kernels, at least one byte; not initialised."""
    size = max(size, 1)  # NumPy would not keep the alignment of an empty slice
    memory = np.empty(size + _core.ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _core.ALIGNMENT
    return memory[start : start + size]


# ---- sequences and states


def as_floats(a: ArrayLike, name: str, dtype: np.dtype[Any]) -> Array:
    """An array of exactly that dtype, in native byte order."""
    array = np.asarray(a)
    if array.dtype == dtype:
        return array
    if array.dtype.newbyteorder("=") == dtype:
        return array.astype(dtype)
    raise TypeError(
        f"{name} must be {dtype} as the parameters are, got {array.dtype}; "
        f"convert it: {name}.astype(np.{dtype}), or build the layer with that dtype"
    )


def strided_rows(a: Array) -> Array:
    """A view that the kernels can stride over (dense last axis, whole elements), or a copy."""
    item = a.itemsize
    dense = a.shape[-1] <= 1 or a.strides[-1] == item
    if dense and a.flags.aligned and a.strides[0] % item == 0 and a.strides[1] % item == 0:
        return a
    return np.array(a, order="C")  # np.ascontiguousarray would return some arrays as they are


class Layout:
    """How the caller's arrays map to (T, B, F) and (L*D, B, H)."""

    def __init__(self, net: _core.Net, x: Array, batch_first: bool) -> None:
        if x.ndim not in (2, 3):
            raise ValueError(f"x must have 2 (unbatched) or 3 dimensions, got shape {x.shape}")
        if x.shape[-1] != net.input_size:
            raise ValueError(
                f"the last axis of x must be input_size = {net.input_size}, got shape {x.shape}"
            )
        self.net, self.batched, self.batch_first = net, x.ndim == 3, bool(batch_first)
        self.steps, self.rows = self.time_major(x).shape[:2]

    def time_major(self, a: Array) -> Array:
        """(T, B, ...) view of an array that is laid out as the caller's x."""
        if not self.batched:
            return a[:, None]
        return a.swapaxes(0, 1) if self.batch_first else a

    def empty(self, features: int) -> tuple[Array, Array]:
        """A new sequence as the caller sees it, and its (T, B, F) view."""
        shape = (self.rows, self.steps) if self.batch_first else (self.steps, self.rows)
        full = np.empty(
            (*shape, features) if self.batched else (self.steps, features), self.net.dtype
        )
        return full, self.time_major(full)

    def sequence(self, a: ArrayLike, name: str, features: int) -> Array:
        """The (T, B, F) view of a sequence argument."""
        array = as_floats(a, name, self.net.dtype)
        expected = self.shape(features)
        if array.shape != expected:
            raise ValueError(f"{name} must have shape {expected}, got {array.shape}")
        return strided_rows(self.time_major(array))

    def shape(self, features: int) -> tuple[int, ...]:
        if not self.batched:
            return (self.steps, features)
        return (
            (self.rows, self.steps, features)
            if self.batch_first
            else (self.steps, self.rows, features)
        )

    @property
    def state_shape(self) -> tuple[int, ...]:
        n = self.net.num_layers * self.net.num_directions
        return (n, self.rows, self.net.hidden_size) if self.batched else (n, self.net.hidden_size)

    @property
    def state_names(self) -> tuple[str, ...]:
        return ("h", "c") if self.net.cell == "lstm" else ("h",)

    def states(self, s: Any, name: str, *shapes: tuple[int, ...]) -> tuple[Array, ...] | None:
        """States as a tuple of dense arrays, all of one of the shapes (default: state_shape)."""
        if s is None:
            return None
        if self.net.cell == "lstm":
            if not isinstance(s, tuple | list) or len(s) != 2:
                raise TypeError(f"{name} must be a tuple (h, c), got {_what(s)}")
        elif isinstance(s, tuple | list):
            raise TypeError(f"{name} must be one array, got {_what(s)}")
        shapes = shapes or (self.state_shape,)
        parts = list(s) if self.net.cell == "lstm" else [s]
        labels = [f"{part} of {name}" for part in self.state_names] if len(parts) > 1 else [name]
        dense = tuple(
            _dense(as_floats(a, label, self.net.dtype), self.net.dtype)
            for a, label in zip(parts, labels, strict=True)
        )
        for a, label in zip(dense, labels, strict=True):
            if a.shape not in shapes or a.shape != dense[0].shape:
                expected = " or ".join(map(str, shapes))
                raise ValueError(f"{label} must have shape {expected}, got {a.shape}")
        return dense

    def new_states(self) -> tuple[Array, ...]:
        return tuple(np.empty(self.state_shape, self.net.dtype) for _ in self.state_names)


def _what(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{type(value).__name__}"


def as_states(parts: tuple[Array, ...]) -> States:
    """One array, or for the LSTM the tuple of two."""
    return parts[0] if len(parts) == 1 else (parts[0], parts[1])


def as_lengths(lengths: ArrayLike | None, layout: Layout) -> Array | None:
    """int64 (B,), a copy."""
    if lengths is None:
        return None
    array = np.asarray(lengths)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"lengths must be integers, got {array.dtype}")
    expected = (layout.rows,) if layout.batched else ()
    if array.shape != expected and not (not layout.batched and array.shape == (1,)):
        kind = (
            f"shape {expected}, one for each row"
            if layout.batched
            else "one integer for an unbatched x"
        )
        raise ValueError(f"lengths must have {kind}, got shape {array.shape}")
    bad = (array < 0) | (array > layout.steps) if array.size else np.zeros(0, bool)
    if bad.any():
        value = array.ravel()[int(np.argmax(bad.ravel()))]
        raise ValueError(f"lengths must lie in 0..{layout.steps} (the steps of x), got {value}")
    return np.array(array.reshape(-1), np.int64)


def as_resets(resets: ArrayLike | None, layout: Layout) -> Array | None:
    """uint8 (T, B), a copy."""
    if resets is None:
        return None
    array = np.asarray(resets)
    if array.dtype.kind not in "biu" and array.size:
        raise TypeError(f"resets must be booleans or integers, got {array.dtype}")
    expected = layout.shape(1)[:-1]
    if array.shape != expected:
        raise ValueError(f"resets must have shape {expected}, got {array.shape}")
    return np.array(layout.time_major(array) != 0, np.uint8, order="C")


def as_output(out: Array | None, layout: Layout, features: int) -> tuple[Array, Array]:
    """Where the outputs go: as the caller sees it, and its (T, B, F) view."""
    if out is None:
        return layout.empty(features)
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a NumPy array, got {type(out).__name__}")
    if out.dtype != layout.net.dtype:
        raise TypeError(f"out must be {layout.net.dtype}, got {out.dtype}")
    if out.shape != layout.shape(features):
        raise ValueError(f"out must have shape {layout.shape(features)}, got {out.shape}")
    if not out.flags.writeable:
        raise ValueError("out must be writeable, got a read-only array")
    if out.size == 0:
        return out, layout.empty(features)[1]  # its own strides may be anything
    view = layout.time_major(out)
    if strided_rows(view) is not view or _overlaps_itself(view):
        raise ValueError("out must be aligned, with a dense last axis and no overlapping elements")
    return out, view


def _overlaps_itself(a: Array) -> bool:
    """Whether elements may share memory: by stride, each axis must step over those before it."""
    extent = a.itemsize
    for stride, n in sorted((abs(s), n) for s, n in zip(a.strides, a.shape, strict=True) if n > 1):
        if stride < extent:
            return True
        extent = stride * n
    return False


def probability(p: float, name: str) -> float:
    if not isinstance(p, int | float | np.number) or isinstance(p, bool) or not 0 <= p <= 1:
        raise ValueError(f"{name} must be a probability in 0..1, got {p!r}")
    return float(p)


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
        f"checkpoint must be None, 'gates', 'auto' or a positive int, got {checkpoint!r}"
    )


def checked_seed(seed: int) -> int:
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or not 0 <= seed < 2**64:
        raise ValueError(f"seed must be an integer in 0..2**64-1, got {seed!r}")
    return int(seed)
