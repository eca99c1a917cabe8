"""Fixtures, and the marks that the tests use."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support import CELLS, DTYPES

from rnnkern import isa


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "thread_unsafe: changes the process (pytest-run-parallel)")


@pytest.fixture(params=isa.available())
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test at every SIMD level of this machine."""
    with isa.using(request.param):
        yield request.param


@pytest.fixture(params=DTYPES, ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> type[np.floating]:
    return request.param


@pytest.fixture(params=CELLS)
def cell(request: pytest.FixtureRequest) -> str:
    return request.param
