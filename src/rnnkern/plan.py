"""What a call will do, before it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from . import _core
from .structure import Structure, cell_options

if TYPE_CHECKING:
    from .regularization import Regularization

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
        path: which kernels run: "fused", all gates of a step in one matrix multiply, and on its
            results, while they are in the cache, a function made for the cell; or "fused, with
            options": the same with a function that looks at every option, which takes longer where
            a step is short.
        options: what is not plain about the layer and the call, such as "peephole=True" or
            "gate=hard_sigmoid"; of regularisation what acts in this call.
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
    options: tuple[str, ...]
    level: str
    threads: int
    split: Literal["rows", "units"] | None
    tiles: tuple[int, int, int]
    chunk_rows: int
    checkpoint: str
    bytes: dict[str, int]
    reason: str


def plan_of(
    structure: Structure,
    call: _core.Call,
    bytes: dict[str, int],
    regularization: Regularization | None,
) -> Plan:
    """The plan of a call on a network that needs so many bytes."""
    net = structure.net()
    own_functions, reason, threads, tiles, chunk_rows = _core.plan(net, call)
    return Plan(
        path="fused" if own_functions else "fused, with options",
        options=_options(structure, call, regularization),
        level=_core.level_names()[net.level],
        threads=threads,
        split=_SPLITS.get(reason),
        tiles=tiles,
        chunk_rows=chunk_rows,
        checkpoint=_CHECKPOINTS.get(call.keep, f"states of every {call.segment} steps"),
        bytes=bytes,
        reason=_WHY[reason],
    )


def _options(
    structure: Structure, call: _core.Call, regularization: Regularization | None
) -> tuple[str, ...]:
    options = structure.options
    usual = cell_options(options.name)
    used: dict[str, Any] = {}
    used |= {name: getattr(structure, name) for name in ("proj_size", "peephole", "layer_norm")}
    used |= {name: getattr(options, name) for name in ("coupled", "clip", "cell_clip")}
    for part in structure.cell.functions:
        function = getattr(options, part)
        used[part] = None if function == getattr(usual, part) else function
    for name, value in {} if regularization is None else vars(regularization).items():
        if call.keep != _core.KEEP_NONE or name.startswith("zoneout"):
            used[name] = value
    return tuple(f"{name}={value}" for name, value in used.items() if value)
