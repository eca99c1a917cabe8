"""Trains the bidirectional language model on Hamlet, or another text, and saves it.

    python examples/contextual/train_language_model.py MODEL.npz [--text play.txt]

Each epoch prints the perplexities of the words to come, forward and backward, on the passages that
it learns from (with dropout, while they change) and on the passages by which the best epoch is
chosen; at the end those of the test passages. Half of the perplexity is half of the choices left.
"""

import argparse
import math
import sys

import numpy as np
from language_model import LanguageModel
from play import HAMLET, Vocabulary, batches, load

from rnnkern.train import Adam, clip_grad_norm


def bar(label, done, total, width=30):
    """A bar on a terminal, else nothing."""
    if sys.stderr.isatty():
        filled = width * done // total
        end = "\r\x1b[K" if done == total else ""
        print(f"\r{label} [{'#' * filled:.<{width}}]{end}", end="", file=sys.stderr, flush=True)


def epoch(model, optimiser, work, label=""):
    """One pass over the batches; the mean losses of both directions."""
    losses = []
    for done, (ids, lengths) in enumerate(work, 1):
        losses.append(model.train(ids, lengths))
        clip_grad_norm(model.modules, 1.0)
        optimiser.step()
        optimiser.zero_grad()
        bar(label, done, len(work))
    return np.mean(losses, axis=0)


def learning_rate(done, first=0.003):
    """Falls along half a cosine from first to nothing while done goes from 0 to 1."""
    return first * (1 + math.cos(math.pi * done)) / 2


def train(model, part, choosing, epochs, seed=0, report=print):
    """Trains the model, which ends as it was after its best epoch; all perplexities by epoch."""
    rng, optimiser = np.random.default_rng(seed), Adam(model.modules)
    held_out = list(batches(choosing, model.vocabulary))
    history, best, kept = [], math.inf, None
    for number in range(1, epochs + 1):
        optimiser.lr = learning_rate((number - 1) / epochs)
        work = list(batches(part, model.vocabulary, rng=rng))
        learnt = np.exp(epoch(model, optimiser, work, f"epoch {number:2}"))
        found = model.perplexities(held_out)
        history.append((*learnt, *found))
        report(f"epoch {number:2}  {row(learnt)}   {row(found)}")
        if np.log(found).sum() < best:
            best = np.log(found).sum()
            kept = [module.flat_params.copy() for module in model.modules]
    for module, values in zip(model.modules, kept, strict=True):
        module.flat_params = values
    return np.array(history)


def row(perplexities):
    return "  ".join(f"{p:8.1f}" for p in perplexities)


def by_frequency(part, tested, vocabulary):
    """Perplexity of a model that knows how common each word is, but never looks at its context."""
    counts = np.ones(len(vocabulary))
    for group, into in ((part, counts), (tested, total := np.zeros(len(vocabulary)))):
        for passage in group:
            np.add.at(into, [*vocabulary.ids(w.text for w in passage), Vocabulary.EDGE], 1)
    return float(np.exp(-(total * np.log(counts / counts.sum())).sum() / total.sum()))


def options_of(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="where to save it, an .npz file")
    parser.add_argument("--text", default=HAMLET)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--size", type=int, default=128, help="of word vectors and states")
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--history", help="also save the perplexities by epoch, a CSV file")
    return parser, parser.parse_args(argv)


def main(argv=None):
    parser, options = options_of(argv)
    try:
        part, choosing, test = load(options.text)
        model = LanguageModel(Vocabulary.of(part), options.size, options.dropout, options.seed)
        open(options.model, "ab").close()  # fails now rather than after minutes of training
    except (OSError, ValueError) as error:
        parser.error(str(error))
    words = sum(map(len, part))
    print(f"{words} words and marks to learn from, {len(model.vocabulary)} different ones")
    print("perplexity    learnt           back    held out         back")
    history = train(model, part, choosing, options.epochs, options.seed)
    model.save(options.model)
    if options.history:
        head = "forward_learnt,backward_learnt,forward_held_out,backward_held_out"
        np.savetxt(options.history, history, "%.2f", ",", header=head, comments="")
    print(f"by frequency alone   {row([by_frequency(part, test, model.vocabulary)])}")
    print(f"test                 {row(model.perplexities(batches(test, model.vocabulary)))}")


if __name__ == "__main__":
    main()
