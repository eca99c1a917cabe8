"""Learns what words are in a play from the layers of the frozen language model.

    python examples/contextual/learn_roles.py MODEL.npz [--text play.txt] [--say "enter hamlet"]

Each word is spoken, names the speaker, or belongs to a stage direction (see play.py). The task is
learnt on the passages that the model has learnt from: from each layer alone, from the learnt mix,
and from the mix of a model with random weights. It is tested on others: on all words, and on the
contested ones, of whose occurrences in the first part less than 90 % have one role. A word's vector
alone can do no better there than to say its commonest role; what is above comes from the context.
"""

import argparse
from collections import Counter, defaultdict

import numpy as np
from language_model import LAYERS, LanguageModel
from layer_mix import Tagger
from play import HAMLET, ROLES, batches, load, words_of

LAYER_NAMES = ["word vectors", *(f"LSTM layer {k + 1}" for k in range(LAYERS))]


def features_of(frozen, part):
    """The layers of all words of a part, (layers, N, F), without the marks."""
    found = []
    for ids, lengths in batches(part, frozen.vocabulary):
        layers = frozen.features(ids, lengths)
        found += [layers[:, :length, row] for row, length in enumerate(lengths)]
    real = [not word.is_mark for passage in part for word in passage]
    return np.concatenate(found, axis=1)[:, real]


def words_in(part):
    return [word for passage in part for word in passage if not word.is_mark]


def labels_of(words):
    return np.array([ROLES.index(word.role) for word in words])


def role_counts(words):
    """How often each word has which role."""
    counts = defaultdict(Counter)
    for word in words:
        counts[word.text][word.role] += 1
    return counts


def contested(counts, share=0.9, at_least=5):
    """Words that are not rare and of which no role has that share."""
    totals = {word: sum(roles.values()) for word, roles in counts.items()}
    return {
        word
        for word, roles in counts.items()
        if totals[word] >= at_least and max(roles.values()) < share * totals[word]
    }


def commonest(counts, words):
    """What a table of words would say: the commonest role of each, in the end that of all."""
    every = sum(counts.values(), Counter())
    guesses = [(counts.get(w.text) or every).most_common(1)[0][0] for w in words]
    return np.array([ROLES.index(guess) for guess in guesses])


class Task:
    """The words to learn from and to test with, and their labels."""

    def __init__(self, learn, test):
        self.parts = learn, test
        self.learn, self.test = words_in(learn), words_in(test)
        self.labels, self.want = labels_of(self.learn), labels_of(self.test)
        if len(set(self.labels)) < len(ROLES):
            raise ValueError("the text has no speakers or no stage directions to be learnt")
        self.counts = role_counts(self.learn)
        hard = contested(self.counts)
        self.hard = np.array([word.text in hard for word in self.test])

    def score(self, guesses):
        """Accuracies on all words and on the contested ones."""
        right = guesses == self.want
        return right.mean(), right[self.hard].mean() if self.hard.any() else np.nan

    def tagger(self, h, seed=0, **options):
        return Tagger(len(h), h.shape[-1], len(ROLES), seed).fit(h, self.labels, **options)

    def features(self, frozen):
        """Of both parts."""
        return [features_of(frozen, part) for part in self.parts]

    def compare(self, model, seeds=(0,), report=print):
        """A row (name, accuracies by seed) for each way of guessing; and the mixes by seed."""
        h, h_test = self.features(model.freeze())
        size = model.table.embedding_dim
        r, r_test = self.features(LanguageModel(model.vocabulary, size, seed=99).freeze())
        ways = {name: (h[j : j + 1], h_test[j : j + 1]) for j, name in enumerate(LAYER_NAMES)}
        ways |= {"learnt mix": (h, h_test), "mix, random model": (r, r_test)}
        rows = [("commonest role", [self.score(commonest(self.counts, self.test))])]
        mixes = []
        for name, (learn, test) in ways.items():
            taggers = [self.tagger(learn, seed=seed) for seed in seeds]
            rows.append((name, [self.score(tagger(test)) for tagger in taggers]))
            report(table_row(*rows[-1]))
            if name == "learnt mix":
                mixes = [tagger.mix for tagger in taggers]
        return rows, mixes, np.linalg.norm(h, axis=-1).mean(axis=1)


def table_row(name, scores):
    every, hard = np.mean(scores, axis=0)
    return f"{name:18} {every:6.1%}      {hard:6.1%}"


def say(model, task, text):
    """Learns the task and prints the words of a sentence, each with its role."""
    words = words_of(text)
    if not any(word[0].isalnum() for word in words):
        raise ValueError(f"--say: expected words, got {text!r}")
    ids = model.vocabulary.ids(words)[:, None]
    frozen = model.freeze()
    tagger = task.tagger(features_of(frozen, task.parts[0]))
    guesses = tagger(frozen.features(ids, np.array([len(words)]))[:, :, 0])
    for word, guess in zip(words, guesses, strict=True):
        if word[0].isalnum():
            unknown = "" if word in model.vocabulary else "  (an unknown word)"
            print(f"  {word:16} {ROLES[guess]}{unknown}")


def options_of(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="what train_language_model.py saved")
    parser.add_argument("--text", default=HAMLET)
    parser.add_argument("--seeds", type=int, default=1, help="means over so many taggers")
    parser.add_argument("--say", help="instead of the table, the roles of the words of this")
    return parser, parser.parse_args(argv)


def main(argv=None):
    parser, options = options_of(argv)
    try:
        model = LanguageModel.load(options.model)
        learn, _, test = load(options.text)
        task = Task(learn, test)
        if options.say is not None:
            return say(model, task, options.say)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print(f"{len(task.learn)} words to learn from; of {len(task.test)} to test with", end=" ")
    print(f"{task.hard.sum()} are contested\n\n{'':18} all words   contested")
    print(table_row("commonest role", [task.score(commonest(task.counts, task.test))]))
    _, mixes, norms = task.compare(model, range(options.seeds))
    print(f"\n{'':18} weight s   mean norm of h")
    for name, weight, norm in zip(LAYER_NAMES, mixes[0].weights, norms, strict=True):
        print(f"{name:18} {weight:8.2f}   {norm:8.2f}")
    print(f"gamma {mixes[0].params['gamma'][0]:.2f}")


if __name__ == "__main__":
    main()
