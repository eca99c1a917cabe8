"""What is measured: single layers of every cell, with weights and inputs that all peers share."""

import argparse
from dataclasses import dataclass
from functools import cached_property

import numpy as np

GATES = {"rnn": 1, "lstm": 4, "gru": 3, "gru_before": 3}
SHAPES = [
    (100, 1, 64, 64),
    (100, 1, 128, 256),
    (100, 16, 128, 128),
    (100, 32, 256, 256),
    (256, 64, 128, 512),
    (50, 128, 512, 1024),
    (35, 20, 650, 650),
    (1000, 1, 80, 512),
    (256, 128, 100, 128),
]
STEP_SHAPES = [(1, 1, 40, 64), (1, 1, 64, 128), (1, 1, 128, 256), (1, 1, 128, 512)]
RAGGED_SHAPE, RESET_SHAPE = (256, 128, 100, 128), (128, 16, 64, 256)
VARIANT_SHAPES = [(100, 1, 128, 256), (100, 16, 128, 128), (100, 32, 256, 256)]
ODD_SHAPES = [(50, rows, 64, hidden) for hidden in (20, 48, 100, 150, 650) for rows in range(1, 10)]


def parse_shape(text):
    """T,B,I,H of a command line."""
    sizes = tuple(int(n) for n in text.split(","))
    if len(sizes) != 4 or min(sizes) < 1:
        raise argparse.ArgumentTypeError(f"expected T,B,I,H, got {text!r}")
    return sizes


@dataclass(frozen=True)
class Problem:
    """One unidirectional layer of shape (T, B, I, H), its input, state and output gradient."""

    cell: str
    shape: tuple[int, int, int, int]
    threads: int = 1
    dtype: str = "float32"
    ragged: bool = False  # lengths of mean about 0.9 T
    resets_rate: float = 0.0

    @cached_property
    def _rng(self):
        return np.random.default_rng(0)

    def _normal(self, *shape):
        return self._rng.standard_normal(shape, np.float32).astype(self.dtype)

    @cached_property
    def params(self):
        """Torch's names, shapes, order and first values."""
        _, _, inputs, hidden = self.shape
        gates = GATES[self.cell] * hidden
        shapes = {"weight_ih_l0": (gates, inputs), "weight_hh_l0": (gates, hidden)}
        shapes |= {"bias_ih_l0": (gates,), "bias_hh_l0": (gates,)}
        bound = 1 / np.sqrt(hidden)
        return {
            name: self._rng.uniform(-bound, bound, shape).astype(self.dtype)
            for name, shape in shapes.items()
        }

    @cached_property
    def x(self):
        return self._normal(*self.shape[:3])

    @cached_property
    def dy(self):
        steps, rows, _, hidden = self.shape
        return self._normal(steps, rows, hidden)

    @cached_property
    def states(self):
        """The parts of the initial state, (1, B, H) each: h, and for the LSTM c.

        Zero for single steps, since that is where a stream starts.
        """
        steps, rows, _, hidden = self.shape
        parts = 1 + (self.cell == "lstm")
        scale = np.asarray(steps > 1, self.dtype)
        return tuple(scale * self._normal(1, rows, hidden) for _ in range(parts))

    @property
    def hx(self):
        """The initial state as rnnkern and torch take it."""
        return self.states if len(self.states) > 1 else self.states[0]

    @cached_property
    def lengths(self):
        """Of the rows, uniform from 0.8 T to T; None where all are T."""
        steps, rows = self.shape[:2]
        rng = np.random.default_rng(1)
        return rng.integers(steps * 4 // 5, steps, rows, endpoint=True) if self.ragged else None

    @cached_property
    def resets(self):
        rng = np.random.default_rng(1)
        return rng.random(self.shape[:2]) < self.resets_rate if self.resets_rate else None

    @property
    def gflop(self):
        """10^9 operations of a forward call's products; training does three times as many."""
        steps, rows, inputs, hidden = self.shape
        real_rows = self.lengths.sum() if self.ragged else steps * rows
        return 2e-9 * float(real_rows) * GATES[self.cell] * hidden * (inputs + hidden)
