"""What a task takes from the layers of a frozen model: gamma * sum_j s_j h_j, s = softmax(scores).

This is equation 1 of Peters et al. 2018: a weighted mean of the layers, with weights that sum to 1,
and a scale. A linear layer behind it makes the decision. Mix and decision learn together; the
features h are numbers by now, so nothing that is learnt here can reach the model that made them.
"""

import numpy as np

from rnnkern.train import Adam, Linear, softmax_cross_entropy


class LayerMix:
    """The mix, as rnnkern.train's modules are: `params`, `grads` and `record`."""

    def __init__(self, layers, dtype=np.float32):
        self.params = {"scores": np.zeros(layers, dtype), "gamma": np.ones(1, dtype)}
        self.grads = {name: np.zeros_like(array) for name, array in self.params.items()}

    @property
    def weights(self):
        """s: above 0, and 1 together."""
        scores = np.exp(self.params["scores"] - self.params["scores"].max())
        return scores / scores.sum()

    def __call__(self, h):
        """h (layers, N, F) to (N, F)."""
        return self.params["gamma"] * np.einsum("j,jnf->nf", self.weights, h)

    def record(self, h):
        return self(h), MixTape(self, h)


class MixTape:
    """The layers of one `LayerMix.record`, and its weights as they were."""

    def __init__(self, mix, h):
        self._mix, self._h, self._s = mix, h, mix.weights
        self._gamma = mix.params["gamma"].copy()

    def backward(self, dy):
        """Adds the gradients of scores and gamma for dy (N, F); there is none of h."""
        by_layer = np.einsum("nf,jnf->j", dy, self._h)
        mean = self._s @ by_layer
        self._mix.grads["gamma"] += mean
        self._mix.grads["scores"] += self._gamma * self._s * (by_layer - mean)


class Tagger:
    """A mix of layers and a linear layer of logits."""

    def __init__(self, layers, features, classes, seed=0):
        self.mix, self.logits = LayerMix(layers), Linear(features, classes, seed=seed)

    def __call__(self, h):
        """The class of each of the N words of h (layers, N, F)."""
        return self.logits(self.mix(h)).argmax(axis=-1)

    def step(self, h, labels, optimiser):
        mixed, mix_tape = self.mix.record(h)
        logits, tape = self.logits.record(mixed)
        loss, dlogits = softmax_cross_entropy(logits, labels)
        mix_tape.backward(tape.backward(dlogits))
        optimiser.step()
        optimiser.zero_grad()
        return loss

    def fit(self, h, labels, epochs=20, batch=64, lr=0.003, seed=0):
        """Trains by Adam on the words (layers, N, F) in random order; returns itself."""
        rng, optimiser = np.random.default_rng(seed), Adam([self.mix, self.logits], lr=lr)
        for _ in range(epochs):
            order = rng.permutation(len(labels))
            for start in range(0, len(order), batch):
                chosen = order[start : start + batch]
                self.step(h[:, chosen], labels[chosen], optimiser)
        return self
