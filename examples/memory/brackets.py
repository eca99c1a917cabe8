"""Do the brackets match? Two kinds, nested up to five deep; trained short, tested longer.

    python examples/memory/brackets.py --seeds 3 --csv brackets.csv --plot brackets.png

Half of the words are balanced, such as ([()])[]; in the other half a closing bracket of each kind
changed places, as in ([())][]. That leaves all counts as they were and all neighbours possible, so
that neither tells. The label, balanced or not, is given for the whole word alone: chance is one
half. Fresh words at every step, all of one length; tested there and at lengths up to 64, on 1000
words each.

Shows that a network which does not err at its length may be no better than chance at longer ones:
at length 8 it has seen no depth of five and few ways to nest, and what it learnt from them is not
the rule. Success within the training length proves no general algorithm. Nor does success at 64:
five levels of two kinds make 63 stacks, so that no stack is needed, only an automaton of that many
states, and deeper words were not asked for. A network's failure says what this training found, not
what the cell could compute.
"""

import numpy as np
from experiment import FreshSequences, Setup, finish, parse, parser, rate, sweep, table, whole

KINDS, DEPTH = 2, 5
SYMBOLS = "([)]"  # opening ones first: k closes with KINDS + k
ROUND, SQUARE = 2, 3  # the closing ones
BATCH, BATCHES, TEST_ROWS = 64, 50, 1000


def balanced(rng, length, rows):
    """Balanced words (length, rows), an even length, nested at most DEPTH deep."""
    words, stack = np.zeros((length, rows), int), np.zeros((DEPTH, rows), int)
    depth, row = np.zeros(rows, int), np.arange(rows)
    for t in range(length):
        may_open = (depth < DEPTH) & (depth < length - t)  # what is open has to be closed in time
        opens = may_open & ((depth == 0) | (rng.random(rows) < 0.5))
        kind = np.where(opens, rng.integers(0, KINDS, rows), stack[depth - 1, row])
        words[t] = np.where(opens, kind, KINDS + kind)
        stack[depth[opens], row[opens]] = kind[opens]
        depth += np.where(opens, 1, -1)
    return words


def outer(words, closing):
    """Where this closing bracket closes more than an empty pair: it follows another closing one."""
    found = words == closing
    found[0] = False
    found[1:] &= words[:-1] >= KINDS
    return found


def nested(rng, length, rows):
    """Balanced words (length, rows), all of them with an outer bracket of each kind."""
    words = np.empty((length, 0), int)
    while words.shape[1] < rows:
        more = balanced(rng, length, rows)
        both = outer(more, ROUND).any(axis=0) & outer(more, SQUARE).any(axis=0)
        words = np.hstack([words, more[:, both]])
    return words[:, :rows]


def sequences(rng, length, rows):
    """Words (length, rows) and labels (1, rows): 1 for balanced, 0 for two closing ones exchanged.

    Only outer ones are exchanged: a wrong one right behind its opening one could be told by a
    look at two neighbours.
    """
    words, lots = nested(rng, length, rows), rng.random((length, rows))
    places = [np.where(outer(words, kind), lots, -1).argmax(axis=0) for kind in (ROUND, SQUARE)]
    labels = rng.integers(0, 2, (1, rows))
    spoilt = np.flatnonzero(labels[0] == 0)
    for place, other in zip(places, (SQUARE, ROUND), strict=True):
        words[place[spoilt], spoilt] = other
    return words, labels


def brackets(length, tested):
    """The task, trained at one length and tested there and at longer ones."""
    return FreshSequences(sequences, length, tested, BATCH, BATCHES, TEST_ROWS)


def options(argv):
    made = parser(__doc__, seeds=3, epochs=100, cells="rnn lstm lstm+1 gru")
    add, even = made.add_argument, whole(6, even=True)
    add("--lengths", type=even, nargs="+", default=[8, 16, 32], metavar="T", help="to train at")
    add("--test-lengths", type=even, nargs="+", default=[16, 24, 32, 48, 64], metavar="T")
    add("--hidden", type=whole(1), default=32, metavar="H", help="units (32)")
    add("--lr", type=rate, default=0.003, help="of Adam (0.003)")
    return parse(made, argv)


def setup_of(chosen, layers=1):
    sizes = {"hidden": chosen.hidden, "layers": layers}
    return Setup(len(SYMBOLS), 2, **sizes, lr=chosen.lr, max_norm=1.0, enough=0.999)


def main(argv=None):
    chosen = options(argv)

    def make(length):
        return brackets(length, chosen.test_lengths), setup_of(chosen)

    results = sweep(chosen, "trained", chosen.lengths, make)
    parts = [
        f"Brackets: share of words judged right by length, {chosen.seeds} seed(s); chance is 0.5:",
        table(results, ["trained", "cell"], "tested"),
        "Success at the length of training proves no general algorithm; see the longer ones.",
    ]
    picture = {"x": "tested", "panel": "trained", "chance": 0.5, "xlabel": "length in test"}
    finish(chosen, results, *parts, title="Do the brackets match?", **picture)
    return results


if __name__ == "__main__":
    main()
