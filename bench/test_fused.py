"""Fused kernels against the unfused C path: `pytest bench/` (pytest-benchmark), one thread."""

import numpy as np
import pytest
from workloads import Workload

SHAPES = [(100, 1, 64, 64), (100, 16, 128, 128), (100, 32, 256, 256)]


@pytest.mark.parametrize("path", ["fused", "unfused"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_inference(benchmark, cell, shape, path):
    work = Workload(cell, shape)
    np.testing.assert_allclose(work.unfused(), work.fused(), atol=1e-5)
    benchmark.group = f"{cell} inference {shape}"
    benchmark(getattr(work, path))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_training(benchmark, cell, shape):
    work = Workload(cell, shape)
    benchmark.group = f"{cell} training {shape}"
    benchmark(work.fused_training)
