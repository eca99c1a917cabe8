"""Copy ten symbols after a delay (Hochreiter & Schmidhuber 1997; here as Arjovsky et al. 2016).

    python examples/memory/copy_memory.py --seeds 1 --csv copy.csv --plot copy.png

Input: 10 random symbols of 8, then blanks, a mark that asks for them, and 10 blanks more. Answer: a
blank at every step until the mark has come, then the 10 symbols in their order. A network without
memory gets one symbol in eight. Fresh sequences at every step, one delay in training; tested at
that delay and at longer ones, on 200 sequences, by the share of the symbols recalled.

Shows what a gated state of fixed size holds, and for how long. Success at the delay of training
proves no general algorithm: a network may count the steps instead of waiting for the mark, or hold
its state just well enough. Tests at longer delays, where nothing but the number of blanks differs,
tell the two apart; even those it passes prove nothing about delays, numbers of symbols or alphabets
beyond them. Failure within the epochs given is one of training, not of what the cell could compute.
"""

import numpy as np
from experiment import FreshSequences, Setup, finish, parse, parser, rate, sweep, table, whole

SYMBOLS, LENGTH, BLANK, MARK = 8, 10, 8, 9
BATCH, BATCHES, TEST_ROWS = 32, 50, 200


def sequences(rng, delay, rows):
    """x and targets, both (delay + 20, rows)."""
    symbols = rng.integers(0, SYMBOLS, (LENGTH, rows))
    x, targets = np.full((2, delay + 2 * LENGTH, rows), BLANK)
    x[:LENGTH] = targets[-LENGTH:] = symbols
    x[-LENGTH - 1] = MARK  # the last step of the delay
    return x, targets


def options(argv):
    made = parser(__doc__, seeds=1, epochs=120, cells="rnn lstm+1 lstm+3 lstm+5 gru")
    add = made.add_argument
    add(
        "--delays", type=whole(1), nargs="+", default=[20, 50, 100], metavar="T", help="to train at"
    )
    tested = [20, 50, 100, 200]
    add("--test-delays", type=whole(1), nargs="+", default=tested, metavar="T")
    add("--hidden", type=whole(1), default=128, metavar="H", help="units (128)")
    add("--lr", type=rate, default=0.005, help="of Adam (0.005)")
    return parse(made, argv)


def main(argv=None):
    chosen = options(argv)
    setup = Setup(
        symbols=SYMBOLS + 2,
        classes=SYMBOLS + 1,
        hidden=chosen.hidden,
        orthogonal=True,
        lr=chosen.lr,
        max_norm=1.0,
        judged=LENGTH,
        enough=0.999,
    )

    def make(delay):
        tested = chosen.test_delays
        return FreshSequences(sequences, delay, tested, BATCH, BATCHES, TEST_ROWS), setup

    results = sweep(chosen, "trained", chosen.delays, make)
    parts = [
        f"Copy memory: symbols recalled by delay, {chosen.seeds} seed(s); chance is 0.125:",
        table(results, ["trained", "cell"], "tested"),
        "Success at the delay of training proves no general algorithm; see the longer ones.",
    ]
    picture = {"x": "tested", "panel": "trained", "chance": 1 / SYMBOLS, "xlabel": "delay in test"}
    finish(chosen, results, *parts, title="Ten symbols after a delay", **picture)
    return results


if __name__ == "__main__":
    main()
