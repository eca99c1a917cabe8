"""Sigmoid and tanh of the kernels: within 2 ulp, and right at special values, at every level."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rnnkern import _core, check, isa

pytestmark = pytest.mark.thread_unsafe  # the level fixture changes the whole process

BREAKS = [0.0, 0.55, 0.5, 1.0, 10.0, 20.0, 22.0, 44.0, 87.3, 88.0, 104.0, 708.3, 745.2]
"""Where the formulas change, or the results saturate."""


def activate(name: str, x: Any) -> Any:
    return _core.activate(isa.level(), name, x)


def samples(dtype: Any) -> Any:
    """Dense where results vary, in all magnitudes, and every value around the breaks."""
    rng = np.random.default_rng(0)
    pieces = [
        rng.uniform(-1, 1, 400_000),
        rng.uniform(-50, 50, 400_000),
        rng.uniform(-760, 760, 200_000),
        np.exp(rng.uniform(np.log(np.finfo(dtype).tiny), 0, 200_000)),
        -np.exp(rng.uniform(np.log(np.finfo(dtype).tiny), 0, 200_000)),
    ]
    bits = np.int32 if dtype == np.float32 else np.int64
    for b in BREAKS[1:]:
        middle = np.array(b, dtype).view(bits)
        near = (middle + np.arange(-2000, 2000, dtype=bits)).view(dtype)
        pieces += [near, -near]
    return np.concatenate([p.astype(dtype) for p in pieces])


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_two_ulp(name: str, dtype: Any, level: str) -> None:
    """Against extended precision; results that are no normal numbers are flushed to zero."""
    if np.finfo(np.longdouble).nmant < 60:
        pytest.skip("this machine has no extended precision")
    x = samples(dtype)
    want = check.exact(name, x.astype(np.longdouble))
    got = activate(name, x)
    tiny = np.finfo(dtype).tiny
    normal = np.abs(want) >= tiny * np.longdouble(1 + 2.0**-20)
    assert normal.mean() > 0.9
    _, exponent = np.frexp(want)
    ulp = np.ldexp(np.longdouble(1), exponent - 1 - np.finfo(dtype).nmant)
    error = np.where(normal, np.abs(got.astype(np.longdouble) - want) / ulp, 0)
    worst = int(np.argmax(error))
    assert error[worst] <= 2, f"{name}({x[worst].item().hex()}) is {error[worst]:.3f} ulp off"
    assert (np.abs(got[~normal]) <= tiny).all()
    assert (np.abs(got) <= 1).all()
    assert (np.signbit(got) == np.signbit(want)).all()


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_special_values(name: str, dtype: Any, level: str) -> None:
    subnormal = np.finfo(dtype).smallest_subnormal
    x = np.array([0.0, -0.0, np.inf, -np.inf, subnormal, -subnormal, 1e30, -1e30], dtype)
    want = {
        "sigmoid": [0.5, 0.5, 1, 0, 0.5, 0.5, 1, 0],
        "tanh": [0.0, -0.0, 1, -1, 0.0, -0.0, 1, -1],
    }[name]
    got = activate(name, x)
    assert (got == want).all()
    assert (np.signbit(got) == np.signbit(want)).all()
    for nan in (np.nan, -np.nan):
        for lanes in (1, 3, 17):  # NaN stays in its lane
            x = np.ones(lanes, dtype)
            x[lanes // 2] = nan
            assert (np.isnan(activate(name, x)) == np.isnan(x)).all()


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 33])
def test_sizes(n: int, dtype: Any, level: str) -> None:
    x = np.linspace(-3, 3, n).astype(dtype)
    y = activate("tanh", x)
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    np.testing.assert_allclose(y, np.tanh(x), rtol=4 * np.finfo(dtype).eps)
