"""What the memory tasks beside this file share: model, training, command line, tables and pictures.

A task hands out batches of integers x (T, B) and of targets (K, B), which are what the network
should answer at the last K steps: K = 1 is one label a sequence, K = T one a step. The network is
an embedding, a recurrent layer and a linear one. The accuracy of a run is that of its last `judged`
steps: what else it is trained on, say the silence before an answer, would flatter it.

A result is a dict: what was trained (cell, seed, ...), where it was tested, and how it did.
"""

import os

# In products as small as these a second BLAS thread costs more than it brings.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import csv
import importlib.util
import re
import sys
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from statistics import fmean, median, stdev
from time import perf_counter

import numpy as np

import rnnkern as rk
from rnnkern.train import Adam, Embedding, Linear, clip_grad_norm, softmax_cross_entropy

PATIENCE = 3  # epochs running that have to be good enough before training stops
LAYERS = {"rnn": rk.RNN, "lstm": rk.LSTM, "gru": rk.GRU}


# --- model ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """What of a model and its training depends on the task."""

    symbols: int
    classes: int
    hidden: int = 32
    layers: int = 1
    embedding: int = 32
    orthogonal: bool = False  # first values of the recurrent weights; otherwise torch's
    lr: float = 0.001
    max_norm: float = np.inf  # to which the gradients' norm is clipped
    judged: int = 1  # last steps whose answers count
    enough: float = 1.0  # share of right answers over an epoch at which training may stop


class Model:
    """Embedding -> recurrent layer -> linear, for a cell such as "gru", "lstm" or "lstm+1".

    The number is the bias of the forget gate; without one it begins as torch's, near zero.
    """

    def __init__(self, cell, setup, rng):
        kind, _, forget_bias = cell.partition("+")
        self.embedding = Embedding(setup.symbols, setup.embedding, seed=rng)
        self.layer = LAYERS[kind](setup.embedding, setup.hidden, setup.layers, seed=rng)
        self.linear = Linear(setup.hidden, setup.classes, seed=rng)
        if setup.orthogonal:
            self.layer.initialize(weight_hh="orthogonal", seed=rng)
        if forget_bias:
            self.layer.initialize(forget_bias=float(forget_bias))

    @property
    def modules(self):
        return [self.embedding, self.layer, self.linear]

    @property
    def size(self):
        """Parameters of the recurrent layer."""
        return self.layer.flat_params.size

    def __call__(self, x, steps):
        """Logits (steps, B, classes) at the last steps."""
        y, _ = self.layer(self.embedding(x), num_threads=1)
        return self.linear(y[-steps:])

    def gradients(self, x, targets):
        """Adds the gradients of the mean loss over all targets; returns the logits."""
        steps = len(targets)
        vectors, embedding = self.embedding.record(x)
        y, _, layer = self.layer.record(vectors, num_threads=1)
        logits, linear = self.linear.record(y[-steps:])
        _, dlogits = softmax_cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.ravel())
        dy = np.zeros_like(y)
        dy[-steps:] = linear.backward(dlogits.reshape(logits.shape))
        dvectors, _ = layer.backward(dy, num_threads=1)
        embedding.backward(dvectors)
        return logits


class Trainer:
    """Trains a model with rnnkern."""

    name = "rnnkern"

    def __init__(self, model, setup):
        self.model, self.setup = model, setup
        self.optimiser = Adam(model.modules, lr=setup.lr)

    def step(self, x, targets):
        """One step of Adam; returns the share of right answers before it."""
        logits = self.model.gradients(x, targets)
        clip_grad_norm(self.model.modules, self.setup.max_norm)
        self.optimiser.step()
        self.optimiser.zero_grad()
        return share_right(logits, targets, self.setup.judged)

    def logits(self, x, steps):
        return self.model(x, steps)


class TorchTrainer:
    """The same training in torch.nn, from the same first values."""

    name = "torch"

    def __init__(self, model, setup):
        import torch

        torch.set_num_threads(1)
        self.torch, self.setup, nn = torch, setup, torch.nn
        self.embedding = nn.Embedding(setup.symbols, setup.embedding)
        kind = getattr(nn, type(model.layer).__name__)
        self.layer = kind(setup.embedding, setup.hidden, setup.layers)
        self.linear = nn.Linear(setup.hidden, setup.classes)
        modules = self.embedding, self.layer, self.linear
        for theirs, ours in zip(modules, model.modules, strict=True):
            theirs.load_state_dict({name: torch.tensor(a) for name, a in ours.params.items()})
        self.parameters = [p for module in modules for p in module.parameters()]
        self.optimiser = torch.optim.Adam(self.parameters, lr=setup.lr)

    def _forward(self, x, steps):
        y, _ = self.layer(self.embedding(self.torch.from_numpy(x)))
        return self.linear(y[-steps:])

    def step(self, x, targets):
        """See Trainer.step."""
        logits = self._forward(x, len(targets))
        wanted = self.torch.from_numpy(targets.ravel())
        loss = self.torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted)
        self.optimiser.zero_grad()
        loss.backward()
        if self.setup.max_norm < np.inf:
            self.torch.nn.utils.clip_grad_norm_(self.parameters, self.setup.max_norm)
        self.optimiser.step()
        return share_right(logits.detach().numpy(), targets, self.setup.judged)

    def logits(self, x, steps):
        with self.torch.no_grad():
            return self._forward(x, steps).numpy()


def share_right(logits, targets, judged):
    """Share of the last `judged` steps' answers that are the targets."""
    return float(np.mean(logits[-judged:].argmax(axis=-1) == targets[-judged:]))


# --- training ------------------------------------------------------------------------------------


class FreshSequences:
    """A task that is trained at one length (or delay), and tested there and at longer ones.

    `sequences(rng, length, rows)` draws x and targets; an epoch is so many batches of so many rows.
    """

    def __init__(self, sequences, length, tested, batch, batches, test_rows):
        self.sequences, self.length = sequences, length
        self.tested = sorted({length, *(n for n in tested if n > length)})
        self.batch, self.batches, self.test_rows = batch, batches, test_rows

    def epochs(self, rng):
        """Endless epochs, each of sequences that were not there before."""
        while True:
            yield [self.sequences(rng, self.length, self.batch) for _ in range(self.batches)]

    def tests(self, rng):
        return {length: self.sequences(rng, length, self.test_rows) for length in self.tested}


def train(trainer, epochs, show):
    """Trains until PATIENCE epochs running were good enough; returns the seconds of each epoch.

    `epochs` yields lists of batches. Their accuracy is measured as they pass, each before the step
    that learns from it.
    """
    seconds, good = [], 0
    for batches in epochs:
        start = perf_counter()
        share = fmean(trainer.step(x, targets) for x, targets in batches)
        seconds.append(perf_counter() - start)
        show(len(seconds), share)
        good = good + 1 if share >= trainer.setup.enough else 0
        if good == PATIENCE:
            break
    return seconds


def run(task, setup, cell, seed, options, bar, **labels):
    """Trains one model, with --torch also torch's, on one task; returns results, one for each test.

    The seed fixes first values, training data and their order, which are the same for both.
    """
    model = Model(cell, setup, np.random.default_rng([seed, 0]))
    trainers = [Trainer(model, setup)]
    if options.torch:
        trainers.append(TorchTrainer(model, setup))
    results = []
    for trainer in trainers:
        what = {"library": trainer.name, "cell": cell, **labels, "seed": seed}
        epochs = islice(task.epochs(np.random.default_rng([seed, 1])), options.epochs)
        seconds = train(trainer, epochs, lambda *now, what=what: bar.show(what, *now))
        how = {
            "epochs": len(seconds),
            "seconds": sum(seconds),
            "ms_per_epoch": 1000 * median(seconds),
            "parameters": model.size,
        }
        tests = task.tests(np.random.default_rng([seed, 2]))
        for tested, (x, targets) in tests.items():
            logits = trainer.logits(x, setup.judged)
            accuracy = share_right(logits, targets, setup.judged)
            results.append({**what, "tested": tested, "accuracy": accuracy, **how})
        bar.finish_run(what, results[-len(tests) :])
    return results


def sweep(options, label, values, make):
    """Trains every cell with every seed for each of the values that `label` names; returns results.

    make(value) returns a task and its setup.
    """
    conditions = list(product(values, options.cells, options.runs))
    bar = Bar(len(conditions) * (1 + options.torch), options.epochs)
    results = []
    for value, cell, seed in conditions:
        results += run(*make(value), cell, seed, options, bar, **{label: value})
    return results


class Bar:
    """Progress on stderr: a bar on a terminal, elsewhere a line for each run."""

    def __init__(self, runs, epochs, stream=None):
        self.runs, self.epochs, self.done = runs, epochs, 0
        self.stream = sys.stderr if stream is None else stream
        self.terminal = self.stream.isatty()

    def show(self, what, epoch, share):
        if self.terminal:
            filled = int(30 * (self.done + epoch / self.epochs) / self.runs)
            text = f"{name_of(what)}  epoch {epoch}/{self.epochs}  right {share:.3f}"
            self._write(f"\r[{'#' * filled}{'.' * (30 - filled)}] {text}\x1b[K")

    def finish_run(self, what, results):
        self.done += 1
        if not self.terminal:
            found = ", ".join(f"{r['accuracy']:.3f}" for r in results)
            took = f"{results[0]['epochs']} epochs, {results[0]['seconds']:.1f} s"
            self._write(f"{self.done}/{self.runs}  {name_of(what)}: {found}  ({took})\n")
        elif self.done == self.runs:
            self._write("\r\x1b[K")

    def _write(self, text):
        self.stream.write(text)
        self.stream.flush()


def name_of(what):
    """rnnkern lstm+1, length 35, seed 2"""
    library, cell, *rest = what.items()
    return ", ".join([f"{library[1]} {cell[1]}", *(f"{key} {value}" for key, value in rest)])


# --- command line --------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """One line for a wrong argument, without the usage."""

    def error(self, message):
        self.exit(2, f"{self.prog}: error: {message}\n")


def whole(low, even=False):
    """The type of an integer of at least `low`."""
    expected = f"an {'even ' if even else ''}integer of at least {low}"

    def parse(text):
        if not text.isdecimal() or int(text) < low or (even and int(text) % 2):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return int(text)

    return parse


def rate(text):
    """The type of a learning rate."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < np.inf:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return value


def cell_name(text):
    """The type of a cell."""
    if not re.fullmatch(r"rnn|gru|lstm(\+\d+(\.\d+)?)?", text):
        expected = "rnn, lstm, gru, or an LSTM with a forget bias such as lstm+1"
        raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
    return text


def parser(doc, seeds, epochs, cells):
    """A parser with the options of all tasks, and these defaults."""
    made = Parser(description=doc.splitlines()[0])
    add = made.add_argument
    add("--seeds", type=whole(1), default=seeds, metavar="N", help=f"runs each ({seeds})")
    add("--first-seed", type=whole(0), default=0, metavar="N", help="of the runs (0)")
    add("--epochs", type=whole(1), default=epochs, metavar="N", help=f"at most ({epochs})")
    cells = cells.split()
    add("--cells", type=cell_name, nargs="+", default=cells, metavar="CELL", help=" ".join(cells))
    add("--torch", action="store_true", help="train torch.nn beside it, from the same values")
    add("--csv", type=Path, metavar="FILE", help="write every result")
    add("--plot", type=Path, metavar="FILE.png", help="draw the results")
    return made


def parse(made, argv):
    """The options; whatever cannot work ends the program before hours of training."""
    options = made.parse_args(argv)
    options.runs = range(options.first_seed, options.first_seed + options.seeds)
    for path in filter(None, (options.csv, options.plot)):
        if path.is_dir() or not path.absolute().parent.is_dir():
            made.error(f"cannot write {str(path)!r}: it is a folder, or its folder is missing")
        if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
            made.error(f"no permission to write {str(path)!r}")
    if options.plot and options.plot.suffix != ".png":
        made.error(f"argument --plot: expected a name that ends in .png, got {str(options.plot)!r}")
    for wanted, package in ((options.plot, "matplotlib"), (options.torch, "torch")):
        if wanted and importlib.util.find_spec(package) is None:
            made.error(f"{package} is missing: pip install {package}")
    return options


# --- tables, files and pictures ------------------------------------------------------------------


def grouped(results, *keys, value="accuracy"):
    """The values of all seeds: {(one of each key): [value, ...]}, in the results' order."""
    groups = {}
    for result in results:
        groups.setdefault(tuple(result[key] for key in keys), []).append(result[value])
    return groups


def of(results, library):
    """Those of one library."""
    return [result for result in results if result["library"] == library]


def mean_sd(values):
    """0.97 ± 0.01, or 0.97 alone."""
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{spread}"


def mean_error(values):
    """0.004 ± 0.010, the second being the standard error of the mean, or 0.004 alone."""
    error = f" ± {stdev(values) / len(values) ** 0.5:.3f}" if len(values) > 1 else ""
    return f"{fmean(values):.3f}{error}"


def markdown(header, rows):
    """A table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def table(results, rows, column, value="accuracy", form=mean_sd):
    """A line for each of the keys `rows`, a column for each value of another key.

    By default of rnnkern's accuracies, mean ± sd over seeds.
    """
    groups = grouped(of(results, "rnnkern"), *rows, column, value=value)
    columns = list(dict.fromkeys(key[-1] for key in groups))
    lines = {}
    for (*row, at), values in groups.items():
        lines.setdefault(tuple(row), {})[at] = form(values)
    found = [[*row, *(cells.get(at, "") for at in columns)] for row, cells in lines.items()]
    return markdown([*rows, *columns], found)


def against_torch(results):
    """A table of both libraries' accuracies and times, and what it says."""
    label = list(results[0])[2]  # behind library and cell
    keys = ["cell", label] + ["tested"] * any(r["tested"] != r[label] for r in results)
    ours, theirs = of(results, "rnnkern"), of(results, "torch")
    rows, gaps, ratios, differences = [], {}, [], []
    for key, values in grouped(ours, *keys).items():
        other = grouped(theirs, *keys)[key]
        ms = [median(grouped(part, *keys, value="ms_per_epoch")[key]) for part in (ours, theirs)]
        ratios.append(ms[1] / ms[0])
        differences += [a - b for a, b in zip(values, other, strict=True)]
        if fmean(other) >= 0.9:
            gaps[" at ".join(map(str, key))] = fmean(other) - fmean(values)
        times = [f"{ms[0]:.1f}", f"{ms[1]:.1f}", f"{ratios[-1]:.1f}"]
        rows.append([*key, mean_sd(values), mean_sd(other), *times])
    header = [*keys, "rnnkern", "torch", "ms an epoch", "torch's", "torch's / ours"]
    below = [f"{name} by {gap:.3f}" for name, gap in gaps.items() if gap > 0.03]
    return (
        f"{markdown(header, rows)}\n\n"
        f"An epoch takes torch {min(ratios):.1f} to {max(ratios):.1f} times as long. "
        f"Of {len(gaps)} lines where torch reaches 0.9, more than 0.03 below it: "
        f"{', '.join(below) or 'none'}. Of two runs that begin alike, rnnkern's is better by "
        f"{mean_error(differences)} on average ({len(differences)} pairs)."
    )


def write_csv(path, results):
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, results[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(results)


def draw(path, results, x, panel=None, chance=0.0, **names):
    """Accuracy over the key x, a line for each cell, mean and sd over seeds; a panel for each value
    of the key `panel`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = list(dict.fromkeys(r[panel] for r in results)) if panel else [None]
    colours = {cell: f"C{i}" for i, cell in enumerate(dict.fromkeys(r["cell"] for r in results))}
    size = (2.2 + 3.6 * len(panels), 3.4)
    figure, row = pyplot.subplots(
        1, len(panels), figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for axes, which in zip(row[0], panels, strict=True):
        part = [r for r in results if panel is None or r[panel] == which]
        for library, cell in grouped(part, "library", "cell"):
            line = [r for r in part if (r["library"], r["cell"]) == (library, cell)]
            draw_line(axes, grouped(line, x), library, cell, colours[cell])
        axes.axhline(chance, color="grey", linewidth=0.8, linestyle=":")
        axes.set(xlabel=names.get("xlabel", x), ylim=(-0.03, 1.03))
        axes.set_xticks(sorted({r[x] for r in results}))
        if panel:
            axes.set_title(f"{panel} {which}", fontsize=10)
    row[0][0].set_ylabel("accuracy")
    figure.legend(*row[0][0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    figure.suptitle(names.get("title"), fontsize=11)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)


def draw_line(axes, groups, library, cell, colour):
    """One cell; torch's line is dashed."""
    at, values = [key[0] for key in groups], list(groups.values())
    spread = [stdev(v) if len(v) > 1 else 0.0 for v in values]
    label, fmt = (cell, "o-") if library == "rnnkern" else (f"{cell}, torch", "x--")
    style = {"color": colour, "capsize": 2, "markersize": 4, "linewidth": 1.2}
    axes.errorbar(at, [fmean(v) for v in values], spread, fmt=fmt, label=label, **style)


def finish(options, results, *parts, **picture):
    """Prints the parts of a report, and writes the files that were asked for."""
    print("\n\n".join(parts))
    if options.torch:
        print("\n" + against_torch(results))
    if options.csv:
        write_csv(options.csv, results)
    if options.plot:
        draw(options.plot, results, **picture)
