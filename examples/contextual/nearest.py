"""A word in a sentence, and the words of the play that are most like it, by each layer.

    python examples/contextual/nearest.py MODEL.npz WORD "A SENTENCE WITH THE WORD"

By its vector alone a word is most like itself, wherever it stands. By the layers above it is most
like words in a like place. The likeness is the cosine, from -1 to 1, less the mean of the layer.
"""

import argparse

import numpy as np
from language_model import LanguageModel
from learn_roles import LAYER_NAMES, features_of
from play import HAMLET, load, words_of


def contexts(part, width=5):
    """For each word of the part (no marks) some words around it, with the word in brackets."""
    for passage in part:
        texts = [word.text for word in passage]
        for place, word in enumerate(passage):
            if not word.is_mark:
                before, after = texts[max(0, place - width) : place], texts[place + 1 :][:width]
                yield " ".join([*before, f"[{word.text}]", *after])


def place_of(word, words):
    """Where the word is, the first time. ValueError if nowhere."""
    if word not in words:
        raise ValueError(f"the sentence has no word {word!r}")
    return words.index(word)


def likeness(h, vector):
    """Cosines of the rows (N, F) and a vector (F,), all less the mean row."""
    middle = h.mean(axis=0)
    h, vector = h - middle, vector - middle
    return h @ vector / (np.linalg.norm(h, axis=1) * np.linalg.norm(vector) + 1e-12)


def nearest(frozen, part, word, sentence, most=5):
    """For each layer the likest words of the part: pairs of likeness and context."""
    words = words_of(sentence)
    place = place_of(word.lower(), words)
    ids = frozen.vocabulary.ids(words)[:, None]
    mine = frozen.features(ids, np.array([len(words)]))[:, place, 0]
    around = list(contexts(part))
    for h, vector in zip(features_of(frozen, part), mine, strict=True):
        found = likeness(h, vector)
        yield [(found[k], around[k]) for k in np.argsort(-found, kind="stable")[:most]]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="what train_language_model.py saved")
    parser.add_argument("word")
    parser.add_argument("sentence")
    parser.add_argument("--text", default=HAMLET)
    options = parser.parse_args(argv)
    try:
        frozen = LanguageModel.load(options.model).freeze()
        part = load(options.text)[0]
        found = list(nearest(frozen, part, options.word, options.sentence))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    unknown = [w for w in words_of(options.sentence) if w not in frozen.vocabulary]
    if unknown:
        print("unknown words, all read as one:", ", ".join(unknown))
    for name, rows in zip(LAYER_NAMES, found, strict=True):
        print(name, *(f"  {cosine:5.2f}  {context}" for cosine, context in rows), sep="\n")


if __name__ == "__main__":
    main()
