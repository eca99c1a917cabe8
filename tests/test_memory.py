"""Memory that waits for the next call."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from support import Array

import rnnkern as rk
from rnnkern import _core, memory


@pytest.fixture(autouse=True)
def nothing_waits() -> Iterator[None]:
    gc.collect()
    memory._spare.clear()
    yield
    memory._spare.clear()


def address(a: Array) -> int:
    return int(a.ctypes.data)


def waiting() -> list[int]:
    return [block.nbytes for block in memory._spare.values()]


def test_blocks_are_aligned_and_come_back() -> None:
    for size in (0, 1, 100, memory.SMALL, memory.SMALL + 1, 3 * memory.SMALL):
        block = memory.new_block(size)
        assert (block.dtype, block.shape) == (np.uint8, (max(size, 1),))
        assert address(block) % _core.ALIGNMENT == 0
        assert block.flags.c_contiguous
        assert block.flags.writeable
        at = address(block)
        del block
        assert waiting() == ([size] if size >= memory.SMALL else [])
        if size >= memory.SMALL:
            assert address(memory.new_block(size)) == at
            memory._spare.clear()


def test_a_block_that_is_in_use_stays() -> None:
    array = memory.new_array((512, 512), np.float32)
    assert (array.shape, array.dtype) == ((512, 512), np.float32)
    part = array[3:, ::2].T
    at = address(array)
    del array
    assert waiting() == []
    assert address(memory.new_array((512, 512), np.float32)) != at
    part[:] = 1
    del part
    assert len(waiting()) == 2
    assert address(memory.new_array((512, 512), np.float32)) == at


@pytest.mark.parametrize(
    ("size", "fits"),
    [(1 << 20, True), (int(0.81 * (1 << 20)), True), (int(0.79 * (1 << 20)), False)],
)
def test_a_quarter_may_be_wasted(size: int, fits: bool) -> None:
    block = memory.new_block(1 << 20)
    at = address(block)
    del block
    assert (address(memory.new_block(size)) == at) == fits
    assert address(memory.new_block((1 << 20) + 1)) != at


def test_what_waits_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    n = memory.MOST_BLOCKS
    blocks = [memory.new_block(memory.SMALL + i) for i in range(n + 3)]
    while blocks:
        del blocks[0]
    assert waiting() == [memory.SMALL + i for i in range(3, n + 3)]
    monkeypatch.setattr(memory, "MOST", 5 * memory.SMALL)
    block = memory.new_block(2 * memory.SMALL)
    del block
    assert len(waiting()) == 3
    assert sum(waiting()) <= memory.MOST
    block = memory.new_block(6 * memory.SMALL)
    del block
    assert waiting() == []


def test_the_cache_can_be_emptied() -> None:
    kept, freed = memory.new_block(memory.SMALL), memory.new_block(memory.SMALL)
    del freed
    assert waiting()
    rk.empty_cache()
    assert waiting() == []
    kept[:] = 1
    del kept
    assert waiting()


def test_calls_use_the_memory_of_calls_before() -> None:
    layer = rk.LSTM(64, 128, seed=0)
    x = np.ones((40, 16, 64), np.float32)

    def train() -> tuple[Array, list[int]]:
        y, _, tape = layer.record(x)
        dx, _ = tape.backward(y)
        assert dx is not None
        return y, [address(y), address(dx)]

    y, first = train()
    copy = y.copy()
    other, second = train()
    np.testing.assert_array_equal(y, copy)  # it is the caller's, whatever runs later
    np.testing.assert_array_equal(other, copy)
    assert first[0] not in second
    del y, other
    blocks = sorted(waiting())
    y, third = train()
    assert {first[0], second[0]} & set(third)
    del y
    assert sorted(waiting()) == blocks


def test_threads_share_what_waits() -> None:
    rng = np.random.default_rng(0)
    layers = [rk.LSTM(32, hidden, seed=0) for hidden in (96, 128)]
    xs = [rng.standard_normal((steps, 16, 32), np.float32) for steps in (40, 44)]
    cases = [(layer, x) for layer in layers for x in xs]

    def train(layer: rk.LSTM, x: Array) -> list[Array]:
        y, _, tape = layer.record(x, num_threads=1)
        grads = layer.grads.zeros_like()
        dx, _ = tape.backward(y, grads=grads, num_threads=1)
        assert dx is not None
        return [y, dx, grads.flat]

    want = [[a.copy() for a in train(*case)] for case in cases]

    def work(seed: int) -> None:
        held: list[tuple[int, list[Array]]] = []
        for i in np.random.default_rng(seed).integers(0, len(cases), 30):
            held = [*held[-2:], (int(i), train(*cases[i]))]
            if i == 0:
                rk.empty_cache()
            for case, got in held:
                for a, b in zip(got, want[case], strict=True):
                    np.testing.assert_array_equal(a, b)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_outputs_are_ordinary_arrays() -> None:
    y, h = rk.GRU(8, 256, seed=0)(np.ones((20, 16, 8), np.float32))
    assert type(y) is type(h) is np.ndarray
    assert y.flags.c_contiguous
    assert y.flags.writeable
    assert y.flags.aligned
    assert y.nbytes > memory.SMALL


def test_the_end_of_the_process_finds_blocks_in_use() -> None:
    code = (
        "import rnnkern as rk, numpy as np, sys, builtins\n"
        "builtins.kept = rk.GRU(8, 256, seed=0)(np.ones((20, 16, 8), np.float32))[0]\n"
        "sys.kept = builtins.kept.T\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
