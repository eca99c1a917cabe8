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
from functools import cached_property
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from . import _core, threads
from .arguments import (
    GATES,
    Checkpoint,
    Layout,
    States,
    as_lengths,
    as_output,
    as_resets,
    as_states,
    by_kind,
    initial_shapes,
    kernel_cell,
    network,
    new_block,
    new_call,
    parameter_shapes,
    strided_rows,
)
from .validation import (
    Array,
    Shape,
    as_floats,
    as_targets,
    axis_length,
    boolean,
    described,
    dropout_key,
    number,
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
            Needs checkpoint=None.
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


class Packed:
    """Weights as the kernels read them, made by ``pack``: immutable, cheap to share."""

    __slots__ = ("_block", "_initial", "_net")

    def __init__(
        self, net: _core.Net, weights: list[Array | None], initial: Array | None = None
    ) -> None:
        self._net, self._initial = net, initial
        self._block = new_block(_core.sizes(net, new_call(0, 0))[0])
        _core.pack(net, weights, self._block)

    @property
    def net(self) -> _core.Net:
        """What the weights are of."""
        return self._net

    @property
    def block(self) -> Array:
        """The packed weights, bytes."""
        return self._block

    @property
    def initial(self) -> Array | None:
        """Learned initial states (h or h and c, L*D, H)."""
        return self._initial

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle packed weights: pickle the weights, and pack them there")


def stepper(packed: Packed, rows: int) -> _core.Stepper:
    """For single steps of at most so many rows with little overhead."""
    stepper = _core.Stepper()
    workspace = new_block(_core.sizes(packed.net, new_call(1, rows))[2])
    stepper.bind(packed.net, packed.block, workspace, rows, threads.get_num_threads())
    return stepper


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
        ValueError, TypeError: what is missing, unexpected or wrongly shaped in params, or an
            unknown option.
    """
    name = kernel_cell(cell, nonlinearity=nonlinearity, reset_after=reset_after)
    return Packed(*network(name, params))


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
    if isinstance(params, Packed):
        if params.net.cell != cell:
            raise ValueError(
                f"params: expected weights of {cell!r}, got {params.net.cell!r} packed"
            )
        packed = params
    else:
        packed = Packed(*network(cell, params))
    net = packed.net
    source = as_floats("x", x, net.dtype)
    layout = Layout(net, source.shape, batch_first)
    x_rows = strided_rows(layout.time_major(source))
    hx_parts = layout.states("hx", hx)
    shared = (net.num_layers * net.num_directions, net.hidden_size)
    restart = layout.states(
        "restart_state", restart_state, *dict.fromkeys((layout.state_shape, shared))
    )
    learned = (hx is None, restart is None) if packed.initial is not None else (False, False)
    if packed.initial is not None:
        hx_parts, restart = layout.learned(packed.initial, hx_parts, restart)
    kind = _core.RESTART_ZERO
    if restart is not None:
        kind = _core.RESTART_PER_ROW if restart[0].ndim == 3 else _core.RESTART_SHARED
    if not boolean("record", record) and checkpoint is not None:
        raise ValueError("checkpoint: expected None without record=True, since nothing is kept")
    if boolean("trace", trace) and checkpoint is not None:
        raise ValueError(f"checkpoint: expected None with trace=True, got {checkpoint!r}")
    call = new_call(
        layout.steps,
        layout.rows,
        as_lengths(lengths, layout),
        as_resets(resets, layout),
        kind,
        checkpoint,
        record or trace,
        probability("dropout", dropout) if not trace or record else 0.0,
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
    if not record and not trace:
        _infer(packed, call, x_rows, hx_parts, restart, y_rows, hx_n)
        return y, as_states(hx_n)
    _, tape_size, workspace_size, _ = _core.sizes(net, call)
    tape, workspace = _tape_block(tape_size, spare), new_block(workspace_size)
    arrays = (x_rows, hx_parts, restart, y_rows, hx_n, tape, workspace)
    _core.forward(net, call, packed.block, *arrays)
    gates = _unpacked(net, call, layout, tape, workspace) if trace else None
    if not record:
        return y, as_states(hx_n), gates
    kept = Tape(packed, call, layout, x_rows, tape, restart, shape, spare)
    kept.trace, kept._learned = gates, learned
    return y, as_states(hx_n), kept


_BETWEEN_LAYERS = 1 << 22  # bytes of their sequences in inference: they stay in the cache


def _piece(net: _core.Net, call: _core.Call) -> int:
    """The steps that inference takes through all layers at a time.

    So its memory does not grow with the steps. A reverse direction has to start at the end.
    """
    if net.num_directions == 2:
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


def _unpacked(
    net: _core.Net, call: _core.Call, layout: Layout, tape: Array | None, workspace: Array
) -> dict[str, Array]:
    """What ``trace`` shows."""
    names = _core.UNPACKED[_core.CELLS.index(net.cell)]
    sweeps = net.num_layers * net.num_directions
    shape = (sweeps, call.steps, call.rows, len(names), net.hidden_size)
    found = np.empty(shape, net.dtype)
    _core.unpack(net, call, tape, workspace, found)
    return {name: layout.as_caller(found[:, :, :, i]) for i, name in enumerate(names)}


def _tape_block(size: int, spare: list[Array] | None) -> Array:
    """Memory for a tape: the spare block if it fits, since clearing new pages takes long."""
    try:
        block = spare.pop() if spare else None
    except IndexError:  # another thread was faster
        block = None
    return block if block is not None and size <= block.nbytes <= 2 * size else new_block(size)


class Tape:
    """What a recorded forward call keeps for backward: its own packed weights, states and gates.

    x is held by reference: changing it between the call and ``backward`` changes the gradients.
    Everything else is the tape's own, so stepping an optimiser or scaling y in between cannot
    falsify them.
    """

    def __init__(
        self,
        packed: Packed,
        call: _core.Call,
        layout: Layout,
        x: Array,
        block: Array | None,
        restart: tuple[Array, ...] | None,
        output_shape: tuple[int, ...],
        spare: list[Array] | None,
    ) -> None:
        self._packed, self._call, self._layout = packed, call, layout
        self._x, self._block = x.view(), block  # a view: x itself may be given another shape
        self._output_shape, self._spare = output_shape, spare
        self._restart_shape = None if restart is None else restart[0].shape
        self._used = False
        self.grads: Mapping[str, Array] | None = None
        """Where ``backward`` adds parameter gradients by default: for tapes of a layer, its own."""
        self.restart_state_grad: States | None = None
        """Gradient of restart_state, in its shape, after ``backward``; None if none was given."""
        self.trace: dict[str, Array] | None = None
        """The gates, where they were asked for."""
        self.state_grad_norms: States | None = None
        """After ``backward(state_grads=True)``."""
        self.row_grads: dict[str, Array] | None = None
        """After ``backward(row_grads=True)``."""
        self._learned = (False, False)  # whether rows start, and restart, from learned states

    @property
    def cell(self) -> str:
        """Which cell recorded it: "rnn_tanh", "rnn_relu", "lstm", "gru" or "gru_before"."""
        return str(self._packed.net.cell)

    @property
    def nbytes(self) -> int:
        """Bytes that the tape holds beside x and the packed weights."""
        return 0 if self._block is None else self._block.nbytes

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """Names and shapes of the parameters, and so of ``grads``."""
        net = self._packed.net
        stack = (net.hidden_size, net.num_layers, net.num_directions)
        shapes = parameter_shapes(GATES[net.cell], net.input_size, *stack, net.bias)
        return shapes if self._packed.initial is None else shapes | initial_shapes(net.cell, *stack)

    def backward(
        self,
        dy: ArrayLike | None = None,
        dhx_n: Any = None,
        *,
        grads: Mapping[str, Array] | None = None,
        need_dx: bool = True,
        retain: bool = False,
        num_threads: int | None = None,
        clip_state_grad: float | None = None,
        state_grads: bool = False,
        row_grads: bool = False,
    ) -> tuple[Array | None, States]:
        """Gradients of a scalar loss; those of parameters are added into ``grads``.

        Args:
            dy: gradient of y, in y's shape; None means zeros. Ignored behind lengths.
            dhx_n: gradient of the final states, as hx_n; None means zeros.
            grads: mapping with the parameters' names and shapes, contiguous writeable arrays;
                default ``self.grads``, and if that is None they are not computed.
            need_dx: False saves the multiply for dx and returns None in its place.
            retain: the tape can be used again (it is copied first).
            num_threads: as for the forward call; the result does not depend on it.
            clip_state_grad: cut each element of the gradient that a step hands on, of the state
                before it, to -clip_state_grad..clip_state_grad (Graves 2013). None: do not.
            state_grads: set ``state_grad_norms``, the norms of the gradients of h (for the LSTM
                of h and c, a tuple) after each step: (L*D, T, B), laid out as y is, zero behind
                lengths.
            row_grads: instead of adding into ``grads`` set ``row_grads``, the parameters' gradients
                of each row by itself, (B, ...) each, with the bits of that row alone. Needs a tape
                of checkpoint=None, and no learned initial states.

        Returns:
            dx in x's shape (zero behind lengths), and the gradient of hx in its shape (also if hx
            was None).

        Raises:
            RuntimeError: the tape has been used already without ``retain=True``.
            ValueError, TypeError: an argument of the wrong shape or dtype, or grads that cannot be
                added into.
        """
        if self._used:
            raise RuntimeError(
                "this tape has been used; call backward(retain=True) to use it more than once"
            )
        net, layout = self._packed.net, self._layout
        dy_rows = None if dy is None else layout.sequence("dy", dy, *self._output_shape)
        dhx_n_parts = layout.states("dhx_n", dhx_n)
        of_rows = self._new_row_grads(grads) if boolean("row_grads", row_grads) else None
        if of_rows is None:
            targets, initial_targets = self._targets(self.grads if grads is None else grads)
        else:
            targets, initial_targets = by_kind(list(of_rows.values()), net.bias), []
        boolean("retain", retain)
        clip = 0.0 if clip_state_grad is None else number("clip_state_grad", clip_state_grad)
        if clip_state_grad is not None and clip == 0:
            raise ValueError("clip_state_grad: expected a number above 0 or None, got 0")
        norms = self._new_norms() if boolean("state_grads", state_grads) else None
        call = self._call.for_backward(
            net,
            threads.chosen(num_threads),
            clip=clip,
            state_norms=norms,
            row_grads=of_rows is not None,
        )
        dx, dx_rows = layout.empty(net.input_size) if boolean("need_dx", need_dx) else (None, None)
        dhx = layout.new_states()
        drestart = None
        if self._restart_shape is not None:
            drestart = tuple(np.zeros(self._restart_shape, net.dtype) for _ in layout.state_names)
        self._used = not retain
        block = self._block
        if retain and block is not None and call.keep == _core.KEEP_GATES:
            block = new_block(block.nbytes)
            block[:] = self._block
        workspace = new_block(_core.sizes(net, call)[3])
        _core.backward(
            net,
            call,
            self._packed.block,
            self._x,
            block,
            dy_rows,
            dhx_n_parts,
            dx_rows,
            dhx,
            drestart,
            targets,
            workspace,
        )
        if not retain:
            if self._spare is not None and block is not None:
                self._spare[:] = [block]
            self._block = None
        self._add_initial(initial_targets, dhx, drestart)
        self.row_grads = of_rows
        own = drestart if drestart is None or not self._learned[1] else None
        self.restart_state_grad = None if own is None else as_states(own)
        self.state_grad_norms = None
        if norms is not None:
            parts = norms.swapaxes(0, 1)  # (states, L*D, T, B)
            self.state_grad_norms = as_states(tuple(layout.as_caller(part) for part in parts))
        return dx, as_states(dhx)

    def _new_row_grads(self, grads: Any) -> dict[str, Array]:
        if grads is not None:
            raise ValueError("grads: expected None with row_grads=True")
        if self._call.keep != _core.KEEP_GATES or self._packed.initial is not None:
            raise ValueError(
                "row_grads: expected a tape of checkpoint=None, without learned initial states"
            )
        shapes, dtype = self.shapes, self._packed.net.dtype
        return {name: np.zeros((self._call.rows, *s), dtype) for name, s in shapes.items()}

    def _new_norms(self) -> Array:
        net, call, states = self._packed.net, self._call, len(self._layout.state_names)
        sweeps = net.num_layers * net.num_directions
        return np.empty((sweeps, states, call.steps, call.rows), net.dtype)

    def zero_grads(self) -> dict[str, Array]:
        """New zero arrays for the gradients of all parameters."""
        dtype = self._packed.net.dtype
        return {name: np.zeros(shape, dtype) for name, shape in self.shapes.items()}

    def _targets(
        self, grads: Mapping[str, Array] | None
    ) -> tuple[list[Array | None] | None, list[Array]]:
        """Where gradients of weights go, and those of learned initial states."""
        if grads is None:
            return None, []
        net, initial = self._packed.net, self._packed.initial
        targets = list(as_targets(grads, self.shapes, net.dtype).values())
        weights = len(targets) - (0 if initial is None else initial[..., 0].size)
        return by_kind(targets[:weights], net.bias), targets[weights:]

    def _add_initial(
        self,
        targets: list[Array],
        dhx: tuple[Array, ...],
        drestart: tuple[Array, ...] | None,
    ) -> None:
        """Sums over the rows that restart from the learned states, then over those that start."""
        starts, restarts = self._learned
        at = iter(targets)
        for part, dstart in enumerate(dhx):
            total = np.zeros((len(dstart), dstart.shape[-1]), dstart.dtype)
            if restarts and drestart is not None:
                total += drestart[part]
            if starts:
                total += dstart.sum(axis=1) if dstart.ndim == 3 else dstart
            for gradient, target in zip(total, at, strict=False):
                target += gradient

    def __reduce__(self) -> Any:
        raise TypeError(
            "cannot copy or pickle a Tape, which belongs to one call: record again, or use it more "
            "than once by backward(retain=True)"
        )


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
    states = (2 if net.cell == "lstm" else 1) * net.num_layers * features
    outputs = net.dtype.itemsize * call.rows * (call.steps * features + states)
    return {"tape": tape, "workspace": max(forward, backward), "packed": packed, "outputs": outputs}
