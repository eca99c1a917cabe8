"""What docs/streaming.md shows, run word for word."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import Array, assert_bits

import rnnkern as rk

TEXT = (Path(__file__).parent.parent / "docs" / "streaming.md").read_text(encoding="utf-8")


def blocks(mark: str) -> list[str]:
    """The code blocks behind the comment <!-- mark -->."""
    return re.findall(rf"<!-- {mark} -->\n```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.thread_unsafe(reason="writes a file")
def test_the_examples_run(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    found = blocks("run")
    assert len(found) == TEXT.count("```python") - 1  # all but the server
    for block in found:
        exec(block.replace("/tmp/", f"{tmp_path}/"), names)
    assert_bits(names["server"].state[0][:, names["b"]], np.zeros((2, 64), np.float32))


CLIENTS, FRAMES = 100, 40


async def client(port: int, seed: int) -> tuple[Array, Array]:
    """Joins after a while, sends some frames, reads the outputs, leaves."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((int(rng.integers(1, FRAMES)), 5), dtype=np.float32)
    await asyncio.sleep(0.3 * rng.random())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    y = []
    for frame in x:
        writer.write(frame.tobytes())
        y.append(np.frombuffer(await reader.readexactly(4 * 17), np.float32))
    if seed % 3 == 0:  # leaves in the middle of a frame; others with one on its way
        writer.write(b"half")
    elif seed % 3 == 1:
        writer.write(x[0].tobytes())
    writer.close()
    return x, np.stack(y)


async def clients(port: int) -> list[tuple[Array, Array]]:
    """More than the server has rows at first."""
    together = [client(port, seed) for seed in range(CLIENTS)]
    return await asyncio.wait_for(asyncio.gather(*together), 60)


@pytest.mark.thread_unsafe(reason="starts a server")
def test_the_server_gives_each_client_the_bits_of_its_sequence(tmp_path: Path) -> None:
    (code,) = blocks("server")
    (tmp_path / "server.py").write_text(code)
    layer = rk.LSTM(5, 17, 2, seed=0)
    layer.save(tmp_path / "model.npz")
    command = [sys.executable, "-u", "-W", "error", "server.py", "model.npz", "0"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stderr is not None
            address = server.stdout.readline().split()
            assert address, server.stderr.read()
            for _ in range(2):  # rows are given out again
                for x, y in asyncio.run(clients(int(address[1]))):
                    assert_bits(y, layer(x)[0])
            assert server.poll() is None
        finally:
            server.terminate()
        assert server.stderr.read() == ""
