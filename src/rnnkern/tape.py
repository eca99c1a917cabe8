"""What a recorded call keeps for backward, and the way back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import _core, threads
from .arguments import Layout, States, as_states
from .dropconnect import DropConnect
from .memory import new_block
from .packed import Packed
from .validation import Array, Shape, as_targets, boolean, limit


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
        dropped: DropConnect | None = None,
    ) -> None:
        self._packed, self._call, self._layout = packed, call, layout
        self._x, self._block = x.view(), block  # a view: x itself may be given another shape
        self._output_shape = output_shape
        self._learned = learned  # whether rows start, and restart, from the learned states
        self._restart_shapes = None if restart is None else [part.shape for part in restart]
        self._dropped = dropped
        self._used = False
        self.shapes: Mapping[str, Shape] = packed.structure.parameter_shapes
        """Names and shapes of the parameters, and so of ``grads``."""
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
        """Which cell recorded it: "rnn", "lstm", "gru", "gru_before" (reset_after=False), "mgu",
        "indrnn", "sru" or "mingru"."""
        return self._packed.structure.options.cell

    @property
    def function(self) -> str:
        """The stem of the functions that run it: "gru" also for "gru_before"."""
        return self._packed.structure.options.name

    @property
    def nbytes(self) -> int:
        """Bytes that the tape holds beside x and the packed weights."""
        if self._block is None:
            return 0
        return _core.sizes(self._packed.net, self._call)[1]

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
        packed, layout = self._packed, self._layout
        net = packed.net
        dy_rows = None if dy is None else layout.sequence("dy", dy, *self._output_shape)
        dhx_n_parts = layout.states("dhx_n", dhx_n)
        of_rows = self._new_row_grads(grads) if boolean("row_grads", row_grads) else None
        target = self._targets(grads) if of_rows is None else list(of_rows.values())
        boolean("retain", retain)
        norms = self._new_norms() if boolean("state_grads", state_grads) else None
        call = self._call.for_backward(
            net,
            threads.chosen(num_threads),
            clip=limit("clip_state_grad", clip_state_grad) or 0.0,
            state_norms=norms,
            row_grads=of_rows is not None,
        )
        dx, dx_rows = layout.empty(net.input_size) if boolean("need_dx", need_dx) else (None, None)
        dhx = layout.new_states()
        drestart = None
        if self._restart_shapes is not None:
            drestart = tuple(np.zeros(shape, net.dtype) for shape in self._restart_shapes)
        weights, initial = (None, None) if target is None else packed.structure.split(target)
        move = None
        if self._dropped is not None and weights is not None:
            weights, move = self._dropped.divert(weights)
        self._used = not retain
        block = self._block
        if retain and block is not None and call.keep == _core.KEEP_GATES:
            block = new_block(block.nbytes)
            block[:] = self._block
        workspace = new_block(_core.sizes(net, call)[3])
        _core.backward(
            net,
            call,
            packed.block,
            self._x,
            block,
            dy_rows,
            dhx_n_parts,
            dx_rows,
            dhx,
            drestart,
            weights,
            workspace,
        )
        if not retain:
            self._block = None
        if move is not None:
            move()
        if initial is not None:
            self._add_initial(initial, dhx, drestart)
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
        structure, call = self._packed.structure, self._call
        shape = (structure.sweeps, len(structure.states), call.steps, call.rows)
        return np.empty(shape, structure.dtype)

    def zero_grads(self) -> dict[str, Array]:
        """New zero arrays for the gradients of all parameters."""
        dtype = self._packed.net.dtype
        return {name: np.zeros(shape, dtype) for name, shape in self.shapes.items()}

    def _targets(self, grads: Mapping[str, Array] | None) -> list[Array] | None:
        """Where gradients go."""
        given = self.grads if grads is None else grads
        if given is None:
            return None
        return list(as_targets(given, self.shapes, self._packed.net.dtype).values())

    def _add_initial(
        self,
        targets: tuple[list[Array], ...],
        dhx: tuple[Array, ...],
        drestart: tuple[Array, ...] | None,
    ) -> None:
        """Sums over the rows that restart from the learned states, then over those that start."""
        starts, restarts = self._learned
        for part, (dstart, of_sweeps) in enumerate(zip(dhx, targets, strict=True)):
            total = np.zeros((len(dstart), dstart.shape[-1]), dstart.dtype)
            if restarts and drestart is not None:
                total += drestart[part]
            if starts:
                total += dstart.sum(axis=1) if dstart.ndim == 3 else dstart
            for gradient, target in zip(total, of_sweeps, strict=True):
                target += gradient

    def __reduce__(self) -> Any:
        raise TypeError(
            "cannot copy or pickle a Tape, which belongs to one call: record again, or use it more "
            "than once by backward(retain=True)"
        )
