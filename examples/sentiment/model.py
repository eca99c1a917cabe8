"""words -> embedding -> bidirectional LSTM or GRU -> one vector -> linear -> positive or negative.

How the outputs of all steps become one vector is the pooling:

    masked-mean   their mean over the words that are there
    plain-mean    their mean over all steps of the batch, padding included
    last-state    the state after the last step of each direction
"""

import json

import numpy as np
from reviews import LONGEST, PADDING, Vocabulary, padded, tokens

import rnnkern as rk
from rnnkern.train import (
    Embedding,
    Linear,
    masked_mean,
    masked_mean_backward,
    softmax_cross_entropy,
)

EMBEDDING, HIDDEN = 100, 64
CELLS = {"lstm": rk.LSTM, "gru": rk.GRU}
POOLINGS = ["masked-mean", "plain-mean", "last-state"]
FORMAT = "rnnkern-sentiment-1"


class ModelError(ValueError):
    """The file is not a model that this program saved, or is damaged."""


class Classifier:
    """The classifier. read_padding: the layer is not told the lengths and reads padding too."""

    def __init__(
        self,
        words,
        cell="lstm",
        pooling="masked-mean",
        read_padding=False,
        embedding=EMBEDDING,
        hidden=HIDDEN,
        seed=None,
    ):
        self.options = {
            "cell": cell, "pooling": pooling, "read_padding": read_padding,
            "embedding": embedding, "hidden": hidden,
        }  # fmt: skip
        self.pooling, self.read_padding = pooling, read_padding
        rng = np.random.default_rng(seed)
        self.embedding = Embedding(words, embedding, padding_idx=PADDING, seed=rng)
        self.recurrent = CELLS[cell](embedding, hidden, bidirectional=True, seed=rng)
        self.linear = Linear(2 * hidden, 2, seed=rng)

    @property
    def modules(self):
        return [self.embedding, self.recurrent, self.linear]

    def __call__(self, ids, lengths):
        """Logits (B, 2) of ids (T, B)."""
        y, state = self.recurrent(self.embedding(ids), lengths=self._steps(lengths))
        return self.linear(self._pool(y, state, lengths))

    def loss_and_gradients(self, ids, lengths, labels):
        """The mean loss of a batch, whose gradients are added into those of the modules."""
        x, embedding = self.embedding.record(ids)
        y, state, recurrent = self.recurrent.record(x, lengths=self._steps(lengths))
        logits, linear = self.linear.record(self._pool(y, state, lengths))
        loss, dlogits = softmax_cross_entropy(logits, labels)
        dy, dstate = self._pool_backward(linear.backward(dlogits), lengths, len(ids))
        dx, _ = recurrent.backward(dy, dstate)
        embedding.backward(dx)
        return loss

    def _steps(self, lengths):
        return None if self.read_padding else lengths

    def _averaged(self, lengths, steps):
        return lengths if self.pooling == "masked-mean" else np.full_like(lengths, steps)

    def _pool(self, y, state, lengths):
        if self.pooling != "last-state":
            return masked_mean(y, self._averaged(lengths, len(y)))
        h = state[0] if isinstance(state, tuple) else state
        return np.concatenate(list(h), axis=1)  # (2, B, H) -> (B, 2 H)

    def _pool_backward(self, dpooled, lengths, steps):
        """Gradients of y and of the final state."""
        if self.pooling != "last-state":
            return masked_mean_backward(dpooled, self._averaged(lengths, steps), steps), None
        dh = np.stack(np.split(dpooled, 2, axis=1))
        return None, (dh, np.zeros_like(dh)) if isinstance(self.recurrent, rk.LSTM) else dh


def positive(logits):
    """Probabilities (B,) that reviews are positive, which is class 1."""
    return 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))


def probability(model, vocabulary, text):
    """Of one text, alone: (that it is positive, its words, how many of them are known)."""
    words = tokens(text)
    ids = vocabulary.ids(words[:LONGEST])
    known = int(np.count_nonzero(ids > 1))
    return float(positive(model(*padded([ids])))[0]), len(words), known


def save(path, model, vocabulary):
    """Vocabulary, options and weights in one .npz file of exactly this name."""
    words = np.frombuffer("\n".join(vocabulary.words).encode(), np.uint8)
    weights = {str(i): module.flat_params for i, module in enumerate(model.modules)}
    header = json.dumps({"format": FORMAT, **model.options})
    with open(path, "wb") as file:
        np.savez(file, header=np.array(header), words=words, **weights)


def load(path):
    """The model and the vocabulary that `save` wrote.

    OSError: the file cannot be read. ModelError: it is no such file.
    """
    with open(path, "rb") as file:
        try:
            with np.load(file, allow_pickle=False) as archive:
                return _rebuilt(dict(archive))
        except Exception as error:  # damaged archives raise nearly anything
            raise ModelError(
                f"{path}: not a saved sentiment model, or damaged ({error})"
            ) from error


def _rebuilt(arrays):
    options = json.loads(str(arrays["header"]))
    if options.pop("format") != FORMAT:
        raise ValueError(f"expected format {FORMAT}")
    vocabulary = Vocabulary(bytes(arrays["words"]).decode().splitlines())
    model = Classifier(len(vocabulary), **options, seed=0)
    for i, module in enumerate(model.modules):
        module.flat_params = arrays[str(i)]
    return model, vocabulary
