"""The main job: a bidirectional LSTM learns to tell nine speakers apart, on real data.

    python -m rnnkern demo                   train, print accuracy and time, save the model
    python -m rnnkern demo --predict FILE    load it and predict the same utterances once more

`Classifier` and `Trainer` show how to train with rnnkern; the rest is data, a rival and printing.

Protocol: Japanese Vowels (see data/README.md), channels standardised by the training part's frames;
bidirectional LSTM, 64 units a direction, mean over the real steps, linear; Adam at 0.003, gradient
norm clipped to 1, batches of 30 padded to their longest utterance, 40 epochs, reshuffled for each;
the last epoch counts. Given a seed, every bit of the result is determined, whatever the number of
threads and the SIMD level, as far as NumPy's matrix product is (in the linear layer).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module, resources
from importlib.util import find_spec
from itertools import chain
from statistics import fmean, median, stdev
from typing import Any, Protocol, TextIO

import numpy as np
from numpy.typing import NDArray

from . import isa, threads
from .layers import LSTM
from .parameters import FloatArray
from .train import (
    Adam,
    Linear,
    clip_grad_norm,
    masked_mean,
    masked_mean_backward,
    softmax_cross_entropy,
)

__all__ = [
    "Classifier",
    "ModelError",
    "Part",
    "Trainer",
    "accuracy",
    "digest",
    "load_data",
    "main",
    "predict",
]

HIDDEN, BATCH, EPOCHS = 64, 30, 40
LEARNING_RATE, MAX_NORM = 0.003, 1.0
SEEDS = (0, 1, 2, 3, 4)
OUTPUT = "rnnkern-demo.npz"

IntArray = NDArray[np.intp]
Batch = tuple[FloatArray, IntArray, IntArray]

_FORMAT, _VERSION = "rnnkern-demo", 1  # of saved models


# --- data ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Utterances, each an array of frames (steps, channels), and who speaks them."""

    utterances: tuple[FloatArray, ...]
    speakers: IntArray

    def __len__(self) -> int:
        return len(self.utterances)

    def standardised(self, mean: FloatArray, scale: FloatArray) -> Part:
        """Return the same with each channel shifted by its mean and divided by its scale."""
        return replace(self, utterances=tuple((u - mean) / scale for u in self.utterances))

    def batches(self, order: IntArray) -> Iterator[Batch]:
        """Yield the utterances that `order` names, 30 at a time.

        A batch is x (T, B, channels), padded with zeros to its longest utterance, and the lengths
        and speakers (B,).
        """
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            rows = [self.utterances[i] for i in chosen]
            lengths = np.array([len(row) for row in rows], np.intp)
            x = np.zeros((lengths.max(), len(rows), rows[0].shape[1]), rows[0].dtype)
            for b, row in enumerate(rows):
                x[: len(row), b] = row
            yield x, lengths, self.speakers[chosen]


def load_data() -> tuple[Part, Part]:
    """Return the training part (270 utterances) and the test part (370) of Japanese Vowels."""
    path = resources.files(__package__).joinpath("data", "japanese_vowels.npz")
    with path.open("rb") as file, np.load(file) as archive:
        ends = np.cumsum(archive["length"], dtype=np.intp)
        utterances = tuple(np.split(archive["frames"], ends[:-1]))
        speakers = archive["speaker"].astype(np.intp)
        n = int(archive["n_train"])
    return Part(utterances[:n], speakers[:n]), Part(utterances[n:], speakers[n:])


# --- model ---------------------------------------------------------------------------------------


class ModelError(ValueError):
    """A file does not hold a model that this demo saved and can use."""


class Classifier:
    """x -> bidirectional LSTM -> mean over the real steps -> linear -> logits.

    Attributes:
        lstm, linear: the modules, which hold parameters and gradients.
        mean, scale: standardisation of the channels; `predict` applies it to raw utterances.
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        hidden: int = HIDDEN,
        *,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.lstm = LSTM(channels, hidden, bidirectional=True, seed=rng)
        self.linear = Linear(2 * hidden, classes, seed=rng)
        self.mean = np.zeros(channels, np.float32)
        self.scale = np.ones(channels, np.float32)

    @property
    def modules(self) -> tuple[LSTM, Linear]:
        """Everything with parameters: what clipping and an optimiser take."""
        return self.lstm, self.linear

    def standardise_by(self, part: Part) -> None:
        """Set mean and scale so that the channels of `part` get mean 0 and deviation 1."""
        frames = np.concatenate(part.utterances).astype(np.float64)
        self.mean[...], self.scale[...] = frames.mean(axis=0), frames.std(axis=0)

    def __call__(self, x: FloatArray, lengths: IntArray) -> FloatArray:
        """Return logits (B, classes) for standardised x (T, B, channels) and lengths (B,)."""
        y, _ = self.lstm(x, lengths=lengths)
        return self.linear(masked_mean(y, lengths))

    def loss_and_gradients(self, x: FloatArray, lengths: IntArray, targets: IntArray) -> float:
        """Return the loss of one batch and add its gradients into those of the modules."""
        y, _, lstm_tape = self.lstm.record(x, lengths=lengths)
        logits, linear_tape = self.linear.record(masked_mean(y, lengths))
        loss, dlogits = softmax_cross_entropy(logits, targets)

        dmean = linear_tape.backward(dlogits)
        lstm_tape.backward(masked_mean_backward(dmean, lengths, len(x)), need_dx=False)
        return loss

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and standardisation into one .npz file of exactly this name."""
        header = json.dumps({"format": _FORMAT, "version": _VERSION})
        arrays: dict[str, Any] = {"header": np.array(header)}
        arrays |= {"mean": self.mean, "scale": self.scale}
        arrays |= {f"lstm.{name}": value for name, value in self.lstm.params.items()}
        arrays |= {f"linear.{name}": value for name, value in self.linear.params.items()}
        with open(path, "wb") as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Classifier:
        """Return the classifier that `save` wrote.

        Raises:
            OSError: the file cannot be opened.
            ModelError: it is not such a file, or is damaged.
        """
        with open(path, "rb") as file:
            try:
                # zipfile and NumPy's format raise nearly anything for damaged files.
                with np.load(file, allow_pickle=False) as archive:
                    arrays = dict(archive.items())
                return cls._rebuilt(arrays)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                raise ModelError(
                    f"{path}: not a model that this demo saved, or damaged; {reason}"
                ) from error

    @classmethod
    def _rebuilt(cls, arrays: dict[str, Any]) -> Classifier:
        header = json.loads(str(arrays["header"]))
        if (header["format"], header["version"]) != (_FORMAT, _VERSION):
            raise ValueError(f"expected {_FORMAT} of version {_VERSION}, got {header}")
        classes, features = arrays["linear.weight"].shape
        model = cls(len(arrays["mean"]), classes, features // 2, seed=0)
        for prefix, module in zip(("lstm.", "linear."), model.modules, strict=True):
            module.load_state_dict(
                {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
            )
        for own, saved in ((model.mean, arrays["mean"]), (model.scale, arrays["scale"])):
            if saved.shape != own.shape or saved.dtype != own.dtype:
                raise ValueError(
                    f"standardisation: expected {own.dtype} {own.shape}, "
                    f"got {saved.dtype} {saved.shape}"
                )
            own[...] = saved
        return model


def predict(model: Classifier, part: Part) -> FloatArray:
    """Return the logits (utterances, classes) of raw utterances, in their order."""
    part = part.standardised(model.mean, model.scale)
    batches = part.batches(np.arange(len(part)))
    return np.concatenate([model(x, lengths) for x, lengths, _ in batches])


def accuracy(logits: FloatArray, part: Part) -> float:
    """Return the share of utterances whose largest logit is that of the speaker."""
    return float(np.mean(logits.argmax(axis=1) == part.speakers))


def digest(logits: FloatArray) -> str:
    """Return 16 hexadecimal digits that differ if any bit of the logits does."""
    return hashlib.sha256(logits.astype("<f4").tobytes()).hexdigest()[:16]


# --- training ------------------------------------------------------------------------------------


class Trainer:
    """Trains a classifier with rnnkern."""

    def __init__(self, model: Classifier) -> None:
        self.model = model
        self.optimiser = Adam(model.modules, lr=LEARNING_RATE)

    def epoch(self, part: Part, order: IntArray) -> float:
        """Train once on the standardised utterances in `order`; return the batches' mean loss."""
        losses = []
        for x, lengths, speakers in part.batches(order):
            losses.append(self.model.loss_and_gradients(x, lengths, speakers))
            clip_grad_norm(self.model.modules, MAX_NORM)
            self.optimiser.step()
            self.optimiser.zero_grad()
        return fmean(losses)

    def logits(self, part: Part) -> FloatArray:
        """Return the logits of raw utterances."""
        return predict(self.model, part)


class TorchTrainer:
    """The same training in torch, from the same first weights: nn.LSTM on the padded batches.

    Its reverse direction reads the padding first. Packed sequences would not, but take torch about
    three times as long.
    """

    def __init__(self, torch: Any, model: Classifier) -> None:
        self.torch, self.mean, self.scale = torch, model.mean, model.scale
        lstm, linear = model.modules
        self.lstm = torch.nn.LSTM(lstm.input_size, lstm.hidden_size, bidirectional=True)
        self.linear = torch.nn.Linear(linear.in_features, linear.out_features)
        for theirs, ours in ((self.lstm, lstm), (self.linear, linear)):
            theirs.load_state_dict({n: torch.tensor(a) for n, a in ours.params.items()})
        self.parameters = [*self.lstm.parameters(), *self.linear.parameters()]
        self.optimiser = torch.optim.Adam(self.parameters, lr=LEARNING_RATE)

    def _forward(self, x: FloatArray, lengths: IntArray) -> Any:
        torch = self.torch
        steps = torch.from_numpy(lengths)
        y, _ = self.lstm(torch.from_numpy(x))
        real = torch.arange(len(x))[:, None] < steps
        return self.linear((y * real[:, :, None]).sum(dim=0) / steps[:, None])

    def epoch(self, part: Part, order: IntArray) -> float:
        """See Trainer.epoch."""
        torch, losses = self.torch, []
        for x, lengths, speakers in part.batches(order):
            logits = self._forward(x, lengths)
            loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(speakers))
            self.optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.parameters, MAX_NORM)
            self.optimiser.step()
            losses.append(float(loss.detach()))
        return fmean(losses)

    def logits(self, part: Part) -> FloatArray:
        """See Trainer.logits."""
        part = part.standardised(self.mean, self.scale)
        batches = part.batches(np.arange(len(part)))
        with self.torch.no_grad():
            found = [self._forward(x, lengths).numpy() for x, lengths, _ in batches]
        return np.concatenate(found)


class AnyTrainer(Protocol):
    """What `train` needs of a trainer."""

    def epoch(self, part: Part, order: IntArray) -> float: ...

    def logits(self, part: Part) -> FloatArray: ...


class Progress:
    """A bar on a terminal; elsewhere a line for each quarter of the way."""

    def __init__(self, label: str, total: int, stream: TextIO | None = None) -> None:
        self.label, self.total = label, total
        self.stream = sys.stderr if stream is None else stream
        self.terminal = self.stream.isatty()

    def show(self, done: int, loss: float) -> None:
        """Say that `done` epochs are done, the last one at this loss."""
        last = done == self.total
        if not (self.terminal or last or done % max(1, self.total // 4) == 0):
            return
        text = f"epoch {done:>{len(str(self.total))}}/{self.total}  loss {loss:.4f}"
        if self.terminal:
            filled = 30 * done // self.total
            text = f"[{'#' * filled}{'.' * (30 - filled)}] {text}"
        start, end = ("\r", "\n" if last else "") if self.terminal else ("", "\n")
        self.stream.write(f"{start}{self.label}  {text}{end}")
        self.stream.flush()


def train(
    trainers: Sequence[AnyTrainer],
    part: Part,
    rng: np.random.Generator,
    epochs: int = EPOCHS,
    progress: Progress | None = None,
) -> list[list[float]]:
    """Train all trainers side by side; return the seconds that each epoch of each took.

    Each epoch is run by one trainer after the other (the first one first in every second epoch) on
    the same batches, drawn by `rng`, so that whatever else the machine does meets all alike.
    `part` is standardised. `progress` shows the loss of the first trainer.
    """
    seconds: list[list[float]] = [[] for _ in trainers]
    turns = list(enumerate(trainers))
    for epoch in range(epochs):
        order = rng.permutation(len(part))
        losses = {}
        for i, trainer in turns if epoch % 2 == 0 else reversed(turns):
            start = time.perf_counter()
            losses[i] = trainer.epoch(part, order)
            seconds[i].append(time.perf_counter() - start)
        if progress is not None:
            progress.show(epoch + 1, losses[0])
    return seconds


# --- command line --------------------------------------------------------------------------------


def _integer(low: int) -> Any:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < low:
            raise argparse.ArgumentTypeError(f"expected an integer of at least {low}, got {text!r}")
        return int(text)

    return parse


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m rnnkern demo",
        description="Train a bidirectional LSTM classifier on Japanese Vowels (270 training and "
        "370 test utterances of nine speakers), report its test accuracy and the time per epoch, "
        "where torch is installed beside torch's, and save the model.",
    )
    add = parser.add_argument
    add(
        "--seeds",
        type=_integer(0),
        nargs="+",
        metavar="N",
        help=f"train once for each seed (default: {' '.join(map(str, SEEDS))}); "
        "the model of the first one is saved",
    )
    add("--epochs", type=_integer(1), metavar="N", help=f"default: {EPOCHS}")
    add("--num-threads", type=_integer(1), metavar="N", help="of rnnkern and of torch")
    add("--output", metavar="FILE", help=f"where the model goes (default: {OUTPUT})")
    add("--no-torch", action="store_true", help="do not compare with torch")
    add(
        "--predict",
        metavar="FILE",
        help="do not train: load a saved model, predict the test utterances, and print accuracy "
        "and a digest of every bit, which equals the one that training printed",
    )
    return parser


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    args = parser.parse_args(argv)
    if args.predict is not None:
        for name in ("seeds", "epochs", "output", "no_torch"):
            if getattr(args, name):
                option = f"--{name.replace('_', '-')}"
                parser.error(f"{option} is for training, and --predict does not train")
    args.seeds = args.seeds or list(SEEDS)
    args.epochs = args.epochs or EPOCHS
    args.output = OUTPUT if args.output is None else args.output
    return args


def _check_output(path: str) -> None:
    """Fail before the training rather than after it."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path) or not os.path.basename(path):
        raise IsADirectoryError(f"{path!r} is a folder, expected the name of a file")
    if not os.path.isdir(folder):
        raise NotADirectoryError(f"no folder {folder!r} for the model")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise PermissionError(f"no permission to write {path!r}")


def _torch() -> Any:
    """Return torch, or None (with a word) where it is not installed or does not work."""
    if find_spec("torch") is None:
        print("torch is not installed: no comparison")
        return None
    try:
        torch = import_module("torch")
    except Exception as error:  # a broken installation is no reason to fail
        print(f"torch cannot be imported ({error}): no comparison")
        return None
    torch.set_num_threads(threads.get_num_threads())
    return torch


def _run(args: argparse.Namespace) -> None:
    """Train once for each seed; print and save."""
    _check_output(args.output)
    train_part, test_part = load_data()
    print(
        f"Japanese Vowels: {len(train_part)} training and {len(test_part)} test utterances, "
        f"9 speakers, 12 channels\n"
        f"bidirectional LSTM, {HIDDEN} units a direction; {args.epochs} epochs; "
        f"SIMD level {isa.active()}; threads: {threads.get_num_threads()}",
        flush=True,
    )
    torch = None if args.no_torch else _torch()
    runs = [_train_seed(seed, args, train_part, test_part, torch) for seed in args.seeds]
    accuracies, seconds = zip(*runs, strict=True)
    names = ("test accuracy", "torch's")
    for who, values in zip(names, zip(*accuracies, strict=True), strict=False):
        spread = f", standard deviation {stdev(values):.4f}" if len(values) > 1 else ""
        print(f"{who}: mean {fmean(values):.4f}{spread}, of {len(values)} seed(s)")
    print(_times([list(chain(*each)) for each in zip(*seconds, strict=True)], torch))
    print(
        f"model of seed {args.seeds[0]} saved; predict with it in a new process by\n"
        f"  {_command('demo', '--predict', args.output)}"
    )


def _command(*arguments: str) -> str:
    """A command line of this interpreter that works from the current folder as it is printed."""
    python = sys.executable or "python"
    below = os.path.relpath(python)
    if os.sep in below and not below.startswith(os.pardir):  # a bare name would be looked up
        python = below
    return shlex.join([python, "-m", __package__, *arguments])


def _train_seed(
    seed: int, args: argparse.Namespace, train_part: Part, test_part: Part, torch: Any
) -> tuple[list[float], list[list[float]]]:
    """Train, print a line, save if it is the first; return accuracies and seconds by trainer."""
    rng = np.random.default_rng(seed)
    model = Classifier(train_part.utterances[0].shape[1], 9, seed=rng)
    model.standardise_by(train_part)
    trainers: list[AnyTrainer] = [Trainer(model)]
    if torch is not None:
        trainers.append(TorchTrainer(torch, model))
    seconds = train(
        trainers,
        train_part.standardised(model.mean, model.scale),
        rng,
        args.epochs,
        Progress(f"seed {seed}", args.epochs),
    )
    if seed == args.seeds[0]:
        model.save(args.output)
    logits = [trainer.logits(test_part) for trainer in trainers]
    found = [accuracy(each, test_part) for each in logits]
    beside = f"  (torch {found[1]:.4f})" if len(found) > 1 else ""
    bits = digest(logits[0])
    print(f"seed {seed}: test accuracy {found[0]:.4f}{beside}  digest {bits}", flush=True)
    return found, seconds


def _times(seconds: Sequence[Sequence[float]], torch: Any) -> str:
    """Say the median time of an epoch, and how it stands to torch's."""
    ours, *theirs = (1000 * median(each) for each in seconds)
    text = f"time per epoch (median of {len(seconds[0])}): rnnkern {ours:.1f} ms"
    for other in theirs:
        faster, ratio = ("rnnkern", other / ours) if ours <= other else ("torch", ours / other)
        text += (
            f", torch {torch.__version__} {other:.1f} ms (padded nn.LSTM, same batches, same "
            f"threads, epochs in turn)\n{faster} is {ratio:.2f} times as fast"
        )
    return text


def _predict(path: str) -> None:
    _, test_part = load_data()
    model, channels = Classifier.load(path), test_part.utterances[0].shape[1]
    if model.lstm.input_size != channels:
        raise ModelError(
            f"{path}: expected a model of {channels} channels, got {model.lstm.input_size}"
        )
    logits = predict(model, test_part)
    print(f"test accuracy {accuracy(logits, test_part):.4f}  digest {digest(logits)}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; return 0, or 1 if a file cannot be read, used or written."""
    args = _arguments(argv)
    before = threads.get_num_threads()
    try:
        if args.num_threads is not None:
            threads.set_num_threads(args.num_threads)
        if args.predict is not None:
            _predict(args.predict)
        else:
            _run(args)
    except (OSError, ModelError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        threads.set_num_threads(before)
    return 0


if __name__ == "__main__":
    sys.exit(main())
