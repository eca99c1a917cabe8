"""The reference against numerical derivatives, against torch, and against itself cut in pieces."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cases import CASES, DROPOUT_SEED, Case, Data, as_tuple, make

from rnnkern import reference
from rnnkern.reference import act, dropout

try:
    import torch
    from torch.nn import functional
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    HAVE_TORCH = True
except ImportError:
    HAVE_TORCH = False

Array = npt.NDArray[Any]

CELLS = ["rnn_tanh", "rnn_relu", "lstm", "gru_after", "gru_before"]
NEW_CELLS = ["mgu", "indrnn", "sru", "mingru"]


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


# Variants: cells and options beside those of the table


BLOCKS = {"rnn": 1, "lstm": 4, "gru": 3, "mgu": 2, "indrnn": 1, "sru": 4, "mingru": 2}
KINDS = ["dropout", "input_dropout", "output_dropout", "hidden_dropout", "candidate_dropout",
         "zoneout_h", "zoneout_c", "weight_dropout"]  # fmt: skip


def regularization(**options: Any) -> SimpleNamespace:
    """Any object with these attributes will do."""
    return SimpleNamespace(**dict.fromkeys(KINDS[1:], 0.0) | {"variational": False} | options)


@dataclass(frozen=True)
class Variant(Case):
    """A case of any cell, with parameters and options that the table has not got."""

    added: str = ""  # of: proj, peephole, norm
    given: dict[str, Any] = field(default_factory=dict)  # keywords of the forward function
    masks: dict[str, Any] = field(default_factory=dict)  # keywords of Regularization

    def __str__(self) -> str:
        words = [*self.added.split(), *(f"{k}={v}" for k, v in (self.given | self.masks).items())]
        return "-".join([super().__str__(), *words]).replace(" ", "")

    @property
    def P(self) -> int:
        return 2 if "proj" in self.added else self.H

    @property
    def widths(self) -> list[int]:
        """Of the states."""
        return [self.P, self.H] if self.function == "lstm" else [self.P]

    @property
    def options(self) -> dict[str, Any]:
        masks = {"regularization": regularization(**self.masks)} if self.masks else {}
        return super().options | self.given | masks

    @property
    def kinks(self) -> bool:
        bent = ("relu", "hard_sigmoid", "elu", "clip")
        words = f"{self.cell} {self.given}"
        return self.cell == "indrnn" or any(word in words for word in bent)

    def shapes(self, inputs: int) -> dict[str, tuple[int, ...]]:
        """Of the parameters of one sweep, by kind."""
        H = self.H
        G = H * (3 if self.given.get("coupled") else BLOCKS[self.function])
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (G, inputs)}
        if self.cell not in ("sru", "mingru"):
            shapes["weight_hh"] = (H,) if self.cell == "indrnn" else (G, self.P)
        if self.bias:
            shapes["bias_ih"] = (G,)
            if self.cell not in ("indrnn", "sru", "mingru"):
                shapes["bias_hh"] = (G,)
        if "proj" in self.added:
            shapes["weight_hr"] = (self.P, H)
        if "peephole" in self.added or self.cell == "sru":
            shapes["weight_ch"] = (2 * H,) if self.cell == "sru" else (G - H,)
        if "norm" in self.added:
            shapes |= {"norm_ih": (G,), "norm_hh": (G,)}
            if self.cell == "lstm":
                shapes |= {"norm_c": (H,), "norm_c_bias": (H,)}
        return shapes


def draw(v: Variant, seed: int = 0) -> Data:
    """As `make`, whose sequences and marks it takes."""
    same = ("T", "B", "I", "H", "L", "bidirectional", "layout", "lengths", "resets")
    plain = make(Case("rnn_tanh", **{name: getattr(v, name) for name in same}), seed=seed)
    rng = np.random.default_rng(seed + 1)
    params = {}
    for k in range(v.L * v.D):
        suffix = f"_l{k // v.D}" + ("_reverse" if k % v.D else "")
        for kind, shape in v.shapes(v.I if k < v.D else v.D * v.P).items():
            scale = shape[-1] if len(shape) == 2 else 4
            params[kind + suffix] = rng.standard_normal(shape) / np.sqrt(scale)
            if kind in ("norm_ih", "norm_hh", "norm_c"):
                params[kind + suffix] += 1

    def states(*rows: int) -> Any:
        drawn = tuple(rng.standard_normal((v.L * v.D, *rows, n)) for n in v.widths)
        return drawn if len(drawn) > 1 else drawn[0]

    rows = (v.B,) if v.batched else ()
    dy = rng.standard_normal((*plain.real.shape, v.D * v.P))
    restart_state = states(*(rows if v.restart == "rows" else ()))
    return replace(
        plain,
        case=v,
        params=params,
        hx=states(*rows),
        restart_state=restart_state if v.restart != "none" else None,
        dy=np.where(plain.real[..., None], dy, np.nan),
        dhx_n=states(*rows),
    )


LSTM, GRUS, GATED = ["lstm"], ["gru_after", "gru_before"], ["lstm", "gru_after", "gru_before"]
ALL = ["rnn_tanh", *GATED, *NEW_CELLS]
HARD, SOFT = ("hard_sigmoid", 0.3, 0.45), ("softsign",)
FEATURES: list[tuple[list[str], dict[str, Any]]] = [  # what a variant can have, and which can
    (LSTM, {"added": "proj"}),
    (LSTM, {"added": "peephole"}),
    (["rnn_tanh", "lstm", "gru_after"], {"added": "norm"}),
    (["rnn_tanh", *GATED], {"given": {"clip": 0.7}}),
    (["lstm", "gru_after"], {"added": "norm", "given": {"norm_eps": 0.1}}),
    (LSTM, {"given": {"cell_clip": 0.4}}),
    (LSTM, {"given": {"coupled": "input"}}),
    (LSTM, {"given": {"coupled": "forget"}}),
    (LSTM, {"given": {"activations": (HARD, ("scaled_tanh", 1.7, 0.6), "softplus")}}),
    (LSTM, {"given": {"activations": ("sigmoid", ("leaky_relu", 0.2), "identity")}}),
    ([*GRUS, "mgu", "sru", "mingru"], {"given": {"activations": (HARD, "softsign")}}),
    ([*GRUS, "mgu", "sru", "mingru"], {"given": {"activations": ("sigmoid", ("elu", 0.5))}}),
    (["rnn_tanh", "indrnn"], {"given": {"nonlinearity": ("thresholded_relu", 0.1)}}),
    (["rnn_tanh", "indrnn"], {"given": {"nonlinearity": ("affine", 0.6, 0.1)}}),
    (ALL, {"masks": {"input_dropout": 0.3, "output_dropout": 0.4}}),
    (ALL, {"dropout": 0.3, "masks": {"variational": True}}),
    ([c for c in ALL if c not in ("sru", "mingru")], {"masks": {"hidden_dropout": 0.3}}),
    ([c for c in ALL if c not in ("rnn_tanh", "indrnn")], {"masks": {"candidate_dropout": 0.3}}),
    (["rnn_tanh", *GATED, "mgu"], {"masks": {"weight_dropout": 0.3}}),
    ([c for c in ALL if c != "sru"], {"masks": {"zoneout_h": 0.3}}),
    (["lstm", "sru"], {"masks": {"zoneout_c": 0.4}}),
    (ALL, {"given": {"record": False}, "masks": {"output_dropout": 0.4}}),
]  # fmt: skip


def with_feature(v: Variant, feature: dict[str, Any]) -> Variant:
    merged = dict(feature)
    for name in ("given", "masks"):
        merged[name] = getattr(v, name) | feature.get(name, {})
    merged["added"] = " ".join(sorted({*v.added.split(), *feature.get("added", "").split()}))
    return replace(v, **merged)


def features(cell: str) -> list[dict[str, Any]]:
    return [feature for cells, feature in FEATURES if cell in cells]


def mixtures(count: int) -> list[Variant]:
    """For each cell, about half of its features at a time, with the options of a stack."""
    rng = np.random.default_rng(3)
    mixed = []
    for cell in ALL:
        for k in range(count):
            L, bi, bias, layout, lengths, resets, restart, p = OPTIONS[k % len(OPTIONS)]
            v = Variant(cell, T=4, B=1 if layout == "single" else 3, I=3, H=3, L=max(L, 2),
                        bidirectional=bi, bias=bias, layout=layout, lengths=lengths,
                        resets=resets, restart=restart, hx=True, dropout=p)  # fmt: skip
            for feature in features(cell):
                if rng.random() < 0.5:
                    v = with_feature(v, feature)
            mixed.append(v)
    return mixed


PLAIN = [Variant(cell, T=5, B=3, I=2, H=3, L=1, hx=True) for cell in ALL]
ALONE = PLAIN + [with_feature(v, feature) for v in PLAIN for feature in features(v.cell)]
OPTIONS = [
    (1, False, True, "time", "none", "none", "none", 0.0),
    (1, True, False, "batch", "zeros", "dense", "shared", 0.0),
    (2, False, True, "batch", "ragged", "sparse", "rows", 0.3),
    (3, False, True, "time", "zeros", "dense", "rows", 0.3),
    (2, True, False, "time", "full", "all", "shared", 0.0),
    (2, True, True, "single", "ragged", "dense", "shared", 0.0),
]
MIXED = mixtures(6)


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


def torch_activation(spec: Any) -> Callable[[Any], Any]:
    """By torch's own functions where it has them."""
    name, *given = (spec,) if isinstance(spec, str) else spec
    usual = {"hard_sigmoid": [1 / 6, 0.5], "affine": [1.0, 0.0], "leaky_relu": [0.01]}
    alpha, beta, *_ = [*given, *usual.get(name, [1.0, 1.0])[len(given) :], None]
    functions: dict[str, Callable[[Any], Any]] = {
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "relu": torch.relu,
        "hard_sigmoid": lambda x: (alpha * x + beta).clamp(0, 1),
        "softsign": functional.softsign,
        "identity": lambda x: x,
        "affine": lambda x: alpha * x + beta,
        "leaky_relu": lambda x: functional.leaky_relu(x, alpha),
        "thresholded_relu": lambda x: functional.threshold(x, alpha, 0.0),
        "scaled_tanh": lambda x: alpha * torch.tanh(beta * x),
        "elu": lambda x: functional.elu(x, alpha),
        "softplus": lambda x: functional.softplus(x, threshold=100),
    }
    return functions[name]


SPECS = [
    *act.KINDS, ("hard_sigmoid", 0.2), ("hard_sigmoid", 0.4, 0.3), ("affine", 2.0),
    ("affine", -1, 0.5), ("leaky_relu", 0.3), ("leaky_relu", 0.0), ("thresholded_relu", 0.25),
    ("scaled_tanh", 1.7, 2 / 3), ("scaled_tanh", -0.5), ("elu", 0.3),
]  # fmt: skip


@pytest.mark.skipif(not HAVE_TORCH, reason="torch is not installed")
@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("clip", [None, 1.5])
def test_activations_are_those_of_torch(spec: Any, clip: float | None) -> None:
    f = act.resolve("activations", spec, clip)
    x = np.array([-800, -40, -3.5, -1.5, -0.7, -1e-3, 1e-3, 0.2, 0.6, 1.4, 1.5, 3.5, 40, 800])
    a = torch.from_numpy(x.copy()).requires_grad_()
    inside = a if clip is None else torch.where(a.abs() < clip, a, a.detach().clamp(-clip, clip))
    want = torch_activation(spec)(inside)
    with np.errstate(all="raise", under="ignore"):
        y = f(x)
        dx = f.backward(x, y, np.full(x.shape, 2.0))
    np.testing.assert_allclose(y, want.detach().numpy(), 1e-14, 1e-300)
    if spec == "hard_sigmoid":  # torch's own has a slope in float32
        np.testing.assert_allclose(y, functional.hardsigmoid(inside.detach()).numpy(), 1e-14)
    if want.requires_grad:
        (grad,) = torch.autograd.grad(want, a, torch.full_like(want, 2.0))
        np.testing.assert_allclose(dx, grad.numpy(), 1e-12, 1e-15)
    assert f(x.astype(np.float32)).dtype == np.float32
    assert f.backward(*(v.astype(np.float32) for v in (x, y, dx))).dtype == np.float32


def test_activations_at_their_edges() -> None:
    """The slope at a kink, by the value there."""
    for spec, edge, slope in [
        ("relu", 0.0, 0.0), (("leaky_relu", 0.2), 0.0, 0.2), (("thresholded_relu", 0.0), 0.0, 0.0),
        (("elu", 0.3), 0.0, 1.0), ("hard_sigmoid", 3.0, 0.0), (("hard_sigmoid", 1, 0), 0.0, 0.0),
    ]:  # fmt: skip
        f, at = act.resolve("activations", spec), np.array([edge])
        assert f.backward(at, f(at), np.ones(1)) == slope, spec
    clipped = act.resolve("activations", "identity", 2.0)
    x = np.array([-np.inf, -2, -1.9, 1.9, 2, np.inf])
    np.testing.assert_array_equal(clipped(x), [-2, -2, -1.9, 1.9, 2, 2])
    np.testing.assert_array_equal(clipped.backward(x, x, np.ones(6)), [0, 0, 1, 1, 0, 0])
    free = act.resolve("activations", "relu")
    np.testing.assert_array_equal(free.backward(x, free(x), np.ones(6)), [0, 0, 0, 1, 1, 1])


@pytest.mark.parametrize(
    "spec",
    ["sin", (), None, ("tanh", 1.0), ("elu", 1.0, 2.0), ("elu", -0.1), ("leaky_relu", -1.0),
     ("thresholded_relu", -1.0), ("scaled_tanh", 0.0), ("affine", np.nan)],
    ids=str,
)  # fmt: skip
def test_activations_that_do_not_exist(spec: Any) -> None:
    with pytest.raises(ValueError, match=r"^activations: expected "):
        act.resolve("activations", spec)


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
    for kind, direction, first in [(0, 0, 0), (7, 0, 0), (0, 1, 0), (5, 1, 90)]:
        place = {"kind": kind, "direction": direction, "first_step": first}
        got = dropout.kept(p, DROPOUT_SEED, layer, shape, **place)
        for t, b, unit in np.ndindex(shape):
            counter = (unit // 4, b, first + t, layer + kind * 2**16 + direction * 2**24)
            words = dropout.philox4x32(counter, (0x89ABCDEF, 0x01234567))
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


def plan(p: float, record: bool = True, **masks: Any) -> dropout.Plan:
    given = regularization(**masks)
    return dropout.Plan.of("any", dropout.KINDS, p, given, 5, 0, record, np.float32)


def test_mask_statistics() -> None:
    """Factors have mean 1, zoneout keeps with its probability, and no two kinds are alike."""
    p, shape = 0.3, (20, 50, 60)
    names = [name for name in KINDS if "zoneout" not in name]
    made = plan(p, **dict.fromkeys(KINDS[1:], p))
    drawn = {name: made.factors(name, 0, 0, *shape) for name in names}
    drawn |= {name: made.zoneout(name, 0, 0, *shape) for name in ("zoneout_h", "zoneout_c")}
    drawn["reverse"] = made.factors("candidate_dropout", 0, 1, *shape)
    for name, mask in drawn.items():
        assert mask.dtype == np.float32
        zoneout = "zoneout" in name
        per_step = zoneout or name in ("dropout", "candidate_dropout", "reverse")
        assert mask.shape == (shape if per_step else (1, *shape[1:])), name
        mean, variance = (p, p * (1 - p)) if zoneout else (1, p / (1 - p))
        several = 5 / np.sqrt(mask.size)
        assert mask.mean() == pytest.approx(mean, abs=several * np.sqrt(variance)), name
        assert mask.var() == pytest.approx(variance, abs=several * variance), name
    for a, b in itertools.combinations(drawn, 2):
        assert abs(np.corrcoef(drawn[a][0].ravel(), drawn[b][0].ravel())[0, 1]) < 0.1, (a, b)
    expected = plan(p, record=False, zoneout_h=p)
    assert (expected.zoneout("zoneout_h", 0, 0, *shape) == np.float32(p)).all()
    assert (expected.factors("dropout", 0, 0, *shape) == 1).all()
    variational = plan(p, variational=True).factors("dropout", 0, 0, *shape)
    np.testing.assert_array_equal(variational, drawn["dropout"][:1])


@pytest.mark.parametrize("p", [0.3, 1.0])
@pytest.mark.parametrize("variational", [False, True])
@pytest.mark.parametrize("all_layers", [False, True])
def test_dropout_stands_between_the_layers(p: float, variational: bool, all_layers: bool) -> None:
    """And before the first, and behind the last."""
    masks = {"input_dropout": p, "output_dropout": p, "variational": variational}
    data = draw(Variant("lstm", T=5, B=3, I=2, H=5, L=3, bidirectional=True, hx=True, dropout=p,
                        added="proj", given={"all_layers": all_layers}, masks=masks))  # fmt: skip

    def dropped(a: Array, layer: int, kind: int, steps: int, width: int) -> Array:
        kept = np.concatenate(
            [dropout.kept(p, DROPOUT_SEED, layer, (steps, 3, width), kind=kind, direction=d)
             for d in range(a.shape[2] // width)], axis=2,
        )  # fmt: skip
        return np.where(kept, a * (1 / (1 - p) if p < 1 else 0), 0)

    y, (h_n, c_n), _ = data.forward(reference)
    x, of_layers = dropped(data.x, 0, 1, 1, 2), []
    for layer in range(3):
        names = [name for name in data.params if f"_l{layer}" in name]
        params = {name.replace(f"_l{layer}", "_l0"): data.params[name] for name in names}
        two = slice(2 * layer, 2 * layer + 2)
        x, hx_n, _ = reference.lstm_forward(x, params, (data.hx[0][two], data.hx[1][two]))
        np.testing.assert_allclose(h_n[two], hx_n[0], rtol=1e-12)
        np.testing.assert_allclose(c_n[two], hx_n[1], rtol=1e-12)
        of_layers.append(x)
        if layer < 2:
            x = dropped(x, layer, 0, 1 if variational else 5, 2)
    want = np.stack(of_layers) if all_layers else dropped(x, 2, 2, 1, 2)
    np.testing.assert_allclose(y, want, rtol=1e-12)


def test_what_a_mask_drops_is_0_even_if_it_was_nan() -> None:
    v = Variant("gru_after", T=3, B=2, I=4, H=3, L=1, masks={"input_dropout": 0.5})
    data = draw(v)
    kept = dropout.kept(0.5, DROPOUT_SEED, 0, (1, 2, 4), kind=1)
    want = outputs(data)
    got = outputs(replace(data, x=np.where(kept, data.x, np.nan)))
    assert 0 < kept.sum() < kept.size
    assert_same(got, want, 0)


@each(
    [
        Variant(cell, T=7, B=3, I=2, H=4, L=2, hx=True, lengths="ragged", resets="sparse")
        for cell in ALL
    ]
)
@pytest.mark.parametrize("variational", [False, True])
def test_masks_do_not_depend_on_chunks(case: Variant, variational: bool) -> None:
    """A chunk with its first_step draws what the whole would."""
    masks = {"variational": variational}
    for feature in features(case.cell):
        masks |= feature.get("masks", {})
    data = draw(replace(case, dropout=0.3, masks=masks))
    want = data.forward(reference)
    parts, hx = [], data.hx
    for start, end in [(0, 3), (3, 4), (4, 7)]:
        assert data.resets is not None
        chunk = replace(data, x=data.x[start:end], hx=hx, resets=data.resets[start:end],
                        lengths=np.clip(data.lengths - start, 0, end - start),
                        case=replace(data.case, given={"first_step": start}))  # fmt: skip
        y, hx, _ = chunk.forward(reference)
        parts.append(y)
    np.testing.assert_array_equal(np.concatenate(parts), want[0])
    for got, state in zip(as_tuple(hx), as_tuple(want[1]), strict=True):
        np.testing.assert_array_equal(got, state)


@each([replace(v, bidirectional=True, L=2, masks={"weight_dropout": 0.4}) for v in PLAIN
       if v.cell in ("rnn_tanh", *GATED, "mgu")])  # fmt: skip
def test_weight_dropout_is_a_call_with_other_weights(case: Variant) -> None:
    data = draw(case)
    factors = {}
    for layer, d in np.ndindex(2, 2):
        name = f"weight_hh_l{layer}{'_reverse' * d}"
        shape = (1, *data.params[name].shape)
        kept = dropout.kept(0.4, DROPOUT_SEED, layer, shape, kind=7, direction=d)
        factors[name] = np.where(kept[0], 1 / 0.6, 0)
    params = {name: a * factors.get(name, 1) for name, a in data.params.items()}
    want = outputs(replace(data, params=params, case=replace(case, masks={})))
    for name, factor in factors.items():
        want[name] *= factor
        assert 0 < (factor == 0).sum() < factor.size
    assert_same(outputs(data), want, 1e-14)


@each(PLAIN)
def test_inference_knows_only_zoneout(case: Variant) -> None:
    names = [name for feature in features(case.cell) for name in feature.get("masks", {})]
    masks = dict.fromkeys((name for name in names if name != "variational"), 0.25)
    only_zoneout = {name: p for name, p in masks.items() if "zoneout" in name}
    data = draw(replace(case, L=2, dropout=0.5, given={"record": False}, masks=masks))
    got, plain = outputs(data), outputs(replace(data, case=replace(case, L=2)))
    zoneout = replace(data, case=replace(data.case, masks=only_zoneout, dropout=0.0))
    assert_same(got, outputs(zoneout), 0)
    assert np.abs(got["y"] - plain["y"]).max() > 1e-3
    assert_same(outputs(replace(data, case=replace(data.case, masks={}))), plain, 0)


def test_zoneout_of_everything_keeps_the_state() -> None:
    v = Variant("lstm", T=4, B=2, I=2, H=3, L=1, masks={"zoneout_h": 1.0, "zoneout_c": 1.0})
    data = draw(v)
    got = outputs(data)
    for i in (0, 1):
        np.testing.assert_array_equal(got[f"hx_n[{i}]"], data.hx[i])
    np.testing.assert_array_equal(got["y"], np.broadcast_to(data.hx[0], (4, 2, 3)))
    assert not got["weight_hh_l0"].any()


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
    return per_step, np.concatenate([(d * s).ravel() for d, s in pairs])


def derivatives(data: Data, move: Callable[[float], None]) -> list[float]:
    """Of both losses along a path, at 0, by four points."""
    # between its kinks a ReLU stack is a polynomial; a short step seldom meets a kink
    h = 1e-6 if data.case.cell == "rnn_relu" else 1e-3
    if isinstance(data.case, Variant):  # normalisation bends more
        h = 1e-6 if data.case.kinks else 1e-4
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


@each([*CASES, *ALONE, *MIXED])
def test_derivative_along_a_direction(case: Case) -> None:
    """Of all arrays together along one random direction; of a variant of each array alone too."""
    data = draw(case) if isinstance(case, Variant) else make(replace(case, hx=True))
    got = analytic(data)
    arrays = {name: a for name, a in data.inputs().items() if a.size}
    check_direction(data, got, arrays)
    if isinstance(case, Variant):
        for name, a in arrays.items():
            check_direction(data, got, {name: a})


def check_direction(data: Data, got: list[dict[str, Array]], arrays: dict[str, Array]) -> None:
    """Parts that cancel, and an array that hardly matters, are held to less."""
    rng = np.random.default_rng(1)
    starts = {name: a.copy() for name, a in arrays.items()}
    directions = {
        name: rng.standard_normal(a.shape) / np.sqrt(a.size) for name, a in arrays.items()
    }

    def move(by: float) -> None:
        for name, a in arrays.items():
            a[...] = starts[name] + by * directions[name]

    for grads, want in zip(got, derivatives(data, move), strict=True):
        parts = np.concatenate([(grads[name] * directions[name]).ravel() for name in arrays])
        all_parts = np.linalg.norm([np.linalg.norm(g) for g in grads.values()])
        tolerance = 1e-7 * max(np.linalg.norm(parts), 1e-3 * all_parts)
        assert abs(parts.sum() - want) <= tolerance, list(arrays)


# Torch


def torch_outputs(data: Data, **options: Any) -> dict[str, Array]:
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
        **options,
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


@pytest.mark.skipif(not HAVE_TORCH, reason="torch is not installed")
@each([for_torch(replace(v, added="proj", given={}, masks={})) for v in MIXED if v.cell == "lstm"])
def test_torch_projection(case: Variant) -> None:
    data = draw(case)
    assert_same(outputs(data), torch_outputs(data, proj_size=case.P))


class TorchCell:
    """One direction of one layer once more, by torch and its autograd."""

    def __init__(self, v: Variant, w: dict[str, Any]) -> None:
        self.v, self.w = v, w
        usual = {"rnn": ("tanh",), "lstm": ("sigmoid", "tanh", "tanh"), "indrnn": ("relu",),
                 "sru": ("sigmoid", "identity"), "mingru": ("sigmoid", "identity")}  # fmt: skip
        specs = v.given.get("activations", usual.get(v.function, ("sigmoid", "tanh")))
        if "nonlinearity" in v.given:
            specs = (v.given["nonlinearity"],)
        self.f = [self.clipped(torch_activation(spec)) for spec in specs]

    def clipped(self, f: Callable[[Any], Any]) -> Callable[[Any], Any]:
        clip = self.v.given.get("clip", math.inf)
        return lambda a: f(a.clamp(-clip, clip))

    def masks(self, name: str, *shape: Any) -> Any:
        """Factors, or what zoneout keeps."""
        p, kind, zoneout = self.v.masks.get(name, 0.0), KINDS.index(name), "zoneout" in name
        if not p or not self.v.given.get("record", True):
            return torch.full(shape, p if zoneout else 1.0, dtype=torch.float64)
        kept = torch.from_numpy(dropout.kept(p, DROPOUT_SEED, 0, shape, kind=kind))
        return (~kept).double() if zoneout else kept.double() / (1 - p)

    def norm(self, v: Any, gain: str) -> Any:
        if gain not in self.w:
            return v
        return functional.layer_norm(
            v, v.shape[1:], self.w[gain], eps=self.v.given.get("norm_eps", 1e-5)
        )

    def run(self, x: Any, hx: Any) -> tuple[Any, Any]:
        v, (T, B, _) = self.v, x.shape
        names = {"lstm": "hc", "sru": "c"}.get(v.cell, "h")
        state = {name: s[0] for name, s in zip(names, hx, strict=True)}
        x = x * self.masks("input_dropout", 1, B, v.I)
        m_hidden = self.masks("hidden_dropout", 1, B, v.P)[0]
        m_candidate = self.masks("candidate_dropout", T, B, v.H)
        if "weight_dropout" in v.masks:
            hh = self.w["weight_hh"]
            self.w["weight_hh"] = hh * self.masks("weight_dropout", 1, *hh.shape)[0]
        z = {s: self.masks(f"zoneout_{s}", T, B, v.P if s == "h" else v.H) for s in names}
        ys = []
        for t in range(T):
            h, c = state.get("h"), state.get("c")
            hd = None if h is None else m_hidden * h
            wx = (
                self.norm(functional.linear(x[t], self.w["weight_ih"]), "norm_ih")
                + self.w["bias_ih"]
            )
            new = getattr(self, v.function)(wx, h, hd, c, m_candidate[t])
            for s in names:
                new[s] = z[s][t] * state[s] + (1 - z[s][t]) * new[s]
            state = {s: new[s] for s in names}
            ys.append(new["h"])
        y = torch.stack(ys) * self.masks("output_dropout", 1, B, v.P)
        return y, [state[s][None] for s in names]

    def uh(self, hd: Any) -> Any:
        return self.norm(functional.linear(hd, self.w["weight_hh"]), "norm_hh") + self.w["bias_hh"]

    def rnn(self, wx: Any, h: Any, hd: Any, c: Any, m: Any) -> dict[str, Any]:
        return {"h": self.f[0](wx + self.uh(hd))}

    def indrnn(self, wx: Any, h: Any, hd: Any, c: Any, m: Any) -> dict[str, Any]:
        return {"h": self.f[0](wx + self.w["weight_hh"] * hd)}

    def lstm(self, wx: Any, h: Any, hd: Any, c: Any, m: Any) -> dict[str, Any]:
        s, g, q = self.f
        H, coupled = self.v.H, self.v.given.get("coupled")
        a = (wx + self.uh(hd)).split(H, dim=1)
        p = self.w["weight_ch"].split(H) if "weight_ch" in self.w else [torch.zeros(H)] * 3
        first = s(a[0] + p[0] * c)
        if coupled:
            i, f = (1 - first, first) if coupled == "input" else (first, 1 - first)
        else:
            i, f = first, s(a[1] + p[1] * c)
        c_new = f * c + i * m * g(a[-2])
        if "cell_clip" in self.v.given:
            c_new = c_new.clamp(-self.v.given["cell_clip"], self.v.given["cell_clip"])
        o = s(a[-1] + p[1 if coupled else 2] * c_new)
        n = self.norm(c_new, "norm_c")
        h_new = o * q(n + self.w["norm_c_bias"] if "norm_c_bias" in self.w else n)
        if "weight_hr" in self.w:
            h_new = functional.linear(h_new, self.w["weight_hr"])
        return {"h": h_new, "c": c_new}

    def gru(self, wx: Any, h: Any, hd: Any, c: Any, m: Any) -> dict[str, Any]:
        H, (s, g) = self.v.H, self.f
        uh = self.uh(hd)
        r, z = (s(wx[:, k : k + H] + uh[:, k : k + H]) for k in (0, H))
        if self.v.cell == "gru_after":
            n = g(wx[:, 2 * H :] + r * uh[:, 2 * H :])
        else:
            n = g(wx[:, 2 * H :] + self.uh(r * hd)[:, 2 * H :])
        return {"h": torch.lerp(m * n, h, z)}

    def mgu(self, wx: Any, h: Any, hd: Any, c: Any, m: Any) -> dict[str, Any]:
        H, (s, g) = self.v.H, self.f
        f = s(wx[:, :H] + self.uh(hd)[:, :H])
        return {"h": torch.lerp(h, m * g(wx[:, H:] + self.uh(f * hd)[:, H:]), f)}

    def sru(self, wx: Any, h: Any, hd: Any, c: Any, m: Any) -> dict[str, Any]:
        s, q = self.f
        n, a_f, a_r, highway = wx.split(self.v.H, dim=1)
        v_f, v_r = self.w["weight_ch"].split(self.v.H)
        f, r = s(a_f + v_f * c), s(a_r + v_r * c)
        c_new = torch.lerp(m * n, c, f)
        return {"h": torch.lerp(highway, q(c_new), r), "c": c_new}

    def mingru(self, wx: Any, h: Any, hd: Any, c: Any, m: Any) -> dict[str, Any]:
        s, g = self.f
        a_z, a_n = wx.split(self.v.H, dim=1)
        return {"h": torch.lerp(h, m * g(a_n), s(a_z))}


ONE_SWEEP = [
    replace(v, T=5, B=3, L=1, bidirectional=False, bias=True, layout="time", lengths="none",
            resets="none", restart="none", dropout=0.0)
    for v in [*ALONE, *MIXED]
]  # fmt: skip


@pytest.mark.skipif(not HAVE_TORCH, reason="torch is not installed")
@each([v for k, v in enumerate(ONE_SWEEP) if v not in ONE_SWEEP[:k]])
def test_torch_transcription(case: Variant) -> None:
    """All that a step can have, in one sweep."""
    data = draw(case)
    leaves = {n: torch.from_numpy(a.copy()).requires_grad_() for n, a in data.inputs().items()}
    weights = {name[:-3]: leaf for name, leaf in leaves.items() if name.endswith("_l0")}
    y, hx_n = TorchCell(case, weights).run(leaves["x"], [leaves[n] for n in leaves if "hx" in n])
    dhx_n = [torch.from_numpy(d) for d in as_tuple(data.dhx_n)]
    up = [torch.from_numpy(data.dy), *dhx_n]
    grads = torch.autograd.grad([y, *hx_n], list(leaves.values()), up)
    want = {"y": y, **{f"hx_n[{i}]": s for i, s in enumerate(hx_n)}}
    want |= dict(zip(leaves, grads, strict=True))
    assert_same(outputs(data), {name: a.detach().numpy() for name, a in want.items()})


@each([v for v in ALONE if "clip" in str(v)])
def test_some_values_are_clipped(case: Variant) -> None:
    """So that the tests above say something about clipping."""
    data = draw(case)
    kept = {name: a for name, a in case.given.items() if "clip" not in name}
    free = outputs(replace(data, case=replace(case, given=kept)))
    for name, a in outputs(data).items():
        assert np.abs(a - free[name]).max() > 1e-3, name


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


PIECES = [
    *(replace(c, layout="time", dropout=0.0, hx=True) for c in CASES),
    *(replace(v, layout="time", dropout=0.0, masks={}, resets="dense") for v in MIXED[1::2]),
]


@each(PIECES)
def test_pieces_between_resets_are_separate_runs(case: Case) -> None:
    data = draw(case) if isinstance(case, Variant) else make(case)
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


@each(MIXED)
def test_float32_of_variants(case: Variant) -> None:
    data = draw(case)
    got = outputs(data.astype(np.float32))
    assert {a.dtype for a in got.values()} == {np.dtype(np.float32)}
    if not case.kinks:
        assert_same(got, outputs(data), 2e-4)


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


def given(**options: Any) -> Callable[[Variant], Variant]:
    return lambda v: replace(v, given=options)


def masked(**options: Any) -> Callable[[Variant], Variant]:
    return lambda v: replace(v, masks=options)


@pytest.mark.parametrize(
    ("cell", "change", "named"),
    [
        ("lstm", given(coupled="output"), "coupled"),
        ("lstm", given(clip=0.0), "clip"),
        ("lstm", given(cell_clip=-1.0), "cell_clip"),
        ("gru_after", given(norm_eps=0.0), "norm_eps"),
        ("lstm", given(activations=("tanh", "tanh")), "activations"),
        ("mgu", given(activations="tanh"), "activations"),
        ("sru", given(activations=("tanh", "sin")), "activations"),
        ("indrnn", given(nonlinearity="sin"), "nonlinearity"),
        ("rnn_tanh", given(first_step=-1), "first_step"),
        ("rnn_tanh", given(seed=-1), "seed"),
        ("lstm", masked(zoneout_h=1.5), "zoneout_h"),
        ("lstm", masked(input_dropout=np.nan), "input_dropout"),
        ("rnn_tanh", masked(candidate_dropout=0.1), "regularization: rnn has no candidate_dropout"),
        ("gru_before", masked(zoneout_c=0.1), "regularization: gru has no zoneout_c"),
        ("indrnn", masked(weight_dropout=0.1), "regularization: indrnn has no weight_dropout"),
        ("sru", masked(zoneout_h=0.1), "regularization: sru has no zoneout_h"),
        ("mingru", masked(hidden_dropout=0.1), "regularization: mingru has no hidden_dropout"),
        ("gru_before", lambda v: replace(v, added="norm"), "params: .*norm_hh_l0"),
        ("gru_after", lambda v: replace(v, added="proj"), "params: .*weight_hr_l0"),
    ],
)
def test_errors_of_variants(cell: str, change: Callable[[Variant], Variant], named: str) -> None:
    data = draw(change(Variant(cell, T=3, B=2, I=2, H=3, L=1)))
    options = {**data.keywords, **data.case.options}
    run = getattr(reference, f"{data.case.function}_forward")
    with pytest.raises(ValueError, match=f"^{named}"):
        run(data.x, data.params, data.hx, **options)


def test_a_regularization_has_all_attributes() -> None:
    data = draw(Variant("mgu", T=3, B=2, I=2, H=3, L=1))
    with pytest.raises(TypeError, match=r"^regularization: .*zoneout_c"):
        reference.mgu_forward(
            data.x, data.params, regularization=SimpleNamespace(input_dropout=0.1)
        )


@pytest.mark.parametrize(
    ("v", "name", "shape"),
    [
        (Variant("lstm", T=2, B=2, I=2, H=3, L=1, added="proj"), "weight_hr_l0", (2,)),
        (Variant("lstm", T=2, B=2, I=2, H=3, L=1, added="proj"), "weight_hh_l0", (12, 3)),
        (Variant("lstm", T=2, B=2, I=2, H=3, L=1, added="peephole"), "weight_ch_l0", (12,)),
        (Variant("lstm", T=2, B=2, I=2, H=3, L=1, added="norm"), "norm_c_l0", (12,)),
        (Variant("indrnn", T=2, B=2, I=2, H=3, L=1), "weight_hh_l0", (3, 3)),
        (Variant("sru", T=2, B=2, I=2, H=3, L=1), "weight_ih_l0", (13, 2)),
        (Variant("mgu", T=2, B=2, I=2, H=3, L=1), "weight_ih_l0", (6,)),
    ],
    ids=str,
)
def test_shapes_of_parameters(v: Variant, name: str, shape: tuple[int, ...]) -> None:
    data = draw(v)
    data.params[name] = np.zeros(shape)
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        outputs(data)


@each([v for v in MIXED if v.layout == "time"])
def test_all_layers_have_the_same_kinds(case: Variant) -> None:
    """Each is needed in all layers."""
    data = draw(case)
    for name in data.params:
        if name.endswith("_l1") and "weight_ih" not in name:  # which says that there is a layer
            params = {key: a for key, a in data.params.items() if key != name}
            with pytest.raises(ValueError, match=f"^params: .*{name}"):
                outputs(replace(data, params=params))


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
