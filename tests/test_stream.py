"""Streams: the bits of the whole sequence, however it is cut and whatever other rows do."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from cases import as_tuple
from support import Array, assert_bits

import rnnkern as rk

I, H = 5, 17  # noqa: E741

KINDS: dict[str, tuple[type, dict[str, Any]]] = {
    "rnn_tanh": (rk.RNN, {}),
    "rnn_relu": (rk.RNN, {"nonlinearity": "relu"}),
    "lstm": (rk.LSTM, {}),
    "gru_after": (rk.GRU, {}),
    "gru_before": (rk.GRU, {"reset_after": False}),
    "lstm_options": (rk.LSTM, {
        "proj_size": 9, "peephole": True, "coupled": "input", "clip": 1.5, "layer_norm": True,
    }),
    "sru": (rk.SRU, {}),
}  # fmt: skip
forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def make_layer(
    cell: str, dtype: Any = np.float32, sizes: tuple[int, int] = (I, H), L: int = 1, **options: Any
) -> Any:
    cls, own = KINDS[cell]
    layer = cls(*sizes, L, **own, **options, dtype=dtype, seed=L)
    layer.flat_params *= 2
    return layer


def draw(layer: Any, *shape: int, seed: int = 0) -> Array:
    """Inputs of that shape and the layer's input size."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((*shape, layer.input_size)).astype(layer.dtype)


def draw_state(layer: Any, *rows: int, seed: int = 1) -> Any:
    """A state of some rows, or without any one of a single row, as `restart_state`."""
    rng = np.random.default_rng(seed)
    parts = tuple(
        rng.standard_normal((layer.num_layers, *rows, width)).astype(layer.dtype)
        for width in layer._structure.states.values()
    )
    return parts if isinstance(layer, rk.LSTM) else parts[0]


def width(layer: Any) -> int:
    """Of outputs."""
    return getattr(layer, "proj_size", 0) or layer.hidden_size


def assert_states(got: Any, want: Any, what: Any = "") -> None:
    assert isinstance(got, tuple) == isinstance(want, tuple)
    for a, b in zip(as_tuple(got), as_tuple(want), strict=True):
        assert_bits(a, b, what)


def row_of(state: Any, row: int) -> Any:
    """One row's state, with an axis for the rows."""
    picked = tuple(s[:, row : row + 1] for s in as_tuple(state))
    return picked if isinstance(state, tuple) else picked[0]


@pytest.fixture(params=KINDS)
def cell(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def layer(cell: str) -> Any:
    return make_layer(cell, L=2)


@pytest.fixture
def stream(layer: Any) -> rk.Stream:
    """Of three rows that have made some steps."""
    made = layer.stream(3)
    made.process(draw(layer, 4, 3))
    return made


# --- the bits of the whole sequence --------------------------------------------------------------


def advance(stream: rk.Stream, x: Array, rng: np.random.Generator) -> Array:
    """All steps of x (T, B, I), each time in one of the ways there are."""
    T, B = x.shape[:2]
    y = np.full((T, B, stream.proj_size or stream.hidden_size), np.nan, x.dtype)
    t = 0
    while t < T:
        way = rng.integers(5)
        n = int(rng.integers(0, T - t + 1)) if way == 0 else 1
        if way == 0:
            y[t : t + n] = stream.process(x[t : t + n])
        elif way == 1:
            assert stream.step(x[t], out=y[t]).base is y
        elif way == 2:  # some rows now, the others afterwards, each in any order
            order = rng.permutation(B)
            cut = int(rng.integers(0, B + 1))
            for rows in (order[:cut], order[cut:].tolist()):
                y[t, rows] = stream.step(x[t, rows], rows=rows)
        elif way == 3 and B == 1:
            y[t, 0] = stream.step(x[t, 0])
        else:
            y[t] = stream.step(x[t])
        t += n
    return y


def test_any_way_of_stepping_has_the_bits_of_the_whole(cell: str, dtype: Any, level: str) -> None:
    rng = np.random.default_rng(3)
    for L in (1, 2, 3):
        layer = make_layer(cell, dtype, L=L)
        for B in (0, 1, 2, 5, 33):
            x, hx = draw(layer, 12, B), draw_state(layer, B)
            want, after = layer(x, hx)
            for source in (layer, layer.freeze()):
                stream = source.stream(B)
                stream.state = hx
                assert_bits(advance(stream, x, rng), want, (L, B))
                assert_states(stream.state, after, (L, B))


SHAPES = [(40, 64, 2, 1), (30, 130, 1, 3), (64, 1024, 1, 1), (20, 512, 2, 3), (16, 96, 1, 90)]
SHAPES += [(3, 20, L, B) for L in (1, 2) for B in (256, 257, 700)]  # in blocks of rows


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "I{} H{} L{} B{}".format(*s))
def test_threads(cell: str, shape: tuple[int, ...], threads: int) -> None:
    inputs, units, L, B = shape
    layer = make_layer(cell, sizes=(inputs, units), L=L)
    x = draw(layer, 6, B)
    want, after = layer(x, num_threads=1)
    stream = layer.stream(B, num_threads=threads)
    assert_bits(advance(stream, x, np.random.default_rng(4)), want)
    assert_states(stream.state, after)


def test_the_team_is_used() -> None:
    """By rows and by units, or the test above would say little."""
    splits = {
        make_layer("lstm", sizes=(inputs, units), L=L).plan(1, B, num_threads=2).split
        for inputs, units, L, B in SHAPES
    }
    assert splits >= {"rows", "units"}


def test_lengths_and_resets_of_a_chunk(cell: str, dtype: Any) -> None:
    layer = make_layer(cell, dtype, L=2)
    restart, hx, x = draw_state(layer, seed=7), draw_state(layer, 4), draw(layer, 9, 4)
    lengths = [9, 0, 4, 7]
    resets = np.random.default_rng(5).random((9, 4)) < 0.3
    stream = layer.stream(4, restart_state=restart)
    stream.state = hx
    want, after = layer(x, hx, lengths=lengths, resets=resets, restart_state=restart)
    assert_bits(stream.process(x, lengths=lengths, resets=resets), want)
    assert_states(stream.state, after)

    one = layer.stream(restart_state=restart)
    y = np.empty((9, width(layer)), dtype)
    assert one.process(x[:, 0], lengths=5, resets=resets[:, 0], out=y) is y
    first = layer.stream(restart_state=restart)
    for t in range(5):
        if resets[t, 0]:
            first.reset()
        assert_bits(first.step(x[t, 0]), y[t], t)
    assert not y[5:].any()
    assert_states(one.state, first.state)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_stay_in_their_row(cell: str, bad: float) -> None:
    layer = make_layer(cell, L=2)
    x = draw(layer, 8, 20)
    want, _ = layer(x)
    x[2, 7] = bad
    stream = layer.stream(20)
    others = np.arange(20) != 7
    for t in range(8):
        y = stream.step(x[t])
        assert_bits(y[others], want[t, others], t)
        assert np.isnan(y[7]).any() or t < 2 or not np.isnan(bad)
    stream.reset([7])
    assert_bits(stream.step(x[0])[7], want[0, 7])


# --- rows that join and leave --------------------------------------------------------------------


def test_streams_that_join_and_leave(cell: str, level: str) -> None:
    check_joins_and_leaves(make_layer(cell, L=2), 400)


def test_streams_that_join_and_leave_for_long() -> None:
    check_joins_and_leaves(make_layer("lstm"), 12_000)


def check_joins_and_leaves(layer: Any, steps: int) -> None:
    """Each stream has the bits that it has alone, from when it joins to when it leaves."""
    rng = np.random.default_rng(6)
    start = draw_state(layer)
    server = layer.stream(0, restart_state=start)
    live: dict[int, list[tuple[Array, Array]]] = {}
    checked, restart = 0, tuple(s[:, None] for s in as_tuple(start))
    hx = restart if isinstance(start, tuple) else restart[0]

    def leave(row: int) -> None:
        nonlocal checked
        steps_of_row = live.pop(row)
        state = row_of(server.state, row)
        server.detach(row)
        if steps_of_row:
            x, y = map(np.stack, zip(*steps_of_row, strict=True))
            want, after = layer(x[:, None], hx)
            assert_bits(y, want[:, 0])
            assert_states(state, after)
            checked += 1

    for t in range(steps):
        if rng.random() < 0.2 and len(live) < 40:
            row = server.attach(grow=True)
            assert row not in live
            live[row] = []
        if live and rng.random() < 0.15:
            leave(int(rng.choice(list(live))))
        if t % 500 == 499:  # smaller, as far as rows in use allow
            server.resize(max(live, default=-1) + 1)
        assert server.attached.tolist() == sorted(live)
        rows = rng.permutation([row for row in live if rng.random() < 0.7]).astype(int)
        x = rng.standard_normal((len(rows), layer.input_size)).astype(layer.dtype)
        if t % 3 == 0:  # all rows, of which the free ones get anything
            everything = np.full((server.batch_size, layer.input_size), np.inf, layer.dtype)
            rows = np.array(sorted(live), int)
            x = rng.standard_normal((len(rows), layer.input_size)).astype(layer.dtype)
            everything[rows] = x
            y = server.step(everything)[rows]
        else:
            y = server.step(x, rows=rows)
        for row, *pair in zip(rows.tolist(), x, y, strict=True):
            live[row].append(tuple(pair))
    for row in list(live):
        leave(row)
    assert checked > steps / 20


def test_attach_gives_the_lowest_free_row(layer: Any) -> None:
    server = layer.stream(2)
    assert [server.attach(), server.attach()] == [0, 1]
    with pytest.raises(RuntimeError, match=r"all 2 rows are in use: detach one, or attach\(grow"):
        server.attach()
    assert server.attach(grow=True) == 2
    assert server.batch_size == 4
    server.detach(1)
    assert server.attach() == 1
    assert server.attached.tolist() == [0, 1, 2]
    for row, message in (
        (3, "row 3 is not attached"),
        (4, "from 0 to 3, got 4"),
        (-1, "from 0 to 3, got -1"),
    ):
        with pytest.raises(ValueError, match=message):
            server.detach(row)
    with pytest.raises(TypeError, match="rows: expected integers"):
        server.detach(1.0)
    assert layer.stream(0).attach(grow=True) == 0


def test_resize(layer: Any) -> None:
    start = draw_state(layer)
    stream = layer.stream(4, restart_state=start)
    stream.process(draw(layer, 3, 4))
    before = stream.state
    assert stream.attach() == 0
    stream.resize(6)
    for row in range(1, 4):
        assert_states(row_of(stream.state, row), row_of(before, row))
    for row in (0, 4, 5):
        got = row_of(stream.state, row)
        parts = tuple(s[:, 0] for s in as_tuple(got))
        assert_states(parts, as_tuple(start))
    with pytest.raises(ValueError, match=r"cannot resize to 0: rows \[0\] are attached"):
        stream.resize(0)
    stream.resize(2)
    assert stream.batch_size == 2
    assert_states(row_of(stream.state, 1), row_of(before, 1))
    for bad, error in ((-1, ValueError), (2.0, TypeError), (True, TypeError), (None, TypeError)):
        with pytest.raises(error, match="batch_size: expected"):
            stream.resize(bad)
    kept = stream.state
    with pytest.raises((MemoryError, ValueError)):
        stream.resize(2**50)
    assert_states(stream.state, kept)
    stream.detach(0)
    stream.resize(np.int64(0))
    assert stream.step(draw(layer, 0)).shape == (0, width(layer))


# --- states --------------------------------------------------------------------------------------


def test_the_state_is_copied_in_and_out(layer: Any, stream: rk.Stream) -> None:
    given = draw_state(layer, 3)
    kept = copy.deepcopy(given)
    stream.state = given
    for s in as_tuple(given):
        s[:] = np.nan
    assert_states(stream.state, kept)
    for s in as_tuple(stream.state):
        s[:] = np.nan
    assert_states(stream.state, kept)
    stream.state = copy.deepcopy(stream.state)
    assert_states(stream.state, kept)


def test_states_of_any_layout(layer: Any, stream: rk.Stream) -> None:
    given = draw_state(layer, 3)

    def changed(change: Callable[[Array], Array]) -> Any:
        parts = tuple(map(change, as_tuple(given)))
        return parts if isinstance(given, tuple) else parts[0]

    for change in CHANGES.values():
        stream.reset()
        stream.state = changed(change)
        assert_states(stream.state, given)


@pytest.mark.parametrize("name", ["state", "restart_state"])
def test_states_are_checked(name: str) -> None:
    for layer in (rk.GRU(I, H, 2), rk.LSTM(I, H, 2)):
        stream = layer.stream(3)
        stream.step(draw(layer, 3))
        before = stream.state, stream.restart_state
        lstm = isinstance(layer, rk.LSTM)
        good = draw_state(layer, *([3] if name == "state" else []))
        shape = as_tuple(good)[0].shape
        label = rf"h of {name}" if lstm else name
        pair = (lambda s: (s, s)) if lstm else (lambda s: s)
        bad: list[tuple[Any, type, str]] = [
            (pair(as_tuple(good)[0][:1]), ValueError, rf"{label}: expected shape \(2, "),
            (pair(as_tuple(good)[0].astype(float)), TypeError, f"{label}: expected float32"),
            (as_tuple(good)[0], TypeError, rf"{name}: expected a tuple \(h, c\)") if lstm
            else ((good, good), TypeError, f"{name}: expected one array, got a tuple of 2"),
        ]  # fmt: skip
        if lstm:
            bad += [((good[0], good[1][:1]), ValueError, rf"c of {name}: expected shape"),
                    ((good[0],), TypeError, "tuple of 1")]  # fmt: skip
        if name == "state":
            bad.append((None, TypeError, r"state: expected an array, .* got None"))
        for value, error, message in bad:
            with pytest.raises(error, match=message):
                setattr(stream, name, value)
        assert shape == as_tuple(getattr(stream, name))[0].shape
        assert_states(stream.state, before[0])
        assert_states(stream.restart_state, before[1])


def test_reset(layer: Any, stream: rk.Stream) -> None:
    before = stream.state
    stream.reset(rows=[2, 0])
    stream.reset([])
    assert_states(row_of(stream.state, 1), row_of(before, 1))
    for row in (0, 2):
        assert not any(s.any() for s in as_tuple(row_of(stream.state, row)))
    start = draw_state(layer)
    kept = copy.deepcopy(start)
    stream.restart_state = start
    assert_states(row_of(stream.state, 1), row_of(before, 1))
    for s in (*as_tuple(start), *as_tuple(stream.restart_state)):
        s[:] = np.nan
    stream.reset()
    assert_states(stream.restart_state, kept)
    for row in range(3):
        parts = tuple(s[:, 0] for s in as_tuple(row_of(stream.state, row)))
        assert_states(parts, as_tuple(kept))
    stream.restart_state = None
    stream.reset()
    assert not any(s.any() for s in as_tuple(stream.state))


def test_fork(layer: Any, stream: rk.Stream) -> None:
    stream.restart_state = draw_state(layer)
    stream.attach()
    before = stream.state
    twin = stream.fork()
    assert_states(twin.state, before)
    assert_states(twin.restart_state, stream.restart_state)
    assert twin.attached.tolist() == [0]
    x = draw(layer, 5, 3)
    y = twin.process(x)
    assert_states(stream.state, before)
    twin.detach(0)
    assert stream.attached.tolist() == [0]
    assert_bits(stream.process(x), y)
    assert_states(stream.state, twin.state)
    layer.flat_params *= 2
    twin.refresh()
    assert not np.array_equal(twin.step(x[0]), stream.step(x[0]))


def test_refresh(layer: Any, stream: rk.Stream) -> None:
    state, x = stream.state, draw(layer, 3)
    want = stream.fork().step(x)
    layer.flat_params *= 1.5
    assert_bits(stream.fork().step(x), want)  # packed once
    stream.refresh()
    assert_states(stream.state, state)
    assert_bits(stream.step(x), layer(x[None], state)[0][0])


def test_a_frozen_stream_stays(layer: Any) -> None:
    frozen = layer.freeze()
    stream, x = frozen.stream(3), draw(layer, 3)
    layer.flat_params *= 2
    with pytest.raises(RuntimeError, match="a stream of a frozen layer cannot be refreshed"):
        stream.refresh()
    with pytest.raises(RuntimeError, match="frozen"):
        stream.fork().refresh()
    assert_bits(stream.step(x), frozen(x[None])[0][0])


def test_a_refresh_that_fails_changes_nothing(layer: Any, monkeypatch: Any) -> None:
    stream, x = layer.stream(3), draw(layer, 3)
    want = stream.fork().step(x)

    def fail() -> None:
        raise MemoryError

    layer.flat_params *= 2
    monkeypatch.setattr(stream, "_pack", fail)
    with pytest.raises(MemoryError):
        stream.refresh()
    assert_bits(stream.step(x), want)


@pytest.mark.parametrize("what", ["layer", "frozen"])
def test_a_bidirectional_layer_refuses(what: str) -> None:
    layer = rk.GRU(I, H, bidirectional=True)
    with pytest.raises(ValueError, match="a bidirectional layer cannot stream: its reverse"):
        (layer if what == "layer" else layer.freeze()).stream()


def test_options_are_checked() -> None:
    layer = rk.LSTM(I, H)
    bad: list[tuple[dict[str, Any], type, str]] = [
        ({"batch_size": -1}, ValueError, "batch_size: expected an integer from 0 .* got -1"),
        ({"batch_size": 1.0}, TypeError, "batch_size: expected an integer from 0 .* got 1.0"),
        ({"batch_size": True}, TypeError, "batch_size: expected an integer from 0 .* got True"),
        ({"num_threads": 0}, ValueError, "num_threads: expected a positive integer"),
        ({"num_threads": "2"}, TypeError, "num_threads: expected a positive integer"),
        (
            {"restart_state": np.zeros((1, H), np.float32)},
            TypeError,
            "restart_state: expected a tup",
        ),
    ]
    for source in (layer, layer.freeze()):
        for options, error, message in bad:
            with pytest.raises(error, match=message):
                source.stream(**options)


def test_attributes() -> None:
    stream = rk.LSTM(I, H, 2, dtype=np.float64).stream(3)
    sizes = stream.batch_size, stream.input_size, stream.hidden_size, stream.num_layers
    assert sizes == (3, I, H, 2)
    assert stream.dtype == np.float64
    assert repr(stream) == f"Stream(lstm, {I}, {H}, num_layers=2, batch_size=3)"
    projected = rk.LSTM(I, H, proj_size=3).stream()
    assert (projected.hidden_size, projected.proj_size, stream.proj_size) == (H, 3, 0)
    assert repr(projected) == f"Stream(lstm, {I}, {H}, num_layers=1, proj_size=3, batch_size=1)"
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot pickle or copy a Stream"):
            copied(stream)


def test_one_that_was_never_made() -> None:
    empty = rk.Stream.__new__(rk.Stream)
    with pytest.raises((TypeError, AttributeError)):
        empty.step(np.zeros(I, np.float32))


# --- files ---------------------------------------------------------------------------------------

reads_files = pytest.mark.thread_unsafe(reason="writes files of one name")


@reads_files
def test_save_and_load(layer: Any, stream: rk.Stream, tmp_path: Any) -> None:
    stream.attach()
    path = tmp_path / "streams"
    stream.save(path)
    assert path.exists()  # exactly the given name
    other = layer.stream(1, restart_state=draw_state(layer))
    other.load(path)
    assert other.batch_size == 3
    assert other.attached.tolist() == [0]
    assert_states(other.state, stream.state)
    x = draw(layer, 3)
    assert_bits(other.step(x), stream.step(x))
    assert other.attach() == 1
    start = tuple(s[:, 0] for s in as_tuple(row_of(other.state, 1)))
    assert_states(start, as_tuple(other.restart_state))


@reads_files
def test_files_of_others_are_refused(tmp_path: Any) -> None:
    layer = rk.LSTM(I, H, 2)
    stream = layer.stream(2)
    stream.step(draw(layer, 2))
    stream.attach()
    before = stream.state
    stream.save(tmp_path / "good")
    layer.save(tmp_path / "layer")
    (tmp_path / "text").write_text("no archive")
    (tmp_path / "half").write_bytes((tmp_path / "good").read_bytes()[:-200])
    with np.load(tmp_path / "good") as archive:
        good = dict(archive)
    header = json.loads(str(good["header"]))

    def variant(name: str, **changes: Any) -> None:
        with (tmp_path / name).open("wb") as file:
            np.savez(file, **{**good, **changes})

    variant("later", header=np.array(json.dumps({**header, "version": 2})))
    variant("list", header=np.array("[]"))
    variant("rows", attached=np.zeros(3, bool))
    variant("scalar", attached=np.array(True))
    variant("without", c=np.empty(0))
    variant("dtype", h=good["h"].astype(float))
    for others in (
        rk.LSTM(I, H), rk.LSTM(I, H + 1, 2), rk.GRU(I, H, 2), rk.LSTM(I, H, 2, proj_size=9),
        rk.SRU(I, H, 2),
    ):  # fmt: skip
        others.stream(2).save(tmp_path / f"other{others.num_layers}{others.hidden_size}{others}")
    rk.LSTM(I, H, 2, dtype=float).stream(2).save(tmp_path / "other")
    messages = {
        "layer": "expected rnnkern-stream of version 1, got",
        "later": "expected rnnkern-stream of version 1, got",
        "text": "not the states of a stream, or damaged",
        "half": "not the states of a stream, or damaged",
        "list": "not the states of a stream, or damaged",
    } | dict.fromkeys(("without", "rows", "scalar", "dtype"), "damaged, its arrays")
    for path in tmp_path.iterdir():
        if path.name != "good":
            message = messages.get(path.name, "states of .* but this stream is")
            with pytest.raises(ValueError, match=message) as caught:
                stream.load(path)
            assert str(path) in str(caught.value)
    with pytest.raises(FileNotFoundError):
        stream.load(tmp_path / "none")
    assert_states(stream.state, before)
    assert stream.attached.tolist() == [0]
    with pytest.raises(OSError):
        stream.save(tmp_path)
    stream.step(draw(layer, 2))  # it is free again


@reads_files
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_files_of_earlier_versions(activation: str, tmp_path: Any) -> None:
    """They named RNNs by their activation, and had no projections."""
    stream = rk.RNN(I, H, 2, activation).stream(2)
    stream.step(np.ones((2, I), np.float32))
    stream.save(tmp_path / "now")
    with np.load(tmp_path / "now") as archive:
        arrays = dict(archive)
    header = json.loads(str(arrays["header"])) | {"cell": f"rnn_{activation}"}
    del header["proj_size"]
    with (tmp_path / "then").open("wb") as file:
        np.savez(file, **arrays | {"header": np.array(json.dumps(header))})
    other = rk.RNN(I, H, 2, activation).stream(1)
    other.load(tmp_path / "then")
    assert_states(other.state, stream.state)
    for stranger in (rk.GRU(I, H, 2), rk.RNN(I, H)):
        with pytest.raises(ValueError, match="but this stream is"):
            stranger.stream(2).load(tmp_path / "then")


# --- arguments -----------------------------------------------------------------------------------


class Marked(np.ndarray):
    """A subclass."""


def unaligned(a: Array) -> Array:
    bytes_ = np.empty(a.nbytes + 1, np.uint8)[1:]
    shifted = bytes_.view(a.dtype).reshape(a.shape)
    shifted[...] = a
    return shifted


def read_only(a: Array) -> Array:
    a = a.copy()
    a.flags.writeable = False
    return a


CHANGES: dict[str, Callable[[Array], Array]] = {
    "fortran": np.asfortranarray,
    "strided": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "rows apart": lambda a: np.repeat(a, 2, axis=0)[::2],
    "negative": lambda a: a[..., ::-1].copy()[..., ::-1],
    "swapped": lambda a: a.astype(a.dtype.newbyteorder()),
    "unaligned": unaligned,
    "read-only": read_only,
    "subclass": lambda a: a.view(Marked),
    "broadcast": lambda a: np.broadcast_to(a, a.shape),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("B", [1, 3])
def test_arrays_of_any_kind_give_the_same_bits(
    cell: str, dtype: Any, change: Callable[[Array], Array], B: int
) -> None:
    layer = make_layer(cell, dtype)
    x = draw(layer, 6, B)
    want, after = layer(x)
    stream = layer.stream(B)
    rows = np.arange(B)
    ways = [
        lambda x: stream.step(change(x)),
        lambda x: stream.step(change(x), rows=rows),
        lambda x: stream.step(change(x), out=np.empty_like(want[0]), rows=change(rows)),
        lambda x: stream.step(change(x), np.empty_like(want[0])),
        lambda x: stream.step(change(x[0]))[None] if B == 1 else stream.step(change(x)),
        lambda x: stream.process(change(x[None]))[0],
    ]
    for t, way in enumerate(ways):
        y = way(x[t])
        assert type(y) is np.ndarray
        assert_bits(y, want[t], t)
    assert_states(stream.state, after)


def test_lists_are_arrays_of_float64() -> None:
    layer = rk.GRU(2, 3, dtype=float)
    stream = layer.stream()
    assert_bits(stream.step([1.0, 2.0]), layer(np.array([[1.0, 2.0]]))[0][0])
    with pytest.raises(TypeError, match=r"x: expected float32, got float64"):
        rk.GRU(2, 3).stream().step([1.0, 2.0])


X, OUT = np.zeros((3, I), np.float32), np.zeros((3, H), np.float32)
BAD_STEPS: list[tuple[Any, dict[str, Any], type, str]] = [
    (X[:2], {}, ValueError, r"x: expected shape \(3, 5\), got \(2, 5\)"),
    (X[0], {}, ValueError, r"x: expected shape \(3, 5\), got \(5,\)"),
    (X[None], {}, ValueError, r"x: expected shape \(3, 5\), got \(1, 3, 5\)"),
    (X[:, :4], {}, ValueError, r"x: expected shape \(3, 5\), got \(3, 4\)"),
    (np.float32(1), {}, ValueError, r"x: expected shape \(3, 5\), got \(\)"),
    (X.astype(float), {}, TypeError, r"x: expected float32.*np\.asarray\(x, np\.float32\)"),
    (X.astype(int), {}, TypeError, "x: expected float32, got int64"),
    (X.astype(complex), {}, TypeError, "x: expected float32"),
    (None, {}, TypeError, "x: expected float32, got None"),
    (X, {"out": OUT[:2]}, ValueError, r"out: expected shape \(3, 17\), got \(2, 17\)"),
    (X, {"out": OUT[0]}, ValueError, r"out: expected shape \(3, 17\), got \(17,\)"),
    (X, {"out": OUT.astype(float)}, TypeError, "out: expected float32, got float64"),
    (X, {"out": OUT.astype(">f4")}, TypeError, "out: expected float32, got >f4"),
    (X, {"out": OUT.tolist()}, TypeError, "out: expected a NumPy array, got a list"),
    (
        X,
        {"out": read_only(OUT)},
        ValueError,
        "out: expected a writeable array, got a read-only one",
    ),
    (X, {"out": np.asfortranarray(OUT)}, ValueError, "out: expected a C-contiguous, aligned array"),
    (X, {"out": unaligned(OUT)}, ValueError, "out: expected a C-contiguous, aligned array"),
    (X, {"out": np.broadcast_to(OUT[0], (3, H))}, ValueError, "out: expected a writeable array"),
    (X[:2], {"rows": [0, 3]}, ValueError, r"rows: expected integers from 0 to 2, got 3"),
    (X[:2], {"rows": [0, -1]}, ValueError, r"rows: expected integers from 0 to 2, got -1"),
    (X[:2], {"rows": np.array([0, 2**64 - 1], np.uint64)}, ValueError, "rows: .*from 0 to 2"),
    (X[:2], {"rows": [1, 1]}, ValueError, r"rows: expected distinct integers, got \[1, 1\]"),
    (X[:1], {"rows": [1.0]}, TypeError, "rows: expected integers, got dtype float64"),
    (X[:1], {"rows": [False, True, False]}, TypeError, "rows: expected integers, got dtype bool"),
    (X[:1], {"rows": ["1"]}, TypeError, "rows: expected integers"),
    (X[:1], {"rows": 1}, ValueError, r"rows: expected shape \(n,\), got \(\)"),
    (X[:1], {"rows": [[1]]}, ValueError, r"rows: expected shape \(n,\), got \(1, 1\)"),
    (X, {"rows": [0, 1]}, ValueError, r"x: expected shape \(2, 5\), got \(3, 5\)"),
    (X[:0], {"rows": [0]}, ValueError, r"x: expected shape \(1, 5\) or \(5,\), got \(0, 5\)"),
    (X[:2], {"rows": [0, 1], "out": OUT}, ValueError, r"out: expected shape \(2, 17\)"),
    (X[0], {"rows": [0], "out": OUT[:1]}, ValueError, r"out: expected shape \(17,\)"),
]


@pytest.mark.parametrize(("x", "keywords", "error", "message"), BAD_STEPS)
def test_steps_are_checked(x: Any, keywords: Any, error: type[Exception], message: str) -> None:
    layer = make_layer("gru_after")
    stream = layer.stream(3)
    stream.step(draw(layer, 3))
    before = stream.state
    with pytest.raises(error, match=message):
        stream.step(x, **keywords)
    if "rows" in keywords:
        with pytest.raises(error):
            stream.step(x, **{**keywords, "rows": np.array(keywords["rows"])})
    assert_states(stream.state, before)
    assert not OUT.any()
    with pytest.raises(TypeError):
        stream.step()
    stream.step(draw(layer, 3))  # it is free again


C = np.zeros((4, 3, I), np.float32)
BAD_CHUNKS: list[tuple[Any, dict[str, Any], type, str]] = [
    (C[:, :2], {}, ValueError, r"chunk: expected shape \(T, 3, 5\), got \(4, 2, 5\)"),
    (C[:, 0], {}, ValueError, r"chunk: expected shape \(T, 3, 5\), got \(4, 5\)"),
    (C[..., :4], {}, ValueError, r"chunk: expected shape \(T, 3, 5\), got \(4, 3, 4\)"),
    (np.float32(1), {}, ValueError, r"chunk: expected shape \(T, 3, 5\), got \(\)"),
    (C.astype(float), {}, TypeError, "chunk: expected float32, got float64"),
    (C, {"lengths": [1, 2]}, ValueError, r"lengths: expected shape \(3,\)"),
    (C, {"lengths": [1, 2, 5]}, ValueError, r"lengths: expected integers from 0 to 4"),
    (C, {"resets": np.zeros((3, 4), bool)}, ValueError, r"resets: expected shape \(4, 3\)"),
    (C, {"out": np.zeros((4, 3, I), np.float32)}, ValueError, r"out: expected shape \(4, 3, 17\)"),
]


@pytest.mark.parametrize(("chunk", "keywords", "error", "message"), BAD_CHUNKS)
def test_chunks_are_checked(chunk: Any, keywords: Any, error: type, message: str) -> None:
    layer = make_layer("lstm")
    stream = layer.stream(3)
    stream.step(draw(layer, 3))
    before = stream.state
    with pytest.raises(error, match=message):
        stream.process(chunk, **keywords)
    assert_states(stream.state, before)
    assert stream.process(C[:0]).shape == (0, 3, H)
    with pytest.raises(ValueError, match=r"shape \(T, 1, 5\) or \(T, 5\), got \(5,\)"):
        layer.stream().process(C[0, 0])


def test_out(layer: Any, stream: rk.Stream) -> None:
    """It is what comes back, and it may share memory with x."""
    x = draw(layer, 3)
    want, some = stream.fork().step(x), stream.fork().step(x[:2], rows=[2, 0])
    for out in (np.empty_like(want), np.empty_like(want).view(Marked)):
        assert stream.fork().step(x, out) is out
        assert_bits(np.asarray(out), want)
        assert stream.fork().step(x[:2], out[1:], rows=[2, 0]) is not out
        assert_bits(np.asarray(out[1:]), some)
    memory = np.zeros(want.size, np.float32)
    for first in (0, 1, want.size - 3 * I):
        memory[first : first + 3 * I] = x.ravel()
        out = memory.reshape(want.shape)
        stream.fork().step(memory[first : first + 3 * I].reshape(3, I), out)
        assert_bits(out, want, first)
        memory[first : first + 2 * I] = x[:2].ravel()
        stream.fork().step(memory[first : first + 2 * I].reshape(2, I), out[:2], rows=[2, 0])
        assert_bits(out[:2], some, first)


# --- threads and processes -----------------------------------------------------------------------


@pytest.mark.thread_unsafe(reason="starts threads of its own")
def test_threads_with_a_stream_each(cell: str) -> None:
    layer = make_layer(cell, sizes=(20, 70), L=2)
    frozen = layer.freeze()
    x = draw(layer, 300, 16)
    want, after = layer(x)
    together = threading.Barrier(16)

    def run(row: int) -> tuple[Array, Any]:
        stream = frozen.stream(num_threads=1 + row % 2)
        together.wait()
        return np.stack([stream.step(frame) for frame in x[:, row]]), stream.state

    with ThreadPoolExecutor(16) as pool:
        for row, (y, state) in enumerate(pool.map(run, range(16))):
            assert_bits(y, want[:, row], row)
            assert_states(state, row_of(after, row), row)


@pytest.mark.thread_unsafe(reason="starts threads of its own")
@pytest.mark.parametrize("way", ["step", "rows", "process"])
def test_a_stream_in_two_threads_is_right_or_refuses(way: str) -> None:
    layer = make_layer("lstm", sizes=(64, 128))
    stream, x = layer.stream(8), draw(layer, 1, 8)
    ways: dict[str, Callable[[], Array]] = {
        "step": lambda: stream.step(x[0]),
        "rows": lambda: stream.step(x[0], rows=range(8)),
        "process": lambda: stream.process(x)[0],
    }
    together = threading.Barrier(2)

    def run(_: int) -> list[Array]:
        found = []
        together.wait()
        for _ in range(300):
            try:
                found.append(ways[way]())
            except RuntimeError as error:
                assert "in use by another thread" in str(error)
        return found

    with ThreadPoolExecutor(2) as pool:
        found = [y.tobytes() for ys in pool.map(run, range(2)) for y in ys]
    want = layer(np.repeat(x, len(found), axis=0))[0]
    assert sorted(found) == sorted(y.tobytes() for y in want)  # each step was made once


def test_a_stream_in_use_refuses_everything(tmp_path: Any) -> None:
    layer = rk.LSTM(I, H)
    stream = layer.stream(2)
    row, state, path = stream.attach(), stream.state, tmp_path / "states"
    stream.save(path)
    x = draw(layer, 2)
    calls: list[Callable[[], Any]] = [
        lambda: stream.step(x), lambda: stream.step(x[:1], rows=[0]), lambda: stream.step(None),
        lambda: stream.process(x[None]), lambda: stream.state, stream.reset, stream.fork,
        lambda: setattr(stream, "state", state), stream.refresh, stream.attach,
        lambda: stream.detach(row), lambda: stream.resize(2), lambda: stream.save(path),
        lambda: stream.load(path),
    ]  # fmt: skip
    stream.enter()  # as a call in another thread does
    for call in calls:
        with pytest.raises(RuntimeError, match="this stream is in use by another thread"):
            call()
    stream.leave()
    stream.save(path)
    for call in calls:
        if call is not calls[2]:
            call()


def test_an_argument_that_calls_the_stream() -> None:
    """Converting an argument may run anybody's code; the stream belongs to the call already."""
    layer = rk.GRU(I, H)
    stream, x = layer.stream(1), draw(layer, 1)

    class Meddling:
        def __array__(self, *_: Any, **__: Any) -> Array:
            stream.resize(0)
            return x

    with pytest.raises(RuntimeError, match="in use"):
        stream.step(Meddling())
    assert_bits(stream.step(x), layer(x[None])[0][0])


@forks
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.thread_unsafe(reason="forks")
@pytest.mark.parametrize(("sizes", "threads"), [((I, H), 1), ((64, 1024), 2)])
def test_a_stream_after_fork(sizes: tuple[int, int], threads: int) -> None:
    """Child and parent go on from the same state, each on its own."""
    layer = make_layer("lstm", sizes=sizes)
    x = draw(layer, 8, 1)
    want = layer(x)[0]
    stream = layer.stream(num_threads=threads)
    assert_bits(stream.process(x[:4]), want[:4])
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, np.stack([stream.step(frame) for frame in x[4:]]).tobytes())
        finally:
            os._exit(0)
    os.close(writing)
    assert_bits(np.stack([stream.step(frame) for frame in x[4:]]), want[4:])
    with os.fdopen(reading, "rb") as pipe:
        got = np.frombuffer(pipe.read(), np.float32)
    os.waitpid(child, 0)
    assert_bits(got.reshape(want[4:].shape), want[4:])


# --- memory --------------------------------------------------------------------------------------


@pytest.fixture
def traced() -> Iterator[None]:
    gc.collect()
    tracemalloc.start()
    yield
    tracemalloc.stop()


def growth_and_peak(run: Callable[[], object]) -> tuple[int, int]:
    """Bytes that Python and NumPy hold more after it, and at most meanwhile.

    The least of several runs: caches fill in some, what leaks does in each.
    """
    found = []
    for _ in range(4):
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        run()
        peak = tracemalloc.get_traced_memory()[1]
        gc.collect()
        found.append((tracemalloc.get_traced_memory()[0] - before, peak - before))
    growths, peaks = zip(*found, strict=True)
    return min(growths), min(peaks)


@pytest.mark.thread_unsafe(reason="measures memory")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_step_with_out_allocates_nothing(layer: Any, threads: int, traced: None) -> None:
    stream = layer.stream(64, num_threads=threads)
    x, y = draw(layer, 64), np.empty((64, width(layer)), np.float32)

    def steps(out: Array | None) -> None:
        for _ in range(200):
            stream.step(x, out)

    def some_steps() -> None:
        for _ in range(200):
            stream.step(some_x, y[:9], rows)

    rows, some_x = np.arange(64)[::7][:9].copy(), x[:9]
    for run in (lambda: steps(y), some_steps):
        _, peak = growth_and_peak(run)
        assert peak < 400  # the loop's own; y has at least 2304 bytes
    growth, peak = growth_and_peak(lambda: steps(None))
    assert growth < 200
    assert y.nbytes < peak < 3 * y.nbytes


@pytest.mark.thread_unsafe(reason="measures memory")
def test_memory_is_flat(traced: None) -> None:
    layer = rk.LSTM(I, H)
    server = layer.stream(4)
    cell = rk.LSTMCell(I, H).freeze()
    x = draw(layer, 4)

    def churn() -> None:
        state = None
        for _ in range(400):
            row = server.attach()
            server.step(x[:1], rows=[row])
            server.process(x[None])
            server.detach(row)
            server.resize(8)
            server.resize(4)
            server.refresh()
            server.state = server.fork().state
            state = cell(x, state)
            with pytest.raises(ValueError):
                server.step(x[:3])

    growth, _ = growth_and_peak(churn)
    assert growth < 400 * 20  # the smallest object has more bytes


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs Linux's /proc")
@pytest.mark.thread_unsafe(reason="measures memory")
def test_a_million_steps_stay_in_place() -> None:
    layer = rk.GRU(1, 2)
    stream, x = layer.stream(), draw(layer, 1)[0]
    step, out = stream.step, np.empty(2, np.float32)

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    blocks = []
    for _ in range(3):
        for _ in range(1000):
            step(x), step(x, out)
        blocks.append(sys.getallocatedblocks())
    before = resident()
    for _ in range(500_000):
        step(x), step(x, out)
    assert resident() - before < 1 << 20
    assert sys.getallocatedblocks() - blocks[-1] < 100


# --- cells ---------------------------------------------------------------------------------------

CELLS: dict[str, tuple[type, dict[str, Any]]] = {
    "rnn_tanh": (rk.RNNCell, {}),
    "rnn_relu": (rk.RNNCell, {"nonlinearity": "relu"}),
    "lstm": (rk.LSTMCell, {}),
    "gru_after": (rk.GRUCell, {}),
    "gru_before": (rk.GRUCell, {"reset_after": False}),
}
each_cell = pytest.mark.parametrize("cell", CELLS)


def make_cell(cell: str, dtype: Any = np.float32, sizes: tuple[int, int] = (I, H)) -> Any:
    cls, own = CELLS[cell]
    return cls(*sizes, **own, dtype=dtype, seed=2)


def cell_state(cell: str, made: Any, shape: tuple[int, ...]) -> Any:
    rng = np.random.default_rng(8)
    parts = tuple(rng.standard_normal((*shape, H)).astype(made.dtype) for _ in range(2))
    return parts if cell == "lstm" else parts[0]


@each_cell
def test_a_frozen_cell_has_the_bits_of_the_cell(cell: str, dtype: Any, level: str) -> None:
    """One of few rows goes straight to the kernel; every other call goes the cell's own way."""
    made = make_cell(cell, dtype)
    frozen = made.freeze()
    for shape in ((), (0,), (1,), (2,), (15,), (16,), (17,), (40,)):
        x, hx = draw(made, *shape), cell_state(cell, made, shape)
        for threads in (None, 1, 2):
            for state in (None, hx):
                want = made(x, state)
                for _ in range(2):
                    assert_states(frozen(x, state, num_threads=threads), want, shape)
                for change in CHANGES.values() if shape not in ((), (0,)) else ():
                    given = tuple(map(change, as_tuple(hx)))
                    other = None if state is None else given if cell == "lstm" else given[0]
                    assert_states(frozen(change(x), other, num_threads=threads), want, shape)
        if cell == "lstm":
            assert_states(frozen(x, list(hx)), made(x, hx), shape)


@each_cell
def test_a_frozen_cell_leaves_its_arguments_alone(cell: str) -> None:
    made = make_cell(cell)
    x, hx = draw(made, 3), cell_state(cell, made, (3,))
    kept = copy.deepcopy((x, hx))
    after = made.freeze()(x, hx)
    assert_bits(x, kept[0])
    assert_states(hx, kept[1])
    assert not any(np.shares_memory(a, b) for a in as_tuple(after) for b in as_tuple(hx))


@each_cell
@pytest.mark.thread_unsafe(reason="starts threads of its own")
def test_a_frozen_cell_in_many_threads(cell: str) -> None:
    """Unlike a stream it has no state, so every call is right."""
    made = make_cell(cell)
    frozen = made.freeze()
    x = draw(made, 16, 200)
    layer = make_layer(cell)
    layer.load_state_dict({f"{name}_l0": p for name, p in made.params.items()})
    want = layer(x.swapaxes(0, 1))[0].swapaxes(0, 1)

    def run(row: int) -> Array:
        state, found = None, []
        for frame in x[row]:
            state = frozen(frame, state)
            found.append(as_tuple(state)[0])
        return np.stack(found)

    with ThreadPoolExecutor(16) as pool:
        for row, y in enumerate(pool.map(run, range(16))):
            assert_bits(y, want[row], row)
