"""A bidirectional language model in ELMo's manner: Peters et al. 2018, "Deep contextualized word
representations".

One table of word vectors; two stacks of two LSTM layers, one of which reads from the left and one
from the right; one softmax, shared by both, with which each predicts the next word on its own way.
The features of a word are its vector and, layer by layer, what both stacks make of it in context.

Why not one `LSTM(num_layers=2, bidirectional=True)`: its second layer reads both directions of the
first, whose reverse direction has at word t read everything from the end down to t, the next word
included. So the second layer would be shown the very word that it is to predict; the loss would
fall to nothing, and nothing would be learnt. Here no number that comes from the right ever enters
the stack that reads from the left: the backward model is a forward model of the turned passage.
"""

from typing import NamedTuple

import numpy as np
from play import Vocabulary

import rnnkern as rk
from rnnkern.train import Embedding, Linear, softmax_cross_entropy

LAYERS = 2


def turned(sequence, lengths):
    """Each row (T, B, ...) backwards within its length, the rest as it is: its own inverse."""
    steps = np.arange(len(sequence))[:, None]
    order = np.where(steps < lengths, lengths - 1 - steps, steps)
    return sequence[order, np.arange(len(lengths))]


def framed(ids, lengths):
    """The passages (T, B) between two edges: (T + 2, B)."""
    whole = np.pad(ids, ((1, 1), (0, 0)))
    whole[np.arange(len(whole))[:, None] > lengths] = Vocabulary.EDGE  # also where padding was
    return whole


class Reading(NamedTuple):
    """A direction's way through the passages: its inputs (T + 1, B), and what comes next."""

    read: np.ndarray
    target: np.ndarray


def readings(ids, lengths):
    """Both directions, in one form: word after word is read, the next one is to be predicted."""
    whole = framed(ids, lengths)
    back = turned(whole, lengths + 2)
    return Reading(whole[:-1], whole[1:]), Reading(back[:-1], back[1:])


class LanguageModel:
    """Embedding, a stack of LSTM layers for each direction, and the softmax that they share."""

    def __init__(self, vocabulary, size=128, dropout=0.3, seed=0):
        kind = rk.Regularization(input_dropout=dropout, output_dropout=dropout, variational=True)
        options = {"num_layers": LAYERS, "dropout": dropout, "regularization": kind}
        self.vocabulary = vocabulary
        self.table = Embedding(len(vocabulary), size, seed=seed)
        self.forward = rk.LSTM(size, size, seed=seed + 1, **options)
        self.backward = rk.LSTM(size, size, seed=seed + 2, **options)
        self.softmax = Linear(size, len(vocabulary), seed=seed + 3)

    @property
    def parts(self):
        return {name: getattr(self, name) for name in ("table", "forward", "backward", "softmax")}

    @property
    def stacks(self):
        return self.forward, self.backward

    @property
    def modules(self):
        return list(self.parts.values())

    def train(self, ids, lengths):
        """Adds gradients of both directions' mean losses over real steps; returns the losses."""
        ways = zip(self.stacks, readings(ids, lengths), strict=True)
        return [self._train(stack, reading, lengths + 1) for stack, reading in ways]

    def _train(self, stack, reading, lengths):
        real = np.arange(len(reading.read))[:, None] < lengths
        x, x_tape = self.table.record(reading.read)
        y, _, tape = stack.record(x, lengths=lengths)
        logits, softmax_tape = self.softmax.record(y[real])
        loss, dlogits = softmax_cross_entropy(logits, reading.target[real])
        dy = np.zeros_like(y)
        dy[real] = softmax_tape.backward(dlogits)
        dx, _ = tape.backward(dy)
        x_tape.backward(dx)
        return loss

    def predictions(self, ids, lengths):
        """For each direction the logits (T + 1, B, V), and the words that they should predict."""
        for stack, (read, target) in zip(self.stacks, readings(ids, lengths), strict=True):
            yield self.softmax(stack(self.table(read), lengths=lengths + 1)[0]), target

    def perplexities(self, batches):
        """Of both directions: exp of the mean loss over all predictions."""
        losses, count = np.zeros(2), 0
        for ids, lengths in batches:
            real = np.arange(len(ids) + 1)[:, None] < lengths + 1
            count += real.sum()
            losses += [
                softmax_cross_entropy(logits[real], target[real])[0] * real.sum()
                for logits, target in self.predictions(ids, lengths)
            ]
        return np.exp(losses / count)

    def freeze(self):
        """The model as it is now, for features alone."""
        return Frozen(self)

    def save(self, path):
        arrays = {
            f"{part}.{name}": array
            for part, module in self.parts.items()
            for name, array in module.params.items()
        }
        with open(path, "wb") as file:
            np.savez(file, words=np.array(self.vocabulary.words[2:], np.str_), **arrays)

    @classmethod
    def load(cls, path):
        """What `save` wrote. ValueError for another file."""
        try:
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
                arrays = dict(archive)
            size = arrays["table.weight"].shape[1]
            model = cls(Vocabulary(arrays.pop("words").tolist()), size)
            for part, module in model.parts.items():
                module.load_state_dict({name: arrays[f"{part}.{name}"] for name in module.params})
        except OSError:
            raise
        except Exception as error:  # zipfile and NumPy raise nearly anything for other files
            raise ValueError(f"{path}: not a saved language model ({error})") from error
        return model


class Frozen:
    """A language model that nothing changes any more. It only makes features."""

    def __init__(self, model):
        self.vocabulary = model.vocabulary
        self._table = model.table.weight.copy()
        self._table.flags.writeable = False
        self._stacks = [stack.freeze() for stack in model.stacks]

    def features(self, ids, lengths):
        """The layers (1 + LAYERS, T, B, 2 size): the word's vector, twice, then both directions.

        The forward half of a word knows what is before it, the backward half what follows, each of
        them the word itself. Zero behind the lengths.
        """
        forward, backward = (
            stack(self._table[read], lengths=lengths + 1, all_layers=True)[0][:, 1:]
            for stack, (read, _) in zip(self._stacks, readings(ids, lengths), strict=True)
        )  # without the step that read the edge
        backward = np.stack([turned(layer, lengths) for layer in backward])
        real = np.arange(len(ids))[:, None, None] < lengths[:, None]
        words = np.where(real, self._table[ids], np.float32(0))
        contexts = np.concatenate([forward, backward], axis=-1)
        return np.concatenate([np.concatenate([words, words], axis=-1)[None], contexts])
