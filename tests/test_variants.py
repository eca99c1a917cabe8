"""Every option of every cell, alone and in mixtures: right numbers, the same bits in all modes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from cases import as_tuple
from support import CHECKPOINTS, Array, assert_same_bits, function_options

import rnnkern as rk
from rnnkern import functional, isa, reference

ACTIVATIONS = (
    "sigmoid", "tanh", "relu", "hard_sigmoid", ("hard_sigmoid", 0.2), "softsign", "identity",
    ("affine", 0.8, 0.1), ("leaky_relu", 0.3), ("thresholded_relu", 0.25), ("elu", 0.5),
    ("scaled_tanh", 1.2, 0.7), "softplus",
)  # fmt: skip
TAME = ("sigmoid", "tanh", "hard_sigmoid", "softsign")  # under which no state explodes
SEED = 0x0123456789ABCDEF


@dataclass(frozen=True)
class Variant:
    cls: Any
    options: dict[str, Any]
    regularization: dict[str, Any] | None = None

    def __str__(self) -> str:
        both = self.options | (self.regularization or {})
        words = "-".join(f"{k}={v}" for k, v in both.items())
        return f"{self.cls.__name__}-{words or 'plain'}".replace(" ", "").replace("'", "")

    @property
    def masked(self) -> bool:
        """Whether training draws anything at random, or inference takes expectations."""
        return self.regularization is not None

    def layer(self, dtype: Any = np.float64, **more: Any) -> Any:
        sizes = {"num_layers": 2, "bidirectional": True} | more
        r = None if self.regularization is None else rk.Regularization(**self.regularization)
        made = self.cls(5, 21, dtype=dtype, seed=1, regularization=r, **sizes, **self.options)
        rng = np.random.default_rng(2)
        for p in made.params.values():  # no gain is 1, no bias 0, and gates are not saturated
            if p.ndim == 2:
                p *= 1.6
            else:
                p[...] = 0.7 * p + 0.3 * rng.standard_normal(p.shape)
        return made

    def without_masks(self) -> Variant:
        return replace(self, regularization=None)


def regularizations(cls: Any) -> list[dict[str, Any]]:
    """One of each that the cell has."""
    all_of = [
        {"input_dropout": 0.3}, {"output_dropout": 0.3}, {"variational": True},
        {"hidden_dropout": 0.3}, {"candidate_dropout": 0.3}, {"weight_dropout": 0.3},
        {"zoneout_h": 0.4}, {"zoneout_c": 0.4},
    ]  # fmt: skip
    has = []
    for r in all_of:
        try:
            cls(1, 1, regularization=rk.Regularization(**r))
        except ValueError:
            continue
        has.append(r)
    return has


LIMITS: list[dict[str, Any]] = [{"clip": 0.5}, {"layer_norm": True}]
OPTIONS: dict[Any, list[dict[str, Any]]] = {
    rk.RNN: [*LIMITS, *({"nonlinearity": a} for a in ACTIVATIONS)],
    rk.LSTM: [
        *LIMITS, {"proj_size": 7}, {"proj_size": 17}, {"peephole": True}, {"cell_clip": 0.5},
        {"coupled": "input"}, {"coupled": "forget"}, {"coupled": "forget", "peephole": True},
        {"layer_norm": True, "norm_eps": 0.1},
        *({"activations": (a, "tanh", "tanh")} for a in ACTIVATIONS),
        *({"activations": ("sigmoid", a, a)} for a in ACTIVATIONS),
        *({"activations": (a, a, a), "clip": 0.4} for a in ACTIVATIONS),
    ],
    rk.GRU: [
        *LIMITS, {"reset_after": False}, {"reset_after": False, "clip": 0.5},
        *({"activations": (a, b)} for a, b in zip(TAME, ACTIVATIONS[:4], strict=True)),
        {"reset_after": False, "activations": (("hard_sigmoid", 0.2), "softsign")},
    ],
    rk.MGU: [{}, {"activations": ("hard_sigmoid", "softsign")}],
    rk.IndRNN: [{}, {"nonlinearity": "tanh"}],
    rk.SRU: [{}, {"activations": ("hard_sigmoid", "tanh")}],
    rk.MinGRU: [{}, {"activations": ("sigmoid", "tanh")}],
}  # fmt: skip


def alone() -> list[Variant]:
    """Each option by itself."""
    found = [Variant(cls, o) for cls, many in OPTIONS.items() for o in many]
    found += [Variant(cls, {}, r) for cls in OPTIONS for r in regularizations(cls)]
    before = {"reset_after": False}
    found += [Variant(rk.GRU, before, r) for r in regularizations(rk.GRU)]
    return found


def mixture(seed: int) -> Variant:
    """Some of everything."""
    rng = np.random.default_rng(seed)

    def some(**choices: list[Any]) -> dict[str, Any]:
        return {k: v[rng.integers(len(v))] for k, v in choices.items() if rng.random() < 0.5}

    classes = [rk.LSTM, *OPTIONS]  # the LSTM, which has most options, twice
    cls = classes[seed % len(classes)]
    gates: list[Any] = ["sigmoid", "hard_sigmoid", ("hard_sigmoid", 0.2)]  # 0 to 1: others amplify
    options: dict[str, Any] = {}
    if cls in (rk.LSTM, rk.GRU, rk.RNN):
        options |= some(clip=[0.7], layer_norm=[True])
        options |= {"norm_eps": 0.1} if "layer_norm" in options else {}  # else ill-conditioned
    if cls is rk.LSTM:
        options |= some(proj_size=[3, 16, 20], peephole=[True], coupled=["input", "forget"],
                        cell_clip=[0.6])  # fmt: skip
        options |= some(activations=[(a, b, c) for a in gates for b in TAME for c in TAME])
    elif cls is rk.RNN:
        options |= some(nonlinearity=[*TAME, "relu"])
    elif cls is rk.GRU:
        options |= some(activations=[(a, b) for a in gates for b in TAME])
        if not options.get("layer_norm"):
            options |= some(reset_after=[False])
    r: dict[str, Any] = {}
    for one in regularizations(cls):
        if rng.random() < 0.4:
            r |= one
    return Variant(cls, options, r or None)


ALONE = alone()
MIXTURES = [mixture(seed) for seed in range(64)]
variants = pytest.mark.parametrize("variant", ALONE + MIXTURES, ids=str)


def arguments(T: int = 9, B: int = 6, dtype: Any = np.float64) -> tuple[Array, dict[str, Any]]:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((T, B, 5)).astype(np.float32).astype(dtype)
    lengths = rng.integers(0, T + 1, B)
    lengths[0] = T
    return x, {"lengths": lengths, "resets": rng.random((T, B)) < 0.15}


def states(layer: Any, B: int, seed: int) -> Any:
    """Random states, rounded to float32."""
    shapes = layer(np.zeros((0, B, 5), layer.dtype))[1]
    rng = np.random.default_rng(seed)
    drawn = tuple(
        rng.standard_normal(s.shape).astype(np.float32).astype(s.dtype) for s in as_tuple(shapes)
    )
    return drawn if isinstance(shapes, tuple) else drawn[0]


def named(y: Any, hx_n: Any, dx: Any, dhx: Any, grads: Any) -> dict[str, Array]:
    out = {"y": y, "x": dx, **grads}
    out |= {f"hx_n[{i}]": a for i, a in enumerate(as_tuple(hx_n))}
    return out | {f"hx[{i}]": a for i, a in enumerate(as_tuple(dhx))}


def outputs(layer: Any, module: Any, variant: Variant, **more: Any) -> dict[str, Array]:
    """Of a recorded call with ragged rows, resets and dropout, by functional or the reference."""
    x, keywords = arguments(dtype=layer.dtype)
    keywords |= {
        "dropout": 0.25, "seed": SEED, "first_step": 3, "regularization": layer.regularization,
        "restart_state": states(layer, 6, 4),
    }  # fmt: skip
    keywords |= function_options(variant.options)
    name = variant.cls.__name__.lower()
    hx = states(layer, 6, 5)
    y, hx_n, tape = getattr(module, f"{name}_forward")(
        x, layer.params, hx, record=True, **keywords, **more
    )
    dy = np.cos(np.arange(y.size)).reshape(y.shape).astype(y.dtype)
    dx, dhx, grads = getattr(module, f"{name}_backward")(tape, dy, states(layer, 6, 6))
    out = named(y, hx_n, dx, dhx, grads)
    return out | {f"restart[{i}]": a for i, a in enumerate(as_tuple(tape.restart_state_grad))}


@variants
def test_float64(variant: Variant, level: str) -> None:
    layer = variant.layer()
    got, want = (outputs(layer, module, variant) for module in (functional, reference))
    assert got.keys() == want.keys()
    for name, a in want.items():
        scale = max(1.0, np.abs(a).max(initial=0))
        assert np.abs(got[name] - a).max(initial=0) <= 1e-12 * scale, name
        assert np.isfinite(a).all(), name


@variants
def test_float32(variant: Variant) -> None:
    """Within twice the error of the reference in float32."""
    layer = variant.layer(np.float32)
    exact = variant.layer()
    exact.load_state_dict(layer.params)
    got, plain = (outputs(layer, module, variant) for module in (functional, reference))
    want = outputs(exact, reference, variant)
    for name, a in want.items():
        error, allowed = (np.abs(z[name] - a).max(initial=0) for z in (got, plain))
        floor = 32 * np.finfo(np.float32).eps * max(1.0, np.abs(a).max(initial=0))
        assert got[name].dtype == np.float32
        assert error <= 2 * allowed + floor, name


@variants
def test_same_bits(variant: Variant) -> None:
    """Whatever is kept, at all levels, on more threads."""
    layer = variant.layer(np.float32)
    want = outputs(layer, functional, variant)
    for checkpoint in CHECKPOINTS[1:]:
        got = outputs(layer, functional, variant, checkpoint=checkpoint)
        assert_same_bits(got, want, checkpoint)
    for level in isa.available():
        with isa.using(level):
            assert_same_bits(outputs(layer, functional, variant), want, level)


@variants
def test_rows_alone_and_steps(variant: Variant) -> None:
    """Forward bits of a row alone, step by step, and of inference where nothing is random."""
    layer = variant.layer(np.float32)
    x, keywords = arguments(dtype=np.float32)
    y, hx_n = layer(x, **keywords)
    b, n = 3, keywords["lengths"][3]
    alone, state = layer(x[:n, b : b + 1], resets=keywords["resets"][:n, b : b + 1])
    got = {"y": alone[:, 0]} | {f"{i}": s[:, 0] for i, s in enumerate(as_tuple(state))}
    want = {"y": y[:n, b]} | {f"{i}": s[:, b] for i, s in enumerate(as_tuple(hx_n))}
    assert_same_bits(got, want)

    causal = variant.layer(np.float32, bidirectional=False)
    y, hx_n = causal(x)
    stream = causal.stream(x.shape[1])
    assert_same_bits({"y": np.stack([stream.step(step) for step in x])}, {"y": y})
    if not variant.masked:
        recorded, last, _ = causal.record(x)
        assert_same_bits({"y": recorded}, {"y": y})
        assert_same_bits(dict(enumerate(as_tuple(last))), dict(enumerate(as_tuple(hx_n))))


@pytest.mark.parametrize("variant", [v for v in ALONE + MIXTURES if v.masked], ids=str)
def test_chunks_draw_what_the_whole_draws(variant: Variant) -> None:
    layer = variant.layer(np.float32, bidirectional=False, dropout=0.2)
    x = arguments(dtype=np.float32)[0]
    whole, last, _ = layer.record(x, dropout_seed=5, first_step=2)
    first, hx, _ = layer.record(x[:4], dropout_seed=5, first_step=2)
    rest, hx_n, _ = layer.record(x[4:], hx, dropout_seed=5, first_step=6)
    assert_same_bits({"y": np.concatenate([first, rest])}, {"y": whole})
    assert_same_bits(dict(enumerate(as_tuple(hx_n))), dict(enumerate(as_tuple(last))))


@pytest.mark.parametrize("variant", MIXTURES[::3], ids=str)
def test_inference_takes_expectations(variant: Variant) -> None:
    layer = variant.layer()
    x, keywords = arguments()
    name = variant.cls.__name__.lower()
    options = function_options(variant.options)
    want, state, _ = getattr(reference, f"{name}_forward")(
        x, layer.params, record=False, regularization=layer.regularization, **keywords, **options
    )
    y, hx_n = layer(x, **keywords)
    np.testing.assert_allclose(y, want, rtol=0, atol=1e-12 * max(1, np.abs(want).max()))
    for got, expected in zip(as_tuple(hx_n), as_tuple(state), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)
