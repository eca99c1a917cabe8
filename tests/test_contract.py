"""The numerical contract: the same bits, whatever runs beside a row and however it is run.

One section for each line of docs/contract.md. Everything is compared as integers; only the sign
and the payload of NaN are free.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from cases import DROPOUT_SEED, Case, Data, as_tuple, make
from support import (
    CELLS,
    VARIANTS,
    Array,
    Recording,
    assert_bits,
    assert_same_bits,
    backward,
    core_outputs,
    function_options,
    inference,
    named,
    regularization,
    shaken,
)

from rnnkern import _core, functional, isa, reference


def draw(cell: str, seed: int) -> Case:
    """A random case that is not too large."""
    rng = np.random.default_rng([seed, *cell.encode()])
    return Case(
        cell,
        T=int(rng.integers(2, 20)),
        B=int(rng.integers(2, 12)),
        I=int(rng.integers(1, 40)),
        H=int(rng.integers(1, 80)),
        L=int(rng.integers(1, 3)),
        bidirectional=bool(rng.integers(2)),
        bias=bool(rng.integers(4)),
        lengths=str(rng.choice(["zeros", "ragged"])),
        resets=str(rng.choice(["sparse", "dense"])),
        restart=str(rng.choice(["none", "shared", "rows"])),
        hx=bool(rng.integers(4)),
    )


# sizes that meet what random ones may miss: several chunks, runs, panels, and blocks of rows
LARGE = [
    Case("lstm", 43, 33, 3, 33, 1, bidirectional=True, lengths="ragged", resets="sparse",
         restart="shared", hx=True),
    Case("gru_after", 9, 130, 5, 18, 2, bidirectional=True, lengths="zeros", resets="sparse",
         restart="rows", hx=True),
    Case("gru_before", 13, 25, 20, 83, 2, lengths="ragged", resets="sparse", restart="shared"),
    Case("rnn_tanh", 41, 40, 3, 85, 2, bidirectional=True, lengths="ragged", hx=True),
    Case("lstm", 3, 2061, 3, 18, 1, lengths="zeros", resets="sparse", hx=True),
    Case("gru_before", 2, 1030, 5, 33, 2, lengths="ragged", restart="shared"),
]  # fmt: skip
RANDOM = [draw(cell, seed) for cell in CELLS for seed in range(4)]


def each(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=str)


def of_rows(data: Data, rows: Any, length: int | None = None) -> Data:
    """Some rows of time-major data, in any order and number, and only the first steps of it."""
    rows = np.asarray(rows)
    T = data.case.T if length is None else length

    def sequence(a: Any) -> Any:
        return None if a is None else a[:T, rows]

    def states(s: Any) -> Any:
        if s is None or as_tuple(s)[0].ndim == 2:
            return s
        picked = tuple(a[:, rows] for a in as_tuple(s))
        return picked if isinstance(s, tuple) else picked[0]

    return replace(
        data,
        case=replace(data.case, T=T, B=len(rows)),
        x=sequence(data.x),
        dy=sequence(data.dy),
        resets=sequence(data.resets),
        hx=states(data.hx),
        dhx_n=states(data.dhx_n),
        restart_state=states(data.restart_state),
        lengths=None if data.lengths is None else data.lengths[rows],
    )


def by_row(out: dict[str, Array], rows: Any, length: int | None = None) -> dict[str, Array]:
    """What the contract promises of single rows, of some rows: all but sums over rows."""
    rows = np.asarray(rows)
    picked = {name: out[name][:length, rows] for name in ("y", "x")}
    states = {name: a for name, a in out.items() if name.startswith(("hx", "restart"))}
    return picked | {name: a[:, rows] for name, a in states.items() if a.ndim == 3}


def variant(name: str, H: int, **options: Any) -> Any:
    cls, own = VARIANTS[name]
    masks = {"dropout": 0.2, "regularization": regularization(cls, 0.2)}
    return shaken(cls(5, H, 2, seed=0, **masks, **own, **options))


def variant_results(layer: Any, x: Array, dy: Array, hx: Any, **options: Any) -> dict[str, Array]:
    """By row, the rows first: outputs, states, gradients of them, and their norms."""
    threads = options.get("num_threads")
    y, hx_n, tape = layer.record(x, hx, dropout_seed=DROPOUT_SEED, **options)
    row_grads = options.get("checkpoint") is None
    layer.zero_grad()
    keywords = {"clip_state_grad": 1e3, "state_grads": True, "num_threads": threads}
    dx, dhx = tape.backward(dy, hx_n, retain=True, **keywords)
    out = {"y": y, "x": dx} | {
        f"{name}[{i}]": a
        for name, states in (("hx_n", hx_n), ("hx", dhx), ("norms", tape.state_grad_norms))
        for i, a in enumerate(as_tuple(states))
    }
    out = {name: a.swapaxes(0, -1 if name.startswith("norms") else 1) for name, a in out.items()}
    if row_grads:
        tape.backward(dy, hx_n, row_grads=True, **keywords)
        out |= tape.row_grads
    return out


# Alone, or in any batch and position


@each(RANDOM)
def test_a_row_alone(case: Case, dtype: Any) -> None:
    data = make(case, dtype)
    whole = data.outputs(Recording())
    for b in range(case.B):
        got = of_rows(data, [b]).outputs(Recording())
        assert_same_bits(by_row(got, [0]), by_row(whole, [b]), b)


@each(RANDOM[::2])
def test_a_row_alone_at_every_level(case: Case, level: str) -> None:
    """Each level has tiles of its own."""
    data = make(case, np.float32)
    whole = data.outputs(Recording())
    for b in range(min(case.B, 4)):
        got = of_rows(data, [b]).outputs(Recording())
        assert_same_bits(by_row(got, [0]), by_row(whole, [b]), b)


@each(RANDOM)
def test_a_row_anywhere(case: Case, dtype: Any) -> None:
    data = make(case, dtype)
    whole = data.outputs(Recording())
    rng = np.random.default_rng(1)
    for rows in (
        rng.permutation(case.B),
        np.arange(case.B)[::-1],
        rng.integers(0, case.B, 37),
        rng.integers(0, case.B, 5),
    ):
        got = of_rows(data, rows).outputs(Recording())
        assert_same_bits(by_row(got, np.arange(len(rows))), by_row(whole, rows))


@each(RANDOM)
def test_an_unbatched_row(case: Case, dtype: Any) -> None:
    data = make(case, dtype)
    whole = data.outputs(Recording())
    for b in (0, case.B - 1):
        one = of_rows(data, [b])

        def bare(s: Any) -> Any:
            if s is None or as_tuple(s)[0].ndim == 2:
                return s
            return tuple(a[:, 0] for a in s) if isinstance(s, tuple) else s[:, 0]

        got = replace(
            one, case=replace(one.case, layout="single"), x=one.x[:, 0], dy=one.dy[:, 0],
            resets=one.resets[:, 0], lengths=int(one.lengths[0]), hx=bare(one.hx),
            dhx_n=bare(one.dhx_n), restart_state=bare(one.restart_state),
        ).outputs(Recording())  # fmt: skip
        want = by_row(whole, [b])
        for name, a in want.items():
            assert_bits(got[name], a[:, 0], name)


# Step by step, in chunks, or as one sequence


@each([replace(c, bidirectional=False) for c in RANDOM])
def test_in_chunks(case: Case, dtype: Any) -> None:
    data = make(case, dtype)
    whole = named(*inference(data))
    rng = np.random.default_rng(2)
    T = case.T
    ways = [range(1, T), np.unique(rng.integers(0, T + 1, 3)), [T // 2, T // 2]]
    for cuts in ways:
        hx, parts = data.hx, []
        for start, end in itertools.pairwise([0, *cuts, T]):
            chunk = replace(
                data,
                x=data.x[start:end],
                resets=data.resets[start:end],
                lengths=np.clip(data.lengths - start, 0, end - start),
                hx=hx,
            )
            y, hx = inference(chunk)
            parts.append(y)
        assert_same_bits(named(np.concatenate(parts), hx), whole, list(cuts))


# Padded or not


@each(RANDOM)
def test_padding(case: Case, dtype: Any) -> None:
    """Longer padding, or none at all, changes nothing; what it holds is not read."""
    data = make(case, dtype, behind=np.nan)
    whole = data.outputs(Recording())
    for name in ("y", "x"):
        assert not whole[name][~data.real].any()

    def longer(a: Array, value: float) -> Array:
        return np.concatenate([a, np.full((5, *a.shape[1:]), value, a.dtype)])

    padded = replace(
        data, case=replace(case, T=case.T + 5), x=longer(data.x, np.inf),
        dy=longer(data.dy, np.nan), resets=longer(data.resets, 1),
    ).outputs(Recording())  # fmt: skip
    for name in ("y", "x"):
        assert not padded[name][case.T :].any()
        padded[name] = padded[name][: case.T]
    assert_same_bits(padded, whole)

    for b, n in enumerate(data.lengths):
        row = replace(of_rows(data, [b], n), lengths=None)
        assert_same_bits(by_row(row.outputs(Recording()), [0]), by_row(whole, [b], n), b)


# Threads


SPLITS = [(n, split) for n in (2, 3, 4, 5) for split in ("rows", "units")]


@pytest.mark.parametrize(("threads", "split"), SPLITS)
@each(RANDOM[::2] + LARGE)
def test_threads(case: Case, threads: int, split: str) -> None:
    data = make(case, np.float32)
    want = core_outputs(data)
    assert_same_bits(core_outputs(data, threads=threads, split=split), want)
    got = core_outputs(data, threads=threads, split=split, keep=_core.KEEP_NONE)
    assert_same_bits(got, {name: want[name] for name in got})


@pytest.mark.parametrize(("threads", "split"), [(2, "rows"), (3, "units")])
@each(RANDOM[1::2])
def test_threads_in_float64(case: Case, threads: int, split: str) -> None:
    data = make(case, np.float64)
    want = core_outputs(data)
    assert_same_bits(core_outputs(data, threads=threads, split=split), want)


@pytest.mark.parametrize("keep", [_core.KEEP_STATES, _core.KEEP_SEGMENTS])
@pytest.mark.parametrize(("threads", "split"), [(2, "rows"), (2, "units"), (5, "rows")])
@each(LARGE)
def test_threads_that_recompute(case: Case, threads: int, split: str, keep: int) -> None:
    data = make(case, np.float32)
    want = core_outputs(data)
    for _ in range(3):  # a race may not show at once
        got = core_outputs(data, threads=threads, split=split, keep=keep, segment=4)
        assert_same_bits(got, want)


@pytest.mark.parametrize("split", ["auto", "rows", "units"])
@each(LARGE)
def test_threads_may_change_before_backward(case: Case, split: str) -> None:
    data = make(case, np.float32)
    want = core_outputs(data)
    for forward, back in ((1, 3), (3, 1), (2, 5)):
        for keep in (_core.KEEP_GATES, _core.KEEP_SEGMENTS):
            got = core_outputs(data, threads=forward, split=split, keep=keep, segment=5,
                               backward_threads=back)  # fmt: skip
            assert_same_bits(got, want, (forward, back))


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_num_threads(cell: str, threads: int) -> None:
    """The choice that the functions make by themselves, with work enough for a team."""
    case = Case(cell, 20, 8, 30, 150, 2, bidirectional=True, lengths="ragged", hx=True)
    for data in (make(case, np.float32), of_rows(make(case, np.float32), [3])):
        want = data.outputs(Recording(num_threads=1))
        _, _, tape = data.forward(Recording(num_threads=threads))
        dx, _, grads = backward(data, tape, num_threads=threads)
        got = {**grads, "x": dx}
        assert_same_bits(got, {name: want[name] for name in got})
        got = named(*inference(data, num_threads=threads))
        assert_same_bits(got, {name: want[name] for name in got})


TEAMWORK = {"rows": (40, 64, 64, True), "units": (30, 1, 256, False)}  # T, B, H, both directions


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("split", TEAMWORK)
def test_num_threads_of_variants(name: str, split: str) -> None:
    T, B, H, bidirectional = TEAMWORK[split]
    layer, rng = variant(name, H, bidirectional=bidirectional), np.random.default_rng(3)
    x = rng.standard_normal((T, B, 5)).astype(np.float32)
    dy = rng.standard_normal((T, B, layer._structure.features)).astype(np.float32)
    ragged = {"lengths": np.maximum(T - np.arange(B), 0), "resets": rng.random((T, B)) < 0.05}
    results, keeps = [], (None, "gates", "auto")
    rounds = 1 if split == "rows" else 3  # a race may not show at once
    for threads, checkpoint in [(1, None), *rounds * [*itertools.product((2, 3, 5), keeps)]]:
        same = {"checkpoint": checkpoint, "num_threads": threads}
        plan = layer.plan(T, B, ragged["lengths"], record=True, **same)
        assert (plan.threads, plan.split) == (threads, split if threads > 1 else None)
        found = variant_results(layer, x, dy, None, **ragged, **same)
        found = {key: a for key, a in found.items() if key not in layer.params}
        found |= {key: g.copy() for key, g in layer.grads.items()}
        found["inference"] = layer(x, num_threads=threads, **ragged)[0]
        results.append(found)
    for found in results[1:]:
        assert_same_bits(found, results[0])


@pytest.mark.parametrize("name", ["indrnn", "sru", "mingru"])
def test_members_that_do_not_meet_within_a_step(name: str) -> None:
    """Without a product with h they need not, but dx, in the layer below dy, is of all units."""
    layer = variant(name, 256)
    layer.regularization = None
    x = np.random.default_rng(3).standard_normal((30, 1, 5)).astype(np.float32)
    assert layer.plan(30, 1, record=True, num_threads=2).split == "units"
    want = None
    for threads in (1, *[2] * 60):
        y, _, tape = layer.record(x, dropout_seed=1, num_threads=threads)
        dx, dhx = tape.backward(np.cos(y), num_threads=threads)
        want = (dx, dhx) if want is None else want
        assert_bits(dx, want[0])
        assert_bits(dhx, want[1])


# Levels


@each(RANDOM + LARGE[:1])
def test_levels(case: Case, dtype: Any) -> None:
    data = make(case, dtype)
    best, *others = isa.available()
    want = core_outputs(data, level=best)
    for level in others:
        assert_same_bits(core_outputs(data, level=level), want, level)
        got = core_outputs(data, level=level, threads=2, split="units", keep=_core.KEEP_STATES)
        assert_same_bits(got, want, level)


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_activations_at_all_levels(name: str, dtype: Any) -> None:
    """Random bits: every exponent, NaN and subnormals among them."""
    rng = np.random.default_rng(0)
    integers = np.int32 if dtype == np.float32 else np.int64
    limits = np.iinfo(integers)
    x = rng.integers(limits.min, limits.max, 200_001, integers, endpoint=True).view(dtype)
    x = np.concatenate([x, rng.uniform(-20, 20, 200_000).astype(dtype)])
    best, *others = (isa.NAMES.index(level) for level in isa.available())
    for level in others:
        assert_bits(_core.activate(level, name, x), _core.activate(best, name, x), level)


# Inference or training; activations cached or recomputed


@each(RANDOM + LARGE)
def test_inference_is_training(case: Case, dtype: Any) -> None:
    data = make(case, dtype)
    want = named(*inference(data))
    for checkpoint in (None, "gates", "auto", 1, 4):
        y, hx_n, _ = data.forward(Recording(checkpoint=checkpoint))
        assert_same_bits(named(y, hx_n), want, checkpoint)


@each(RANDOM + LARGE)
def test_recomputed_or_not(case: Case, dtype: Any) -> None:
    data = replace(make(case, dtype), case=replace(case, dropout=0.3))
    want = data.outputs(Recording())
    for checkpoint in ("gates", "auto", 1, 2, 7, case.T, 1000):
        got = data.outputs(Recording(checkpoint=checkpoint))
        assert_same_bits(got, want, checkpoint)


# Resets: the pieces between borders are sequences of their own


def pieces(data: Data, b: int) -> Any:
    """For each piece of row b: its steps, which sweeps begin with hx in it, which end in it, and
    its own results."""
    case = data.case
    n = int(data.lengths[b])
    marks = [t for t in range(n) if data.resets[t, b]]
    zeros = tuple(np.zeros_like(s) for s in as_tuple(data.dhx_n))
    hx = [s[:, b : b + 1] for s in (zeros if data.hx is None else as_tuple(data.hx))]
    if data.restart_state is None:
        fresh = [np.zeros_like(s) for s in hx]
    else:
        states = as_tuple(data.restart_state)
        fresh = [s[:, None] if s.ndim == 2 else s[:, b : b + 1] for s in states]
    for start, end in itertools.pairwise([0, *(t for t in marks if t > 0), n]):
        begins = np.zeros(case.L * case.D, bool)
        ends = np.zeros(case.L * case.D, bool)
        begins[:: case.D] = start == 0 and 0 not in marks
        ends[:: case.D] = end == n
        if case.bidirectional:
            begins[1::2] = end == n
            ends[1::2] = start == 0
        first = [np.where(begins[:, None, None], s, f) for s, f in zip(hx, fresh, strict=True)]
        last = [
            np.where(ends[:, None, None], s[:, b : b + 1], 0).astype(s.dtype)
            for s in as_tuple(data.dhx_n)
        ]
        two = len(hx) == 2
        piece = replace(
            data,
            case=replace(case, T=end - start, B=1),
            x=data.x[start:end, b : b + 1],
            dy=data.dy[start:end, b : b + 1],
            hx=tuple(first) if two else first[0],
            dhx_n=tuple(last) if two else last[0],
            lengths=None,
            resets=None,
            restart_state=None,
        )
        yield slice(start, end), begins, ends, piece.outputs(Recording())


@each([replace(c, restart="rows") for c in RANDOM])
def test_pieces_between_resets(case: Case, dtype: Any) -> None:
    data = make(case, dtype)
    whole = data.outputs(Recording())
    for b in range(case.B):
        restart: dict[Any, list[Array]] = defaultdict(list)  # gradients, in the order of time
        for steps, begins, ends, piece in pieces(data, b):
            for name in ("y", "x"):
                assert_bits(whole[name][steps, b], piece[name][:, 0], (name, b, steps))
            for i in range(len(as_tuple(data.dhx_n))):
                hx_n, dhx = f"hx_n[{i}]", f"hx[{i}]"
                assert_bits(whole[hx_n][ends, b], piece[hx_n][ends, 0], (hx_n, b))
                assert_bits(whole[dhx][begins, b], piece[dhx][begins, 0], (dhx, b))
                if steps.start < steps.stop:
                    for sweep in np.flatnonzero(~begins):
                        restart[i, int(sweep)].append(piece[dhx][sweep, 0])
        for (i, sweep), parts in restart.items():
            # backward meets the last piece first, but in the reverse direction the first
            total = np.zeros(case.H, dtype)
            for part in parts if sweep % case.D else parts[::-1]:
                total = total + part
            assert_bits(whole[f"restart_state[{i}]"][sweep, b], total, (i, sweep, b))


# What is not finite stays in its row


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["x", "hx", "dy", "dhx_n", "restart_state"])
def test_bad_numbers_stay_in_their_row(cell: str, where: str, bad: float, dtype: Any) -> None:
    case = Case(cell, 7, 9, 5, 37, 2, bidirectional=True, lengths="zeros", resets="sparse",
                restart="rows", hx=True)  # fmt: skip
    data = make(case, dtype)
    row = int(np.argmax(data.lengths))
    others = np.arange(9) != row
    data.resets[:2, row] = False, True  # it begins with hx, and restarts
    want = data.outputs(Recording())
    array = as_tuple(getattr(data, where))[-1]
    array[0, row, ::3] = bad
    for got in (data.outputs(Recording()), data.outputs(Recording(checkpoint=3)),
                core_outputs(data, threads=2, split="units")):  # fmt: skip
        assert_same_bits(by_row(got, others), by_row(want, others), where)
        touched = by_row(got, [row])
        assert np.isnan(bad) <= any(np.isnan(a).any() for a in touched.values())


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_numbers_as_in_the_reference(cell: str, bad: float) -> None:
    case = Case(cell, 5, 4, 3, 19, 2, lengths="ragged", resets="sparse", hx=True)
    for place in ("x", "dy", "hx"):
        data = make(case)
        as_tuple(getattr(data, place))[0][0, 2, 0] = bad
        with np.errstate(all="ignore"):
            want = data.outputs(reference)
        got = data.outputs(Recording())
        for name, a in want.items():
            np.testing.assert_allclose(got[name], a, 1e-12, 1e-12, err_msg=f"{place} {name}")


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("where", ["x", "hx", "dy"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_numbers_stay_in_their_row_of_variants(name: str, where: str, bad: float) -> None:
    layer, rng = variant(name, 20, bidirectional=True), np.random.default_rng(3)
    layer.regularization = replace(layer.regularization, weight_dropout=0)  # of all rows at once
    x = rng.standard_normal((7, 9, 5)).astype(np.float32)
    y, state = layer(x, lengths=[7, 3, 0, 5, 7, 1, 7, 2, 6])
    hx = tuple(rng.standard_normal(s.shape).astype(np.float32) for s in as_tuple(state))
    given = {"x": x, "dy": np.cos(y), "hx": hx if isinstance(state, tuple) else hx[0]}
    want = variant_results(layer, **given)
    others = np.arange(9) != 4
    as_tuple(given[where])[-1][0, 4, ::3] = bad
    for checkpoint in (None, 3):
        got = variant_results(layer, **given, checkpoint=checkpoint)
        for key, a in got.items():
            assert_bits(a[others], want[key][others], key)
        touched = any(not np.array_equal(a[4], want[key][4], True) for key, a in got.items())
        assert touched


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", ["x", "dy"])
def test_bad_numbers_in_variants_as_in_the_reference(name: str, bad: float, place: str) -> None:
    """But for gradients where something is cut: what 0 times infinity is there is left open."""
    layer, rng = variant(name, 19, dtype=np.float64), np.random.default_rng(3)
    own = function_options(VARIANTS[name][1])
    x, dy = rng.standard_normal((5, 4, 5)), rng.standard_normal((5, 4, layer._structure.width))
    {"x": x, "dy": dy}[place][0, 2, 0] = bad
    results = []
    for module in (functional, reference):
        keywords = {"dropout": 0.2, "regularization": layer.regularization, "seed": 3}
        forward = getattr(module, f"{layer._cell}_forward")
        with np.errstate(all="ignore"):
            y, state, tape = forward(x, layer.params, record=True, **keywords, **own)
            dx, dhx, grads = getattr(module, f"{layer._cell}_backward")(tape, dy)
        results.append(named(y, state) | {"x": dx, "hx": as_tuple(dhx)[0], **grads})
    got, want = results
    cut = {"clip", "cell_clip"} & own.keys() or "hard_sigmoid" in str(own)
    for key in named(y, state) if cut else want:
        np.testing.assert_allclose(got[key], want[key], 1e-12, 1e-12, err_msg=key)


def test_bad_numbers_go_forward_only(cell: str) -> None:
    """In a causal layer what lies before them keeps its bits, and a border stops them."""
    case = Case(cell, 9, 3, 5, 20, 2, hx=True)
    data = make(case, np.float32)
    resets = np.zeros((9, 3), bool)
    resets[7] = True
    data = replace(data, resets=resets)
    want = data.outputs(Recording())
    data.x[4, 1] = np.nan
    got = data.outputs(Recording())
    for name in ("y", "x"):
        assert_bits(got[name][7:], want[name][7:])
    assert np.isnan(got["y"][4:7, 1]).all()
    assert_bits(got["y"][:4], want["y"][:4])


def test_dropped_infinities_are_zero() -> None:
    case = Case("rnn_relu", 3, 2, 4, 21, 2, dropout=0.5)
    data = make(case, np.float32)
    data.x[...] = np.inf
    data.params["weight_ih_l0"][...] = 1
    y, _, _ = replace(data, case=replace(case, dropout=1.0)).forward(Recording())
    assert np.isfinite(y).all()


# Subnormal numbers


def test_subnormal_inputs_count_as_zero(cell: str, level: str, dtype: Any) -> None:
    case = Case(cell, 6, 5, 7, 19, 2, bidirectional=True, lengths="ragged", resets="sparse",
                restart="rows", hx=True)  # fmt: skip
    tiny = np.finfo(dtype).smallest_subnormal * 1000
    data = make(case, dtype)
    rng = np.random.default_rng(5)
    arrays = {**data.inputs(), "dy": data.dy}
    arrays |= {f"dhx_n[{i}]": a for i, a in enumerate(as_tuple(data.dhx_n))}
    zeros = {}
    for name, a in arrays.items():
        small = rng.random(a.shape) < 0.3
        a[small] = np.copysign(tiny, a[small])
        zeros[name] = small
    got = data.outputs(Recording())
    for name, a in arrays.items():
        a[zeros[name]] = np.copysign(0, a[zeros[name]])
    assert_same_bits(got, data.outputs(Recording()))


@pytest.mark.parametrize("split", ["rows", "units"])
def test_subnormal_numbers_on_every_thread(cell: str, split: str, dtype: Any) -> None:
    """Inputs, states and gradients around the smallest normal number: half of what follows from
    them is flushed, by each member of a team."""
    case = Case(cell, 4, 9, 7, 67, 1, bidirectional=True, bias=False)
    data = make(case, dtype)
    for a in (data.x, data.dy, *as_tuple(data.dhx_n)):
        a *= 4 * np.finfo(dtype).tiny
    want = core_outputs(data)
    assert want["y"].any()
    assert want["x"].any()
    for threads in (2, 3):
        assert_same_bits(core_outputs(data, threads=threads, split=split), want, threads)


@pytest.mark.parametrize("reset_after", [True, False])
def test_subnormal_results_become_zero(reset_after: bool, level: str, dtype: Any) -> None:
    tiny = np.finfo(dtype).tiny
    params = {"weight_ih_l0": np.full((3, 1), 0.5), "weight_hh_l0": np.zeros((3, 1))}
    params = {name: a.astype(dtype) for name, a in params.items()}
    x = np.full((2, 1, 1), tiny, dtype)
    y, h, tape = functional.gru_forward(x, params, record=True, reset_after=reset_after)
    assert not y.any()
    assert not h.any()
    dx, _, grads = functional.gru_backward(tape, np.full((2, 1, 1), tiny, dtype))
    assert not dx.any()
    assert not any(g.any() for g in grads.values())

    rnn = {name: a[:1] for name, a in params.items()}
    y, _ = functional.rnn_forward(x, rnn, nonlinearity="relu")
    assert not y.any()
    y, _ = functional.rnn_forward(4 * x, rnn, nonlinearity="relu")
    assert_bits(y, 2 * x)


def test_results_of_a_last_operation_become_zero(level: str, dtype: Any) -> None:
    """Those that no later operation reads, and would count as zero: dx, and sums of biases."""
    tiny = np.finfo(dtype).tiny
    params = {"weight_ih_l0": np.full((1, 1), 0.5, dtype), "weight_hh_l0": np.zeros((1, 1), dtype)}
    x, dy = np.ones((2, 1, 1), dtype), np.full((2, 1, 1), tiny, dtype)
    _, _, tape = functional.rnn_forward(x, params, nonlinearity="relu", record=True)
    dx, _, grads = functional.rnn_backward(tape, dy)
    assert_bits(dx, np.zeros_like(dx))
    assert_bits(grads["weight_ih_l0"], np.full((1, 1), 2 * tiny, dtype))


def test_subnormal_biases_count_as_zero_in_their_sum(cell: str, level: str, dtype: Any) -> None:
    """Packing adds b_ih and b_hh under the kernels' rules: x/2 + x is x where x/2 is subnormal."""
    data = make(Case(cell, 2, 1, 3, 19, 1), dtype)
    tiny = np.finfo(dtype).tiny
    for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0"):
        data.params[name][...] = 0
    data.params["bias_hh_l0"][...] = tiny
    want = named(*inference(data))
    data.params["bias_ih_l0"][...] = tiny / 2
    assert_same_bits(named(*inference(data)), want)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_callers_mode_is_restored(cell: str, level: str, threads: int) -> None:
    """Subnormal arithmetic works after every kind of call."""
    small = np.full(33, np.finfo(np.float32).tiny, np.float32)

    def check() -> None:
        half = small * np.float32(0.5)
        assert (half.view(np.int32) == 1 << 22).all()
        assert (half + half == small).all()

    data = make(Case(cell, 6, 8, 30, 130, 2, hx=True), np.float32)
    check()
    inference(data, num_threads=threads)
    check()
    _, _, tape = data.forward(Recording(num_threads=threads))
    check()
    backward(data, tape, num_threads=threads)
    check()
    functional.pack(data.case.function, data.params, **data.case.options)
    _core.activate(isa.level(), "tanh", small)
    check()


# The order of operations


def fma(a: Any, b: Any, c: Any) -> Any:
    """a*b + c with one rounding, of arrays of one float dtype, which must be finite."""
    a, b, c = np.broadcast_arrays(a, b, c)
    if a.dtype == np.float32:
        # a*b is exact in float64. Rounding the sum to odd makes the second rounding harmless.
        product, addend = a.astype(np.float64) * b, c.astype(np.float64)
        total = product + addend
        part = total - product  # Knuth's two-sum: error is what the rounding lost
        error = (product - (total - part)) + (addend - part)
        even = total.view(np.int64) % 2 == 0
        odd = np.nextafter(total, np.copysign(np.inf, error))
        return np.where((error != 0) & even, odd, total).astype(np.float32)
    out = np.empty(a.shape)
    for i, (p, q, r) in enumerate(zip(a.flat, b.flat, c.flat, strict=True)):
        exact = Fraction(p) * Fraction(q) + Fraction(r)
        out.flat[i] = float(exact) if exact else p * q + r
    return out


def test_this_fma_rounds_once() -> None:
    a = np.float32([1 + 2**-12, 1 + 2**-12, 3, 1e-20])
    c = np.float32([2**-60, -(2**-60), -9, 1])
    exact = [Fraction(float(p)) ** 2 + Fraction(float(r)) for p, r in zip(a, c, strict=True)]
    got = fma(a, a, c)
    for g, e in zip(got, exact, strict=True):
        neighbours = [np.nextafter(g, np.float32(d)) for d in (-np.inf, np.inf)]
        assert all(abs(Fraction(float(g)) - e) <= abs(Fraction(float(n)) - e) for n in neighbours)


def chain(start: Array, a: Array, matrix: Array) -> Array:
    """start + a matrix^T, by fma in the order of the elements of a: (B, k) and (n, k)."""
    total = np.broadcast_to(start, (len(a), len(matrix)))
    for k in range(a.shape[1]):
        total = fma(a[:, k : k + 1], matrix[:, k], total)
    return total


def sigmoid(x: Array) -> Array:
    return _core.activate(isa.level(), "sigmoid", np.ascontiguousarray(x))


def tanh(x: Array) -> Array:
    return _core.activate(isa.level(), "tanh", np.ascontiguousarray(x))


def step_in_order(data: Data, h: Array, c: Array | None, x: Array) -> tuple[Array, Any, Any]:
    """h', c' and z of one step, as the contract writes it."""
    cell, H = data.case.cell, data.case.H
    W, U, b, bh = (data.params[f"{k}_l0"] for k in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    one = W.dtype.type(1)

    def gate(i: int, operand: Array = h) -> Array:
        rows = slice(i * H, i * H + H)
        return chain(chain(b[rows] + bh[rows], x, W[rows]), operand, U[rows])

    if data.case.function == "rnn":
        a = gate(0)
        return (tanh(a) if cell == "rnn_tanh" else np.maximum(a, 0)), None, None
    if cell == "lstm":
        i, f, g, o = sigmoid(gate(0)), sigmoid(gate(1)), tanh(gate(2)), sigmoid(gate(3))
        c = fma(f, c, i * g)
        return o * tanh(c), c, None
    r, z = sigmoid(gate(0)), sigmoid(gate(1))
    if cell == "gru_after":
        rows = slice(2 * H, None)
        n = tanh(fma(r, chain(bh[rows], h, U[rows]), chain(b[rows], x, W[rows])))
    else:
        n = tanh(gate(2, r * h))
    return fma(z, h, (one - z) * n), None, (r, z)


ORDER = {"T": 1, "B": 3, "I": 5, "H": 19, "L": 1, "hx": True}


def test_order_forward(cell: str, dtype: Any, level: str) -> None:
    data = make(Case(cell, **{**ORDER, "T": 2}), dtype)
    y, hx_n = inference(data)
    h, c = (s[0] for s in (as_tuple(data.hx) * 2)[:2])
    for t in range(2):
        h, c, _ = step_in_order(data, h, c, data.x[t])
        assert_bits(y[t], h, t)
    if cell == "lstm":
        assert_bits(hx_n[1][0], c)


def interleaved(gates: list[Array], H: int) -> Array:
    """Columns (or rows) of gates in the gate buffer's order: panels of 16 units, slots, units."""
    panels = [slice(p, p + 16) for p in range(0, H, 16)]
    return np.concatenate([g[..., p] for p in panels for g in gates], axis=-1)


def test_order_of_dx_and_dh(cell: str, dtype: Any, level: str) -> None:
    """From the gradients dZ of the pre-activations, which in one step are those of the biases."""
    data = make(Case(cell, **{**ORDER, "B": 1}), dtype)
    H = data.case.H
    data = replace(data, dhx_n=None)
    out = data.outputs(Recording())
    W, U = data.params["weight_ih_l0"], data.params["weight_hh_l0"]
    dz, dz_h = out["bias_ih_l0"].reshape(-1, H), out["bias_hh_l0"].reshape(-1, H)
    w, u = (m.reshape(-1, H, m.shape[1]).transpose(0, 2, 1) for m in (W, U))  # [gate][k][unit]
    gates = {"gru": [2, 0, 1]}.get(data.case.function, range(len(dz)))
    zero = np.zeros(1, dtype)

    def back(start: Array, slots: list[tuple[Array, Array]]) -> Array:
        d, m = ([s[i] for s in slots] for i in (0, 1))
        return chain(start, interleaved(d, H)[None], interleaved(m, H))[0]

    assert_bits(out["x"][0, 0], back(zero, [(dz[g], w[g]) for g in gates]), "dx")

    h = data.hx if cell != "lstm" else data.hx[0]
    if data.case.function != "gru":
        dh = back(zero, [(dz_h[g], u[g]) for g in gates])
    else:
        r, z = step_in_order(data, h[0], None, data.x[0])[2]
        dh = data.dy[0] * z  # the share of h itself
        if cell == "gru_before":
            dh = fma(back(zero, [(dz_h[2], u[2])]), r, dh)
            dh = back(dh[0], [(dz_h[0], u[0]), (dz_h[1], u[1])])
        else:
            dh = back(dh[0], [(dz_h[0], u[0]), (dz_h[1], u[1]), (dz_h[2], u[2])])
    assert_bits(out["hx[0]"][0, 0], dh, "dh")


def run_sums(start: Array, rows: list[tuple[Array, Array]], add: Callable[..., Array]) -> Array:
    """start + the sum over rows: runs of 256 from zero, then the runs in order."""
    total = np.zeros_like(start)
    for first in range(0, len(rows), 256):
        run = np.zeros_like(start)
        for row in rows[first : first + 256]:
            run = add(*row, run)
        total = total + run
    return start + total


def outer_fma(d: Array, a: Array, total: Array) -> Array:
    return fma(d[:, None], a, total)


@pytest.mark.parametrize("checkpoint", [None, "gates", 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_order_of_weight_gradients(checkpoint: Any, reverse: bool, level: str) -> None:
    """Three runs of 256 rows. Without U, dZ is dy where the ReLU is on, and dU sums it times h."""
    T, B, H, dtype = 4, 192, 3, np.float32
    case = Case("rnn_relu", T=T, B=B, I=2, H=H, L=1, bidirectional=True, hx=True)
    data = replace(make(case, dtype), dhx_n=None)
    suffix = "_reverse" if reverse else ""
    for name in ("weight_hh_l0", "weight_hh_l0_reverse"):
        data.params[name][:] = 0
    names = [f"{k}_l0{suffix}" for k in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    rng = np.random.default_rng(7)
    start = {n: rng.standard_normal(a.shape).astype(dtype) for n, a in data.params.items()}
    grads = {n: a.copy() for n, a in start.items()}
    y, _, tape = data.forward(Recording(checkpoint=checkpoint))
    backward(data, tape, grads=grads)

    units = slice(H, None) if reverse else slice(0, H)
    h, dz = y[:, :, units], np.where(y > 0, data.dy, 0)[:, :, units]
    step = -1 if reverse else 1
    rows = [(t, b) for t in range(T)[::-step] for b in range(B)]

    def previous(t: int, b: int) -> Array:
        return h[t - step, b] if 0 <= t - step < T else data.hx[int(reverse), b]

    ones = np.ones(1, dtype)
    operands = [lambda t, b: data.x[t, b], previous, lambda t, b: ones, lambda t, b: ones]
    for name, operand in zip(names, operands, strict=True):
        column = start[name].reshape(H, -1)
        want = run_sums(column, [(dz[t, b], operand(t, b)) for t, b in rows], outer_fma)
        assert_bits(grads[name].reshape(H, -1), want, name)


def test_order_of_rows_of_many_lengths() -> None:
    """Within a step the longest rows come first, and equally long ones in the caller's order."""
    T, B, dtype = 5, 150, np.float32
    case = Case("rnn_relu", T=T, B=B, I=2, H=3, L=1, lengths="zeros")
    data = replace(make(case, dtype), dhx_n=None)
    data.params["weight_hh_l0"][:] = 0
    out = data.outputs(Recording())
    dz = np.where(out["y"] > 0, data.dy, 0)
    order = np.argsort(-data.lengths, kind="stable")
    rows = [(t, b) for t in range(T)[::-1] for b in order if t < data.lengths[b]]
    assert len(rows) > 256
    got = out["weight_ih_l0"]
    want = run_sums(np.zeros_like(got), [(dz[t, b], data.x[t, b]) for t, b in rows], outer_fma)
    assert_bits(got, want)


def test_order_of_learned_states(cell: str) -> None:
    """A shared restart state's gradient sums those of the rows, in the runs of all real rows."""
    T, B = 3, 300
    data = make(Case(cell, T=T, B=B, I=2, H=5, L=1, resets="all", restart="rows"), np.float32)
    resets = np.zeros((T, B), bool)
    resets[1] = True  # one restart a row, at storage rows B .. 2B
    shared = tuple(s[:, 0].copy() for s in as_tuple(data.restart_state))
    for s, one in zip(as_tuple(data.restart_state), shared, strict=True):
        s[:] = one[:, None]
    data = replace(data, resets=resets)
    per_row = data.outputs(Recording())
    got = replace(data, restart_state=shared if cell == "lstm" else shared[0]).outputs(Recording())
    for i in range(len(shared)):
        parts = per_row[f"restart_state[{i}]"][0]
        zero = np.zeros_like(parts[0])
        rows = [(parts[j - B] if B <= j < 2 * B else zero,) for j in range(T * B)]
        want = run_sums(zero, rows, lambda d, total: total + d)
        assert_bits(got[f"restart_state[{i}]"][0], want, i)
