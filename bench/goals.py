"""The project's goals for speed, and whether the rows of a run meet them.

A row is what compare.py measures and writes: a dict with "work", "cell", "shape" [T, B, I, H],
"threads", "ms" {label: milliseconds}, "gflop" of the work, "peaks" {label: GFLOP/s}.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from peers import LIBRARIES, PEERS

Row = dict[str, Any]


def own_label(row: Row, against: str | None = None) -> str | None:
    """Which of rnnkern's times stands against another's.

    Frozen where the other has its weights prepared too; of several ways to do a step the fastest.
    """
    times = row["ms"]
    peer = PEERS.get(against.split()[0]) if against else None
    if "frozen" in times and peer is not None and peer.packs_once and against != "rnnkern":
        return "frozen"
    own = [label for label in times if label.split()[0] == "rnnkern"]
    return min(own, key=times.get, default=None)


def ratio(row: Row, label: str) -> float:
    """How many times longer `label` takes than rnnkern."""
    return row["ms"][label] / row["ms"][own_label(row, label)]


def least_ratio(row: Row, *libraries: str) -> float | None:
    """Over the fastest of these libraries; None where none was measured."""
    found = [ratio(row, label) for label in row["ms"] if label.split()[0] in libraries]
    return min(found, default=None)


def over_torch(row: Row) -> float | None:
    return least_ratio(row, "torch")


def over_best(row: Row) -> float | None:
    return least_ratio(row, *LIBRARIES)


def share_of_peak(row: Row, label: str | None = None) -> float | None:
    """Share of the machine's fused multiply-adds, measured in the same rounds.

    None where it was not measured, or cannot have been measured right: a busy machine slowed it.
    """
    label = label or own_label(row)
    if label not in row["peaks"]:
        return None
    share = 1e3 * row["gflop"] / row["ms"][label] / row["peaks"][label]
    return share if share <= 1.05 else None


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def name(row: Row) -> str:
    """Shape, or what else tells rows of one work apart."""
    return ",".join(map(str, row["shape"]))


@dataclass
class Goal:
    """A bound for every row (`each`) and for their geometric mean (`mean`), by thread count."""

    text: str
    value: Callable[[Row], float | None]
    each: dict[int, float]
    mean: dict[int, float] = field(default_factory=dict)
    where: dict[str, Any] = field(default_factory=dict)
    only: Callable[[Row], bool] = lambda row: True
    at_most: bool = False

    def values(self, rows, threads):
        """{row's name: value} of the rows that the goal speaks of."""
        return {
            f"{row['cell']} {name(row)}".strip(): value
            for row in rows
            if row["threads"] == threads and threads in self.each
            if all(row[key] == wanted for key, wanted in self.where.items()) and self.only(row)
            if (value := self.value(row)) is not None
        }

    def meets(self, value, bound):
        return value <= bound if self.at_most else value >= bound

    def line(self, rows, threads):
        """Cells of the goal's line: worst value, where, bound, mean, bound, met; None: no rows."""
        values = self.values(rows, threads)
        if not values:
            return None
        worst = (max if self.at_most else min)(values, key=values.get)
        met = self.meets(values[worst], self.each[threads])
        sign = "≤" if self.at_most else "≥"
        cells = [f"{values[worst]:.2f}", worst, f"{sign} {self.each[threads]:g}", "", ""]
        if threads in self.mean:
            mean = geometric_mean(values.values())
            met = met and self.meets(mean, self.mean[threads])
            cells[3:] = [f"{mean:.2f}", f"{sign} {self.mean[threads]:g}"]
        return [self.text, str(threads), *cells, "yes" if met else "**no**"]


def _shape_is(*sizes):
    return lambda row: tuple(row["shape"][2:]) in sizes


def _large(row):
    if row["work"] not in ("inference", "training"):
        return False
    _, rows, _, hidden = row["shape"]
    return rows >= 32 and hidden >= 256


def _both(value):
    return {1: value, 2: value}


def _over_torch(cell, work, each, *means):
    where = {"work": work, "cell": cell}
    text = f"{cell.upper()} {work} / torch"
    return Goal(text, over_torch, _both(each), dict(enumerate(means, 1)), where)


def _over_best(cell, work):
    where = {"work": work, "cell": cell}
    return Goal(f"{cell.upper()} {work} / best", over_best, _both(1.0), _both(1.25), where)


def _step(sizes, one, two):
    text = "step at " + " ".join(str(size).replace(" ", "") for size in sizes) + " / best"
    return Goal(text, over_best, {1: one, 2: two}, where={"work": "step"}, only=_shape_is(*sizes))


GOALS = [
    _over_torch("lstm", "inference", 1.05, 1.4, 1.7),
    _over_torch("lstm", "training", 1.25, 1.8, 2.0),
    _over_torch("gru", "inference", 1.25, 2.3, 2.3),
    _over_torch("gru", "training", 1.5, 4, 4),
    *(_over_best(cell, work) for cell in ("lstm", "gru") for work in ("inference", "training")),
    _step([(40, 64), (64, 128)], 4, 4),
    _step([(128, 256)], 3, 3),
    _step([(128, 512)], 1, 2.5),
    Goal("ragged training / torch packed", over_torch, _both(10), where={"work": "ragged"}),
    Goal("5 % resets / loop in torch", over_torch, _both(5), where={"work": "resets"}),
    Goal("share of peak, B ≥ 32, H ≥ 256", share_of_peak, _both(0.78), only=_large),
    Goal(
        "odd H / H rounded up",
        lambda row: 1 / ratio(row, "rounded up"),
        _both(1.15),
        where={"work": "odd"},
        at_most=True,
    ),
    Goal(
        "import beyond NumPy, ms",
        lambda row: row["ms"]["rnnkern"],
        {1: 30},
        where={"work": "import"},
        at_most=True,
    ),
    Goal(
        "installed size, MB",
        lambda row: row["megabytes"],
        {1: 5},
        where={"work": "import"},
        at_most=True,
    ),
]
