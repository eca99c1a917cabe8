"""Recurrent layers and cells: they hold parameters and options, `functional` does the work.

    lstm = LSTM(40, 128, num_layers=2, bidirectional=True, batch_first=True)
    y, (h, c) = lstm(x, lengths=lengths)                # inference
    y, (h, c), tape = lstm.record(x, lengths=lengths)   # training: dropout is active
    dx, (dh, dc) = tape.backward(dy)                    # adds into lstm.grads

Options, shapes, parameter names, their order and their first values are torch's: sizes are T steps,
B rows (batch), I input_size, H hidden_size, L num_layers, D directions. Options are checked when a
layer is built (TypeError or ValueError, naming the option) and are fixed then, but for
`batch_first` and `dropout`, which may be assigned.

All arrays are of the layer's `dtype`, float32 or float64. Another dtype is refused, never cast in
silence; any strides, byte order and read-only arrays are accepted. Any number of threads may call
one layer at once, and record with it if each gives `backward` its own `grads`.
"""

from __future__ import annotations

import inspect
import math
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from . import _core, functional, isa, threads
from .arguments import (
    GATES,
    Array,
    Checkpoint,
    by_kind,
    checked_seed,
    kernel_cell,
    parameter_shapes,
)
from .functional import Packed, Tape
from .parameters import Module, positive_int

if TYPE_CHECKING:
    from .plan import Plan
    from .stream import Stream

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "CellTape",
    "Frozen",
    "FrozenCell",
    "GRUCell",
    "LSTMCell",
    "RNNCell",
    "load",
]

S = TypeVar("S")
"""States: one array h, or for the LSTM the tuple (h, c)."""

Pair = tuple[Array, Array]
Seed: TypeAlias = "int | np.random.Generator | None"  # quoted: numpy.random is slow to import

_FORMAT, _VERSION = "rnnkern", 1  # of saved files

_counting = threading.Lock()  # shared by all layers: held for an addition


# --- options -------------------------------------------------------------------------------------


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}: expected True or False, got {value!r}")
    return bool(value)


def _probability(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name}: expected a probability from 0 to 1, got {value!r}")
    if not 0 <= value <= 1:
        raise ValueError(f"{name}: expected a probability from 0 to 1, got {value!r}")
    return float(value)


def _nonlinearity(name: str, value: Any) -> str:
    if not isinstance(value, str) or value not in ("tanh", "relu"):
        raise ValueError(f"{name}: expected 'tanh' or 'relu', got {value!r}")
    return value


def _no_projection(name: str, value: Any) -> int:
    if value != 0:
        raise ValueError(f"{name}: projections are not available yet; expected 0, got {value!r}")
    return 0


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "input_size": positive_int,
    "hidden_size": positive_int,
    "num_layers": positive_int,
    "nonlinearity": _nonlinearity,
    "bias": _boolean,
    "batch_first": _boolean,
    "dropout": _probability,
    "bidirectional": _boolean,
    "proj_size": _no_projection,
    "reset_after": _boolean,
}
_ASSIGNABLE = ("batch_first", "dropout")


# --- what layers and cells have in common --------------------------------------------------------


class _Recurrent(Module):
    """Parameters and options of a layer or a cell; files, copies, repr."""

    _cell: ClassVar[str]  # stem of the functions that run it
    _own: ClassVar[tuple[str, ...]] = ()  # options that only those functions have

    input_size: int
    hidden_size: int
    bias: bool

    def __init__(self, dtype: DTypeLike, seed: Seed, **options: Any) -> None:
        self._build(dtype, options)
        try:
            rng = np.random.default_rng(seed)
        except (TypeError, ValueError) as error:
            raise type(error)(f"seed: {error}") from None
        bound = 1 / math.sqrt(self.hidden_size)
        self.flat_params = rng.uniform(-bound, bound, self.flat_params.size)
        self._dropout_seed = int(rng.integers(2**64, dtype=np.uint64))

    def _build(self, dtype: DTypeLike, options: Mapping[str, Any]) -> None:
        """Everything but values for the parameters."""
        for name, value in options.items():
            setattr(self, name, _CHECKS[name](name, value))
        super().__init__(self._shapes(), dtype)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        raise NotImplementedError

    @property
    def _stack(self) -> tuple[int, int]:
        """Layers and directions."""
        return 1, 1

    @property
    def _net(self) -> _core.Net:
        """What the kernels compute."""
        stack = (*self._sizes, *self._stack)
        return _core.Net(self._kernel_cell, self.dtype, isa.level(), self.bias, *stack)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _CHECKS and name in vars(self):
            if name not in _ASSIGNABLE:
                raise AttributeError(f"{name} is fixed once a {type(self).__name__} is built")
            value = _CHECKS[name](name, value)
        super().__setattr__(name, value)

    def _cell_options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._own}

    @property
    def _kernel_cell(self) -> str:
        return kernel_cell(self._cell, **self._cell_options())

    def _bind(self, packed: Packed) -> Callable[..., Any]:
        """`functional`'s forward with weights and options filled in."""
        forward = getattr(functional, f"{self._cell}_forward")
        return partial(forward, params=packed, **self._cell_options())

    @property
    def _forward(self) -> Callable[..., Any]:
        return self._bind(self._pack())

    def _pack(self) -> Packed:
        return Packed(self._net, by_kind(list(self.params.values()), self.bias))

    @property
    def _sizes(self) -> tuple[int, int]:
        return self.input_size, self.hidden_size

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and options into one file, an .npz archive that `load` reads.

        The file has exactly the given name. Gradients are not saved.
        """
        import json

        cls = _known_class(type(self))
        header = {
            "format": _FORMAT,
            "version": _VERSION,
            "class": cls.__name__,
            "options": {name: getattr(self, name) for name in _defaults(cls)},
            "dtype": self.dtype.name,
            "dropout_seed": self._dropout_seed,
        }
        arrays: dict[str, Any] = {"header": np.array(json.dumps(header)), **self.params}
        with open(path, "wb") as file:  # np.savez would change a name without .npz
            np.savez(file, **arrays)

    def __repr__(self) -> str:
        defaults = _defaults(_known_class(type(self)))
        words = [str(self.input_size), str(self.hidden_size)]
        for name, default in list(defaults.items())[2:]:
            if (value := getattr(self, name)) != default:
                words.append(f"{name}={value!r}")
        if self.dtype != np.float32:
            words.append(f"dtype={self.dtype.name}")
        return f"{type(self).__name__}({', '.join(words)})"


class _Snapshot:
    """Packed weights and options: nothing in it can be changed."""

    __slots__ = ("_forward", "_packed", "_repr", "_sizes")

    def __init__(self, layer: _Recurrent) -> None:
        self._packed = layer._pack()
        self._forward, self._sizes = layer._bind(self._packed), layer._sizes
        self._repr = repr(layer)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._repr})"

    def __copy__(self) -> _Snapshot:
        return self

    def __deepcopy__(self, memo: Any) -> _Snapshot:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(
            f"cannot pickle a {type(self).__name__}: pickle or save the layer, and freeze it there"
        )


# --- layers --------------------------------------------------------------------------------------


class _Sequences(Generic[S]):
    """What is called with whole sequences: a layer, or its snapshot."""

    __slots__ = ()

    @property
    def _forward(self) -> Callable[..., Any]:
        raise NotImplementedError

    def __call__(
        self,
        x: ArrayLike,
        hx: Any = None,
        *,
        lengths: ArrayLike | None = None,
        resets: ArrayLike | None = None,
        restart_state: Any = None,
        num_threads: int | None = None,
        need_output: bool = True,
        out: Array | None = None,
    ) -> tuple[Array, S]:
        """Inference: no dropout, and nothing is kept.

        Args:
            x: inputs (T, B, I), with batch_first (B, T, I), or one sequence (T, I).
            hx: initial state (L*D, B, H), for one sequence (L*D, H); for the LSTM a tuple (h, c).
                None means zeros.
            lengths: real steps of each row, integers (B,) from 0 to T in any order; for one
                sequence an int. What x holds behind a length is never read.
            resets: booleans (T, B), with batch_first (B, T), for one sequence (T,): a border
                between steps t-1 and t of a row. The forward direction restarts before step t, the
                reverse direction before step t-1.
            restart_state: what a restart loads in place of zeros: (L*D, H) for all rows, or as hx.
            num_threads: at most so many; default `rnnkern.get_num_threads()`. No result depends
                on it.
            need_output: False returns None in place of y.
            out: an array that y is written into.

        Returns:
            y (T, B, D*H), laid out as x, zero behind lengths; and the state after each row's last
            real step, as hx.

        Raises:
            TypeError: an argument of the wrong kind, or of another dtype than the layer's.
            ValueError: an argument of the wrong shape or out of range.
        """
        result: tuple[Array, S] = self._forward(
            x,
            hx=hx,
            lengths=lengths,
            resets=resets,
            restart_state=restart_state,
            num_threads=num_threads,
            need_output=need_output,
            out=out,
        )
        return result


class Frozen(_Snapshot, _Sequences[S]):
    """A layer as it was at `freeze()`, for inference: packed once, cheap to share between threads.

    Called like the layer. It is immutable, so copies of it are itself.
    """

    __slots__ = ()

    def stream(
        self, batch_size: int = 1, num_threads: int = 1, *, restart_state: Any = None
    ) -> Stream:
        """Return a stream as the layer's `stream` does; all of them share the packed weights."""
        from .stream import Stream

        return Stream(self._packed, batch_size, num_threads, restart_state)


class _Layer(_Recurrent, _Sequences[S]):
    """A stack of layers, each in one or two directions."""

    num_layers: int
    batch_first: bool
    dropout: float
    bidirectional: bool

    def __init__(self, dtype: DTypeLike, seed: Seed, **options: Any) -> None:
        super().__init__(dtype, seed, **options)
        if self.dropout and self.num_layers == 1:
            warnings.warn(
                f"dropout={self.dropout} has no effect with num_layers=1: it acts between layers",
                stacklevel=3,
            )

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return parameter_shapes(GATES[self._kernel_cell], *self._sizes, *self._stack, self.bias)

    @property
    def _stack(self) -> tuple[int, int]:
        return self.num_layers, 2 if self.bidirectional else 1

    def _bind(self, packed: Packed) -> Callable[..., Any]:
        return partial(super()._bind(packed), batch_first=self.batch_first)

    def record(
        self,
        x: ArrayLike,
        hx: Any = None,
        *,
        lengths: ArrayLike | None = None,
        resets: ArrayLike | None = None,
        restart_state: Any = None,
        checkpoint: Checkpoint = None,
        dropout_seed: int | None = None,
        num_threads: int | None = None,
    ) -> tuple[Array, S, Tape]:
        """Training: as calling the layer, with dropout between layers, and with a tape.

        Args:
            x, hx, lengths, resets, restart_state, num_threads: see `__call__`. The tape holds x by
                reference: do not change it before `tape.backward`.
            checkpoint: what the tape keeps. None: all gates; "gates": the states of every step;
                k: the states of every k-th step; "auto": a k near sqrt(T). What is not kept is
                computed again in backward. Gradients are the same to the last bit.
            dropout_seed: 0 to 2**64-1, fixes the dropout masks. By default each call draws new
                ones, in a sequence that the layer's `seed` determines.

        Returns:
            y and the final state as `__call__`, and a tape whose `backward(dy, dhx_n)` returns
            (dx, dhx) and adds the parameters' gradients into `grads`.

        Raises:
            TypeError, ValueError: see `__call__`.
        """
        y, hx_n, tape = self._forward(
            x,
            hx=hx,
            lengths=lengths,
            resets=resets,
            restart_state=restart_state,
            record=True,
            checkpoint=checkpoint,
            dropout=self.dropout,
            seed=self._next_dropout_seed() if dropout_seed is None else dropout_seed,
            num_threads=num_threads,
        )
        tape.grads = self.grads
        return y, hx_n, tape

    def _next_dropout_seed(self) -> int:
        # Seeds are keys of a block cipher, so neighbours give masks that have nothing in common.
        with _counting:
            seed = self._dropout_seed
            self._dropout_seed = (seed + 1) % 2**64
        return seed

    def freeze(self) -> Frozen[S]:
        """Return an immutable snapshot for inference, which later changes do not reach."""
        return Frozen(self)

    def stream(
        self, batch_size: int = 1, num_threads: int = 1, *, restart_state: Any = None
    ) -> Stream:
        """Return a stream: the layer packed once, to advance a step at a time with its own state.

        Args:
            batch_size: rows that advance together.
            num_threads: at most so many; more than one pays for large layers or many rows.
            restart_state: what `Stream.reset` sets: h (L, H), for the LSTM (h, c). None: zeros.

        Raises:
            ValueError: the layer is bidirectional: the reverse direction starts at the end.
        """
        from .stream import Stream

        return Stream(self._pack(), batch_size, num_threads, restart_state, self._pack)

    def memory_estimate(
        self,
        T: int,
        B: int,
        lengths: ArrayLike | None = None,
        checkpoint: Checkpoint = None,
        record: bool = True,
        num_threads: int | None = None,
    ) -> dict[str, int]:
        """Return the bytes that a call on T steps of B rows allocates.

        A dict of "tape" (zero unless `record`), "workspace" (of forward or backward, the larger),
        "packed" (weights) and "outputs" (y and the final states). Other arguments as for `record`.
        """
        return functional.net_memory(
            self._net, self._call(T, B, lengths, checkpoint, record, num_threads)
        )

    def plan(
        self,
        T: int,
        B: int,
        lengths: ArrayLike | None = None,
        checkpoint: Checkpoint = None,
        record: bool = False,
        num_threads: int | None = None,
    ) -> Plan:
        """Say what a call on T steps of B rows will do: kernels, threads, tiles, memory, and why.

        Arguments as for `record`; without `record=True` the call is inference.
        """
        from .plan import plan_of

        call = self._call(T, B, lengths, checkpoint, record, num_threads)
        return plan_of(self._net, call, functional.net_memory(self._net, call))

    def _call(
        self,
        T: int,
        B: int,
        lengths: ArrayLike | None,
        checkpoint: Checkpoint,
        record: bool,
        num_threads: int | None,
    ) -> _core.Call:
        for name, value in (("T", T), ("B", B)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
                raise ValueError(f"{name}: expected an integer of at least 0, got {value!r}")
        return functional.net_call(
            self._net, int(T), int(B), lengths, record, checkpoint, num_threads
        )


class RNN(_Layer[Array]):
    """Layers of h' = act(W x + b_ih + U h + b_hh) (Elman 1990), as torch.nn.RNN.

    Args:
        input_size, hidden_size: I and H, the features of x and of h.
        num_layers: layers, each of which reads the outputs of the one before.
        nonlinearity: act, "tanh" or "relu".
        bias: whether there are b_ih and b_hh.
        batch_first: x and y are (B, T, ...) rather than (T, B, ...). States never are.
        dropout: probability of zeroing an output between layers, when recording.
        bidirectional: also run from the end; y has both directions' outputs, 2*H features.
        dtype: float32 or float64.
        seed: an int makes the first values of the parameters, uniform in +-1/sqrt(H), and the
            dropout masks reproducible.
    """

    _cell = "rnn"
    _own = ("nonlinearity",)
    nonlinearity: Literal["tanh", "relu"]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Literal["tanh", "relu"] = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        dtype: DTypeLike = np.float32,
        seed: Seed = None,
    ) -> None:
        super().__init__(
            dtype,
            seed,
            input_size=input_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            nonlinearity=nonlinearity,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
        )


class LSTM(_Layer[Pair]):
    """Layers of c' = f c + i g, h' = o tanh(c') (Hochreiter & Schmidhuber 1997), as torch.nn.LSTM.

    Rows of the weights are in the order i, f, g, o; the state is a tuple (h, c).

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, dtype, seed:
            see `RNN`.
        proj_size: must be 0; projections are not available yet.
    """

    _cell = "lstm"
    proj_size: int

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        *,
        dtype: DTypeLike = np.float32,
        seed: Seed = None,
    ) -> None:
        super().__init__(
            dtype,
            seed,
            input_size=input_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            proj_size=proj_size,
        )


class GRU(_Layer[Array]):
    """Layers of h' = (1-z) n + z h (Cho et al. 2014), as torch.nn.GRU.

    Rows of the weights are in the order r, z, n.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, dtype, seed:
            see `RNN`.
        reset_after: True for n = tanh(W x + b_ih + r (U h + b_hh)), the form of torch and cuDNN;
            False for n = tanh(W x + b_ih + U (r h) + b_hh), that of Cho et al. and ONNX's default.
    """

    _cell = "gru"
    _own = ("reset_after",)
    reset_after: bool

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        reset_after: bool = True,
        dtype: DTypeLike = np.float32,
        seed: Seed = None,
    ) -> None:
        super().__init__(
            dtype,
            seed,
            input_size=input_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            bias=bias,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            reset_after=reset_after,
        )


# --- cells: a layer of one step, under torch's names for cells -----------------------------------


def _add_axis(states: Any, name: str, shape: tuple[int, ...]) -> Any:
    """States (B, H) or (H,) as those of a stack with one layer, (1, B, H) or (1, H)."""
    if states is None:
        return None
    if isinstance(states, tuple | list):
        return tuple(_add_axis(state, f"each part of {name}", shape) for state in states)
    array = np.asarray(states)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}")
    return array[None]


def _drop_axis(states: Any) -> Any:
    return tuple(state[0] for state in states) if isinstance(states, tuple) else states[0]


def _layer_names(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """A cell's parameters, or their gradients, under the names of a layer's."""
    return {f"{name}_l0": array for name, array in arrays.items()}


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
        array = np.asarray(x)
        if array.ndim not in (1, 2) or array.shape[-1] != inputs:
            raise ValueError(f"x must have shape (B, {inputs}) or ({inputs},), got {array.shape}")
        state = _add_axis(hx, "hx", (*array.shape[:-1], units))
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


class FrozenCell(_Snapshot, _Steps[S]):
    """A cell as it was at `freeze()`; see `Frozen`. A step costs little more than the kernel."""

    __slots__ = ("_stepper",)

    def __init__(self, layer: _Recurrent) -> None:
        super().__init__(layer)
        self._stepper = functional.stepper(self._packed, _FAST_ROWS)

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
            _add_axis(dhx_n, "dhx_n", self._shape),
            grads=_layer_names(self.grads if grads is None else grads),
            need_dx=need_dx,
            retain=retain,
            num_threads=num_threads,
        )
        return None if dx is None else dx[0], _drop_axis(dhx)


class _Cell(_Recurrent, _Steps[S]):
    """One layer in one direction, called step by step."""

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        shapes = parameter_shapes(GATES[self._kernel_cell], *self._sizes, *self._stack, self.bias)
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
        return next_state, CellTape(tape, shape, self.grads)

    def freeze(self) -> FrozenCell[S]:
        """Return an immutable snapshot for inference, which later changes do not reach."""
        return FrozenCell(self)


class RNNCell(_Cell[Array]):
    """One step of an `RNN` with one layer, as torch.nn.RNNCell: from x and h to the next h."""

    _cell = "rnn"
    _own = ("nonlinearity",)
    nonlinearity: Literal["tanh", "relu"]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: Literal["tanh", "relu"] = "tanh",
        *,
        dtype: DTypeLike = np.float32,
        seed: Seed = None,
    ) -> None:
        super().__init__(
            dtype,
            seed,
            input_size=input_size,
            hidden_size=hidden_size,
            bias=bias,
            nonlinearity=nonlinearity,
        )


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
        super().__init__(dtype, seed, input_size=input_size, hidden_size=hidden_size, bias=bias)


class GRUCell(_Cell[Array]):
    """One step of a `GRU` with one layer, as torch.nn.GRUCell: from x and h to the next h."""

    _cell = "gru"
    _own = ("reset_after",)
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
        super().__init__(
            dtype,
            seed,
            input_size=input_size,
            hidden_size=hidden_size,
            bias=bias,
            reset_after=reset_after,
        )


# --- files ---------------------------------------------------------------------------------------

_CLASSES: dict[str, type[_Recurrent]] = {
    cls.__name__: cls for cls in (RNN, LSTM, GRU, RNNCell, LSTMCell, GRUCell)
}


def _known_class(cls: type) -> type[_Recurrent]:
    """The class of this module that cls is or derives from."""
    return next(c for c in cls.__mro__ if c in _CLASSES.values())


def _defaults(cls: type[_Recurrent]) -> dict[str, Any]:
    """The options of a class in the order of its arguments, and their defaults."""
    arguments = inspect.signature(cls).parameters.items()
    return {name: argument.default for name, argument in arguments if name in _CHECKS}


def load(path: str | os.PathLike[str]) -> Any:
    """Return the layer or cell that `save` wrote: class, options, dtype and parameters.

    Gradients are zero. A layer with dropout goes on with the masks that the saved one would have
    drawn next.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is not such a file, is damaged, or is of a newer version.
    """
    import json

    with open(path, "rb") as file:
        try:
            # zipfile and NumPy's format raise nearly anything for damaged files.
            with np.load(file, allow_pickle=False) as archive:
                arrays = dict(archive.items())
            header = json.loads(str(arrays.pop("header")))
            known = header["format"] == _FORMAT
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(
                f"{path}: not a file that rnnkern saved, or damaged; {reason}"
            ) from error
    if not known:
        raise ValueError(f"{path}: not a file that rnnkern saved")
    if header.get("version") != _VERSION:
        raise ValueError(
            f"{path}: format version {header.get('version')!r}, but this rnnkern reads {_VERSION}"
        )
    try:
        return _rebuilt(header, arrays)
    except (KeyError, TypeError, ValueError, MemoryError) as error:
        raise ValueError(f"{path}: {error}") from error


def _rebuilt(header: Mapping[str, Any], arrays: Mapping[str, Array]) -> _Recurrent:
    if header["class"] not in _CLASSES:
        raise ValueError(
            f"unknown class {header['class']!r}; this rnnkern has {', '.join(_CLASSES)}"
        )
    cls = _CLASSES[header["class"]]
    expected, options = _defaults(cls), header["options"]
    if not isinstance(options, dict) or options.keys() != expected.keys():
        raise ValueError(f"options: expected {', '.join(expected)}, got {options!r}")
    layer = cls.__new__(cls)
    layer._build(header["dtype"], options)
    layer.load_state_dict(arrays)
    layer._dropout_seed = checked_seed(header["dropout_seed"])
    return layer
