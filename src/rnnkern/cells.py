"""Recurrent cells: layers of one step, under torch's names for cells.

    cell = GRUCell(40, 128)
    h = cell(x, h)                  # inference
    h, tape = cell.record(x, h)     # training
    dx, dh = tape.backward(dh)      # adds into cell.grads

Everything else is as for `layers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from . import threads
from .activations import Activation
from .packed import stepper
from .recurrent import Pair, Recurrent, S, Seed, Snapshot
from .tape import Tape
from .validation import Array, Shape, as_array, check_shape

__all__ = ["CellTape", "FrozenCell", "GRUCell", "LSTMCell", "RNNCell"]


def _add_axis(name: str, states: Any, shape: Shape) -> Any:
    """States (B, H) or (H,) as those of a stack with one layer, (1, B, H) or (1, H)."""

    def one(part: str, state: Any) -> Array:
        array = as_array(part, state)
        check_shape(part, array, shape)
        return array[None]

    if states is None:
        return None
    if not isinstance(states, tuple | list):
        return one(name, states)
    if len(states) != 2:
        return states  # refused where it is known how many there are
    return one(f"h of {name}", states[0]), one(f"c of {name}", states[1])


def _drop_axis(states: Any) -> Any:
    return tuple(state[0] for state in states) if isinstance(states, tuple) else states[0]


class _Steps(Generic[S]):
    """What is called with single steps: a cell, or its snapshot."""

    __slots__ = ()

    @property
    def _forward(self) -> Callable[..., Any]:
        raise NotImplementedError

    @property
    def _sizes(self) -> tuple[int, int]:
        raise NotImplementedError

    def _step(self, x: ArrayLike, hx: Any, **keywords: Any) -> tuple[Any, ...]:
        """None and the state as `functional` returns them, and its tape when recording."""
        inputs, units = self._sizes
        array = as_array("x", x)
        if array.ndim not in (1, 2) or array.shape[-1] != inputs:
            raise ValueError(f"x: expected shape (B, {inputs}) or ({inputs},), got {array.shape}")
        state = _add_axis("hx", hx, (*array.shape[:-1], units))
        result: tuple[Any, ...] = self._forward(
            array[None], hx=state, need_output=False, **keywords
        )
        return result

    def __call__(self, x: ArrayLike, hx: Any = None, *, num_threads: int | None = None) -> S:
        """One step, for inference.

        Args:
            x: inputs (B, I), or (I,).
            hx: state (B, H), or (H,); for the LSTM a tuple (h, c). None means zeros.
            num_threads: at most so many; default `rnnkern.get_num_threads()`.

        Returns:
            The next state, as hx.

        Raises:
            TypeError: an argument of the wrong kind, or of another dtype than the cell's.
            ValueError: an argument of the wrong shape.
        """
        next_state: S = _drop_axis(self._step(x, hx, num_threads=num_threads)[1])
        return next_state


_FAST_ROWS = 16  # beyond which the overhead of a call no longer counts


class FrozenCell(Snapshot, _Steps[S]):
    """A cell as it was at `freeze()`; see `Frozen`. A step costs little more than the kernel."""

    __slots__ = ("_stepper",)

    def __init__(self, layer: Recurrent) -> None:
        super().__init__(layer)
        self._stepper = stepper(self._packed, _FAST_ROWS)

    def __call__(self, x: ArrayLike, hx: Any = None, *, num_threads: int | None = None) -> S:
        """See the cell's `__call__`."""
        state: S | None = self._stepper.cell(x, hx, threads.chosen(num_threads))
        return super().__call__(x, hx, num_threads=num_threads) if state is None else state


class CellTape(Generic[S]):
    """What one recorded step of a cell keeps for `backward`; it holds x by reference."""

    __slots__ = ("_shape", "_tape", "grads")

    def __init__(self, tape: Tape, shape: tuple[int, ...], grads: Mapping[str, Array]) -> None:
        self._tape, self._shape = tape, shape
        self.grads = grads
        """Where `backward` adds the parameters' gradients by default: the cell's."""

    def backward(
        self,
        dhx_n: Any = None,
        *,
        grads: Mapping[str, Array] | None = None,
        need_dx: bool = True,
        retain: bool = False,
        num_threads: int | None = None,
    ) -> tuple[Array | None, S]:
        """From the gradient of the cell's result to those of x and hx.

        Args:
            dhx_n: gradient of the next state: dh, for the LSTM (dh, dc). None means zeros.
            grads: where the parameters' gradients are added; default `self.grads`.
            need_dx: False returns None in place of dx.
            retain: the tape can be used again.
            num_threads: as for the step.

        Returns:
            dx and dhx, in the shapes of x and of the state (also if hx was None).

        Raises:
            RuntimeError: the tape has been used already without `retain=True`.
            TypeError, ValueError: an argument of the wrong kind, dtype or shape.
        """
        dx, dhx = self._tape.backward(
            None,
            _add_axis("dhx_n", dhx_n, self._shape),
            grads=self.grads if grads is None else grads,
            need_dx=need_dx,
            retain=retain,
            num_threads=num_threads,
        )
        return None if dx is None else dx[0], _drop_axis(dhx)


class _Cell(Recurrent, _Steps[S]):
    """One layer in one direction, called step by step."""

    @staticmethod
    def _shapes(shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        return {name.removesuffix("_l0"): shape for name, shape in shapes.items()}

    def record(
        self, x: ArrayLike, hx: Any = None, *, num_threads: int | None = None
    ) -> tuple[S, CellTape[S]]:
        """One step, for training: as calling the cell, with a tape.

        Returns:
            The next state, and a tape whose `backward` takes its gradient, returns those of x and
            hx and adds the parameters' gradients into `grads`.

        Raises:
            TypeError, ValueError: see `__call__`.
        """
        _, states, tape = self._step(x, hx, record=True, num_threads=num_threads)
        next_state = _drop_axis(states)
        shape = next_state[0].shape if isinstance(next_state, tuple) else next_state.shape
        tape.shapes = self.params.shapes
        return next_state, CellTape(tape, shape, self.grads)

    def freeze(self) -> FrozenCell[S]:
        """Return an immutable snapshot for inference, which later changes do not reach."""
        return FrozenCell(self)


class RNNCell(_Cell[Array]):
    """One step of an `RNN` with one layer, as torch.nn.RNNCell: from x and h to the next h."""

    _cell = "rnn"
    nonlinearity: Activation

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: Activation = "tanh",
        *,
        dtype: DTypeLike = np.float32,
        seed: Seed = None,
    ) -> None:
        super().__init__(locals())


class LSTMCell(_Cell[Pair]):
    """One step of an `LSTM` with one layer, as torch.nn.LSTMCell: from x and (h, c) to the next."""

    _cell = "lstm"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        dtype: DTypeLike = np.float32,
        seed: Seed = None,
    ) -> None:
        super().__init__(locals())


class GRUCell(_Cell[Array]):
    """One step of a `GRU` with one layer, as torch.nn.GRUCell: from x and h to the next h."""

    _cell = "gru"
    reset_after: bool

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        reset_after: bool = True,
        dtype: DTypeLike = np.float32,
        seed: Seed = None,
    ) -> None:
        super().__init__(locals())
