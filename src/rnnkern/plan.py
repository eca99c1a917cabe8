"""What a call will do, before it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from . import _core

_WHY = {
    "one allowed": "num_threads is 1",
    "small work": "the call is too short to be worth waking a team for",
    "small matrix": "there are few rows, and one core reads the recurrent matrix fast enough",
    "one share": "there is only one row, or one panel of 16 units, to share out",
    "rows": "there are rows enough for all: each thread runs its own through all steps",
    "units": "there are few rows: each thread computes its own units and they meet at every step",
}
_SPLITS: dict[str, Literal["rows", "units"]] = {"rows": "rows", "units": "units"}
_CHECKPOINTS = {
    _core.KEEP_NONE: "nothing, inference",
    _core.KEEP_GATES: "gates of every step",
    _core.KEEP_STATES: "states of every step",
}


@dataclass(frozen=True)
class Plan:
    """What a call will do: the result of ``layer.plan``.

    Attributes:
        path: which kernels run: "fused", all gates of a step in one matrix multiply.
        level: the SIMD level.
        threads: threads that work on the call.
        split: what they share out: "rows" of the batch (no waiting between steps) or hidden
            "units" (a barrier at each step); None for one thread.
        tiles: the register tile: rows of the batch, vectors, units of a vector.
        chunk_rows: (step, row) pairs whose inputs are projected ahead of the recurrence.
        checkpoint: what the tape keeps.
        bytes: what the call allocates, as ``layer.memory_estimate``.
        reason: why so many threads, and why this split.
    """

    path: str
    level: str
    threads: int
    split: Literal["rows", "units"] | None
    tiles: tuple[int, int, int]
    chunk_rows: int
    checkpoint: str
    bytes: dict[str, int]
    reason: str


def plan_of(net: _core.Net, call: _core.Call, bytes: dict[str, int]) -> Plan:
    """The plan of a call on a network that needs so many bytes."""
    reason, threads, tiles, chunk_rows = _core.plan(net, call)
    segment = f"states of every {call.segment} steps"
    return Plan(
        path="fused",
        level=_core.level_names()[net.level],
        threads=threads,
        split=_SPLITS.get(reason),
        tiles=tiles,
        chunk_rows=chunk_rows,
        checkpoint=_CHECKPOINTS.get(call.keep, segment),
        bytes=bytes,
        reason=_WHY[reason],
    )
