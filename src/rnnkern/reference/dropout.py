"""Masks: dropout in its kinds, and zoneout. They are drawn by a counter instead of a state.

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3"
(SC 2011), is a keyed bijection of 128-bit counters. The counter here is the place of an element:
whether it is kept depends on the seed and on that place, and on nothing that was drawn before,
so threads, chunks and recomputation cannot change a mask.

What is masked, in the order of KINDS:

dropout            outputs of all layers but the last; Zaremba, Sutskever and Vinyals, "Recurrent
                   neural network regularization" (2014)
input_dropout      x of the first layer
output_dropout     y of the last layer
hidden_dropout     h on its way to the recurrent product; this and the two before with one mask
                   for all steps, as in Gal and Ghahramani, "A theoretically grounded application
                   of dropout in recurrent neural networks" (NIPS 2016)
candidate_dropout  what a gated cell would write into its state; Semeniuta, Severyn and Barth,
                   "Recurrent dropout without memory loss" (COLING 2016)
zoneout_h, _c      elements of a state that keep their value for a step; Krueger et al., "Zoneout:
                   regularizing RNNs by randomly preserving hidden activations" (ICLR 2017)
weight_dropout     elements of weight_hh; Merity, Keskar and Socher, "Regularizing and optimizing
                   LSTM language models" (ICLR 2018)
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
WORD = 0xFFFFFFFF

KINDS = {
    "dropout": 0,
    "input_dropout": 1,
    "output_dropout": 2,
    "hidden_dropout": 3,
    "candidate_dropout": 4,
    "zoneout_h": 5,
    "zoneout_c": 6,
    "weight_dropout": 7,
}
OF_ANY_CELL = ("dropout", "input_dropout", "output_dropout")


def philox4x32(counter: tuple[npt.ArrayLike, ...], key: tuple[int, int]) -> Array:
    """Encrypt counters of four 32-bit words each, given as four arrays that broadcast.

    Returns an array of the broadcast shape with one more axis, the four words of the result,
    as uint64 that hold 32 bits each.
    """
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(c, np.uint64) for c in counter))
    k0, k1 = key
    m0, m1 = (np.uint64(m) for m in MULTIPLIERS)
    word, half = np.uint64(WORD), np.uint64(32)
    for _ in range(ROUNDS):
        p0, p1 = m0 * c0, m1 * c2  # the full 64-bit products
        c0, c1, c2, c3 = (
            (p1 >> half) ^ c1 ^ np.uint64(k0),
            p1 & word,
            (p0 >> half) ^ c3 ^ np.uint64(k1),
            p0 & word,
        )
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD, (k1 + KEY_STEPS[1]) & WORD
    return np.stack([c0, c1, c2, c3], axis=-1)


def kept(
    p: float,
    seed: int,
    layer: int,
    shape: tuple[int, int, int],
    *,
    kind: int = KINDS["dropout"],
    direction: int = 0,
    first_step: int = 0,
) -> Array:
    """The elements (steps, rows, units) that a mask of one direction with probability p keeps.

    Key: the low and the high word of seed. Counter: unit // 4, row, step, and
    layer | kind << 16 | direction << 24; word unit % 4 of the result decides.
    """
    steps, rows, units = shape
    t, b, quads = np.ogrid[:steps, :rows, : -(-units // 4)]
    place = layer | kind << 16 | direction << 24
    words = philox4x32((quads, b, first_step + t & WORD, place), (seed & WORD, seed >> 32)).reshape(
        steps, rows, quads.size * 4
    )[:, :, :units]
    return words >= np.uint64(int(p * 2**32))  # p * 2**32 is exact, int() its floor


def scale(p: float, dtype: npt.DTypeLike) -> Any:
    """What kept values are multiplied by, so that the mean stays: 1 / (1 - p) as a dtype scalar."""
    return np.asarray(1 / (1 - p) if p < 1 else 0, dtype)[()]


@dataclass(frozen=True)
class Mask:
    """Of a sequence. What it drops is 0, even if it was NaN; without `kept` it does nothing.

    The same function takes values forward and gradients back.
    """

    kept: Array | None = None  # (T or 1, B, units)
    scale: Any = 1

    def __call__(self, a: Array) -> Array:
        return a if self.kept is None else np.where(self.kept, a * self.scale, 0)


@dataclass(frozen=True)
class StepMasks:
    """What one step of some rows multiplies by."""

    hidden: Array  # factors of h, (rows, P)
    candidate: Array  # factors, (rows, H)
    zoneout: dict[str, Array]  # by state: 1 where it keeps its value, or between, the expectation


@dataclass(frozen=True)
class SweepMasks:
    """Those of one direction of one layer; an axis of length 1 stands for all steps."""

    hidden: Array  # (1, B, P)
    candidate: Array  # (T, B, H)
    zoneout: dict[str, Array]  # (T, B, units)
    weight: Array | None  # factors of weight_hh

    def at(self, t: int, on: Array) -> StepMasks:
        """Of step t, for the rows that are on."""
        zoneout = {name: z[t, on] for name, z in self.zoneout.items()}
        return StepMasks(self.hidden[0, on], self.candidate[t, on], zoneout)


@dataclass(frozen=True)
class Plan:
    """What a call masks: the probabilities by name, and how their masks are drawn."""

    p: dict[str, float]
    variational: bool
    seed: int
    first_step: int
    record: bool  # without it nothing is drawn, and zoneout takes its expectation
    dtype: Any

    @classmethod
    def of(
        cls,
        cell: str,
        known: Collection[str],
        dropout: float,
        regularization: Any,
        seed: int,
        first_step: int,
        record: bool,
        dtype: npt.DTypeLike,
    ) -> "Plan":
        """From the options of a call of a cell that knows these kinds of masks.

        regularization: None, or any object with the attributes of `rnnkern.Regularization`.
        """
        p = dict.fromkeys(KINDS, 0.0) | {"dropout": dropout}
        if regularization is not None:
            names = [name for name in KINDS if name != "dropout"]
            missing = [
                name for name in (*names, "variational") if not hasattr(regularization, name)
            ]
            if missing:
                raise TypeError(
                    f"regularization: expected attributes {missing}, got {regularization!r}"
                )
            p |= {name: getattr(regularization, name) for name in names}
        for name, value in p.items():
            if not 0 <= value <= 1:
                raise ValueError(f"{name}: expected a probability from 0 to 1, got {value}")
            if value and name not in (*OF_ANY_CELL, *known):
                raise ValueError(f"regularization: {cell} has no {name}, expected 0, got {value}")
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed: expected 0 <= seed < 2**64, got {seed}")
        if not 0 <= first_step < 2**32:
            raise ValueError(f"first_step: expected 0 <= first_step < 2**32, got {first_step}")
        variational = regularization is not None and bool(regularization.variational)
        return cls(p, variational, int(seed), int(first_step), record, dtype)

    def kept(self, name: str, layer: int, direction: int, T: int, rows: int, units: int) -> Array:
        """(T, rows, units), or (1, rows, units) if one mask is for all steps."""
        per_step = name in ("candidate_dropout", "zoneout_h", "zoneout_c")
        if name == "dropout":
            per_step = not self.variational
        return kept(
            self.p[name],
            self.seed,
            layer,
            (T if per_step else 1, rows, units),
            kind=KINDS[name],
            direction=direction,
            first_step=self.first_step if per_step else 0,
        )

    def sequence(self, name: str, layer: int, T: int, B: int, units: int, D: int = 1) -> Mask:
        """Of D directions with so many units each."""
        if not self.record or not self.p[name]:
            return Mask()
        parts = [self.kept(name, layer, d, T, B, units) for d in range(D)]
        return Mask(np.concatenate(parts, axis=2), scale(self.p[name], self.dtype))

    def factors(
        self, name: str, layer: int, direction: int, T: int, rows: int, units: int
    ) -> Array:
        if not self.record or not self.p[name]:
            return np.broadcast_to(np.ones((), self.dtype), (T, rows, units))
        mask = self.kept(name, layer, direction, T, rows, units)
        return np.where(mask, scale(self.p[name], self.dtype), np.zeros((), self.dtype))

    def zoneout(self, name: str, layer: int, direction: int, T: int, rows: int, n: int) -> Array:
        if not self.record:
            return np.broadcast_to(np.asarray(self.p[name], self.dtype), (T, rows, n))
        return (~self.kept(name, layer, direction, T, rows, n)).astype(self.dtype)

    def sweep(
        self,
        layer: int,
        direction: int,
        T: int,
        B: int,
        H: int,
        widths: dict[str, int],
        weight_hh: tuple[int, ...] | None,
    ) -> SweepMasks:
        """For states of these widths, by name; and a weight_hh of this shape."""
        place = (layer, direction)
        weight = None
        if self.p["weight_dropout"] and weight_hh is not None:
            (weight,) = self.factors("weight_dropout", *place, 1, *weight_hh)
        return SweepMasks(
            self.factors("hidden_dropout", *place, 1, B, widths.get("h", 0)),
            self.factors("candidate_dropout", *place, T, B, H),
            {
                name: self.zoneout(f"zoneout_{name}", *place, T, B, width)
                for name, width in widths.items()
                if self.p[f"zoneout_{name}"]
            },
            weight,
        )
