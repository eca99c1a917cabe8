"""Remember two digits while zeros pass, then name their sum: how far back can a network learn from?

    python examples/memory/digit_sum.py --seeds 5 --torch --csv sums.csv --plot sums.png

Sequences are two digits and then zeros, the label is the sum (19 classes), and the answer is read
off the last state. 400 random rows in batches of 16, embedding 32, hidden 32, Adam 0.001, at most
500 epochs, until training accuracy was 1 in three epochs running, gradients not clipped (--max-norm
clips them); tested on all 100 pairs, of which some two were never shown. Chance is 0.1 (the sum 9).

Shows at which distance each cell stops to find the two digits at all: the gradient that would have
to say so has shrunk on its way back. A forget gate that starts nearly open (lstm+1, lstm+3) carries
it further. Success proves no general algorithm: each network is tested at the one length it was
trained at, on a table of 100 sums most of which it was shown; nothing says that it can add, or wait
any longer. Failure is that of training within the epochs given, not of what the cell could compute.
"""

from dataclasses import replace

import numpy as np
from experiment import Setup, finish, parse, parser, rate, sweep, table, whole

ROWS, EPOCHS = 400, 500
SETUP = Setup(symbols=10, classes=19)


def sequences(pairs, length):
    """Pairs of digits (N, 2), zeros behind them: x (length, N) and the sums (1, N)."""
    x = np.zeros((length, len(pairs)), int)
    x[:2] = pairs.T
    return x, pairs.sum(axis=1)[None]


class DigitSum:
    """The task at one length."""

    def __init__(self, length, rows, batch):
        self.length, self.rows, self.batch = length, rows, batch

    def epochs(self, rng):
        """Endless epochs over one set of rows, each in another order."""
        x, sums = sequences(rng.integers(0, 10, (self.rows, 2)), self.length)
        while True:
            order = rng.permutation(self.rows)
            parts = [order[i : i + self.batch] for i in range(0, self.rows, self.batch)]
            yield [(x[:, part], sums[:, part]) for part in parts]

    def tests(self, _):
        """All pairs there are."""
        return {self.length: sequences(np.indices((10, 10)).reshape(2, -1).T, self.length)}


def options(argv):
    made = parser(__doc__, seeds=5, epochs=EPOCHS, cells="rnn lstm lstm+1 lstm+3 gru")
    lengths = [10, 20, 25, 30, 35]
    made.add_argument("--lengths", type=whole(2), nargs="+", default=lengths, metavar="T")
    made.add_argument("--rows", type=whole(1), default=ROWS, help=f"to train on ({ROWS})")
    made.add_argument("--batch", type=whole(1), default=16, help="rows a step (16)")
    clip = "bound of the gradient's norm (none, as in the protocol)"
    made.add_argument("--max-norm", type=rate, default=np.inf, metavar="NORM", help=clip)
    return parse(made, argv)


def main(argv=None):
    chosen = options(argv)

    def make(length):
        return DigitSum(length, chosen.rows, chosen.batch), replace(SETUP, max_norm=chosen.max_norm)

    results = sweep(chosen, "length", chosen.lengths, make)
    parts = [
        f"Sum of two digits, accuracy on all pairs, {chosen.seeds} seed(s):",
        table(results, ["length"], "cell"),
        "Tested at the length of training alone: success proves no general algorithm.",
    ]
    picture = {"x": "length", "chance": 0.1, "title": "Sum of two digits at the start of zeros"}
    finish(chosen, results, *parts, **picture)
    return results


if __name__ == "__main__":
    main()
