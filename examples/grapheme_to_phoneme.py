"""How English words are pronounced: the GRU encoder and decoder of g2p-en.

    pip install --no-deps g2p-en==2.1.0
    python examples/grapheme_to_phoneme.py recurrent neural networks

The encoder reads the letters as a sequence. Its last state is handed over to the decoder, a cell
that is called in a loop, since each of its inputs is the phoneme that it chose before. Only the
file of weights is used from g2p-en, so that nothing else has to be installed for it.
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np

import rnnkern as rk

GRAPHEMES = ["<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz"]
PHONEMES = (  # noqa: SIM905
    "<pad> <unk> <s> </s> AA0 AA1 AA2 AE0 AE1 AE2 AH0 AH1 AH2 AO0 AO1 AO2 AW0 AW1 AW2 AY0 AY1 AY2 "
    "B CH D DH EH0 EH1 EH2 ER0 ER1 ER2 EY0 EY1 EY2 F G HH IH0 IH1 IH2 IY0 IY1 IY2 JH K L M N NG "
    "OW0 OW1 OW2 OY0 OY1 OY2 P R S SH T TH UH0 UH1 UH2 UW UW0 UW1 UW2 V W Y Z ZH"
).split()
START, END = PHONEMES.index("<s>"), PHONEMES.index("</s>")
MOST = 20  # phonemes


def gru_weights(model, part):
    """The weights of the "enc" or the "dec" under torch's names."""
    kinds = {"weight_ih": "w_ih", "weight_hh": "w_hh", "bias_ih": "b_ih", "bias_hh": "b_hh"}
    return {name: model[f"{part}_{short}"] for name, short in kinds.items()}


class GraphemeToPhoneme:
    """From a word to its phonemes.

    Args:
        model: mapping of g2p-en's names to arrays: embeddings enc_emb and dec_emb, GRUs enc_* and
            dec_*, the last layer fc_w and fc_b.
    """

    def __init__(self, model):
        inputs, hidden = model["enc_emb"].shape[1], model["enc_w_hh"].shape[1]
        encoder, decoder = rk.GRU(inputs, hidden), rk.GRUCell(inputs, hidden)
        encoder.load_state_dict({f"{k}_l0": a for k, a in gru_weights(model, "enc").items()})
        decoder.load_state_dict(gru_weights(model, "dec"))
        self.encoder, self.decoder = encoder.freeze(), decoder.freeze()
        self.graphemes, self.phonemes = model["enc_emb"], model["dec_emb"]
        self.weight, self.bias = model["fc_w"], model["fc_b"]

    def encode(self, word):
        """The state (H,) after the letters of a word and an end mark."""
        marks = [*word, "</s>"]
        letters = [GRAPHEMES.index(m if m in GRAPHEMES else "<unk>") for m in marks]
        _, h_n = self.encoder(self.graphemes[letters], need_output=False)
        return h_n[0]

    def decode(self, h):
        """The likeliest phoneme after each step, until the end mark."""
        found, last = [], START
        while len(found) < MOST:
            h = self.decoder(self.phonemes[last], h)
            last = int(np.argmax(self.weight @ h + self.bias))
            if last == END:
                break
            found.append(PHONEMES[last])
        return found

    def __call__(self, word):
        return self.decode(self.encode(word.lower()))


def main():
    package = importlib.util.find_spec("g2p_en")
    if package is None:
        sys.exit("The weights are missing: pip install --no-deps g2p-en==2.1.0")
    with np.load(Path(package.origin).parent / "checkpoint20.npz") as file:
        pronounce = GraphemeToPhoneme(dict(file))
    for word in sys.argv[1:] or ["recurrent", "neural", "networks"]:
        print(word, *pronounce(word))


if __name__ == "__main__":
    main()
