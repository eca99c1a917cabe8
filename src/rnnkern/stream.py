"""Streams: layers that advance a step at a time and keep their state.

    stream = LSTM(40, 128, num_layers=2).stream()
    y_t = stream.step(x_t)              # (40,) -> (128,), some microseconds
    stream.reset()

    server = lstm.stream(batch_size=64)
    row = server.attach()               # a stream of its own, in a batch with the others
    y = server.step(x, rows=[row])      # (1, 40) -> (1, 128)
    server.detach(row)

The results are those of the layer on the whole sequence, to the last bit, however it is cut into
steps and chunks and whatever the other rows do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import _core, functional, threads
from .arguments import Array, Layout, States, as_floats, as_states, new_block, new_call
from .functional import Packed

__all__ = ["Stream"]

_FORMAT, _VERSION = "rnnkern-stream", 1  # of saved files


class Stream(_core.StreamBase):
    """Rows (streams) that advance a step at a time through causal layers. Made by ``layer.stream``.

    One thread at a time: a call while another thread is inside one raises RuntimeError. Streams of
    one ``layer.freeze()`` share its packed weights.

    Attributes:
        batch_size: rows, B.
        input_size, hidden_size, num_layers: of the layers: I, H, L.
        dtype: of inputs, outputs and states.
    """

    _packed: Packed
    _pack: Callable[[], Packed] | None
    _threads: int
    _restart: tuple[Array, ...]
    _attached: Array

    def __init__(
        self,
        packed: Packed,
        batch_size: int = 1,
        num_threads: int = 1,
        restart_state: Any = None,
        pack: Callable[[], Packed] | None = None,
    ) -> None:
        if packed.net.num_directions != 1:
            raise ValueError(
                "a bidirectional layer cannot stream: its reverse direction starts at the end"
            )
        if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer):
            raise TypeError(f"batch_size must be an integer, got {batch_size!r}")
        if batch_size < 0:
            raise ValueError(f"batch_size must be at least 0, got {batch_size}")
        self._pack, self._threads = pack, threads.checked(num_threads)
        self._use(packed, int(batch_size))
        self.restart_state = restart_state
        self._attached = np.zeros(self.batch_size, bool)
        self.reset()

    def _use(self, packed: Packed, batch_size: int) -> None:
        """New memory for that many rows; states are not initialised."""
        net = packed.net
        call = new_call(1, batch_size, num_threads=self._threads)
        workspace = new_block(_core.sizes(net, call)[2])
        self._packed = packed
        self.bind(net, packed.block, workspace, batch_size, self._threads)
        shape = (net.num_layers, batch_size, net.hidden_size)
        parts = 2 if net.cell == "lstm" else 1
        states, some = (tuple(np.empty(shape, net.dtype) for _ in range(parts)) for _ in range(2))
        self.hold(states, some)

    @property
    def batch_size(self) -> int:
        return int(self.states[0].shape[1])

    @property
    def input_size(self) -> int:
        return self.net.input_size

    @property
    def hidden_size(self) -> int:
        return self.net.hidden_size

    @property
    def num_layers(self) -> int:
        return self.net.num_layers

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.net.dtype

    def __repr__(self) -> str:
        sizes = f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}"
        return f"Stream({self.net.cell}, {sizes}, batch_size={self.batch_size})"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self.enter()
        try:
            yield
        finally:
            self.leave()

    # ---- steps

    def general_step(self, x: ArrayLike, out: Array | None, rows: ArrayLike | None) -> Array:
        """``step`` of arguments that it cannot take as they are."""
        index = None if rows is None else self._rows(rows)
        n = self.batch_size if index is None else len(index)
        source = np.ascontiguousarray(as_floats(x, "x", self.dtype))
        shapes = [(n, self.input_size), *([(self.input_size,)] if n == 1 else [])]
        if np.shape(x) not in shapes:  # before ascontiguousarray makes one dimension of none
            expected = " or ".join(map(str, shapes))
            raise ValueError(f"x must have shape {expected}, got {np.shape(x)}")
        shape = (*source.shape[:-1], self.hidden_size)
        y = np.empty(shape, self.dtype) if out is None else self._output(out, shape)
        if np.may_share_memory(source, y):
            source = source.copy()
        if index is None:
            self.step(source, y)
        else:
            self.step_some(source, y, index)
        return y

    def _output(self, out: Array, shape: tuple[int, ...]) -> Array:
        if not isinstance(out, np.ndarray) or out.dtype != self.dtype:
            what = out.dtype if isinstance(out, np.ndarray) else type(out).__name__
            raise TypeError(f"out must be a {self.dtype} array, got {what}")
        if out.shape != shape or not out.flags.carray:
            raise ValueError(
                f"out must be writeable, C-contiguous and aligned, of shape {shape}, "
                f"got shape {out.shape} and flags\n{out.flags}"
            )
        return out.view(np.ndarray)

    def process(
        self,
        chunk: ArrayLike,
        *,
        lengths: ArrayLike | None = None,
        resets: ArrayLike | None = None,
        out: Array | None = None,
    ) -> Array:
        """Several steps: the same as as many calls of ``step``.

        Args:
            chunk: inputs (T, B, I); where B is 1 also (T, I).
            lengths: how many of the T steps each row makes, integers (B,).
            resets: booleans (T, B): the row starts again from ``restart_state`` before that step.
            out: an array for the outputs.

        Returns:
            Outputs (T, B, H), or (T, H) for a chunk (T, I); zero behind lengths.

        Raises:
            TypeError, ValueError: as calling the layer.
            RuntimeError: another thread is using the stream.
        """
        x = as_floats(chunk, "chunk", self.dtype)
        single = x.ndim == 2
        if x.ndim not in (2, 3) or (1 if single else x.shape[1]) != self.batch_size:
            raise ValueError(
                f"chunk must have shape (T, {self.batch_size}, {self.input_size}), got {x.shape}"
            )
        states = tuple(s[:, 0] if single else s for s in self.states)
        with self._alone():
            y, after = functional._forward(
                self.net.cell,
                x,
                self._packed,
                as_states(states),
                lengths=lengths,
                resets=resets,
                restart_state=None if resets is None else as_states(self._restart),
                num_threads=self._threads,
                out=out,
            )
            for own, new in zip(states, after if len(states) > 1 else (after,), strict=True):
                own[...] = new
        result: Array = y
        return result

    # ---- states

    @property
    def state(self) -> States:
        """A copy of the states: h (L, B, H), for the LSTM (h, c). Assignment copies in."""
        with self._alone():
            return as_states(tuple(s.copy() for s in self.states))

    @state.setter
    def state(self, value: Any) -> None:
        given = self._checked(value, "state", self.states[0].shape)
        with self._alone():
            for own, new in zip(self.states, given, strict=True):
                own[...] = new

    @property
    def restart_state(self) -> States:
        """From where ``reset``, ``attach`` and ``resets`` start: h (L, H), for the LSTM (h, c)."""
        return as_states(tuple(s.copy() for s in self._restart))

    @restart_state.setter
    def restart_state(self, value: Any) -> None:
        shape = (self.num_layers, self.hidden_size)
        if value is None:
            value = as_states(tuple(np.zeros(shape, self.dtype) for _ in self.states))
        self._restart = tuple(s.copy() for s in self._checked(value, "restart_state", shape))

    def _checked(self, value: Any, name: str, shape: tuple[int, ...]) -> tuple[Array, ...]:
        layout = Layout(
            self.net, np.empty((0, self.batch_size, self.input_size), self.dtype), False
        )
        states = layout.states(value, name, shape)
        if states is None:
            raise TypeError(f"{name} must be an array or a tuple (h, c), got None")
        return states

    def reset(self, rows: ArrayLike | None = None) -> None:
        """Sets the states of all or some rows to ``restart_state``."""
        index = slice(None) if rows is None else self._rows(rows)
        with self._alone():
            for own, start in zip(self.states, self._restart, strict=True):
                own[:, index] = start[:, None]

    def fork(self) -> Stream:
        """A stream of its own that goes on from here; it shares the packed weights."""
        twin = Stream(self._packed, self.batch_size, self._threads, self.restart_state, self._pack)
        twin.state = self.state
        twin._attached[:] = self._attached
        return twin

    def refresh(self) -> None:
        """Takes the layer's weights as they are now; the states stay.

        Raises:
            RuntimeError: it is a stream of a frozen layer, whose weights never change.
        """
        if self._pack is None:
            raise RuntimeError("a stream of a frozen layer cannot be refreshed: freeze the layer")
        state, packed = self.state, self._pack()
        with self._alone():
            self._use(packed, self.batch_size)
        self.state = state

    # ---- rows that come and go

    @property
    def attached(self) -> Array:
        """The rows in use: what ``attach`` gave and ``detach`` did not take back; int64, rising."""
        return np.flatnonzero(self._attached)

    def attach(self, *, grow: bool = False) -> int:
        """Starts a stream in a free row: the lowest, at ``restart_state``. Returns the row.

        Args:
            grow: where no row is free, double ``batch_size``. Other rows stay as they are.

        Raises:
            RuntimeError: no row is free, and ``grow`` is False.
        """
        if self._attached.all():
            if not grow:
                raise RuntimeError(
                    f"all {self.batch_size} rows are in use: detach one, or attach(grow=True)"
                )
            self.resize(max(1, 2 * self.batch_size))
        row = int(np.argmin(self._attached))
        self.reset([row])
        self._attached[row] = True
        return row

    def detach(self, row: int) -> None:
        """Frees a row that ``attach`` gave.

        Raises:
            ValueError: the row is not in use.
        """
        (index,) = self._rows([row])
        if not self._attached[index]:
            raise ValueError(f"row {row} is not attached")
        self._attached[index] = False

    def resize(self, batch_size: int) -> None:
        """Changes the number of rows: further ones start at ``restart_state``.

        Raises:
            ValueError: rows that would go are in use.
        """
        kept = min(batch_size, self.batch_size)
        if self._attached[kept:].any():
            raise ValueError(f"rows from {kept} on are attached, cannot resize to {batch_size}")
        old, attached = self.states, self._attached
        with self._alone():
            self._use(self._packed, batch_size)
        self._attached = np.zeros(batch_size, bool)
        self._attached[:kept] = attached[:kept]
        self.reset()
        for own, before in zip(self.states, old, strict=True):
            own[:, :kept] = before[:, :kept]

    def _rows(self, rows: ArrayLike) -> Array:
        """Distinct rows in range, int64 (n,)."""
        index = np.asarray(rows)
        if index.ndim != 1 or (index.size and index.dtype.kind not in "iu"):
            raise TypeError(
                f"rows must be integers of shape (n,), got {index.dtype} of shape {index.shape}"
            )
        if index.size and not 0 <= index.min() <= index.max() < self.batch_size:
            raise ValueError(f"rows must lie in 0..{self.batch_size - 1}, got {index.tolist()}")
        if len(np.unique(index)) < index.size:
            raise ValueError(f"rows must be distinct, got {index.tolist()}")
        return np.ascontiguousarray(index, np.int64)

    # ---- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the states and which rows are in use, but no weights, to an .npz file."""
        import json

        header = {"format": _FORMAT, "version": _VERSION, **self._description()}
        arrays: dict[str, Any] = {"header": np.array(json.dumps(header))}
        arrays |= dict(zip(("h", "c"), self.states, strict=False))
        with self._alone(), open(path, "wb") as file:
            np.savez(file, attached=self._attached, **arrays)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Takes over the states that ``save`` wrote; ``batch_size`` becomes that of the file.

        Raises:
            OSError: the file cannot be opened.
            ValueError: it is not such a file, or of other layers than these.
        """
        import json

        with open(path, "rb") as file:
            try:
                with np.load(file, allow_pickle=False) as archive:
                    arrays = dict(archive.items())
                header = json.loads(str(arrays["header"]))
                states = tuple(arrays[name] for name in ("h", "c")[: len(self.states)])
                attached = arrays["attached"]
                form = header["format"], header["version"]
            except Exception as error:  # zipfile and NumPy's format raise nearly anything
                raise ValueError(f"{path}: not a stream's states, or damaged; {error}") from error
        if form != (_FORMAT, _VERSION):
            raise ValueError(f"{path}: expected {_FORMAT} of version {_VERSION}, got {form}")
        rows = len(attached)
        shape = (self.num_layers, rows, self.hidden_size)
        same = {**header, **self._description()} == header
        if not same or any(s.shape != shape or s.dtype != self.dtype for s in states):
            raise ValueError(f"{path}: states of {header}, but this stream is {self!r}")
        self._attached[:] = False
        self.resize(rows)
        self.state = as_states(states)
        self._attached = attached.astype(bool)

    def _description(self) -> dict[str, Any]:
        return {
            "cell": self.net.cell,
            "dtype": self.dtype.name,
            "input_size": self.input_size,
            "hidden_size": self.hidden_size,
            "num_layers": self.num_layers,
        }

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle a Stream: save its state, and the layer")
