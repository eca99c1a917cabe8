"""The reference against numerical derivatives, against torch, and against itself cut in pieces."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cases import CASES, DROPOUT_SEED, Case, Data, as_tuple, make

from rnnkern import reference
from rnnkern.reference import act, dropout

try:
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    HAVE_TORCH = True
except ImportError:
    HAVE_TORCH = False

Array = npt.NDArray[Any]

CELLS = ["rnn_tanh", "rnn_relu", "lstm", "gru_after", "gru_before"]


def each(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=str)


def outputs(data: Data) -> dict[str, Array]:
    return data.outputs(reference)


def assert_same(got: dict[str, Array], want: dict[str, Array], tolerance: float = 1e-12) -> None:
    assert got.keys() == want.keys()
    for name in want:
        assert got[name].shape == want[name].shape, name
        scale = max(1.0, np.abs(want[name]).max(initial=0))
        np.testing.assert_allclose(got[name], want[name], 0, tolerance * scale, err_msg=name)


# Activations


def test_sigmoid_is_accurate_and_silent() -> None:
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        x = np.array([-np.inf, -1e4, -745, -40, -1, -1e-9, -0.0, 0, 1e-9, 1, 40, 1e4, np.inf])
        got = act.sigmoid(x)
        assert act.sigmoid(np.array([-200, 200], np.float32)).dtype == np.float32
    want = [1 / (1 + math.exp(-v)) if v > -700 else math.exp(v) for v in x]
    np.testing.assert_allclose(got, want, rtol=4e-16, atol=0)
    assert np.isnan(act.sigmoid(np.array(np.nan)))


def test_relu_at_its_edges() -> None:
    np.testing.assert_array_equal(act.relu(np.array([-1, 0, 2, np.nan])), [0, 0, 2, np.nan])
    dy = np.full(4, np.inf)
    got = act.relu_backward(np.array([0, 0, 2, np.nan]), dy)
    np.testing.assert_array_equal(got, [0, 0, np.inf, np.inf])


# Dropout


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000",
         "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
         "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
         "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)  # fmt: skip
def test_philox_known_answers(counter: str, key: str, words: str) -> None:
    """The vectors that come with Random123."""
    c, k = ([int(word, 16) for word in text.split()] for text in (counter, key))
    got = dropout.philox4x32(tuple(c), (k[0], k[1]))
    assert " ".join(f"{word:08x}" for word in got) == words


def test_mask_places() -> None:
    """Each element is where the counter says, and its word is compared as a whole number."""
    p, layer, shape = 0.3, 1, (3, 2, 7)
    got = dropout.kept(p, DROPOUT_SEED, layer, shape)
    for t, b, unit in np.ndindex(shape):
        words = dropout.philox4x32((unit // 4, b, t, layer), (0x89ABCDEF, 0x01234567))
        assert got[t, b, unit] == (int(words[unit % 4]) >= math.floor(p * 2**32))


def test_mask_threshold_is_exact() -> None:
    """Probabilities on the grid of 2**-32, at a word and one step above it."""
    word = int(dropout.philox4x32((0, 0, 0, 0), (1, 0))[2])
    assert dropout.kept(word / 2**32, 1, 0, (1, 1, 4))[0, 0, 2]
    assert dropout.kept((word + 0.999) / 2**32, 1, 0, (1, 1, 4))[0, 0, 2]
    assert not dropout.kept((word + 1) / 2**32, 1, 0, (1, 1, 4))[0, 0, 2]


def test_masks() -> None:
    shape = (100, 10, 100)
    mask = dropout.kept(0.3, 1, 0, shape)
    assert mask.mean() == pytest.approx(0.7, abs=0.01)
    assert dropout.kept(0.0, 1, 0, shape).all()
    assert not dropout.kept(1.0, 1, 0, shape).any()
    for other in (dropout.kept(0.3, 2, 0, shape), dropout.kept(0.3, 1 << 32, 0, shape),
                  dropout.kept(0.3, 1, 1, shape)):  # fmt: skip
        assert (mask == other).mean() == pytest.approx(0.7**2 + 0.3**2, abs=0.01)
    assert (dropout.kept(0.3, 1, 0, (7, 3, 99)) == mask[:7, :3, :99]).all()
    assert dropout.scale(0.3, np.float32) == np.float32(1 / 0.7)


@pytest.mark.parametrize("p", [0.3, 1.0])
def test_dropout_stands_between_the_layers(p: float) -> None:
    case = Case("lstm", T=5, B=3, I=2, H=5, L=3, bidirectional=True, hx=True, dropout=p)
    data = make(case)
    y, (h_n, c_n), _ = data.forward(reference)
    x = data.x
    for layer in range(3):
        names = [name for name in data.params if f"_l{layer}" in name]
        params = {name.replace(f"_l{layer}", "_l0"): data.params[name] for name in names}
        two = slice(2 * layer, 2 * layer + 2)
        x, hx_n, _ = reference.lstm_forward(x, params, (data.hx[0][two], data.hx[1][two]))
        np.testing.assert_allclose(h_n[two], hx_n[0], rtol=1e-12)
        np.testing.assert_allclose(c_n[two], hx_n[1], rtol=1e-12)
        if layer < 2:
            x = np.where(dropout.kept(p, DROPOUT_SEED, layer, x.shape), x, 0)
            x = x / (1 - p) if p < 1 else x
    np.testing.assert_allclose(y, x, rtol=1e-12)


# The cells, computed a second time with plain numbers


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def step_by_hand(
    case: Case, p: dict[str, Array], x: Array, h: Array, c: Array
) -> list[list[float]]:
    H = case.H
    units = range(H)

    def wx(block: int, j: int) -> float:
        k = block * H + j
        return float(p["bias_ih_l0"][k] + sum(map(operator.mul, p["weight_ih_l0"][k], x)))

    def uh(block: int, j: int, h: Any = h) -> float:
        k = block * H + j
        return float(p["bias_hh_l0"][k] + sum(map(operator.mul, p["weight_hh_l0"][k], h)))

    if case.function == "rnn":
        a = [wx(0, j) + uh(0, j) for j in units]
        return [[math.tanh(v) if case.cell == "rnn_tanh" else max(v, 0.0) for v in a]]
    if case.function == "lstm":
        i, f, o = ([sigmoid(wx(k, j) + uh(k, j)) for j in units] for k in (0, 1, 3))
        g = [math.tanh(wx(2, j) + uh(2, j)) for j in units]
        c_next = [f[j] * c[j] + i[j] * g[j] for j in units]
        return [[o[j] * math.tanh(c_next[j]) for j in units], c_next]
    r, z = ([sigmoid(wx(k, j) + uh(k, j)) for j in units] for k in (0, 1))
    if case.cell == "gru_after":
        n = [math.tanh(wx(2, j) + r[j] * uh(2, j)) for j in units]
    else:
        rh = [r[j] * h[j] for j in units]
        n = [math.tanh(wx(2, j) + uh(2, j, rh)) for j in units]
    return [[(1 - z[j]) * n[j] + z[j] * h[j] for j in units]]


@pytest.mark.parametrize("cell", CELLS)
def test_one_step_by_hand(cell: str) -> None:
    case = Case(cell, T=1, B=1, I=3, H=4, L=1, hx=True)
    data = make(case)
    y, hx_n, _ = data.forward(reference)
    h, c = (s[0, 0] for s in (as_tuple(data.hx) * 2)[:2])
    want = step_by_hand(case, data.params, data.x[0, 0], h, c)
    np.testing.assert_allclose(y[0, 0], want[0], rtol=1e-13)
    np.testing.assert_allclose([s[0, 0] for s in as_tuple(hx_n)], want, rtol=1e-13)


# Backward against a 4-point numerical derivative


def losses(data: Data) -> tuple[Array, Array]:
    """The terms of a per-step loss, all through y, and of a terminal one, all through hx_n.

    They are summed after they were differenced: terms that do not move then add no rounding.
    """
    y, hx_n, _ = data.forward(reference)
    per_step = np.nan_to_num(data.dy) * y  # dy is NaN behind the lengths
    pairs = zip(as_tuple(data.dhx_n), as_tuple(hx_n), strict=True)
    return per_step, np.stack([d * s for d, s in pairs])


def derivatives(data: Data, move: Callable[[float], None]) -> list[float]:
    """Of both losses along a path, at 0, by four points."""
    # a ReLU stack is a polynomial between its kinks, and a short step seldom meets a kink
    h = 1e-6 if data.case.cell == "rnn_relu" else 1e-3
    points = {}
    for k in (-2, -1, 1, 2):
        move(k * h)
        points[k] = losses(data)
    move(0.0)
    return [
        float(
            np.sum(8 * (points[1][i] - points[-1][i]) - (points[2][i] - points[-2][i])) / (12 * h)
        )
        for i in (0, 1)
    ]


def analytic(data: Data) -> list[dict[str, Array]]:
    """The gradients of both losses by backward."""
    return [outputs(replace(data, dhx_n=None)), outputs(replace(data, dy=None))]


OPTIONS = [
    (1, False, True, "time", "none", "none", "none", 0.0),
    (1, True, False, "batch", "zeros", "dense", "shared", 0.0),
    (2, False, True, "batch", "ragged", "sparse", "rows", 0.3),
    (3, False, True, "time", "zeros", "dense", "rows", 0.3),
    (2, True, False, "time", "full", "all", "shared", 0.0),
    (2, True, True, "single", "ragged", "dense", "shared", 0.0),
]
SMALL = [
    Case(cell, T=4, B=1 if layout == "single" else 3, I=3, H=2, L=L, bidirectional=bi, bias=bias,
         layout=layout, lengths=lengths, resets=resets, restart=restart, hx=True, dropout=p)
    for cell in CELLS
    for L, bi, bias, layout, lengths, resets, restart, p in OPTIONS
]  # fmt: skip


@each(SMALL)
def test_every_derivative(case: Case) -> None:
    data = make(case)
    got = analytic(data)
    for name, array in data.inputs().items():
        want = np.zeros((2, *array.shape))
        for place in np.ndindex(array.shape):
            value = array[place]

            def move(by: float, array: Array = array, place: Any = place, at: Any = value) -> None:
                array[place] = at + by

            want[:, *place] = derivatives(data, move)
        for i in (0, 1):
            assert np.abs(got[i][name] - want[i]).max() <= 1e-7 * np.abs(want[i]).max(), (i, name)


@each(CASES)
def test_derivative_along_a_direction(case: Case) -> None:
    """In large cases, of all arrays together along one random direction."""
    data = make(replace(case, hx=True))
    got = analytic(data)
    rng = np.random.default_rng(1)
    arrays = {name: a for name, a in data.inputs().items() if a.size}
    starts = {name: a.copy() for name, a in arrays.items()}
    directions = {
        name: rng.standard_normal(a.shape) / np.sqrt(a.size) for name, a in arrays.items()
    }

    def move(by: float) -> None:
        for name, a in arrays.items():
            a[...] = starts[name] + by * directions[name]

    for grads, want in zip(got, derivatives(data, move), strict=True):
        parts = np.concatenate([(grads[name] * directions[name]).ravel() for name in arrays])
        assert abs(parts.sum() - want) <= 1e-7 * np.linalg.norm(parts)


# Torch


def torch_outputs(data: Data) -> dict[str, Array]:
    """As `outputs`, by torch in float64."""
    case = data.case
    kind = {"rnn": torch.nn.RNN, "lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[case.function]
    layer = kind(
        case.I,
        case.H,
        num_layers=case.L,
        bias=case.bias,
        batch_first=case.layout == "batch",
        bidirectional=case.bidirectional,
        dtype=torch.float64,
        **({"nonlinearity": case.cell[4:]} if case.function == "rnn" else {}),
    )
    layer.load_state_dict({name: torch.from_numpy(p) for name, p in data.params.items()})
    x, dy = (torch.from_numpy(np.nan_to_num(a)) for a in (data.x, data.dy))
    hx = tuple(torch.from_numpy(s).requires_grad_() for s in as_tuple(data.hx))
    x.requires_grad_()
    first = case.layout == "batch"
    given = hx if case.function == "lstm" else hx[0]
    if data.lengths is not None and case.batched:
        packed = pack_padded_sequence(x, torch.from_numpy(data.lengths), first, False)
        y, hx_n = layer(packed, given)
        y, _ = pad_packed_sequence(y, first, total_length=case.T)
    else:
        y, hx_n = layer(x, given)
    hx_n, dhx_n = as_tuple(hx_n), [torch.from_numpy(d) for d in as_tuple(data.dhx_n)]
    leaves = {**dict(layer.named_parameters()), "x": x}
    leaves |= {f"hx[{i}]": s for i, s in enumerate(hx)}
    grads = torch.autograd.grad([y, *hx_n], list(leaves.values()), [dy, *dhx_n])
    named = {"y": y, **{f"hx_n[{i}]": s for i, s in enumerate(hx_n)}}
    named |= dict(zip(leaves, grads, strict=True))
    return {name: a.detach().numpy() for name, a in named.items()}


def for_torch(case: Case) -> Case:
    """The same case without what torch has not got."""
    lengths = "ragged" if case.lengths == "zeros" else case.lengths
    lengths = lengths if case.batched else "none"
    return replace(case, resets="none", restart="none", dropout=0.0, lengths=lengths, hx=True)


@pytest.mark.skipif(not HAVE_TORCH, reason="torch is not installed")
@each([for_torch(c) for c in CASES if c.T and c.B and c.cell != "gru_before"])
def test_torch(case: Case) -> None:
    data = make(case)
    assert_same(outputs(data), torch_outputs(data))


# Resets and lengths: the same numbers as separate runs


def in_pieces(data: Data) -> dict[str, Array]:
    """As `outputs`, but each piece between borders of each row is a run of its own."""
    case = data.case
    total = {name: np.zeros_like(a) for name, a in data.inputs().items()}
    total["y"] = np.zeros_like(data.dy)
    count = len(as_tuple(data.dhx_n))
    total |= {f"hx_n[{i}]": np.zeros_like(s) for i, s in enumerate(as_tuple(data.dhx_n))}
    one = replace(case, layout="single", B=1)

    for b in range(case.B):
        n = case.T if data.lengths is None else int(data.lengths[b])
        marks = [] if data.resets is None else [t for t in range(n) if data.resets[t, b]]
        cuts = [0, *(t for t in marks if t > 0), n]
        hx = [s[:, b] for s in as_tuple(data.hx)]
        if data.restart_state is None:
            fresh = [np.zeros_like(s) for s in hx]
        else:
            fresh = [s if s.ndim == 2 else s[:, b] for s in as_tuple(data.restart_state)]

        for start, end in itertools.pairwise(cuts):
            # which of the sweeps begin in this piece with hx, and which end in it
            begins, ends = np.zeros(case.L * case.D, bool), np.zeros(case.L * case.D, bool)
            begins[:: case.D] = start == 0 and 0 not in marks
            ends[:: case.D] = end == n
            if case.bidirectional:
                begins[1::2] = end == n
                ends[1::2] = start == 0
            first = tuple(np.where(begins[:, None], s, r) for s, r in zip(hx, fresh, strict=True))
            last = tuple(np.where(ends[:, None], s[:, b], 0) for s in as_tuple(data.dhx_n))
            run = outputs(
                replace(
                    data,
                    case=one,
                    x=data.x[start:end, b],
                    dy=data.dy[start:end, b],
                    hx=first if count == 2 else first[0],
                    dhx_n=last if count == 2 else last[0],
                    lengths=None,
                    resets=None,
                    restart_state=None,
                )
            )
            total["y"][start:end, b] = run["y"]
            total["x"][start:end, b] = run["x"]
            for name in data.params:
                total[name] += run[name]
            for i in range(count):
                total[f"hx_n[{i}]"][ends, b] = run[f"hx_n[{i}]"][ends]
                dfirst = run[f"hx[{i}]"]
                total[f"hx[{i}]"][begins, b] = dfirst[begins]
                if data.restart_state is not None:
                    grad = total[f"restart_state[{i}]"]
                    grad = grad if grad.ndim == 2 else grad[:, b]
                    grad[~begins] += dfirst[~begins]
    return total


@each([replace(c, layout="time", dropout=0.0, hx=True) for c in CASES])
def test_pieces_between_resets_are_separate_runs(case: Case) -> None:
    data = make(case)
    assert_same(outputs(data), in_pieces(data))


@each([c for c in CASES if c.layout != "time" or c.lengths in ("ragged", "zeros")])
def test_layouts_and_what_lies_behind_lengths(case: Case) -> None:
    """The same draws time first, with ordinary numbers behind the lengths."""
    want = outputs(make(replace(case, layout="time"), behind=7.0))
    for name, a in want.items():
        if case.layout == "batch" and name in ("x", "y"):
            want[name] = a.swapaxes(0, 1)
        if case.layout == "single":
            keep = name.startswith(("weight", "bias")) or a.ndim == 2
            want[name] = a if keep else a[:, 0]
    data = make(case)
    got = outputs(data)
    assert_same(got, want)
    for name in ("x", "y"):
        assert not got[name][~data.real].any()


@pytest.mark.parametrize("cell", CELLS)
def test_marks_that_mean_nothing(cell: str) -> None:
    """A mark at or behind the length is ignored; a mark at 0 only stops hx, and only forward."""
    case = Case(cell, T=5, B=3, I=2, H=3, L=2, bidirectional=True, lengths="zeros", hx=True)
    data = make(case)
    assert (data.lengths < 5).any()
    t = np.arange(5)[:, None]
    behind = outputs(replace(data, resets=t >= data.lengths))
    assert_same(behind, outputs(data))

    at_0 = outputs(replace(data, resets=np.repeat(t == 0, 3, axis=1)))
    hx = tuple(s.copy() for s in as_tuple(data.hx))
    real = data.lengths > 0
    for s in hx:
        s[0::2, real] = 0
    want = outputs(replace(data, hx=hx if cell == "lstm" else hx[0]))
    for i in range(len(hx)):
        want[f"hx[{i}]"][0::2, real] = 0
    assert_same(at_0, want)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_numbers_stay_in_their_row(cell: str, bad: float) -> None:
    case = Case(cell, T=6, B=4, I=3, H=5, L=2, bidirectional=True, lengths="zeros", resets="sparse",
                restart="rows", hx=True, dropout=0.3)  # fmt: skip
    data = make(case)
    row = int(np.argmax(data.lengths))
    want = outputs(data)
    data.x[0, row, 1] = bad
    with np.errstate(all="ignore"):
        got = outputs(data)
    assert np.isnan(bad) <= np.isnan(got["y"][:, row]).any()
    for name in want:
        if not name.startswith(("weight", "bias")):
            others = np.arange(4) != row
            np.testing.assert_array_equal(got[name][:, others], want[name][:, others], name)


def test_bad_numbers_stay_in_their_piece_and_need_a_real_step() -> None:
    """A border stops NaN both ways; the states of an empty row touch no weight gradient."""
    case = Case("gru_after", T=6, B=2, I=3, H=5, L=2, bidirectional=True, lengths="full", hx=True)
    resets = np.repeat(np.arange(6)[:, None] == 3, 2, axis=1)
    data = replace(make(case), lengths=np.array([6, 0]), resets=resets)
    want = outputs(data)
    data.x[4, 0] = np.nan
    data.hx[:, 1] = np.nan
    got = outputs(data)
    for name in ("x", "y"):
        np.testing.assert_array_equal(got[name][:3, 0], want[name][:3, 0])
        assert np.isnan(got[name][3:, 0]).all()

    data = make(case)
    data = replace(data, lengths=np.array([6, 0]))
    want = outputs(data)
    data.hx[:, 1] = np.nan
    got = outputs(data)
    assert np.isnan(got.pop("hx_n[0]")[:, 1]).all()
    want.pop("hx_n[0]")
    assert_same(got, want, 0)


# Edges, types, tapes, errors


@each([
    Case(cell, T=T, B=B, I=2, H=3, L=2, bidirectional=True, layout=layout, lengths=lengths,
         resets="all", restart="rows", hx=True, dropout=0.3)
    for cell in CELLS
    for T, B, layout, lengths in [
        (0, 3, "time", "none"), (3, 0, "batch", "full"), (0, 0, "batch", "full"),
        (0, 1, "single", "full"), (4, 1, "single", "zeros"), (4, 1, "time", "zeros"),
    ]
])  # fmt: skip
def test_nothing_to_do(case: Case) -> None:
    """Without a real step the states pass through, and nothing else moves."""
    data = make(case)
    got = outputs(data)
    for i, (s, d) in enumerate(zip(as_tuple(data.hx), as_tuple(data.dhx_n), strict=True)):
        np.testing.assert_array_equal(got.pop(f"hx_n[{i}]"), s)
        np.testing.assert_array_equal(got.pop(f"hx[{i}]"), d)
    assert got.pop("y").shape == data.dy.shape
    assert got.keys() == {name for name in data.inputs() if "hx" not in name}
    for name, a in data.inputs().items():
        if "hx" not in name:
            assert got[name].shape == a.shape
            assert not got[name].any()


@each([c for c in CASES if c.T > 2])
def test_float32(case: Case) -> None:
    """Computed in float32 throughout, and close to the same run in float64."""
    data = make(case, np.float32)
    got = outputs(data)
    assert {a.dtype for a in got.values()} == {np.dtype(np.float32)}
    assert_same(got, outputs(data.astype(np.float64)), 2e-4)


@pytest.mark.parametrize("cell", CELLS)
def test_defaults_are_zeros(cell: str) -> None:
    case = Case(cell, T=4, B=3, I=2, H=3, L=2, bidirectional=True, resets="dense", hx=True)
    data = make(case)
    zero = np.zeros_like(as_tuple(data.hx)[0])
    states = (zero, zero) if cell == "lstm" else zero
    full = replace(data, hx=states, dhx_n=states, restart_state=states, lengths=[4, 4, 4])
    want = {name: a for name, a in outputs(full).items() if "restart" not in name}
    assert_same(outputs(replace(data, hx=None, dhx_n=None)), want, 0)
    y, _, tape = data.forward(reference)
    for dx in (data.backward(reference, tape)[0], as_tuple(zero)[0]):
        assert dx.dtype == np.float64
    assert tape.restart_state_grad is None
    none = replace(data, dy=None)
    assert_same(outputs(none), outputs(replace(data, dy=np.zeros_like(y))), 0)


def test_a_tape_shares_nothing_with_the_caller() -> None:
    data = make(Case("lstm", T=4, B=3, I=2, H=3, L=2, resets="dense", restart="rows", hx=True))
    want = outputs(data)
    y, hx_n, tape = data.forward(reference)
    for array in (y, *hx_n, *data.inputs().values()):
        array[...] = np.nan
    for _ in range(2):  # and it can be used again
        dx, _, grads = data.backward(reference, tape)
        assert_same({**grads, "x": dx}, {name: want[name] for name in (*grads, "x")}, 0)


def test_any_array_will_do() -> None:
    """Strides, byte order and plain lists do not matter, and no argument is written to."""
    data = make(Case("gru_before", T=4, B=3, I=2, H=3, L=1, lengths="zeros", resets="dense"))
    want = outputs(data)
    x = np.asfortranarray(data.x).astype(">f8")[::-1][::-1]
    x.flags.writeable = False
    lists = replace(data, x=x, lengths=data.lengths.tolist())
    assert data.resets is not None
    assert_same(outputs(replace(lists, resets=data.resets.tolist())), want, 0)


def altered(**changes: Any) -> Callable[[Data], Data]:
    return lambda data: replace(data, **changes)


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        (altered(x=np.zeros((4, 3, 9))), ValueError, "x"),
        (altered(x=np.zeros(4)), ValueError, "x"),
        (altered(x=np.zeros((4, 3, 2), int)), TypeError, "x"),
        (altered(hx=np.zeros((1, 3, 3))), ValueError, "hx"),
        (altered(hx=np.zeros((2, 3, 3), np.float32)), TypeError, "hx"),
        (altered(lengths=[1, 2]), ValueError, "lengths"),
        (altered(lengths=[1, 2, 5]), ValueError, "lengths"),
        (altered(lengths=[1, 2, -1]), ValueError, "lengths"),
        (altered(lengths=[1, 2, 0.5]), TypeError, "lengths"),
        (altered(resets=np.zeros((3, 4), bool)), ValueError, "resets"),
        (altered(resets=np.zeros((4, 3))), TypeError, "resets"),
        (altered(restart_state=np.zeros((2, 2, 3))), ValueError, "restart_state"),
        (altered(dy=np.zeros((4, 3, 9))), ValueError, "dy"),
        (altered(dhx_n=np.zeros((2, 3, 9))), ValueError, "dhx_n"),
        (lambda d: replace(d, params={**d.params, "extra": d.x}), ValueError, "extra"),
        (
            lambda d: replace(d, params={**d.params, "weight_hh_l1": d.x}),
            ValueError,
            "weight_hh_l1",
        ),
        (lambda d: replace(d, params={"weight_ih_l0": d.x}), ValueError, "weight_hh_l0"),
        (lambda d: replace(d, case=replace(d.case, dropout=1.5)), ValueError, "dropout"),
        (lambda d: replace(d, case=replace(d.case, cell="rnn_sin")), ValueError, "nonlinearity"),
    ],
)
def test_errors_name_the_argument(
    change: Callable[[Data], Data], error: type[Exception], named: str
) -> None:
    data = make(Case("rnn_tanh", T=4, B=3, I=2, H=3, L=2))
    with pytest.raises(error, match=named):
        outputs(change(data))


# The table itself


def test_the_table_has_all_values() -> None:
    def values(column: str) -> set[Any]:
        return {getattr(case, column) for case in CASES}

    assert len(set(CASES)) == len(CASES)
    assert values("cell") == set(CELLS)
    assert values("T") == {0, 1, 2, 7, 19}
    assert values("B") == {0, 1, 2, 3, 7, 17, 33}
    assert values("L") == {1, 2, 3}
    for column in ("I", "H"):
        assert values(column) == {1, 3, 7, 8, 9, 15, 16, 17, 31, 33, 65, 129}
    for cell in CELLS:
        rows = [case for case in CASES if case.cell == cell]
        for column in ("bidirectional", "bias", "layout", "lengths", "resets", "restart", "hx"):
            assert {getattr(case, column) for case in rows} == values(column), (cell, column)
