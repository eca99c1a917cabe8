"""Recurrent layers: they hold parameters and options, `functional` does the work.

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

import threading
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from . import _core, functional
from .arguments import Checkpoint
from .packed import Packed
from .recurrent import Pair, Recurrent, S, Seed, Snapshot
from .tape import Tape
from .validation import Array, dropout_key

if TYPE_CHECKING:
    from .plan import Plan
    from .stream import Stream

__all__ = ["GRU", "LSTM", "RNN", "Frozen"]

_counting = threading.Lock()  # shared by all layers: held for an addition


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
        all_layers: bool = False,
        trace: bool = False,
    ) -> Any:
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
            all_layers: y holds the outputs of all layers, (L, T, B, D*H) laid out as x.
            trace: also return the gates, candidates and states of every step, layer and direction:
                a dict of arrays (L*D, T, B, H), laid out as x. "h"; for the LSTM "i", "f", "g",
                "o", "c"; for the GRU "r", "z", "n" and with reset_after "u" = U h + b_hh, on which
                r acts; for the RNN "a", before the activation.

        Returns:
            y (T, B, D*H), laid out as x, zero behind lengths; the state after each row's last real
            step, as hx; and with `trace` the gates.

        Raises:
            TypeError: an argument of the wrong kind, or of another dtype than the layer's.
            ValueError: an argument of the wrong shape or out of range.
        """
        return self._forward(
            x,
            hx=hx,
            lengths=lengths,
            resets=resets,
            restart_state=restart_state,
            num_threads=num_threads,
            need_output=need_output,
            out=out,
            all_layers=all_layers,
            trace=trace,
        )


class Frozen(Snapshot, _Sequences[S]):
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


class _Layer(Recurrent, _Sequences[S]):
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
        all_layers: bool = False,
        trace: bool = False,
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
            all_layers: see `__call__`, before dropout; `tape.backward` takes such a dy.
            trace: set `tape.trace` to what `__call__` returns.

        Returns:
            y and the final state as `__call__`, and a tape whose `backward(dy, dhx_n)` returns
            (dx, dhx) and adds the parameters' gradients into `grads`.

        Raises:
            TypeError, ValueError: see `__call__`.
        """
        if dropout_seed is None:
            seed = self._next_dropout_seed()
        else:
            seed = dropout_key("dropout_seed", dropout_seed)
        y, hx_n, tape = self._forward(
            x,
            hx=hx,
            lengths=lengths,
            resets=resets,
            restart_state=restart_state,
            record=True,
            checkpoint=checkpoint,
            dropout=self.dropout,
            seed=seed,
            num_threads=num_threads,
            all_layers=all_layers,
            trace=trace,
            spare=self._spare,
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
        return functional.net_call(self._net, T, B, lengths, record, checkpoint, num_threads)


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
        learn_initial_state: each layer and direction has a parameter initial_h_l0 (H,) ..., for the
            LSTM initial_c_l0 too, zero at first, from which rows start where no hx is given, and
            restart where no restart_state is.
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
        learn_initial_state: bool = False,
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
            learn_initial_state=learn_initial_state,
        )


class LSTM(_Layer[Pair]):
    """Layers of c' = f c + i g, h' = o tanh(c') (Hochreiter & Schmidhuber 1997), as torch.nn.LSTM.

    Rows of the weights are in the order i, f, g, o; the state is a tuple (h, c).

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            learn_initial_state, dtype, seed: see `RNN`.
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
        learn_initial_state: bool = False,
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
            learn_initial_state=learn_initial_state,
            proj_size=proj_size,
        )


class GRU(_Layer[Array]):
    """Layers of h' = (1-z) n + z h (Cho et al. 2014), as torch.nn.GRU.

    Rows of the weights are in the order r, z, n.

    Args:
        input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            learn_initial_state, dtype, seed: see `RNN`.
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
        learn_initial_state: bool = False,
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
            learn_initial_state=learn_initial_state,
            reset_after=reset_after,
        )
