"""Recurrent layers as functions, for those who hold their own arrays: validate, allocate, call.

Every function takes ``params``, a mapping of torch's names to arrays of one dtype (float32 or
float64). For each layer and direction, here of the first, with G blocks of H rows:

    weight_ih_l0 (G*H, I)    the inputs of further layers are D*P
    weight_hh_l0 (G*H, P)    IndRNN (H,); not SRU, MinGRU
    bias_ih_l0 (G*H,), bias_hh_l0 (G*H,)    both or none; the second not IndRNN, SRU, MinGRU
    weight_hr_l0 (P, H)      LSTM: h is projected to P < H features; without it P is H
    weight_ch_l0 (3*H,)      LSTM: peepholes of i, f, o; coupled (2*H,), e, o. SRU (2*H,), f, r
    norm_ih_l0 (G*H,), norm_hh_l0 (G*H,)    RNN, LSTM, GRU: gains of layer normalisation
    norm_c_l0 (H,), norm_c_bias_l0 (H,)     LSTM: of its c, with the other two

Further layers are ``_l1`` ..., the reverse direction ``_l0_reverse`` ... The blocks are RNN 1, LSTM
i f g o (coupled e g o), GRU r z n, MGU f n, IndRNN 1, SRU n f r x, MinGRU z n. The number of layers
and directions, the sizes and whether there are biases, a projection, peepholes and layer
normalisation follow from the names. In the place of params goes what ``pack`` returns, which holds
the weights as the kernels read them, so that calls need not pack them again.

Shapes: x ``(T, B, I)``, with batch_first ``(B, T, I)``, unbatched ``(T, I)``, of any strides; y
alike with D*P features; hx ``(L*D, B, P)``, unbatched ``(L*D, P)``, for the LSTM a tuple (h, c)
with c ``(L*D, B, H)``; the state of the SRU is c alone. Forward functions return y and the final
states hx_n as hx; with ``record=True`` also a ``Tape``. ``ForwardOptions`` lists their keyword
arguments. All raise ``TypeError`` for an argument of the wrong kind or dtype (nothing is cast in
silence) and ``ValueError`` for a wrong shape or value.

Activations are names or tuples of a name and its parameters, see ``activations``. ``clip`` cuts
what enters them to -clip..clip; where it does the gradient is zero. Layer normalisation (Ba, Kiros
& Hinton 2016) puts LN(W x) + b_ih + LN(U h) + b_hh for W x + b_ih + U h + b_hh with
LN(v) = gain (v - mean) / sqrt(var + norm_eps) over all G*H elements of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from . import _core, isa
from .activations import Activation
from .arguments import (
    Checkpoint,
    Layout,
    States,
    as_lengths,
    as_output,
    as_resets,
    as_states,
    network,
    new_call,
    strided_rows,
)
from .dropconnect import DropConnect
from .memory import new_block
from .packed import Packed, pack
from .structure import (
    CellOptions,
    Coupling,
    Options,
    Structure,
    cell_options,
    check_regularization,
)
from .tape import Tape
from .validation import (
    Array,
    as_floats,
    axis_length,
    boolean,
    described,
    dropout_key,
    probability,
)

if TYPE_CHECKING:
    from .regularization import Regularization

__all__ = [
    "CellOptions",
    "ForwardOptions",
    "Packed",
    "Tape",
    "gru_backward",
    "gru_forward",
    "indrnn_backward",
    "indrnn_forward",
    "lstm_backward",
    "lstm_forward",
    "memory_estimate",
    "mgu_backward",
    "mgu_forward",
    "mingru_backward",
    "mingru_forward",
    "pack",
    "rnn_backward",
    "rnn_forward",
    "sru_backward",
    "sru_forward",
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
        restart_state: what a restart loads in place of zeros: (L*D, P) for all rows, or as hx.
        record: return a tape for backward as well.
        checkpoint: what the tape keeps: None all gates; "gates" states of every step; k states
            every k steps; "auto" a k near sqrt(T). Gradients are the same to the last bit.
        dropout: probability of dropping an output between layers; applies when recording.
        regularization: more of the kind, a ``Regularization``; all but zoneout when recording.
        seed: of all masks, 0..2**64-1.
        first_step: what step 0 is in a longer sequence, so that its chunks, recorded with one
            seed, draw the masks of the whole.
        num_threads: default ``rnnkern.get_num_threads()``. Results do not depend on it.
        need_output: False returns None in place of y.
        out: array for y.
        all_layers: y holds the outputs of all layers, before dropout: (L, T, B, D*P), with
            batch_first (L, B, T, D*P), unbatched (L, T, D*P); and ``backward`` takes such a dy.
        trace: show the gates: inference returns them as a third value, a recorded call as
            ``tape.trace``. A dict of arrays (L*D, T, B, H), laid out as y is, zero behind lengths:
            "h" (P features); for the LSTM "i", "f", "g", "o", "c", coupled "e" for "i" and "f"; for
            the GRU "r", "z", "n" and with reset_after "u" = U h + b_hh, on which r acts; for the
            RNN and IndRNN "a", before the activation; for the MGU "f", "n"; for the SRU "n", "f",
            "r", "x", "c"; for the MinGRU "z", "n".
    """

    batch_first: bool
    lengths: ArrayLike | None
    resets: ArrayLike | None
    restart_state: Any
    record: bool
    checkpoint: Checkpoint
    dropout: float
    regularization: Regularization | None
    seed: int
    first_step: int
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
    options: Options,
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
    regularization: Regularization | None = None,
    seed: int = 0,
    first_step: int = 0,
    num_threads: int | None = None,
    need_output: bool = True,
    out: Array | None = None,
    all_layers: bool = False,
    trace: bool = False,
    **unknown: Any,
) -> Any:
    """See ForwardOptions."""
    if unknown:
        function = f"{options.name}_forward"
        raise TypeError(f"{function}() got an unexpected keyword argument {min(unknown)!r}")
    boolean("record", record)
    regularized = check_regularization(options.name, regularization)
    masks, key = regularized if record else None, dropout_key("seed", seed)
    packed, dropped = _packed(options, params, masks, key)
    packed = packed.regularized(regularized)
    net = packed.net
    source = as_floats("x", x, net.dtype)
    layout = Layout(packed.structure, source.shape, batch_first)
    x_rows = strided_rows(layout.time_major(source))
    hx_parts, restart, learned = _starts(packed, layout, hx, restart_state)
    if not record and checkpoint is not None:
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
        key,
        num_threads,
        masks,
        axis_length("first_step", first_step),
    )
    if not boolean("need_output", need_output) and out is not None:
        raise ValueError("out: expected None with need_output=False")
    shape = _output_shape(packed.structure, boolean("all_layers", all_layers))
    y, y_rows = as_output(out, layout, *shape) if need_output else (None, None)
    if out is not None:  # what it overlaps is copied first
        x_rows, hx_parts, restart = (_apart(a, out) for a in (x_rows, hx_parts, restart))
    hx_n = layout.new_states()
    gates = _trace(packed, call, layout) if boolean("trace", trace) else None
    if not record:
        _infer(packed, call, x_rows, hx_parts, restart, y_rows, hx_n)
        return (y, as_states(hx_n)) if gates is None else (y, as_states(hx_n), gates)
    _, tape_size, workspace_size, _ = _core.sizes(net, call)
    block, workspace = new_block(tape_size), new_block(workspace_size)
    arrays = (x_rows, hx_parts, restart, y_rows, hx_n, block, workspace)
    _core.forward(net, call, packed.block, *arrays)
    tape = Tape(packed, call, layout, x_rows, block, restart, learned, shape, dropped)
    tape.trace = gates
    return y, as_states(hx_n), tape


def _packed(
    options: Options,
    params: Mapping[str, Array] | Packed,
    masks: Regularization | None,
    seed: int,
) -> tuple[Packed, DropConnect | None]:
    """The weights, and the masks on them."""
    share = 0.0 if masks is None else masks.weight_dropout
    if isinstance(params, Packed):
        _check_packed(options, params)
        if share:
            raise ValueError("params: expected a mapping with weight_dropout, got packed weights")
        return params, None
    structure, weights, initial = network(options, params)
    if not share:
        return Packed(structure, weights, initial), None
    dropped = DropConnect(structure, isa.level(), share, seed)
    return Packed(structure, dropped.drop(weights), initial), dropped


def _check_packed(options: Options, packed: Packed) -> None:
    """ValueError unless the weights were packed with these options."""
    found = packed.structure.options
    if found == options:
        return
    if found.cell != options.cell:
        raise ValueError(f"params: expected weights of {options.cell!r}, got {found.cell!r} packed")
    for name, want, got in zip(Options._fields, options, found, strict=True):
        if want != got:
            raise ValueError(f"params: expected weights packed with {name}={want}, got {got}")


def _starts(
    packed: Packed, layout: Layout, hx: Any, restart_state: Any
) -> tuple[tuple[Array, ...] | None, tuple[Array, ...] | None, tuple[bool, bool]]:
    """hx and restart_state as the kernels take them, and whether they are the learned states."""
    given = layout.states("hx", hx)
    shared = (packed.structure.sweeps,)
    restart = layout.states("restart_state", restart_state, layout.state_axes, shared)
    if packed.initial is None:
        return given, restart, (False, False)
    learned = (given is None, restart is None)
    return *layout.learned(packed.initial, given, restart), learned


def _restart_kind(restart: tuple[Array, ...] | None) -> int:
    if restart is None:
        return _core.RESTART_ZERO
    return _core.RESTART_PER_ROW if restart[0].ndim == 3 else _core.RESTART_SHARED


_BETWEEN_LAYERS = 1 << 22  # bytes of their sequences in inference: they stay in the cache


def _piece(structure: Structure, call: _core.Call) -> int:
    """The steps that inference takes through all layers at a time.

    So its memory does not grow with the steps. A reverse direction has to start at the end.
    """
    if structure.num_directions == 2 or call.traced:
        return call.steps
    step = 2 * call.rows * structure.width * structure.dtype.itemsize
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
    net, piece = packed.net, _piece(packed.structure, call)
    workspace = new_block(_core.sizes(net, call.part(0, piece))[2])
    for start in range(0, max(1, call.steps), max(1, piece)):  # once where there are no steps
        stop = min(start + piece, call.steps)
        y_part = None if y is None else y[..., start:stop, :, :]
        arrays = (x[start:stop], hx, restart, y_part, hx_n, None, workspace)
        _core.forward(net, call.part(start, stop), packed.block, *arrays)
        hx = hx_n


def _output_shape(structure: Structure, all_layers: bool) -> tuple[int, ...]:
    """What Layout takes as the shape of y."""
    return (structure.num_layers, structure.features) if all_layers else (structure.features,)


def _trace(packed: Packed, call: _core.Call, layout: Layout) -> dict[str, Array]:
    """Where the call will show its gates and states."""
    net, structure = packed.net, packed.structure
    shape = (structure.sweeps, call.steps, call.rows, len(net.traced), structure.hidden_size)
    found = np.empty(shape, structure.dtype)
    call.trace_into(net, found)
    shown = {name: layout.as_caller(found[:, :, :, i]) for i, name in enumerate(net.traced)}
    shown["h"] = shown["h"][..., : structure.width]
    return shown


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
    cell: str,
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
    if tape.function != cell:
        raise ValueError(f"tape: expected one of {cell}, got one of {tape.cell}")
    target = tape.zero_grads() if grads is None and row_grads is False else grads
    dx, dhx = tape.backward(dy, dhx_n, grads=target, row_grads=row_grads, **options)
    found = target if tape.row_grads is None else tape.row_grads
    return dx, dhx, {} if found is None else found


def rnn_forward(
    x: ArrayLike,
    params: Mapping[str, Array] | Packed,
    hx: Any = None,
    *,
    nonlinearity: Activation = "tanh",
    clip: float | None = None,
    norm_eps: float = 1e-5,
    **options: Unpack[ForwardOptions],
) -> Any:
    """RNN (Elman 1990): h' = g(W x + b_ih + U h + b_hh), g the nonlinearity."""
    cell = cell_options("rnn", nonlinearity=nonlinearity, clip=clip, norm_eps=norm_eps)
    return _forward(cell, x, params, hx, **options)


def rnn_backward(
    tape: Tape, dy: ArrayLike | None = None, dhx_n: Any = None, **options: Unpack[BackwardOptions]
) -> tuple[Array | None, States, Mapping[str, Array]]:
    """Gradients (dx, dhx, grads) of ``rnn_forward(..., record=True)``, see ``Tape.backward``."""
    return _backward("rnn", tape, dy, dhx_n, **options)


def lstm_forward(
    x: ArrayLike,
    params: Mapping[str, Array] | Packed,
    hx: Any = None,
    *,
    coupled: Coupling = None,
    activations: tuple[Activation, Activation, Activation] = ("sigmoid", "tanh", "tanh"),
    clip: float | None = None,
    cell_clip: float | None = None,
    norm_eps: float = 1e-5,
    **options: Unpack[ForwardOptions],
) -> Any:
    """LSTM (Hochreiter & Schmidhuber 1997, with the forget gate of Gers et al. 2000).

    i, f, o = s(W x + b_ih + U h + b_hh), g = t(the same), c' = f c + i g, h' = o q(c'), with
    activations (s, t, q) of the gates, the candidate and the output.

    With weight_ch it has peepholes (Gers & Schmidhuber 2000): i and f also see p c, o p c'. Coupled
    (Greff et al. 2017, "LSTM: a search space odyssey"), it computes one gate e in place of two:
    coupled="input" has f = e, i = 1 - e; "forget" i = e, f = 1 - e. With weight_hr the output is
    projected, h' = W_hr o q(c') (Sak et al. 2014). cell_clip cuts c'. With layer normalisation q
    sees c' normalised, times norm_c plus norm_c_bias.

    Examples:
        >>> params = {"weight_ih_l0": np.ones((4 * 2, 3)), "weight_hh_l0": np.ones((4 * 2, 2))}
        >>> y, (h, c), tape = lstm_forward(np.ones((5, 3)), params, record=True)
        >>> dx, (dh, dc), grads = lstm_backward(tape, np.ones_like(y))
        >>> dx.shape, dc.shape, sorted(grads)
        ((5, 3), (1, 2), ['weight_hh_l0', 'weight_ih_l0'])
    """
    cell = cell_options(
        "lstm",
        coupled=coupled,
        activations=activations,
        clip=clip,
        cell_clip=cell_clip,
        norm_eps=norm_eps,
    )
    return _forward(cell, x, params, hx, **options)


def lstm_backward(
    tape: Tape, dy: ArrayLike | None = None, dhx_n: Any = None, **options: Unpack[BackwardOptions]
) -> tuple[Array | None, States, Mapping[str, Array]]:
    """Gradients (dx, dhx, grads) of ``lstm_forward(..., record=True)``, see ``Tape.backward``."""
    return _backward("lstm", tape, dy, dhx_n, **options)


def gru_forward(
    x: ArrayLike,
    params: Mapping[str, Array] | Packed,
    hx: Any = None,
    *,
    reset_after: bool = True,
    activations: tuple[Activation, Activation] = ("sigmoid", "tanh"),
    clip: float | None = None,
    norm_eps: float = 1e-5,
    **options: Unpack[ForwardOptions],
) -> Any:
    """GRU (Cho et al. 2014): h' = (1-z) n + z h, r, z = s(W x + b_ih + U h + b_hh).

    With reset_after n = t(W x + b_ih + r (U h + b_hh)), as torch, cuDNN and Keras have it;
    without, n = t(W x + b_ih + U (r h) + b_hh), as Cho et al. and ONNX by default, and there is no
    layer normalisation. activations are (s, t), of the gates and the candidate.
    """
    cell = cell_options(
        "gru", reset_after=reset_after, activations=activations, clip=clip, norm_eps=norm_eps
    )
    return _forward(cell, x, params, hx, **options)


def gru_backward(
    tape: Tape, dy: ArrayLike | None = None, dhx_n: Any = None, **options: Unpack[BackwardOptions]
) -> tuple[Array | None, States, Mapping[str, Array]]:
    """Gradients (dx, dhx, grads) of ``gru_forward(..., record=True)``, see ``Tape.backward``."""
    return _backward("gru", tape, dy, dhx_n, **options)


def mgu_forward(
    x: ArrayLike,
    params: Mapping[str, Array] | Packed,
    hx: Any = None,
    *,
    activations: tuple[Activation, Activation] = ("sigmoid", "tanh"),
    **options: Unpack[ForwardOptions],
) -> Any:
    """MGU (Zhou et al. 2016, "Minimal gated unit for recurrent neural networks").

    h' = (1-f) h + f n, f = s(W x + b_ih + U h + b_hh), n = t(W x + b_ih + U (f h) + b_hh), with
    activations (s, t).
    """
    return _forward(cell_options("mgu", activations=activations), x, params, hx, **options)


def mgu_backward(
    tape: Tape, dy: ArrayLike | None = None, dhx_n: Any = None, **options: Unpack[BackwardOptions]
) -> tuple[Array | None, States, Mapping[str, Array]]:
    """Gradients (dx, dhx, grads) of ``mgu_forward(..., record=True)``, see ``Tape.backward``."""
    return _backward("mgu", tape, dy, dhx_n, **options)


def indrnn_forward(
    x: ArrayLike,
    params: Mapping[str, Array] | Packed,
    hx: Any = None,
    *,
    nonlinearity: Activation = "relu",
    **options: Unpack[ForwardOptions],
) -> Any:
    """IndRNN (Li et al. 2018, "Independently recurrent neural network").

    h' = g(W x + b_ih + u h), u = weight_hh (H,), g the nonlinearity: a unit sees no other's state.
    """
    return _forward(cell_options("indrnn", nonlinearity=nonlinearity), x, params, hx, **options)


def indrnn_backward(
    tape: Tape, dy: ArrayLike | None = None, dhx_n: Any = None, **options: Unpack[BackwardOptions]
) -> tuple[Array | None, States, Mapping[str, Array]]:
    """Gradients (dx, dhx, grads) of ``indrnn_forward(..., record=True)``, see ``Tape.backward``."""
    return _backward("indrnn", tape, dy, dhx_n, **options)


def sru_forward(
    x: ArrayLike,
    params: Mapping[str, Array] | Packed,
    hx: Any = None,
    *,
    activations: tuple[Activation, Activation] = ("sigmoid", "identity"),
    **options: Unpack[ForwardOptions],
) -> Any:
    """SRU (Lei et al. 2018, "Simple recurrent units for highly parallelizable recurrence").

    n and the highway x' are W x + b_ih; f, r = s(W x + b_ih + v c), v = weight_ch;
    c' = f c + (1-f) n; y = r q(c') + (1-r) x'. activations are (s, q), of the gates and of c'. The
    state is c.
    """
    return _forward(cell_options("sru", activations=activations), x, params, hx, **options)


def sru_backward(
    tape: Tape, dy: ArrayLike | None = None, dhx_n: Any = None, **options: Unpack[BackwardOptions]
) -> tuple[Array | None, States, Mapping[str, Array]]:
    """Gradients (dx, dhx, grads) of ``sru_forward(..., record=True)``, see ``Tape.backward``."""
    return _backward("sru", tape, dy, dhx_n, **options)


def mingru_forward(
    x: ArrayLike,
    params: Mapping[str, Array] | Packed,
    hx: Any = None,
    *,
    activations: tuple[Activation, Activation] = ("sigmoid", "identity"),
    **options: Unpack[ForwardOptions],
) -> Any:
    """MinGRU (Feng et al. 2024, "Were RNNs all we needed?").

    h' = (1-z) h + z n, z = s(W x + b_ih), n = t(W x + b_ih), with activations (s, t).
    """
    return _forward(cell_options("mingru", activations=activations), x, params, hx, **options)


def mingru_backward(
    tape: Tape, dy: ArrayLike | None = None, dhx_n: Any = None, **options: Unpack[BackwardOptions]
) -> tuple[Array | None, States, Mapping[str, Array]]:
    """Gradients (dx, dhx, grads) of ``mingru_forward(..., record=True)``, see ``Tape.backward``."""
    return _backward("mingru", tape, dy, dhx_n, **options)


def memory_estimate(
    params: Mapping[str, Array] | Packed,
    cell: str,
    T: int,
    B: int,
    *,
    lengths: ArrayLike | None = None,
    record: bool = True,
    checkpoint: Checkpoint = None,
    dropout: float = 0.0,
    regularization: Regularization | None = None,
    num_threads: int | None = None,
    **options: Unpack[CellOptions],
) -> dict[str, int]:
    """Bytes that a call on (T, B) sequences needs.

    ``tape``, ``workspace`` (the larger of the two passes), ``packed`` (weights) and ``outputs``
    (y and final states). The cell and its options are as for ``pack``; packed weights have their
    own.
    """
    chosen = cell_options(cell, **options)
    known = params if isinstance(params, Packed) else network(chosen, params)
    structure = known.structure
    regularized = check_regularization(structure.options.name, regularization)
    structure = structure.regularized(regularized)
    call = planned_call(
        structure, T, B, lengths, record, checkpoint, num_threads, dropout, regularized
    )
    return call_memory(structure, call, regularized)


def planned_call(
    structure: Structure,
    T: int,
    B: int,
    lengths: ArrayLike | None,
    record: bool,
    checkpoint: Checkpoint,
    num_threads: int | None,
    dropout: float,
    regularization: Regularization | None,
) -> _core.Call:
    """The call that T steps of B rows would be; ValueError or TypeError where it cannot be."""
    T, B = axis_length("T", T), axis_length("B", B)
    call = new_call(
        T,
        B,
        as_lengths(lengths, Layout(structure, (T, B, structure.input_size), False)),
        checkpoint=checkpoint,
        record=boolean("record", record),
        dropout=probability("dropout", dropout),
        num_threads=num_threads,
        regularization=regularization,
    )
    try:
        _core.sizes(structure.net(), call)
    except ValueError:  # the only reason is that they do not fit in memory addresses
        raise ValueError(
            f"T, B: expected a call whose memory can be addressed, got {T}, {B}"
        ) from None
    return call


def call_memory(
    structure: Structure, call: _core.Call, regularization: Regularization | None
) -> dict[str, int]:
    """memory_estimate of a call."""
    net, item = structure.net(), structure.dtype.itemsize
    packed, tape, forward, backward = _core.sizes(net, call)
    if call.keep == _core.KEEP_NONE:
        forward = _core.sizes(net, call.part(0, _piece(structure, call)))[2]
    elif regularization is not None and regularization.weight_dropout:
        dropped = item * structure.sweeps * prod(structure.weight_shapes(0)["weight_hh"])
        forward, backward = forward + dropped, backward + dropped  # weights, and their gradients
    states = structure.sweeps * sum(structure.states.values())
    outputs = item * call.rows * (call.steps * structure.features + states)
    return {"tape": tape, "workspace": max(forward, backward), "packed": packed, "outputs": outputs}
