"""Recurrent layers as functions, for those who hold their own arrays: validate, allocate, call.

Every function takes ``params``, a mapping of torch's names to arrays of one dtype (float32 or
float64): ``weight_ih_l0 (G*H, I)``, ``weight_hh_l0 (G*H, H)``, ``bias_ih_l0 (G*H)``,
``bias_hh_l0 (G*H)``, further layers ``_l1`` ..., the reverse direction ``_l0_reverse`` ...; G is
1 (RNN), 4 (LSTM, rows i f g o) or 3 (GRU, rows r z n). The number of layers and directions, the
sizes and whether there are biases follow from it. In its place goes what ``pack`` returns, which
holds the weights as the kernels read them, so that calls need not pack them again.

Shapes: x ``(T, B, I)``, with batch_first ``(B, T, I)``, unbatched ``(T, I)``, of any strides; y
alike with D*H features; hx ``(L*D, B, H)``, unbatched ``(L*D, H)``, for the LSTM a tuple (h, c).
Forward functions return y and the final states hx_n as hx; with ``record=True`` also a ``Tape``.
``ForwardOptions`` lists their keyword arguments. All raise ``TypeError`` for an argument of the
wrong kind or dtype (nothing is cast in silence) and ``ValueError`` for a wrong shape or value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from . import _core
from .arguments import (
    Checkpoint,
    Layout,
    States,
    as_lengths,
    as_output,
    as_resets,
    as_states,
    kernel_cell,
    network,
    new_block,
    new_call,
    state_names,
    strided_rows,
)
from .packed import Packed, pack
from .tape import Tape, tape_block
from .validation import (
    Array,
    as_floats,
    axis_length,
    boolean,
    described,
    dropout_key,
    probability,
)

__all__ = [
    "ForwardOptions",
    "Packed",
    "Tape",
    "gru_backward",
    "gru_forward",
    "lstm_backward",
    "lstm_forward",
    "memory_estimate",
    "pack",
    "rnn_backward",
    "rnn_forward",
]


class ForwardOptions(TypedDict, total=False):
    """Keyword arguments of the forward functions.

    Attributes:
        batch_first: x and y are (B, T, ...). States never are.
        lengths: steps of each row, integers (B,) in 0..T in any order; unbatched an int. Behind a
            length x is not read (it may hold NaN) and y is zero; the final states are those after
            the last real step.
        resets: booleans (T, B), with batch_first (B, T), unbatched (T,): a border between steps
            t-1 and t of a row. The forward direction restarts before t, the reverse direction
            before t-1. Marks at or behind a length are ignored.
        restart_state: what a restart loads in place of zeros: (L*D, H) for all rows, or as hx.
        record: return a tape for backward as well.
        checkpoint: what the tape keeps: None all gates; "gates" states of every step; k states
            every k steps; "auto" a k near sqrt(T). Gradients are the same to the last bit.
        dropout: probability of dropping an output between layers; applies when recording.
        seed: of the dropout masks, 0..2**64-1.
        num_threads: default ``rnnkern.get_num_threads()``. Results do not depend on it.
        need_output: False returns None in place of y.
        out: array for y.
        all_layers: y holds the outputs of all layers, before dropout: (L, T, B, D*H), with
            batch_first (L, B, T, D*H), unbatched (L, T, D*H); and ``backward`` takes such a dy.
        trace: show the gates: inference returns them as a third value, a recorded call as
            ``tape.trace``. A dict of arrays (L*D, T, B, H), laid out as y is, zero behind lengths:
            "h"; for the LSTM "i", "f", "g", "o", "c"; for the GRU "r", "z", "n" and with
            reset_after "u" = U h + b_hh, on which r acts. For the RNN "a", before the activation.
    """

    batch_first: bool
    lengths: ArrayLike | None
    resets: ArrayLike | None
    restart_state: Any
    record: bool
    checkpoint: Checkpoint
    dropout: float
    seed: int
    num_threads: int | None
    need_output: bool
    out: Array | None
    all_layers: bool
    trace: bool


def _apart(value: Any, out: Array) -> Any:
    """``value`` (an array, a tuple of arrays, None) with copies of what shares memory with out."""
    if isinstance(value, tuple):
        return tuple(_apart(a, out) for a in value)
    return value.copy() if value is not None and np.may_share_memory(value, out) else value


def _forward(
    cell: str,
    x: ArrayLike,
    params: Mapping[str, Array] | Packed,
    hx: Any,
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
    all_layers: bool = False,
    trace: bool = False,
    spare: list[Array] | None = None,
    **unknown: Any,
) -> Any:
    """See ForwardOptions; ``spare`` is where a tape takes its memory from, and gives it back to."""
    if unknown:
        function = f"{cell.partition('_')[0]}_forward"
        raise TypeError(f"{function}() got an unexpected keyword argument {min(unknown)!r}")
    packed = _packed(cell, params)
    net = packed.net
    source = as_floats("x", x, net.dtype)
    layout = Layout(net, source.shape, batch_first)
    x_rows = strided_rows(layout.time_major(source))
    hx_parts, restart, learned = _starts(packed, layout, hx, restart_state)
    if not boolean("record", record) and checkpoint is not None:
        raise ValueError("checkpoint: expected None without record=True, since nothing is kept")
    call = new_call(
        layout.steps,
        layout.rows,
        as_lengths(lengths, layout),
        as_resets(resets, layout),
        _restart_kind(restart),
        checkpoint,
        record,
        probability("dropout", dropout),
        dropout_key("seed", seed),
        num_threads,
    )
    if not boolean("need_output", need_output) and out is not None:
        raise ValueError("out: expected None with need_output=False")
    shape = _output_shape(net, boolean("all_layers", all_layers))
    y, y_rows = as_output(out, layout, *shape) if need_output else (None, None)
    if out is not None:  # what it overlaps is copied first
        x_rows, hx_parts, restart = (_apart(a, out) for a in (x_rows, hx_parts, restart))
    hx_n = layout.new_states()
    gates = _trace(net, call, layout) if boolean("trace", trace) else None
    if not record:
        _infer(packed, call, x_rows, hx_parts, restart, y_rows, hx_n)
        return (y, as_states(hx_n)) if gates is None else (y, as_states(hx_n), gates)
    _, tape_size, workspace_size, _ = _core.sizes(net, call)
    block, workspace = tape_block(tape_size, spare), new_block(workspace_size)
    arrays = (x_rows, hx_parts, restart, y_rows, hx_n, block, workspace)
    _core.forward(net, call, packed.block, *arrays)
    tape = Tape(packed, call, layout, x_rows, block, restart, learned, shape, spare)
    tape.trace = gates
    return y, as_states(hx_n), tape


def _packed(cell: str, params: Mapping[str, Array] | Packed) -> Packed:
    if not isinstance(params, Packed):
        return Packed(*network(cell, params))
    if params.net.cell != cell:
        raise ValueError(f"params: expected weights of {cell!r}, got {params.net.cell!r} packed")
    return params


def _starts(
    packed: Packed, layout: Layout, hx: Any, restart_state: Any
) -> tuple[tuple[Array, ...] | None, tuple[Array, ...] | None, tuple[bool, bool]]:
    """hx and restart_state as the kernels take them, and whether they are the learned states."""
    net = packed.net
    given = layout.states("hx", hx)
    shared = (net.num_layers * net.num_directions, net.hidden_size)
    shapes = dict.fromkeys((layout.state_shape, shared))
    restart = layout.states("restart_state", restart_state, *shapes)
    if packed.initial is None:
        return given, restart, (False, False)
    learned = (given is None, restart is None)
    return *layout.learned(packed.initial, given, restart), learned


def _restart_kind(restart: tuple[Array, ...] | None) -> int:
    if restart is None:
        return _core.RESTART_ZERO
    return _core.RESTART_PER_ROW if restart[0].ndim == 3 else _core.RESTART_SHARED


_BETWEEN_LAYERS = 1 << 22  # bytes of their sequences in inference: they stay in the cache


def _piece(net: _core.Net, call: _core.Call) -> int:
    """The steps that inference takes through all layers at a time.

    So its memory does not grow with the steps. A reverse direction has to start at the end.
    """
    if net.num_directions == 2 or call.traced:
        return call.steps
    step = 2 * call.rows * net.hidden_size * net.dtype.itemsize
    return min(call.steps, max(1, _BETWEEN_LAYERS // max(1, step)))


def _infer(
    packed: Packed,
    call: _core.Call,
    x: Array,
    hx: tuple[Array, ...] | None,
    restart: tuple[Array, ...] | None,
    y: Array | None,
    hx_n: tuple[Array, ...],
) -> None:
    net, piece = packed.net, _piece(packed.net, call)
    workspace = new_block(_core.sizes(net, call.part(0, piece))[2])
    for start in range(0, max(1, call.steps), max(1, piece)):  # once where there are no steps
        stop = min(start + piece, call.steps)
        y_part = None if y is None else y[..., start:stop, :, :]
        arrays = (x[start:stop], hx, restart, y_part, hx_n, None, workspace)
        _core.forward(net, call.part(start, stop), packed.block, *arrays)
        hx = hx_n


def _output_shape(net: _core.Net, all_layers: bool) -> tuple[int, ...]:
    """What Layout takes as the shape of y."""
    features = net.num_directions * net.hidden_size
    return (net.num_layers, features) if all_layers else (features,)


def _trace(net: _core.Net, call: _core.Call, layout: Layout) -> dict[str, Array]:
    """Where the call will show its gates and states."""
    names = _core.TRACED[_core.CELLS.index(net.cell)]
    sweeps = net.num_layers * net.num_directions
    found = np.empty((sweeps, call.steps, call.rows, len(names), net.hidden_size), net.dtype)
    call.trace_into(net, found)
    return {name: layout.as_caller(found[:, :, :, i]) for i, name in enumerate(names)}


class BackwardOptions(TypedDict, total=False):
    """Keyword arguments of the backward functions, as of ``Tape.backward``."""

    grads: Mapping[str, Array] | None
    need_dx: bool
    retain: bool
    num_threads: int | None
    clip_state_grad: float | None
    state_grads: bool
    row_grads: bool


def _backward(
    cells: Iterable[str],
    tape: Tape,
    dy: ArrayLike | None,
    dhx_n: Any,
    *,
    grads: Mapping[str, Array] | None = None,
    row_grads: bool = False,
    **options: Any,
) -> tuple[Array | None, States, Mapping[str, Array]]:
    """``Tape.backward`` with new zero gradients where none are given."""
    if not isinstance(tape, Tape):
        raise TypeError(f"tape: expected a Tape, got {described(tape)}")
    if tape.cell not in cells:
        raise ValueError(f"tape: expected one of {' or '.join(cells)}, got one of {tape.cell}")
    target = tape.zero_grads() if grads is None and row_grads is False else grads
    dx, dhx = tape.backward(dy, dhx_n, grads=target, row_grads=row_grads, **options)
    found = target if tape.row_grads is None else tape.row_grads
    return dx, dhx, {} if found is None else found


def rnn_forward(
    x: ArrayLike,
    params: Mapping[str, Array] | Packed,
    hx: Any = None,
    *,
    nonlinearity: Literal["tanh", "relu"] = "tanh",
    **options: Unpack[ForwardOptions],
) -> Any:
    """RNN (Elman 1990): h' = act(W x + b_ih + U h + b_hh), act = tanh or relu."""
    return _forward(kernel_cell("rnn", nonlinearity=nonlinearity), x, params, hx, **options)


def rnn_backward(
    tape: Tape, dy: ArrayLike | None = None, dhx_n: Any = None, **options: Unpack[BackwardOptions]
) -> tuple[Array | None, States, Mapping[str, Array]]:
    """Gradients (dx, dhx, grads) of ``rnn_forward(..., record=True)``, see ``Tape.backward``."""
    return _backward(("rnn_tanh", "rnn_relu"), tape, dy, dhx_n, **options)


def lstm_forward(
    x: ArrayLike,
    params: Mapping[str, Array] | Packed,
    hx: Any = None,
    **options: Unpack[ForwardOptions],
) -> Any:
    """LSTM (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000).

    i, f, o = sigmoid(W x + b_ih + U h + b_hh), g = tanh(the same), c' = f c + i g, h' = o tanh(c').
    """
    return _forward("lstm", x, params, hx, **options)


def lstm_backward(
    tape: Tape, dy: ArrayLike | None = None, dhx_n: Any = None, **options: Unpack[BackwardOptions]
) -> tuple[Array | None, States, Mapping[str, Array]]:
    """Gradients (dx, dhx, grads) of ``lstm_forward(..., record=True)``, see ``Tape.backward``."""
    return _backward(("lstm",), tape, dy, dhx_n, **options)


def gru_forward(
    x: ArrayLike,
    params: Mapping[str, Array] | Packed,
    hx: Any = None,
    *,
    reset_after: bool = True,
    **options: Unpack[ForwardOptions],
) -> Any:
    """GRU (Cho et al. 2014): h' = (1-z) n + z h, r, z = sigmoid(W x + b_ih + U h + b_hh).

    With reset_after n = tanh(W x + b_ih + r (U h + b_hh)), as torch, cuDNN and Keras have it;
    without, n = tanh(W x + b_ih + U (r h) + b_hh), as Cho et al. and ONNX by default.
    """
    return _forward(kernel_cell("gru", reset_after=reset_after), x, params, hx, **options)


def gru_backward(
    tape: Tape, dy: ArrayLike | None = None, dhx_n: Any = None, **options: Unpack[BackwardOptions]
) -> tuple[Array | None, States, Mapping[str, Array]]:
    """Gradients (dx, dhx, grads) of ``gru_forward(..., record=True)``, see ``Tape.backward``."""
    return _backward(("gru", "gru_before"), tape, dy, dhx_n, **options)


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
    """Bytes that a call on (T, B) sequences needs.

    ``tape``, ``workspace`` (the larger of the two passes), ``packed`` (weights) and ``outputs``
    (y and final states).
    """
    net = params.net if isinstance(params, Packed) else network(kernel_cell(cell), params)[0]
    return net_memory(net, net_call(net, T, B, lengths, record, checkpoint, num_threads))


def net_call(
    net: _core.Net,
    T: int,
    B: int,
    lengths: ArrayLike | None,
    record: bool,
    checkpoint: Checkpoint,
    num_threads: int | None,
) -> _core.Call:
    """The call that T steps of B rows would be; ValueError or TypeError where it cannot be."""
    T, B = axis_length("T", T), axis_length("B", B)
    checked = as_lengths(lengths, Layout(net, (T, B, net.input_size), False))
    keeps = boolean("record", record)
    call = new_call(T, B, checked, None, 0, checkpoint, keeps, 0.0, 0, num_threads)
    try:
        _core.sizes(net, call)
    except ValueError:  # the only reason is that they do not fit in memory addresses
        raise ValueError(
            f"T, B: expected a call whose memory can be addressed, got {T}, {B}"
        ) from None
    return call


def net_memory(net: _core.Net, call: _core.Call) -> dict[str, int]:
    """memory_estimate of a call."""
    packed, tape, forward, backward = _core.sizes(net, call)
    if call.keep == _core.KEEP_NONE:
        forward = _core.sizes(net, call.part(0, _piece(net, call)))[2]
    features = net.num_directions * net.hidden_size
    states = len(state_names(net.cell)) * net.num_layers * features
    outputs = net.dtype.itemsize * call.rows * (call.steps * features + states)
    return {"tape": tape, "workspace": max(forward, backward), "packed": packed, "outputs": outputs}
