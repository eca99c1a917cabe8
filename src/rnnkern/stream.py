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
from .arguments import Layout, States, as_states, new_call
from .files import read_archive
from .memory import new_block
from .packed import Packed
from .structure import Structure
from .validation import (
    Array,
    Shape,
    as_floats,
    as_integers,
    as_target,
    axis_length,
    boolean,
    check_shape,
)

__all__ = ["Stream"]

_FORMAT, _VERSION = "rnnkern-stream", 1  # of saved files
_AT_ONCE = 256  # rows of a thread whose gates, some MB, a core's cache holds


class Stream(_core.StreamBase):
    """Rows (streams) that advance a step at a time through causal layers. Made by ``layer.stream``.

    One thread at a time: a call while another thread is inside one raises RuntimeError. Streams of
    one ``layer.freeze()`` share its packed weights. A call that raises leaves the stream as it was.

    Attributes:
        batch_size: rows, B.
        input_size: of the layers, I.
        hidden_size: H.
        proj_size: P, or 0 without projection.
        num_layers: L.
        dtype: of inputs, outputs and states.

    Examples:
        >>> from rnnkern import GRU
        >>> stream = GRU(3, 4, num_layers=2, seed=0).stream(batch_size=2)
        >>> row = stream.attach()
        >>> stream.step(np.ones((1, 3), np.float32), rows=[row]).shape
        (1, 4)
        >>> stream.state.shape
        (2, 2, 4)
    """

    _packed: Packed
    _pack: Callable[[], Packed] | None
    _threads: int
    _restart: tuple[Array, ...]
    _restart_given: bool
    _attached: Array

    def __init__(
        self,
        packed: Packed,
        batch_size: int = 1,
        num_threads: int = 1,
        restart_state: Any = None,
        pack: Callable[[], Packed] | None = None,
    ) -> None:
        if packed.structure.num_directions != 1:
            raise ValueError(
                "a bidirectional layer cannot stream: its reverse direction starts at the end"
            )
        self._pack, self._threads = pack, threads.checked(num_threads)
        rows = axis_length("batch_size", batch_size)
        self._use(packed, _new_states(packed.structure, rows))
        self._attached = np.zeros(rows, bool)
        self.restart_state = restart_state
        self.reset()

    def _use(self, packed: Packed, states: tuple[Array, ...]) -> None:
        """These weights and states from now on, and memory for as many rows."""
        net = packed.net
        rows = min(states[0].shape[1], _AT_ONCE * self._threads)
        call = new_call(1, rows, num_threads=self._threads)
        workspace = new_block(_core.sizes(net, call)[2])
        some = _new_states(packed.structure, rows)
        self.hold(net, packed.block, workspace, self._threads, states, some)
        self._packed = packed

    @property
    def batch_size(self) -> int:
        return int(self._states[0].shape[1])

    @property
    def input_size(self) -> int:
        return self.net.input_size

    @property
    def hidden_size(self) -> int:
        return self.net.hidden_size

    @property
    def proj_size(self) -> int:
        return self.net.proj_size

    @property
    def num_layers(self) -> int:
        return self.net.num_layers

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.net.dtype

    def __repr__(self) -> str:
        sizes = f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}"
        if self.proj_size:
            sizes += f", proj_size={self.proj_size}"
        return f"Stream({self.net.cell}, {sizes}, batch_size={self.batch_size})"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """For this thread only; nothing outside it may rely on the number of rows."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    # ---- steps

    def _general_step(self, x: ArrayLike, out: Array | None, rows: ArrayLike | None) -> Array:
        """``step`` of arguments that it cannot take as they are."""
        index = None if rows is None else self._rows(rows)
        source = np.require(as_floats("x", x, self.dtype), None, ["C", "A"])
        check_shape("x", source, *self._shapes(self.batch_size if index is None else len(index)))
        shape = (*source.shape[:-1], self._packed.structure.width)
        y = np.empty(shape, self.dtype) if out is None else self._checked_out(out, shape)
        if np.may_share_memory(source, y):
            source = source.copy()
        self._advance(source, y, index)
        return y

    def _shapes(self, rows: int) -> list[Shape]:
        """Which shapes the input of a step of so many rows may have."""
        return [(rows, self.input_size), *([(self.input_size,)] if rows == 1 else [])]

    def _checked_out(self, out: Array, shape: Shape) -> Array:
        as_target("out", out, shape, self.dtype)
        if not out.flags.carray:
            raise ValueError("out: expected a C-contiguous, aligned array, got another")
        return out

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
            lengths: how many of the T steps each row makes, integers (B,); for (T, I) an int.
            resets: booleans (T, B), for (T, I) (T,): the row starts again from ``restart_state``
                before that step.
            out: an array for the outputs.

        Returns:
            Outputs (T, B, P), or (T, P) for a chunk (T, I), zero behind lengths; out where given.

        Raises:
            TypeError, ValueError: as calling the layer.
            RuntimeError: another thread is using the stream.
        """
        with self._alone():
            x = as_floats("chunk", chunk, self.dtype)
            shapes = self._shapes(self.batch_size)
            if x.shape[1:] not in shapes:
                expected = " or ".join(f"(T, {str(shape).strip('(),')})" for shape in shapes)
                raise ValueError(f"chunk: expected shape {expected}, got {x.shape}")
            single = x.ndim == 2
            states = tuple(s[:, 0] if single else s for s in self._states)
            y: Array
            y, after = functional._forward(
                self._packed.structure.options,
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
        return y

    # ---- states

    @property
    def state(self) -> States:
        """A copy of the states: h (L, B, P), for the LSTM (h, c), for the SRU c. Assignment copies
        in."""
        with self._alone():
            return as_states(tuple(s.copy() for s in self._states))

    @state.setter
    def state(self, value: Any) -> None:
        with self._alone():
            given = self._checked(value, "state", self._states[0].shape[:-1])
            for own, new in zip(self._states, given, strict=True):
                own[...] = new

    @property
    def restart_state(self) -> States:
        """Where ``reset``, ``attach`` and ``resets`` start: h (L, P), for the LSTM (h, c), for the
        SRU c; a copy.

        Assignment copies in, and changes no row; None stands for the learned initial states, or
        zeros where the layer has none.
        """
        return as_states(tuple(s.copy() for s in self._restart))

    @restart_state.setter
    def restart_state(self, value: Any) -> None:
        self._restart_given = value is not None
        if value is None:
            widths = self._packed.structure.states.values()
            zeros = tuple(np.zeros((self.num_layers, width), self.dtype) for width in widths)
            value = as_states(self._packed.initial or zeros)
        checked = self._checked(value, "restart_state", (self.num_layers,))
        self._restart = tuple(s.copy() for s in checked)

    def _checked(self, value: Any, name: str, axes: Shape) -> tuple[Array, ...]:
        layout = Layout(self._packed.structure, (0, 0, self.input_size), False)
        states = layout.states(name, value, axes)
        if states is None:
            raise TypeError(f"{name}: expected an array, for the LSTM a tuple (h, c), got None")
        return states

    def reset(self, rows: ArrayLike | None = None) -> None:
        """Sets the states of all or some rows to ``restart_state``.

        Args:
            rows: distinct integers (n,); None means all.
        """
        with self._alone():
            self._start(slice(None) if rows is None else self._rows(rows))

    def _start(self, rows: Array | slice | int) -> None:
        for own, start in zip(self._states, self._restart, strict=True):
            own[:, rows] = start if isinstance(rows, int) else start[:, None]

    def fork(self) -> Stream:
        """A stream of its own that goes on from here; it shares the packed weights."""
        with self._alone():
            twin = Stream(
                self._packed, self.batch_size, self._threads, self.restart_state, self._pack
            )
            for own, new in zip(twin._states, self._states, strict=True):
                own[...] = new
            twin._attached[:] = self._attached
            twin._restart_given = self._restart_given
        return twin

    def refresh(self) -> None:
        """Takes the layer's weights as they are now; the states stay.

        Raises:
            RuntimeError: it is a stream of a frozen layer, whose weights never change.
        """
        if self._pack is None:
            raise RuntimeError(
                "a stream of a frozen layer cannot be refreshed, its weights never change"
            )
        with self._alone():
            self._use(self._pack(), self._states)
            if not self._restart_given:
                self.restart_state = None  # learned states, too, are as they are now

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
            RuntimeError: no row is free, and ``grow`` is False; or another thread is using the
                stream.
        """
        with self._alone():
            if self._attached.all():
                if not boolean("grow", grow):
                    raise RuntimeError(
                        f"all {self.batch_size} rows are in use: detach one, or attach(grow=True)"
                    )
                self._resize(max(1, 2 * self.batch_size))
            row = int(np.argmin(self._attached))
            self._start(row)
            self._attached[row] = True
        return row

    def detach(self, row: int) -> None:
        """Frees a row that ``attach`` gave.

        Raises:
            ValueError: the row is not in use.
        """
        with self._alone():
            (index,) = self._rows([row])
            if not self._attached[index]:
                raise ValueError(f"row {row} is not attached")
            self._attached[index] = False

    def resize(self, batch_size: int) -> None:
        """Changes the number of rows: further ones start at ``restart_state``.

        Raises:
            ValueError: rows that would go are attached.
        """
        with self._alone():
            self._resize(axis_length("batch_size", batch_size))

    def _resize(self, batch_size: int) -> None:
        kept = min(batch_size, self.batch_size)
        if self._attached[kept:].any():
            raise ValueError(
                f"cannot resize to {batch_size}: rows {self.attached.tolist()} are attached"
            )
        attached = np.zeros(batch_size, bool)
        attached[:kept] = self._attached[:kept]
        states = []
        for own, start in zip(self._states, self._restart, strict=True):
            s = np.repeat(start[:, None], batch_size, axis=1)
            s[:, :kept] = own[:, :kept]
            states.append(s)
        self._use(self._packed, tuple(states))
        self._attached = attached

    def _rows(self, rows: ArrayLike) -> Array:
        """Distinct rows in range, int64 (n,)."""
        index = as_integers("rows", rows, 0, self.batch_size - 1)
        if index.ndim != 1:
            raise ValueError(f"rows: expected shape (n,), got {index.shape}")
        if len(np.unique(index)) < index.size:
            raise ValueError(f"rows: expected distinct integers, got {index.tolist()}")
        return index

    # ---- files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the states and which rows are attached to an .npz file.

        Neither the weights nor ``restart_state`` are in it: they belong to the program. The file
        has exactly the given name.
        """
        import json

        header = {"format": _FORMAT, "version": _VERSION, **self._description()}
        with self._alone(), open(path, "wb") as file:
            names = self._packed.structure.states
            arrays: dict[str, Any] = dict(zip(names, self._states, strict=True))
            np.savez(file, header=np.array(json.dumps(header)), attached=self._attached, **arrays)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Takes over the states that ``save`` wrote; ``batch_size`` becomes that of the file.

        Raises:
            OSError: the file cannot be opened.
            ValueError: it is not such a file, or of other layers than these.
        """
        header, arrays = read_archive(path, "the states of a stream")
        form = header["format"], header.get("version")
        if form != (_FORMAT, _VERSION):
            raise ValueError(f"{path}: expected {_FORMAT} of version {_VERSION}, got {form}")
        if {**header, **self._description()} != _as_now(header):
            raise ValueError(f"{path}: states of {header}, but this stream is {self!r}")
        attached = arrays.get("attached", np.empty(()))
        widths = self._packed.structure.states
        states = tuple(arrays.get(name, attached) for name in widths)
        if attached.ndim != 1 or any(
            s.shape != (self.num_layers, attached.size, width) or s.dtype != self.dtype
            for s, width in zip(states, widths.values(), strict=True)
        ):
            raise ValueError(f"{path}: damaged, its arrays are not those of {header}")
        states = tuple(np.require(s, None, "C") for s in states)
        with self._alone():
            self._use(self._packed, states)
            self._attached = attached.astype(bool)

    def _description(self) -> dict[str, Any]:
        return {
            "cell": self.net.cell,
            "dtype": self.dtype.name,
            "input_size": self.input_size,
            "hidden_size": self.hidden_size,
            "proj_size": self.proj_size,
            "num_layers": self.num_layers,
        }

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle or copy a Stream: use its save or fork")


def _new_states(structure: Structure, rows: int) -> tuple[Array, ...]:
    layers, widths = structure.num_layers, structure.states.values()
    return tuple(np.empty((layers, rows, width), structure.dtype) for width in widths)


def _as_now(header: dict[str, Any]) -> dict[str, Any]:
    """A header as it would be written now: former ones told RNNs apart, and had no projections."""
    cell = header.get("cell")
    now = {"rnn_tanh": "rnn", "rnn_relu": "rnn"}.get(cell, cell) if isinstance(cell, str) else cell
    return {"proj_size": 0, **header, "cell": now}
