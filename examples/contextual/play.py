"""A play as words with roles, in passages; and the vocabulary that turns words into numbers.

The file's layout tells what each word is: a line followed by an empty one, one that sends somebody
on or off, and what stands in brackets is a stage direction; a line of capitalised words alone names
the speaker; the rest is spoken. Then the layout is thrown away. The model reads lower-case words
and marks in one stream, without lines, capitals or brackets, so that "hamlet" is the same word
whether he speaks, enters or is spoken of: only its context can tell.
"""

import re
from collections import Counter
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np

HAMLET = Path(__file__).parent.parent / "data" / "hamlet.txt"
ROLES = SPOKEN, SPEAKER, DIRECTION = "spoken", "speaker", "direction"
SHORTEST, LONGEST = 40, 80  # of a passage, in words and marks

_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*|--|[.,;:!?]")
_MOVES = re.compile(r"\b(ACT|SCENE|Enter|Re-enter|Exit|Exeunt)\b")
_NAME = re.compile(r"[A-Z][A-Za-z]*(?: [A-Z][A-Za-z]*){0,2}")


class Word(NamedTuple):
    """A word or mark, in lower case, and what it is in the play."""

    text: str
    role: str

    @property
    def is_mark(self):
        return not self.text[0].isalnum()


def words_of(text):
    """The words and marks of a text."""
    return _WORD.findall(text.lower())


def role_of(line, following):
    """What a line of the play is, by the file's layout."""
    if not following.strip() or _MOVES.search(line):
        return DIRECTION
    return SPEAKER if _NAME.fullmatch(line) else SPOKEN


def read(text):
    """The words of a play, one after the other."""
    lines = text.splitlines()
    for line, following in zip_longest(lines, lines[1:], fillvalue=""):
        role = role_of(line.strip(), following)
        for place, part in enumerate(re.split(r"[\[\]]", line)):  # every second one is in brackets
            yield from (Word(w, DIRECTION if place % 2 else role) for w in words_of(part))


def passages(words):
    """Lists of words that end where a sentence does, or else are cut at the longest."""
    passage = []
    for word in words:
        passage.append(word)
        ends = word.text in ".!?" and len(passage) >= SHORTEST
        if ends or len(passage) == LONGEST:
            yield passage
            passage = []
    if passage:
        yield passage


def split(found):
    """Of every ten passages seven to learn from, one to choose the model by, two to test with."""
    parts = [[], [], []]
    for index, passage in enumerate(found):
        parts[{2: 1, 4: 2, 9: 2}.get(index % 10, 0)].append(passage)
    return parts


def load(path):
    """The three parts of the play in a file. ValueError if it is too short for them."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text in UTF-8") from error
    parts = split(passages(read(text)))
    if not all(parts):
        raise ValueError(f"{path}: too few words for three parts: it has no five passages")
    return parts


class Vocabulary:
    """Numbers of words: 0 is the edge of a passage, 1 any word that is not known."""

    EDGE, UNKNOWN = 0, 1
    SPECIAL = ("<edge>", "<unknown>")

    def __init__(self, words):
        self.words = [*self.SPECIAL, *words]
        self._ids = {word: index for index, word in enumerate(self.words)}

    @classmethod
    def of(cls, part, at_least=2):
        """Of the words that occur at least so often, the commonest first."""
        counts = Counter(word.text for word in chain.from_iterable(part))
        return cls([word for word, count in counts.most_common() if count >= at_least])

    def __len__(self):
        return len(self.words)

    def __contains__(self, word):
        return word in self._ids

    def ids(self, words):
        return np.array([self._ids.get(word, self.UNKNOWN) for word in words], np.int64)


def padded(rows):
    """Sequences of numbers as an array (T, B), zero behind their lengths (B,)."""
    lengths = np.array([len(row) for row in rows])
    batch = np.zeros((lengths.max(initial=0), len(rows)), np.int64)
    for column, row in zip(batch.T, rows, strict=True):
        column[: len(row)] = row
    return batch, lengths


def batches(part, vocabulary, size=16, rng=None):
    """The passages as pairs of ids (T, B) and lengths (B,); with rng in random order."""
    order = np.arange(len(part)) if rng is None else rng.permutation(len(part))
    for start in range(0, len(part), size):
        chosen = [part[index] for index in order[start : start + size]]
        yield padded([vocabulary.ids(word.text for word in passage) for passage in chosen])
