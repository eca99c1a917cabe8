"""What the thread team costs: `pytest bench/`, times of 1000 barriers and of one call."""

import time

import pytest
from native import Team

THREADS = 2


@pytest.fixture(scope="module")
def team():
    return Team(THREADS)


def test_barrier(benchmark, team):
    """1000 barriers in one call: in ms what one takes in µs."""
    benchmark(team, 1, 1000)


def test_call_of_waiting_team(benchmark, team):
    """Workers still spin from the call before."""
    benchmark(team, 1, 0)


def test_call_of_sleeping_team(benchmark, team):
    """Workers have gone to sleep."""
    benchmark.pedantic(team, (1, 0), setup=lambda: time.sleep(0.005), rounds=100)
