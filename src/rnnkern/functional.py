"""Recurrent layers as functions, for those who hold their own arrays: validate, allocate, call the kernels.

Every function takes ``params``, a mapping of torch's names to arrays of one dtype (float32 or float64):
``weight_ih_l0 (G*H, I)``, ``weight_hh_l0 (G*H, H)``, ``bias_ih_l0 (G*H)``, ``bias_hh_l0 (G*H)``, further layers ``_l1`` ...,
the reverse direction ``_l0_reverse`` ...; G is 1 (RNN), 4 (LSTM, rows i f g o) or 3 (GRU, rows r z n). The number of
layers, directions, the sizes and whether there are biases follow from it. In its place goes ``pack(...)``'s result, which
holds the weights as the kernels read them, so that calls need not pack them again.

Shapes: x ``(T, B, I)``, with batch_first ``(B, T, I)``, unbatched ``(T, I)``; y alike with D*H features; hx ``(L*D, B, H)``,
unbatched ``(L*D, H)``, for the LSTM a tuple (h, c). The equations are in ``rnnkern.reference``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _core, isa, threads

Array = NDArray[Any]
States = Array | tuple[Array, Array]
Checkpoint = Literal["gates", "auto"] | int | None

__all__ = [
    "Packed", "Tape", "gru_backward", "gru_forward", "lstm_backward", "lstm_forward", "memory_estimate", "pack",
    "rnn_backward", "rnn_forward",
]  # fmt: skip

_GATES = {"rnn_tanh": 1, "rnn_relu": 1, "lstm": 4, "gru": 3, "gru_before": 3}
_KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


# ---- parameters


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


def _network(cell: str, params: Mapping[str, Array]) -> tuple[_core.Net, list[Array | None]]:
    """The description of the stack, and its weights four by four with None for missing biases."""
    if not isinstance(params, Mapping):
        raise TypeError(f"params must be a mapping of names to arrays or a Packed, got {type(params).__name__}")
    for name in ("weight_ih_l0", "weight_hh_l0"):
        if name not in params:
            raise ValueError(f"params lacks {name!r}; it has {', '.join(map(str, params)) or 'nothing'}")
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
    shapes = parameter_shapes(_GATES[cell], *sizes, layers, directions, bias)
    missing, unexpected = shapes.keys() - arrays.keys(), arrays.keys() - shapes.keys()
    if missing or unexpected:
        raise ValueError(
            f"params of {layers} layer(s) and {directions} direction(s): "
            f"missing {sorted(missing) or 'nothing'}, unexpected {sorted(unexpected) or 'nothing'}"
        )
    for name, expected in shapes.items():
        if arrays[name].shape != expected:
            raise ValueError(f"{name!r} must have shape {expected}, got {arrays[name].shape}")
        if arrays[name].dtype.newbyteorder("=") != dtype:
            raise TypeError(f"{name!r} must be {dtype} as 'weight_ih_l0' is, got {arrays[name].dtype}")
    net = _core.Net(cell, dtype, isa.level(), bias, *sizes, layers, directions)
    return net, _four_by_four(net, {name: _dense(arrays[name], dtype) for name in shapes})


def _four_by_four(net: _core.Net, arrays: Mapping[str, Array]) -> list[Array | None]:
    return [arrays.get(name) for name in parameter_names(net.num_layers, net.num_directions, True)]


def _dense(a: ArrayLike, dtype: np.dtype[Any]) -> Array:
    """A C-contiguous, aligned, native array; ``a`` itself where it is one."""
    return np.require(a, dtype, ["C", "A"])


def _block(size: int) -> Array | None:
    """Aligned memory for the kernels; not initialised."""
    if size == 0:
        return None
    memory = np.empty(size + _core.ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _core.ALIGNMENT
    return memory[start : start + size]


class Packed:
    """Weights as the kernels read them: an immutable copy, cheap to share between threads."""

    def __init__(self, cell: str, params: Mapping[str, Array]) -> None:
        self.net, weights = _network(cell, params)
        self.block = _block(_core.sizes(self.net, _call(0, 0))[0])
        _core.pack(self.net, weights, self.block)


def _call(
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
    n = threads.get_num_threads() if num_threads is None else threads.checked(num_threads)
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
    elif isinstance(checkpoint, int | np.integer) and not isinstance(checkpoint, bool) and checkpoint > 0:
        return _core.KEEP_SEGMENTS, int(min(checkpoint, max(1, steps)))
    raise ValueError(f"checkpoint must be None, 'gates', 'auto' or a positive int, got {checkpoint!r}")


def pack(
    cell: Literal["rnn", "lstm", "gru"],
    params: Mapping[str, Array],
    *,
    nonlinearity: Literal["tanh", "relu"] = "tanh",
    reset_after: bool = True,
) -> Packed:
    """Packs weights once for many calls.

    Args:
        cell: which cell the weights are of.
        params: the module's docstring says how.
        nonlinearity: of the RNN.
        reset_after: form of the GRU.

    Raises:
        ValueError, TypeError: what is missing, unexpected or wrongly shaped in params, or an unknown option.
    """
    names = {"rnn": _rnn(nonlinearity), "lstm": "lstm", "gru": "gru" if reset_after else "gru_before"}
    if cell not in names:
        raise ValueError(f"cell must be 'rnn', 'lstm' or 'gru', got {cell!r}")
    return Packed(names[cell], params)


def _rnn(nonlinearity: str) -> str:
    if nonlinearity not in ("tanh", "relu"):
        raise ValueError(f"nonlinearity must be 'tanh' or 'relu', got {nonlinearity!r}")
    return f"rnn_{nonlinearity}"


# ---- arguments


def _floats(a: ArrayLike, name: str, dtype: np.dtype[Any]) -> Array:
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


def _rows(a: Array) -> Array:
    """A view that the kernels can stride over, or a copy: dense last axis, aligned, whole-element strides."""
    item = a.itemsize
    dense = a.shape[-1] <= 1 or a.strides[-1] == item
    if dense and a.flags.aligned and a.strides[0] % item == 0 and a.strides[1] % item == 0:
        return a
    return np.ascontiguousarray(a)


class _Layout:
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

    def as_caller(self, a: Array) -> Array:
        """The inverse of time_major."""
        if not self.batched:
            return a[:, 0]
        return a.swapaxes(0, 1) if self.batch_first else a

    def empty(self, features: int) -> tuple[Array, Array]:
        """A new sequence as the caller sees it, and its (T, B, F) view."""
        shape = (self.rows, self.steps) if self.batch_first else (self.steps, self.rows)
        full = np.empty((*shape, features) if self.batched else (self.steps, features), self.net.dtype)
        return full, self.time_major(full)

    def sequence(self, a: ArrayLike, name: str, features: int) -> Array:
        """The (T, B, F) view of a sequence argument."""
        array = _floats(a, name, self.net.dtype)
        expected = self.shape(features)
        if array.shape != expected:
            raise ValueError(f"{name} must have shape {expected}, got {array.shape}")
        return _rows(self.time_major(array))

    def shape(self, features: int) -> tuple[int, ...]:
        if not self.batched:
            return (self.steps, features)
        return (self.rows, self.steps, features) if self.batch_first else (self.steps, self.rows, features)

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
            _dense(_floats(a, label, self.net.dtype), self.net.dtype)
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


def _lengths(lengths: ArrayLike | None, layout: _Layout) -> Array | None:
    """int64 (B,), a copy."""
    if lengths is None:
        return None
    array = np.asarray(lengths)
    if array.dtype.kind not in "iu" and array.size:
        raise TypeError(f"lengths must be integers, got {array.dtype}")
    expected = (layout.rows,) if layout.batched else ()
    if array.shape != expected and not (not layout.batched and array.shape == (1,)):
        kind = f"shape {expected}, one for each row" if layout.batched else "one integer for an unbatched x"
        raise ValueError(f"lengths must have {kind}, got shape {array.shape}")
    bad = (array < 0) | (array > layout.steps) if array.size else np.zeros(0, bool)
    if bad.any():
        value = array.ravel()[int(np.argmax(bad.ravel()))]
        raise ValueError(f"lengths must lie in 0..{layout.steps} (the steps of x), got {value}")
    return np.array(array.reshape(-1), np.int64)


def _resets(resets: ArrayLike | None, layout: _Layout) -> Array | None:
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


def _out(out: Array | None, layout: _Layout, features: int) -> tuple[Array, Array]:
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
    view = layout.time_major(out)
    if _rows(view) is not view or _overlaps_itself(view):
        raise ValueError("out must be aligned, with a dense last axis and no overlapping elements")
    return out, view


def _overlaps_itself(a: Array) -> bool:
    """Whether two elements may share memory: sorted by stride, each axis must step over the whole of those before it."""
    extent = a.itemsize
    for stride, n in sorted((abs(s), n) for s, n in zip(a.strides, a.shape, strict=True) if n > 1):
        if stride < extent:
            return True
        extent = stride * n
    return False


def _probability(p: float, name: str) -> float:
    if not isinstance(p, int | float | np.number) or isinstance(p, bool) or not 0 <= p <= 1:
        raise ValueError(f"{name} must be a probability in 0..1, got {p!r}")
    return float(p)


# ---- forward and backward


def _forward(
    cell: str,
    x: ArrayLike,
    params: Mapping[str, Array] | Packed,
    hx: Any,
    *,
    batch_first: bool,
    lengths: ArrayLike | None,
    resets: ArrayLike | None,
    restart_state: Any,
    record: bool,
    checkpoint: Checkpoint,
    dropout: float,
    seed: int,
    num_threads: int | None,
    need_output: bool,
    out: Array | None,
) -> Any:
    if isinstance(params, Packed):
        if params.net.cell != cell:
            raise ValueError(f"params are packed for {params.net.cell!r}, not for {cell!r}")
        packed = params
    else:
        packed = Packed(cell, params)
    net = packed.net
    source = _floats(x, "x", net.dtype)
    layout = _Layout(net, source, batch_first)
    x_rows = _rows(layout.time_major(source))
    hx_parts = layout.states(hx, "hx")
    shared = (net.num_layers * net.num_directions, net.hidden_size)
    restart = layout.states(restart_state, "restart_state", *dict.fromkeys((layout.state_shape, shared)))
    kind = _core.RESTART_ZERO
    if restart is not None:
        kind = _core.RESTART_PER_ROW if restart[0].ndim == 3 else _core.RESTART_SHARED
    if not record and checkpoint is not None:
        raise ValueError("checkpoint needs record=True: inference keeps nothing")
    call = _call(
        layout.steps, layout.rows, _lengths(lengths, layout), _resets(resets, layout), kind, checkpoint, record,
        _probability(dropout, "dropout"), _seed(seed), num_threads,
    )  # fmt: skip
    if not need_output and out is not None:
        raise ValueError("out needs need_output=True")
    features = net.num_directions * net.hidden_size
    y, y_rows = _out(out, layout, features) if need_output else (None, None)
    if out is not None and np.may_share_memory(out, x_rows):
        x_rows = x_rows.copy()
    hx_n = layout.new_states()
    _, tape_size, workspace_size, _ = _core.sizes(net, call)
    tape = _block(tape_size)
    _core.forward(net, call, packed.block, x_rows, hx_parts, restart, y_rows, hx_n, tape, _block(workspace_size))
    if not record:
        return y, as_states(hx_n)
    return y, as_states(hx_n), Tape(packed, call, layout, x_rows, tape, restart)


def _seed(seed: int) -> int:
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or not 0 <= seed < 2**64:
        raise ValueError(f"seed must be an integer in 0..2**64-1, got {seed!r}")
    return int(seed)


class Tape:
    """What a recorded forward call keeps for backward: its own packed weights, states and gates.

    x is held by reference: changing it between the call and ``backward`` changes the gradients. Everything else is the
    tape's own, so stepping an optimiser or scaling y in between cannot falsify them.
    """

    def __init__(
        self,
        packed: Packed,
        call: _core.Call,
        layout: _Layout,
        x: Array,
        block: Array | None,
        restart: tuple[Array, ...] | None,
    ) -> None:
        self._packed, self._call, self._layout, self._x, self._block = packed, call, layout, x, block
        self._restart_shape = None if restart is None else restart[0].shape
        self._used = False
        self.grads: Mapping[str, Array] | None = None
        """Where ``backward`` adds parameter gradients by default; the layer's for tapes of a layer."""
        self.restart_state_grad: States | None = None
        """Gradient of restart_state, in its shape, once ``backward`` has run; None without restart_state."""

    @property
    def nbytes(self) -> int:
        """Bytes that the tape holds beside x and the packed weights."""
        return 0 if self._block is None else self._block.nbytes

    def backward(
        self,
        dy: ArrayLike | None = None,
        dhx_n: Any = None,
        *,
        grads: Mapping[str, Array] | None = None,
        need_dx: bool = True,
        retain: bool = False,
        num_threads: int | None = None,
    ) -> tuple[Array | None, States]:
        """Gradients of a scalar loss. Parameter gradients are added into ``grads`` (default: ``self.grads``).

        Args:
            dy: gradient of y, in y's shape; None means zeros. Ignored behind lengths.
            dhx_n: gradient of the final states, as hx_n; None means zeros.
            grads: mapping with the parameters' names and shapes, contiguous writeable arrays.
            need_dx: False saves the multiply for dx and returns None in its place.
            retain: the tape can be used again (it is copied first).
            num_threads: as for the forward call; the result does not depend on it.

        Returns:
            dx in x's shape (zero behind lengths), and the gradient of hx in its shape (also if hx was None).

        Raises:
            RuntimeError: the tape has been used already without ``retain=True``.
            ValueError, TypeError: an argument of the wrong shape or dtype, or grads that cannot be added into.
        """
        if self._used:
            raise RuntimeError("this tape has been used; call backward(retain=True) to use it more than once")
        net, layout = self._packed.net, self._layout
        dy_rows = None if dy is None else layout.sequence(dy, "dy", net.num_directions * net.hidden_size)
        dhx_n_parts = layout.states(dhx_n, "dhx_n")
        targets = self._targets(self.grads if grads is None else grads)
        n = threads.get_num_threads() if num_threads is None else threads.checked(num_threads)
        call = self._call.with_threads(n)
        dx, dx_rows = layout.empty(net.input_size) if need_dx else (None, None)
        dhx = layout.new_states()
        drestart = None
        if self._restart_shape is not None:
            drestart = tuple(np.zeros(self._restart_shape, net.dtype) for _ in layout.state_names)
        self._used = not retain
        block = self._block
        if retain and block is not None and call.keep == _core.KEEP_GATES:
            block = _block(block.nbytes)
            assert block is not None
            block[:] = self._block
        workspace = _block(_core.sizes(net, call)[3])
        _core.backward(
            net, call, self._packed.block, self._x, block, dy_rows, dhx_n_parts, dx_rows, dhx, drestart, targets, workspace
        )  # fmt: skip
        if not retain:
            self._block = None
        self.restart_state_grad = None if drestart is None else as_states(drestart)
        return dx, as_states(dhx)

    def zero_grads(self) -> dict[str, Array]:
        """New zero arrays for the gradients of all parameters."""
        net = self._packed.net
        shapes = parameter_shapes(
            _GATES[net.cell], net.input_size, net.hidden_size, net.num_layers, net.num_directions, net.bias
        )
        return {name: np.zeros(shape, net.dtype) for name, shape in shapes.items()}

    def _targets(self, grads: Mapping[str, Array] | None) -> list[Array | None] | None:
        if grads is None:
            return None
        net = self._packed.net
        arrays = {name: grads[name] for name in grads}
        shapes = {name: a.shape for name, a in self.zero_grads().items()}
        missing, unexpected = shapes.keys() - arrays.keys(), arrays.keys() - shapes.keys()
        if missing or unexpected:
            raise ValueError(
                f"grads: missing {sorted(missing) or 'nothing'}, unexpected {sorted(unexpected) or 'nothing'}"
            )
        for name, shape in shapes.items():
            a = arrays[name]
            if not isinstance(a, np.ndarray) or a.shape != shape or a.dtype != net.dtype:
                what = f"{a.dtype} {a.shape}" if isinstance(a, np.ndarray) else type(a).__name__
                raise ValueError(f"grads[{name!r}] must be a {net.dtype} array of shape {shape}, got {what}")
            if not (a.flags.c_contiguous and a.flags.writeable and a.flags.aligned):
                raise ValueError(f"grads[{name!r}] must be writeable and C-contiguous")
        return _four_by_four(net, arrays)


def _backward(
    cells: Iterable[str],
    tape: Tape,
    dy: ArrayLike | None,
    dhx_n: Any,
    grads: Mapping[str, Array] | None,
    need_dx: bool,
    retain: bool,
    num_threads: int | None,
) -> tuple[Array | None, States, Mapping[str, Array]]:
    if not isinstance(tape, Tape):
        raise TypeError(f"tape must be a Tape, got {type(tape).__name__}")
    if tape._packed.net.cell not in cells:
        raise ValueError(f"tape was recorded by a {tape._packed.net.cell!r} forward call")
    target = tape.zero_grads() if grads is None else grads
    dx, dhx = tape.backward(dy, dhx_n, grads=target, need_dx=need_dx, retain=retain, num_threads=num_threads)
    return dx, dhx, target


def rnn_forward(
    x: ArrayLike,
    params: Mapping[str, Array] | Packed,
    hx: Any = None,
    *,
    nonlinearity: Literal["tanh", "relu"] = "tanh",
    batch_first: bool = False,
    lengths: ArrayLike | None = None,
    resets: ArrayLike | None = None,
    restart_state: Any = None,
    record: bool = False,
    checkpoint: Checkpoint = None,
    dropout: float = 0.0,
    seed: int = 0,
    num_threads: int | None = None,
    need_output: bool = True,
    out: Array | None = None,
) -> Any:
    """RNN (Elman 1990): h' = act(W x + b_ih + U h + b_hh).

    Args:
        x: inputs (T, B, I), (B, T, I) with batch_first, or (T, I); any strides; the parameters' dtype.
        params: mapping of torch's names to arrays, or ``pack(...)``.
        hx: initial state (L*D, B, H); None means zeros.
        nonlinearity: "tanh" or "relu".
        batch_first: x and y are (B, T, ...). States never are.
        lengths: steps of each row, integers (B,) in 0..T in any order; unbatched an int. Behind a length x is not
            read (it may hold NaN) and y is zero; final states are those after the last real step.
        resets: booleans (T, B), (B, T) with batch_first, unbatched (T,): a border between steps t-1 and t of a row. The
            forward direction restarts before t, the reverse direction before t-1.
        restart_state: what a restart loads in place of zeros: (L*D, H) for all rows or as hx.
        record: return a tape for backward as well.
        checkpoint: what the tape keeps: None all gates; "gates" states of every step; k states every k steps;
            "auto" chooses k near sqrt(T). Gradients are the same to the last bit.
        dropout: probability of dropping an output between layers; used when recording.
        seed: of the dropout masks, 0..2**64-1.
        num_threads: default ``rnnkern.get_num_threads()``. Results do not depend on it.
        need_output: False returns None for y.
        out: array for y.

    Returns:
        y (T, B, D*H) in x's layout, and the final states hx_n as hx; with record=True also a ``Tape``.

    Raises:
        TypeError: an argument of the wrong kind or dtype (nothing is cast in silence).
        ValueError: an argument of the wrong shape or value.
    """
    return _forward(
        _rnn(nonlinearity), x, params, hx, batch_first=batch_first, lengths=lengths, resets=resets,
        restart_state=restart_state, record=record, checkpoint=checkpoint, dropout=dropout, seed=seed,
        num_threads=num_threads, need_output=need_output, out=out,
    )  # fmt: skip


def rnn_backward(
    tape: Tape,
    dy: ArrayLike | None = None,
    dhx_n: Any = None,
    *,
    grads: Mapping[str, Array] | None = None,
    need_dx: bool = True,
    retain: bool = False,
    num_threads: int | None = None,
) -> tuple[Array | None, States, Mapping[str, Array]]:
    """Gradients of ``rnn_forward(..., record=True)``: ``Tape.backward`` with new zero ``grads`` if none are given.

    Returns:
        dx, dhx and grads. The gradient of restart_state is ``tape.restart_state_grad``.
    """
    return _backward(("rnn_tanh", "rnn_relu"), tape, dy, dhx_n, grads, need_dx, retain, num_threads)


def lstm_forward(
    x: ArrayLike,
    params: Mapping[str, Array] | Packed,
    hx: Any = None,
    *,
    batch_first: bool = False,
    lengths: ArrayLike | None = None,
    resets: ArrayLike | None = None,
    restart_state: Any = None,
    record: bool = False,
    checkpoint: Checkpoint = None,
    dropout: float = 0.0,
    seed: int = 0,
    num_threads: int | None = None,
    need_output: bool = True,
    out: Array | None = None,
) -> Any:
    """LSTM (Hochreiter & Schmidhuber 1997, Gers et al. 2000): c' = f c + i g, h' = o tanh(c').

    Args:
        x: inputs (T, B, I), (B, T, I) with batch_first, or (T, I); any strides; the parameters' dtype.
        params: mapping of torch's names to arrays, or ``pack(...)``.
        hx: tuple (h, c) of initial states (L*D, B, H); None means zeros.
        batch_first: x and y are (B, T, ...). States never are.
        lengths: steps of each row, integers (B,) in 0..T in any order; unbatched an int. Behind a length x is not
            read (it may hold NaN) and y is zero; final states are those after the last real step.
        resets: booleans (T, B), (B, T) with batch_first, unbatched (T,): a border between steps t-1 and t of a row. The
            forward direction restarts before t, the reverse direction before t-1.
        restart_state: what a restart loads in place of zeros: (L*D, H) for all rows or as hx.
        record: return a tape for backward as well.
        checkpoint: what the tape keeps: None all gates; "gates" states of every step; k states every k steps;
            "auto" chooses k near sqrt(T). Gradients are the same to the last bit.
        dropout: probability of dropping an output between layers; used when recording.
        seed: of the dropout masks, 0..2**64-1.
        num_threads: default ``rnnkern.get_num_threads()``. Results do not depend on it.
        need_output: False returns None for y.
        out: array for y.

    Returns:
        y (T, B, D*H) in x's layout, and the final states hx_n as hx; with record=True also a ``Tape``.

    Raises:
        TypeError: an argument of the wrong kind or dtype (nothing is cast in silence).
        ValueError: an argument of the wrong shape or value.
    """
    return _forward(
        "lstm", x, params, hx, batch_first=batch_first, lengths=lengths, resets=resets,
        restart_state=restart_state, record=record, checkpoint=checkpoint, dropout=dropout, seed=seed,
        num_threads=num_threads, need_output=need_output, out=out,
    )  # fmt: skip


def lstm_backward(
    tape: Tape,
    dy: ArrayLike | None = None,
    dhx_n: Any = None,
    *,
    grads: Mapping[str, Array] | None = None,
    need_dx: bool = True,
    retain: bool = False,
    num_threads: int | None = None,
) -> tuple[Array | None, States, Mapping[str, Array]]:
    """Gradients of ``lstm_forward(..., record=True)``: ``Tape.backward`` with new zero ``grads`` if none are given.

    Returns:
        dx, dhx and grads. The gradient of restart_state is ``tape.restart_state_grad``.
    """
    return _backward(("lstm",), tape, dy, dhx_n, grads, need_dx, retain, num_threads)


def gru_forward(
    x: ArrayLike,
    params: Mapping[str, Array] | Packed,
    hx: Any = None,
    *,
    reset_after: bool = True,
    batch_first: bool = False,
    lengths: ArrayLike | None = None,
    resets: ArrayLike | None = None,
    restart_state: Any = None,
    record: bool = False,
    checkpoint: Checkpoint = None,
    dropout: float = 0.0,
    seed: int = 0,
    num_threads: int | None = None,
    need_output: bool = True,
    out: Array | None = None,
) -> Any:
    """GRU (Cho et al. 2014): h' = (1-z) n + z h.

    Args:
        x: inputs (T, B, I), (B, T, I) with batch_first, or (T, I); any strides; the parameters' dtype.
        params: mapping of torch's names to arrays, or ``pack(...)``.
        hx: initial state (L*D, B, H); None means zeros.
        reset_after: n = tanh(W x + b_ih + r (U h + b_hh)), as torch and cuDNN; False: U (r h), as Cho et al. and ONNX.
        batch_first: x and y are (B, T, ...). States never are.
        lengths: steps of each row, integers (B,) in 0..T in any order; unbatched an int. Behind a length x is not
            read (it may hold NaN) and y is zero; final states are those after the last real step.
        resets: booleans (T, B), (B, T) with batch_first, unbatched (T,): a border between steps t-1 and t of a row. The
            forward direction restarts before t, the reverse direction before t-1.
        restart_state: what a restart loads in place of zeros: (L*D, H) for all rows or as hx.
        record: return a tape for backward as well.
        checkpoint: what the tape keeps: None all gates; "gates" states of every step; k states every k steps;
            "auto" chooses k near sqrt(T). Gradients are the same to the last bit.
        dropout: probability of dropping an output between layers; used when recording.
        seed: of the dropout masks, 0..2**64-1.
        num_threads: default ``rnnkern.get_num_threads()``. Results do not depend on it.
        need_output: False returns None for y.
        out: array for y.

    Returns:
        y (T, B, D*H) in x's layout, and the final states hx_n as hx; with record=True also a ``Tape``.

    Raises:
        TypeError: an argument of the wrong kind or dtype (nothing is cast in silence).
        ValueError: an argument of the wrong shape or value.
    """
    return _forward(
        "gru" if reset_after else "gru_before", x, params, hx, batch_first=batch_first, lengths=lengths, resets=resets,
        restart_state=restart_state, record=record, checkpoint=checkpoint, dropout=dropout, seed=seed,
        num_threads=num_threads, need_output=need_output, out=out,
    )  # fmt: skip


def gru_backward(
    tape: Tape,
    dy: ArrayLike | None = None,
    dhx_n: Any = None,
    *,
    grads: Mapping[str, Array] | None = None,
    need_dx: bool = True,
    retain: bool = False,
    num_threads: int | None = None,
) -> tuple[Array | None, States, Mapping[str, Array]]:
    """Gradients of ``gru_forward(..., record=True)``: ``Tape.backward`` with new zero ``grads`` if none are given.

    Returns:
        dx, dhx and grads. The gradient of restart_state is ``tape.restart_state_grad``.
    """
    return _backward(("gru", "gru_before"), tape, dy, dhx_n, grads, need_dx, retain, num_threads)


def memory_estimate(
    params: Mapping[str, Array] | Packed,
    cell: Literal["rnn", "lstm", "gru"],
    T: int,
    B: int,
    *,
    lengths: ArrayLike | None = None,
    record: bool = True,
    checkpoint: Checkpoint = None,
    num_threads: int | None = None,
) -> dict[str, int]:
    """Bytes that a call on (T, B) sequences needs: ``tape``, ``workspace`` (the larger of the two passes), ``packed``
    (weights) and ``outputs`` (y and final states)."""
    net = params.net if isinstance(params, Packed) else pack(cell, params).net
    return net_memory(net, T, B, lengths, record, checkpoint, num_threads)


def net_memory(
    net: _core.Net,
    T: int,
    B: int,
    lengths: ArrayLike | None,
    record: bool,
    checkpoint: Checkpoint,
    num_threads: int | None,
) -> dict[str, int]:
    """memory_estimate of a network that is described already."""
    layout = _Layout(net, np.broadcast_to(np.zeros(1, net.dtype), (T, B, net.input_size)), False)
    call = _call(T, B, _lengths(lengths, layout), None, 0, checkpoint, record, 0.0, 0, num_threads)
    packed, tape, forward, backward = _core.sizes(net, call)
    features = net.num_directions * net.hidden_size
    states = len(layout.state_names) * math.prod(layout.state_shape)
    outputs = net.dtype.itemsize * (T * B * features + states)
    return {"tape": tape, "workspace": max(forward, backward), "packed": packed, "outputs": outputs}
