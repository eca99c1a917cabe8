"""Fused kernels against the unfused C path, and what training adds: `pytest bench/`, one thread."""

import pytest
from measure import check_agreement
from peers import contenders_for
from workloads import GATES, Problem

SHAPES = [(100, 1, 64, 64), (100, 16, 128, 128), (100, 32, 256, 256)]

pytestmark = [
    pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: ",".join(map(str, shape))),
    pytest.mark.parametrize("cell", GATES),
]


@pytest.mark.parametrize("path", ["rnnkern", "frozen", "unfused"])
def test_inference(benchmark, cell, shape, path):
    functions = contenders_for("inference", Problem(cell, shape), ["rnnkern", "unfused"])
    check_agreement({label: function() for label, function in functions.items()})
    benchmark.group = f"{cell} inference {shape}"
    benchmark(functions[path])


def test_training(benchmark, cell, shape):
    functions = contenders_for("training", Problem(cell, shape), ["rnnkern"])
    benchmark.group = f"training {shape}"
    benchmark(functions["rnnkern"])
