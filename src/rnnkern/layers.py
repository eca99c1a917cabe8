"""Recurrent layers: they hold parameters and options, `functional` does the work.

    lstm = LSTM(40, 128, num_layers=2, bidirectional=True, batch_first=True)
    y, (h, c) = lstm(x, lengths=lengths)                # inference
    y, (h, c), tape = lstm.record(x, lengths=lengths)   # training: dropout is active
    dx, (dh, dc) = tape.backward(dy)                    # adds into lstm.grads

Options, shapes, parameter names, their order and their first values are torch's: sizes are T steps,
B rows (batch), I input_size, H hidden_size, L num_layers, D directions, P the features of h: H, but
for an LSTM with proj_size that. `functional` lists the further parameters that options bring.
Options are checked when a layer is built (TypeError or ValueError, naming the option) and are fixed
then, but for `batch_first`, `dropout` and `regularization`, which may be assigned.

Activations are names, or tuples of a name and its parameters: see `rnnkern.activations`.

All arrays are of the layer's `dtype`, float32 or float64. Another dtype is refused, never cast in
silence; any strides, byte order and read-only arrays are accepted. Any number of threads may call
one layer at once, and record with it if each gives `backward` its own `grads`.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from . import _core, functional
from .activations import Activation
from .arguments import Checkpoint
from .packed import Packed
from .recurrent import Pair, Recurrent, S, Seed, Snapshot
from .structure import Coupling
from .tape import Tape
from .validation import Array, dropout_key

if TYPE_CHECKING:
    from .describe import Description
    from .plan import Plan
    from .regularization import Regularization
    from .stream import Stream

__all__ = ["GRU", "LSTM", "MGU", "RNN", "SRU", "Frozen", "IndRNN", "MinGRU"]

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
        """Inference: no dropout, zoneout by its mean, and nothing is kept.

        Args:
            x: inputs (T, B, I), with batch_first (B, T, I), or one sequence (T, I).
            hx: initial state (L*D, B, P), for one sequence (L*D, P); for the LSTM a tuple (h, c),
                c with H features; for the SRU c. None means zeros.
            lengths: real steps of each row, integers (B,) from 0 to T in any order; for one
                sequence an int. What x holds behind a length is never read.
            resets: booleans (T, B), with batch_first (B, T), for one sequence (T,): a border
                between steps t-1 and t of a row. The forward direction restarts before step t, the
                reverse direction before step t-1.
            restart_state: what a restart loads in place of zeros: (L*D, P) for all rows, or as hx.
            num_threads: at most so many; default `rnnkern.get_num_threads()`. No result depends
                on it.
            need_output: False returns None in place of y.
            out: an array that y is written into.
            all_layers: y holds the outputs of all layers, (L, T, B, D*P) laid out as x.
            trace: also return the gates, candidates and states of every step, layer and direction:
                a dict of arrays (L*D, T, B, H), laid out as x, whose names
                `functional.ForwardOptions` lists.

        Returns:
            y (T, B, D*P), laid out as x, zero behind lengths; the state after each row's last real
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
    regularization: Regularization | None
    learn_initial_state: bool

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__(arguments)
        if self.dropout and self.num_layers == 1:
            warnings.warn(
                f"dropout={self.dropout} has no effect with num_layers=1: it acts between layers",
                stacklevel=3,
            )

    def _bind(self, params: Packed | Mapping[str, Array]) -> Callable[..., Any]:
        return partial(super()._bind(params), batch_first=self.batch_first)

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
        first_step: int = 0,
        num_threads: int | None = None,
        all_layers: bool = False,
        trace: bool = False,
    ) -> tuple[Array, S, Tape]:
        """Training: as calling the layer, with dropout and regularisation, and with a tape.

        Args:
            x, hx, lengths, resets, restart_state, num_threads: see `__call__`. The tape holds x by
                reference: do not change it before `tape.backward`.
            checkpoint: what the tape keeps. None: all gates; "gates": the states of every step;
                k: the states of every k-th step; "auto": a k near sqrt(T). What is not kept is
                computed again in backward. Gradients are the same to the last bit.
            dropout_seed: 0 to 2**64-1, fixes all masks. By default each call draws new ones, in a
                sequence that the layer's `seed` determines.
            first_step: what step 0 is in a longer sequence: chunks of it with one `dropout_seed`
                draw the masks that the whole would.
            all_layers: see `__call__`, before dropout; `tape.backward` takes such a dy.
            trace: set `tape.trace` to what `__call__` returns.

        Returns:
            y and the final state as `__call__`, and a tape whose `backward(dy, dhx_n)` returns
            (dx, dhx) and adds the parameters' gradients into `grads`.

        Raises:
            TypeError, ValueError: see `__call__`.

        Examples:
            >>> gru = GRU(3, 4, seed=0)
            >>> y, h, tape = gru.record(np.ones((5, 2, 3), np.float32))
            >>> dx, dh = tape.backward(np.ones_like(y))
            >>> dx.shape, dh.shape, gru.grads["bias_ih_l0"].shape
            ((5, 2, 3), (1, 2, 4), (12,))
        """
        if dropout_seed is None:
            seed = self._next_dropout_seed()
        else:
            seed = dropout_key("dropout_seed", dropout_seed)
        regularization = self.regularization
        masked = regularization is not None and regularization.weight_dropout
        forward = self._bind(self.params) if masked else self._forward
        y, hx_n, tape = forward(
            x,
            hx=hx,
            lengths=lengths,
            resets=resets,
            restart_state=restart_state,
            record=True,
            checkpoint=checkpoint,
            dropout=self.dropout,
            regularization=regularization,
            seed=seed,
            first_step=first_step,
            num_threads=num_threads,
            all_layers=all_layers,
            trace=trace,
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
            restart_state: what `Stream.reset` sets: h (L, P), for the LSTM (h, c), for the SRU c.
                None: zeros.

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
        call = self._call(T, B, lengths, checkpoint, record, num_threads)
        return functional.call_memory(self._structure, call, self.regularization)

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
        bytes = functional.call_memory(self._structure, call, self.regularization)
        return plan_of(self._structure, call, bytes, self.regularization)

    def describe(self, T: int = 1, B: int = 1) -> Description:
        """Count parameters, multiply-adds of a step, and bytes of recording T steps of B rows."""
        from .describe import description_of

        return description_of(self._structure, repr(self), T, B, self.memory_estimate(T, B))

    def _call(
        self,
        T: int,
        B: int,
        lengths: ArrayLike | None,
        checkpoint: Checkpoint,
        record: bool,
        num_threads: int | None,
    ) -> _core.Call:
        return functional.planned_call(
            self._structure,
            T,
            B,
            lengths,
            record,
            checkpoint,
            num_threads,
            self.dropout,
            self.regularization,
        )


class RNN(_Layer[Array]):
    """Layers of h' = g(W x + b_ih + U h + b_hh) (Elman 1990), as torch.nn.RNN.

    Args:
        input_size, hidden_size: I and H, the features of x and of h.
        num_layers: layers, each of which reads the outputs of the one before.
        nonlinearity: g, an activation.
        bias: whether there are b_ih and b_hh.
        batch_first: x and y are (B, T, ...) rather than (T, B, ...). States never are.
        dropout: probability of zeroing an output between layers, when recording.
        bidirectional: also run from the end; y has both directions' outputs, 2*P features.
        clip: cut what enters an activation to -clip..clip. None: do not.
        layer_norm: LN(W x) + b_ih + LN(U h) + b_hh, with gains norm_ih and norm_hh that start at 1
            (Ba, Kiros & Hinton 2016), over all gates of a row.
        norm_eps: what is added to the variance there.
        regularization: a `Regularization`: further kinds of dropout, and zoneout.
        learn_initial_state: each layer and direction has a parameter initial_h_l0 (P,) ..., for the
            LSTM and the SRU initial_c_l0 (H,) ..., zero at first, from which rows start where no hx
            is given, and restart where no restart_state is.
        dtype: float32 or float64.
        seed: an int makes the first values of the parameters, uniform in +-1/sqrt(H), and all masks
            reproducible.
    """

    _cell = "rnn"
    nonlinearity: Activation
    clip: float | None
    layer_norm: bool
    norm_eps: float

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: Activation = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        clip: float | None = None,
        layer_norm: bool = False,
        norm_eps: float = 1e-5,
        regularization: Regularization | None = None,
        learn_initial_state: bool = False,
        dtype: DTypeLike = np.float32,
        seed: Seed = None,
    ) -> None:
        super().__init__(locals())


class LSTM(_Layer[Pair]):
    """Layers of c' = f c + i g, h' = o q(c') (Hochreiter & Schmidhuber 1997), as torch.nn.LSTM.

    Rows of the weights are in the order i, f, g, o; the state is a tuple (h, c).

    Args:
        proj_size: P < H features of h, which a matrix weight_hr (P, H) makes of o q(c') (Sak,
            Senior & Beaufays 2014). 0: it is not projected.
        peephole: gates see c: i and f the one before, o the new one, through vectors weight_ch
            (3*H,) in the order i, f, o (Gers & Schmidhuber 2000).
        coupled: i and f add up to one (Greff et al. 2017): "input" computes f, "forget" i. Rows are
            then e, g, o, where e is the computed gate; weight_ch is (2*H,), of e and o.
        activations: of the gates, of the candidate g, and q.
        cell_clip: cut c' to -cell_clip..cell_clip.
        layer_norm: see `RNN`; here q also sees a normalised c', times norm_c plus norm_c_bias.
        others: see `RNN`.

    Examples:
        >>> lstm = LSTM(3, 4, num_layers=2, seed=0)
        >>> y, (h, c) = lstm(np.ones((5, 2, 3), np.float32), lengths=[5, 2])
        >>> y.shape, h.shape, c.shape
        ((5, 2, 4), (2, 2, 4), (2, 2, 4))
        >>> lstm
        LSTM(3, 4, num_layers=2)
    """

    _cell = "lstm"
    proj_size: int
    peephole: bool
    coupled: Coupling
    activations: tuple[Activation, Activation, Activation]
    clip: float | None
    cell_clip: float | None
    layer_norm: bool
    norm_eps: float

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
        peephole: bool = False,
        coupled: Coupling = None,
        activations: tuple[Activation, Activation, Activation] = ("sigmoid", "tanh", "tanh"),
        clip: float | None = None,
        cell_clip: float | None = None,
        layer_norm: bool = False,
        norm_eps: float = 1e-5,
        regularization: Regularization | None = None,
        learn_initial_state: bool = False,
        dtype: DTypeLike = np.float32,
        seed: Seed = None,
    ) -> None:
        super().__init__(locals())


class GRU(_Layer[Array]):
    """Layers of h' = (1-z) n + z h (Cho et al. 2014), as torch.nn.GRU.

    Rows of the weights are in the order r, z, n.

    Args:
        reset_after: True for n = tanh(W x + b_ih + r (U h + b_hh)), the form of torch and cuDNN;
            False for n = tanh(W x + b_ih + U (r h) + b_hh), that of Cho et al. and ONNX's default,
            which has no layer_norm.
        activations: of the gates, and of n.
        others: see `RNN`.
    """

    _cell = "gru"
    reset_after: bool
    activations: tuple[Activation, Activation]
    clip: float | None
    layer_norm: bool
    norm_eps: float

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
        activations: tuple[Activation, Activation] = ("sigmoid", "tanh"),
        clip: float | None = None,
        layer_norm: bool = False,
        norm_eps: float = 1e-5,
        regularization: Regularization | None = None,
        learn_initial_state: bool = False,
        dtype: DTypeLike = np.float32,
        seed: Seed = None,
    ) -> None:
        super().__init__(locals())


class MGU(_Layer[Array]):
    """Layers of h' = (1-f) h + f n, a GRU with one gate (Zhou et al. 2016).

    f = s(W x + b_ih + U h + b_hh), n = g(W x + b_ih + U (f h) + b_hh); rows of the weights are in
    the order f, n.

    Args:
        activations: s and g.
        others: see `RNN`.
    """

    _cell = "mgu"
    activations: tuple[Activation, Activation]

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
        activations: tuple[Activation, Activation] = ("sigmoid", "tanh"),
        regularization: Regularization | None = None,
        learn_initial_state: bool = False,
        dtype: DTypeLike = np.float32,
        seed: Seed = None,
    ) -> None:
        super().__init__(locals())


class IndRNN(_Layer[Array]):
    """Layers of h' = g(W x + b_ih + u h), where units see their own state alone (Li et al. 2018).

    weight_hh is the vector u (H,); there is no bias_hh.

    Args:
        nonlinearity: g, an activation.
        others: see `RNN`.
    """

    _cell = "indrnn"
    nonlinearity: Activation

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
        nonlinearity: Activation = "relu",
        regularization: Regularization | None = None,
        learn_initial_state: bool = False,
        dtype: DTypeLike = np.float32,
        seed: Seed = None,
    ) -> None:
        super().__init__(locals())


class SRU(_Layer[Array]):
    """Layers of c' = f c + (1-f) n, h = r q(c') + (1-r) x' (Lei et al. 2018).

    n and the highway x' are W x + b_ih; f, r = s(W x + b_ih + v c). Rows of weight_ih are in the
    order n, f, r, x'; weight_ch is v (2*H,), of f and r. The state is c; y is h.

    Args:
        activations: s and q.
        others: see `RNN`.
    """

    _cell = "sru"
    activations: tuple[Activation, Activation]

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
        activations: tuple[Activation, Activation] = ("sigmoid", "identity"),
        regularization: Regularization | None = None,
        learn_initial_state: bool = False,
        dtype: DTypeLike = np.float32,
        seed: Seed = None,
    ) -> None:
        super().__init__(locals())


class MinGRU(_Layer[Array]):
    """Layers of h' = (1-z) h + z n, whose gates see x alone (Feng et al. 2024).

    z = s(W x + b_ih), n = g(W x + b_ih); rows of weight_ih are in the order z, n.

    Args:
        activations: s and g.
        others: see `RNN`.
    """

    _cell = "mingru"
    activations: tuple[Activation, Activation]

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
        activations: tuple[Activation, Activation] = ("sigmoid", "identity"),
        regularization: Regularization | None = None,
        learn_initial_state: bool = False,
        dtype: DTypeLike = np.float32,
        seed: Seed = None,
    ) -> None:
        super().__init__(locals())
