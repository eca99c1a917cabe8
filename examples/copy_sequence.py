"""An encoder hands its final state to a decoder, which writes the sequence that the encoder read.

    python examples/copy_sequence.py

The two are trained together: the gradient of the decoder's initial state is that of the encoder's
final state. Symbols 1..8 in sequences of 2 to 6; the decoder reads the symbol before (0 at first),
as in Sutskever, Vinyals & Le 2014, "Sequence to sequence learning with neural networks".
"""

import argparse

import numpy as np

import rnnkern as rk
from rnnkern.train import Adam, Embedding, Linear, clip_grad_norm, softmax_cross_entropy

SYMBOLS, LONGEST, ROWS, HIDDEN = 8, 6, 64, 64


class Copier:
    """Embeddings, encoder, decoder and a layer of logits."""

    def __init__(self, seed=0):
        self.symbols = Embedding(SYMBOLS + 1, HIDDEN, seed=seed)
        self.encoder = rk.LSTM(HIDDEN, HIDDEN, seed=seed + 1)
        self.decoder = rk.LSTM(HIDDEN, HIDDEN, seed=seed + 2)
        self.logits = Linear(HIDDEN, SYMBOLS + 1, seed=seed + 3)

    @property
    def modules(self):
        return [self.symbols, self.encoder, self.decoder, self.logits]

    def train(self, source, lengths):
        """Adds gradients of the mean loss over real steps, which it returns. source (T, B)."""
        previous = np.concatenate([np.zeros_like(source[:1]), source[:-1]])
        x, x_tape = self.symbols.record(source)
        p, p_tape = self.symbols.record(previous)
        _, state, encoder = self.encoder.record(x, lengths=lengths)
        y, _, decoder = self.decoder.record(p, state, lengths=lengths)
        real = np.arange(len(source))[:, None] < lengths
        logits, logits_tape = self.logits.record(y[real])
        loss, dlogits = softmax_cross_entropy(logits, source[real])
        dy = np.zeros_like(y)
        dy[real] = logits_tape.backward(dlogits)
        dp, dstate = decoder.backward(dy)
        dx, _ = encoder.backward(dhx_n=dstate)  # the hand-over
        p_tape.backward(dp)
        x_tape.backward(dx)
        return loss

    def copy(self, source, lengths):
        """What the decoder writes, symbol by symbol, greedily: (T, B)."""
        _, state = self.encoder(self.symbols(source), lengths=lengths, need_output=False)
        stream = self.decoder.stream(source.shape[1])
        stream.state = state
        symbol, written = np.zeros_like(source[0]), []
        for _ in range(len(source)):
            symbol = self.logits(stream.step(self.symbols(symbol))).argmax(axis=1)
            written.append(symbol)
        return np.stack(written)


def batch(rng):
    """Symbols (T, B) and lengths (B,)."""
    source = rng.integers(1, SYMBOLS + 1, (LONGEST, ROWS))
    return source, rng.integers(2, LONGEST + 1, ROWS)


def accuracy(copier, rng):
    """Share of sequences that are copied without a fault."""
    source, lengths = batch(rng)
    real = np.arange(LONGEST)[:, None] < lengths
    right = (copier.copy(source, lengths) == source) | ~real
    return float(right.all(axis=0).mean())


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    rng, copier = np.random.default_rng(options.seed), Copier(options.seed)
    optimiser = Adam(copier.modules, lr=0.003)
    for step in range(1, options.steps + 1):
        loss = copier.train(*batch(rng))
        clip_grad_norm(copier.modules, 1.0)
        optimiser.step()
        optimiser.zero_grad()
        if step % max(1, options.steps // 10) == 0:
            print(f"step {step:5}  loss {loss:.3f}  copied {accuracy(copier, rng):.0%}", flush=True)
    return accuracy(copier, np.random.default_rng(99))


if __name__ == "__main__":
    main()
