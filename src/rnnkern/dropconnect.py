"""DropConnect on the recurrent weights: U m in place of U, one mask m for a call.

Merity, Keskar & Socher, "Regularizing and optimizing LSTM language models" (ICLR 2018). Masks are
drawn again where they are needed, from their seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from . import _core
from .structure import Structure
from .validation import Array

Weights = list[Array | None]
"""As Structure.split has them."""


class DropConnect(NamedTuple):
    """The masks of a call."""

    structure: Structure
    level: int
    probability: float
    seed: int

    def _masks(self) -> Iterator[tuple[int, Array]]:
        """Each mask, and the place of its weight_hh among the weights."""
        structure = self.structure
        rows, columns = structure.weight_shapes(0)["weight_hh"]
        for sweep, place in enumerate(structure.places("weight_hh")):
            layer, direction = divmod(sweep, structure.num_directions)
            yield (
                place,
                _core.draw_masks(
                    structure.dtype, self.level, "weights", self.probability, self.seed,
                    layer, direction, 0, 0, rows, columns,
                ),
            )  # fmt: skip

    def drop(self, weights: Weights) -> Weights:
        """What the kernels compute with."""
        dropped = list(weights)
        for place, mask in self._masks():
            dropped[place] = weights[place] * mask
        return dropped

    def divert(self, targets: Weights) -> tuple[Weights, Callable[[], None]]:
        """Where the kernels add gradients of what they computed with, and what moves them on."""
        diverted = list(targets)
        for place in self.structure.places("weight_hh"):
            diverted[place] = np.zeros_like(targets[place])

        def move() -> None:
            for place, mask in self._masks():
                with np.errstate(invalid="ignore"):  # infinities are values
                    targets[place] += diverted[place] * mask

        return diverted, move
