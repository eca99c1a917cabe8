"""Training: steps, validations, and the snapshot that was best."""

import sys
import time
from statistics import fmean
from typing import NamedTuple

import numpy as np
from reviews import BATCH

from rnnkern.train import Adam, clip_grad_norm, softmax_cross_entropy

RATE, MAX_NORM, VALIDATE_EVERY = 0.001, 1.0, 50


class Trainer:
    """Trains a Classifier with rnnkern."""

    def __init__(self, model):
        self.model, self.optimiser = model, Adam(model.modules, lr=RATE)

    def step(self, ids, lengths, labels):
        """One step of the optimiser; returns the loss before it."""
        loss = self.model.loss_and_gradients(ids, lengths, labels)
        clip_grad_norm(self.model.modules, MAX_NORM)
        self.optimiser.step()
        self.optimiser.zero_grad()
        return loss

    def logits(self, ids, lengths):
        return self.model(ids, lengths)

    def snapshot(self):
        return [module.flat_params.copy() for module in self.model.modules]

    def restore(self, snapshot):
        for module, weights in zip(self.model.modules, snapshot, strict=True):
            module.flat_params = weights


def evaluate(trainer, part):
    """Mean loss and share of right answers."""
    found = [trainer.logits(ids, lengths) for ids, lengths, _ in part.batches()]
    logits = np.concatenate(found)
    loss, _ = softmax_cross_entropy(logits, part.labels)
    return loss, float(np.mean(logits.argmax(axis=1) == part.labels))


class Point(NamedTuple):
    """One validation. train_loss is the mean over the batches since the one before."""

    step: int
    train_loss: float
    validation_loss: float
    validation_accuracy: float


class Run:
    """One model in training: its curve, the seconds of its epochs, and the snapshot that was best.

    The best is that of the least validation loss. The seconds are of training alone.
    """

    def __init__(self, trainer, parts, epochs, label=""):
        self.trainer, self.parts, self.label = trainer, parts, label
        self.total = epochs * -(-len(parts.train.rows) // BATCH)
        self.curve, self.seconds, self._losses, self._step = [], [], [], 0
        self.progress = Progress(label, self.total)

    def epoch(self, order):
        """Train once on the reviews in this order."""
        self.seconds.append(0.0)
        batches = self.parts.train.batches(order)
        start = time.perf_counter()
        for batch in batches:
            self._losses.append(self.trainer.step(*batch))
            self.seconds[-1] += time.perf_counter() - start
            self._step += 1
            if self._step % VALIDATE_EVERY == 0 or self._step == self.total:
                self._validate()
            self.progress.show(self._step, self.curve)
            start = time.perf_counter()

    def _validate(self):
        loss, accuracy = evaluate(self.trainer, self.parts.validation)
        self.curve.append(Point(self._step, fmean(self._losses), loss, accuracy))
        self._losses.clear()
        if self.best == self.curve[-1]:
            self._snapshot = self.trainer.snapshot()

    @property
    def best(self):
        return min(self.curve, key=lambda point: point.validation_loss)

    def test(self):
        """Go back to the best snapshot, and set `accuracy` to what it does on the test part."""
        self.trainer.restore(self._snapshot)
        _, self.accuracy = evaluate(self.trainer, self.parts.test)


def fit(runs, epochs, seed):
    """Train all runs on the same batches, epoch by epoch in turn: other load meets all alike."""
    rng = np.random.default_rng([seed, 1])
    for epoch in range(epochs):
        order = rng.permutation(len(runs[0].parts.train.rows))
        for run in runs if epoch % 2 == 0 else reversed(runs):
            run.epoch(order)


class Progress:
    """A bar on stderr where that is a terminal, else a line for each validation."""

    def __init__(self, label, total):
        self.label, self.total, self.shown = label, total, 0
        self.terminal = sys.stderr.isatty()

    def show(self, step, curve):
        text = f"{self.label}  step {step:>{len(str(self.total))}}/{self.total}"
        if curve:
            text += "  loss {:.3f}  validation {:.3f}, {:.1%} right".format(*curve[-1][1:])
        if self.terminal:
            filled = 30 * step // self.total
            end = "\n" if step == self.total else ""
            text = f"\r[{'#' * filled}{'.' * (30 - filled)}] {text}{end}"
        elif len(curve) == self.shown:
            return
        else:
            text += "\n"
        self.shown = len(curve)
        sys.stderr.write(text)
        sys.stderr.flush()
