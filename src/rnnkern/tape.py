"""What a recorded call keeps for backward, and the way back."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import _core, threads
from .arguments import (
    GATES,
    Layout,
    States,
    as_states,
    by_kind,
    initial_shapes,
    new_block,
    parameter_shapes,
)
from .packed import Packed
from .validation import Array, Shape, as_targets, boolean, number


def tape_block(size: int, spare: list[Array] | None) -> Array:
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
        learned: tuple[bool, bool],
        output_shape: tuple[int, ...],
        spare: list[Array] | None,
    ) -> None:
        self._packed, self._call, self._layout = packed, call, layout
        self._x, self._block = x.view(), block  # a view: x itself may be given another shape
        self._output_shape, self._spare = output_shape, spare
        self._learned = learned  # whether rows start, and restart, from the learned states
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

    @property
    def cell(self) -> str:
        """Which cell recorded it: "rnn_tanh", "rnn_relu", "lstm", "gru" or "gru_before"."""
        return str(self._packed.net.cell)

    @property
    def nbytes(self) -> int:
        """Bytes that the tape holds beside x and the packed weights."""
        if self._block is None:
            return 0
        return _core.sizes(self._packed.net, self._call)[1]  # a spare block may be larger

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
        self.restart_state_grad = None
        if drestart is not None and not self._learned[1]:
            self.restart_state_grad = as_states(drestart)
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
