"""What does another layer bring? Matching brackets with one to four layers, all of one width.

    python examples/memory/depth.py --seeds 3 --csv depth.csv --plot depth.png

The task is that of brackets.py. Every depth gets the same words and the same number of epochs, so
that a layer more also means more parameters and more time; both are in the table.

Shows diminishing returns, if any: what a layer adds over the one before, at one width, one learning
rate and one budget. It proves neither that the best depth found here is best for another task, nor
that the gain of a layer is one of depth rather than of parameters. A deeper network may also lose,
by being harder to train. Success at the length of training proves no general algorithm.
"""

from itertools import pairwise
from statistics import fmean, median

from brackets import brackets, setup_of
from experiment import finish, grouped, of, parse, parser, rate, sweep, table, whole


def options(argv):
    made = parser(__doc__, seeds=3, epochs=80, cells="lstm+1 gru")
    add, even = made.add_argument, whole(6, even=True)
    add("--layers", type=whole(1), nargs="+", default=[1, 2, 3, 4], metavar="L")
    add("--length", type=even, default=16, metavar="T", help="to train at (16)")
    add("--test-lengths", type=even, nargs="+", default=[16, 32, 64], metavar="T")
    add("--hidden", type=whole(1), default=4, metavar="H", help="units of each layer (4)")
    add("--lr", type=rate, default=0.003, help="of Adam (0.003)")
    return parse(made, argv)


def gains(results):
    """Of each cell the mean accuracy of one layer, and what each further one added."""
    lines = []
    for cell in dict.fromkeys(r["cell"] for r in results):
        part = [r for r in of(results, "rnnkern") if r["cell"] == cell]
        means = [fmean(values) for values in grouped(part, "layers").values()]
        steps = ", ".join(f"{after - before:+.3f}" for before, after in pairwise(means))
        lines.append(f"{cell}: {means[0]:.3f} {steps}")
    return "\n".join(lines)


def main(argv=None):
    chosen = options(argv)

    def make(layers):
        return brackets(chosen.length, chosen.test_lengths), setup_of(chosen, layers)

    results = sweep(chosen, "layers", chosen.layers, make)
    trained = [r for r in results if r["tested"] == chosen.length]
    parts = [
        f"Brackets of length {chosen.length}, by layers of {chosen.hidden} units, "
        f"{chosen.seeds} seed(s); chance is 0.5:",
        table(results, ["cell", "tested"], "layers"),
        "First layer, and what each further one added at the length of training:",
        gains(trained),
        "Parameters of the layers:",
        table(trained, ["cell"], "layers", "parameters", min),
        "Milliseconds an epoch:",
        table(trained, ["cell"], "layers", "ms_per_epoch", lambda ms: f"{median(ms):.0f}"),
        "Success at the length of training proves no general algorithm; see the longer ones.",
    ]
    picture = {"x": "layers", "panel": "tested", "chance": 0.5}
    finish(chosen, results, *parts, title="Brackets, by number of layers", **picture)
    return results


if __name__ == "__main__":
    main()
