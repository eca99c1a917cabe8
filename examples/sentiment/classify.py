"""How positive are these sentences?

    python examples/sentiment/classify.py sentiment.npz "Wonderful!" "I left after an hour."
    python examples/sentiment/classify.py sentiment.npz - < lines.txt

One line for each: the probability that a review with these words is positive, and the text. Of a
text without words it is what the model says to no evidence at all.
"""

import argparse
import os
import sys

from model import ModelError, load, probability
from reviews import LONGEST


def remark(words, known):
    """What the reader should know about the number."""
    if not words:
        return "  (no words)"
    if not known:
        return "  (no known word)"
    return f"  (the first {LONGEST} of {words} words)" if words > LONGEST else ""


def shortened(text, width=60):
    text = " ".join(text.split())
    return text if len(text) <= width else f"{text[: width - 3]}..."


def line(model, vocabulary, text):
    p, words, known = probability(model, vocabulary, text)
    name = "positive" if p >= 0.5 else "negative"
    return f"{p:.3f}  {name}  {shortened(text)}{remark(words, known)}"


def texts(arguments):
    for text in arguments:
        if text == "-":
            yield from sys.stdin
        else:
            yield text


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="what train.py saved")
    parser.add_argument("text", nargs="+", help="sentences; - reads lines from standard input")
    options = parser.parse_args(argv)
    # Whatever the terminal's encoding, no byte of a text may stop the program.
    sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    sys.stdout.reconfigure(errors="backslashreplace")
    try:
        model, vocabulary = load(options.model)
        for text in texts(options.text):
            print(line(model, vocabulary, text), flush=True)
    except BrokenPipeError:  # the reader, such as head, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ModelError) as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
