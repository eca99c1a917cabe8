"""Draws what docs/contextual.md shows. Needs matplotlib (`pip install '.[plot]'`).

python examples/contextual/draw_layers.py MODEL.npz HISTORY.csv PICTURE.png
"""

import argparse

import numpy as np
from language_model import LanguageModel
from learn_roles import LAYER_NAMES, Task, features_of, words_in
from play import HAMLET, ROLES, load

COLOURS = ("tab:blue", "tab:orange", "tab:green")


def plane(h):
    """The rows (N, F) on the two axes along which they differ most: (N, 2)."""
    h = h - h.mean(axis=0)
    return h @ np.linalg.svd(h, full_matrices=False)[2][:2].T


def draw_perplexities(axes, history):
    epochs = np.arange(1, len(history) + 1)
    names = ["forward, learnt", "backward, learnt", "forward, held out", "backward, held out"]
    for column, (name, style) in enumerate(zip(names, ("C0:", "C1:", "C0-", "C1-"), strict=True)):
        axes.plot(epochs, history[:, column], style, label=name)
    axes.set(xlabel="epoch", ylabel="perplexity", yscale="log", title="Next word")
    axes.set_yticks([75, 100, 150, 200, 300, 400], ["75", "100", "150", "200", "300", "400"])
    axes.minorticks_off()
    axes.legend(fontsize=7)


def draw_accuracies(axes, rows):
    names = [name for name, _ in rows]
    hard = [100 * np.mean([score[1] for score in scores]) for _, scores in rows]
    axes.barh(names, hard, color=["0.6", *["tab:purple"] * (len(rows) - 2), "0.6"])
    axes.invert_yaxis()
    for place, share in enumerate(hard):
        axes.text(share - 2, place, f"{share:.1f}", va="center", ha="right", color="white")
    axes.set(xlim=(0, 100), xlabel="% right", title="Roles of contested words")


def draw_word(axes, h, words, text, title):
    chosen = np.array([word.text == text for word in words])
    spots = plane(h[chosen])
    roles = np.array([word.role for word in words])[chosen]
    for role, colour in zip(ROLES, COLOURS, strict=True):
        axes.scatter(*spots[roles == role].T, s=12, color=colour, label=role, alpha=0.7)
    axes.set(title=title, xticks=[], yticks=[])
    axes.legend(fontsize=7, loc="lower right")


def main(argv=None):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("model", "history", "picture"):
        parser.add_argument(name)
    parser.add_argument("--text", default=HAMLET)
    options = parser.parse_args(argv)
    try:
        model = LanguageModel.load(options.model)
        history = np.loadtxt(options.history, delimiter=",", skiprows=1, ndmin=2)
        learn, _, test = load(options.text)
        rows, _, _ = Task(learn, test).compare(model)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    draw_perplexities(axes[0], history)
    draw_accuracies(axes[1], rows)
    h = features_of(model.freeze(), test)[1]
    draw_word(axes[2], h, words_in(test), "hamlet", f'"hamlet", held out: {LAYER_NAMES[1]}')
    figure.savefig(options.picture, dpi=80)


if __name__ == "__main__":
    main()
