"""What an LSTM costs, a GRU, and others: at equal width, equal parameters and equal time.

    python examples/worked/lstm_against_gru.py --input 40 --hidden 128 --steps 100 --rows 16

Shows why "the GRU is cheaper" needs to say at equal what: of an LSTM as wide it has three quarters
of the parameters and multiply-adds; with as many parameters it is wider by a sixth or so, and takes
about as long. Time follows multiply-adds where the matrices are large, and what a unit does beside
them where there is next to none, as in MinGRU and SRU. A training step is forward and backward on
one thread, the best of some. It does not show which layer learns a task better: for that they have
to be trained on it.
"""

import argparse
from functools import partial
from time import perf_counter

import numpy as np

import rnnkern as rk

LAYERS = [rk.LSTM, rk.GRU, rk.RNN, rk.MGU, rk.MinGRU, rk.SRU]
PANEL = 16  # units that the kernels compute together: what is between costs as the next multiple


class Work:
    """Sequences to be trained on."""

    def __init__(self, inputs, steps, rows, repeats=5):
        self.x = np.random.default_rng(0).standard_normal((steps, rows, inputs), np.float32)
        self.repeats = repeats

    def layer(self, cls, hidden):
        return cls(self.x.shape[-1], hidden, seed=0)

    def parameters(self, cls, hidden):
        return self.layer(cls, hidden).flat_params.size

    def milliseconds(self, cls, hidden):
        """Of one training step, the best of some: others on the machine only make it longer."""
        layer, best = self.layer(cls, hidden), np.inf
        dy = np.ones((*self.x.shape[:2], hidden), np.float32)
        for _ in range(self.repeats):
            start = perf_counter()
            _, _, tape = layer.record(self.x, num_threads=1)
            tape.backward(dy, num_threads=1)
            best = min(best, perf_counter() - start)
        return 1000 * best


def nearest(cost, goal, grain=1):
    """The width, a multiple of grain, whose cost is nearest to the goal; costs grow with widths."""
    low, high = 1, 2
    while cost(high * grain) < goal:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(middle * grain) < goal else (low, middle)
    return min((low * grain, high * grain), key=lambda units: abs(cost(units) - goal))


def widths(work, hidden):
    """For each comparison the width of every layer."""

    def equal(cost, grain=1):
        goal = cost(rk.LSTM, hidden)
        others = {cls: nearest(partial(cost, cls), goal, grain) for cls in LAYERS[1:]}
        return {rk.LSTM: hidden, **others}

    return {
        "width": dict.fromkeys(LAYERS, hidden),
        "parameters": equal(work.parameters),
        "time": equal(work.milliseconds, PANEL),
    }


def row(work, cls, hidden):
    """What is printed about a layer."""
    steps, rows, _ = work.x.shape
    description = work.layer(cls, hidden).describe(steps, rows)
    return {
        "layer": cls.__name__,
        "units": hidden,
        "parameters": description.parameter_count,
        "multiply-adds": sum(description.multiply_adds),
        "tape": description.bytes["tape"],
        "ms": work.milliseconds(cls, hidden),
    }


def compare(work, hidden):
    """For each comparison the rows of its table."""
    return {
        equal: [row(work, cls, units) for cls, units in chosen.items()]
        for equal, chosen in widths(work, hidden).items()
    }


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=int, default=32, help="features of x")
    parser.add_argument("--hidden", type=int, default=64, help="units of the LSTM")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--rows", type=int, default=16)
    options = parser.parse_args(argv)
    tables = compare(Work(options.input, options.steps, options.rows), options.hidden)
    head = ("layer", "units", "parameters", "multiply-adds a step", "tape bytes", "ms a step")
    for equal, rows in tables.items():
        print(f"\nat equal {equal}")
        print("{:8}{:>6}{:>12}{:>22}{:>14}{:>11}".format(*head))
        for line in rows:
            print("{:8}{:>6}{:>12,}{:>22,}{:>14,}{:>11.3f}".format(*line.values()))
    return tables


if __name__ == "__main__":
    main()
