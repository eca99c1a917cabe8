"""What options of a cell cost, and what other cells take: ratios to the plain layer.

    python bench/cells.py [--shapes T,B,I,H ...] [--threads 1 2] [--work training inference]
                          [--seconds 2] [--rounds N]

Within each table all layers take turns in the same rounds, so ratios stand where milliseconds do
not; a value below 1 is faster than the plain layer. Prints markdown.
"""

import argparse
from functools import partial

import numpy as np
from measure import interleaved
from workloads import VARIANT_SHAPES, parse_shape

import rnnkern as rk

Regularized = rk.Regularization
REGULARIZED = {
    "input and output dropout": Regularized(input_dropout=0.25, output_dropout=0.25),
    "dropout of h": Regularized(hidden_dropout=0.25),
    "dropout of the candidate": Regularized(candidate_dropout=0.25),
    "DropConnect": Regularized(weight_dropout=0.25),
    "zoneout of h": Regularized(zoneout_h=0.25),
    "zoneout of c": Regularized(zoneout_c=0.25),
    "zoneout of h and c": Regularized(zoneout_h=0.25, zoneout_c=0.25),
}
ACTIVATIONS = (
    "hard_sigmoid",
    "relu",
    "softsign",
    "identity",
    "affine",
    "leaky_relu",
    "thresholded_relu",
    "scaled_tanh",
    "elu",
    "softplus",
)


def of_options(options):
    return {label: partial(rk.LSTM, **more) for label, more in options.items()}


TABLES = {
    "Regularisation of the LSTM": of_options(
        {"plain": {}} | {label: {"regularization": r} for label, r in REGULARIZED.items()}
    ),
    "Options of the LSTM": of_options(
        {
            "plain": {},
            "peephole": {"peephole": True},
            "coupled": {"coupled": "input"},
            "clip": {"clip": 3.0, "cell_clip": 3.0},
            "layer_norm": {"layer_norm": True},
        }
    )
    | {"proj_size=H/2": lambda inputs, hidden: rk.LSTM(inputs, hidden, proj_size=hidden // 2)},
    "All activations of the LSTM": of_options(
        {"plain": {}} | {name: {"activations": (name, name, name)} for name in ACTIVATIONS}
    ),
    "Other cells": {
        "LSTM": rk.LSTM,
        "GRU": rk.GRU,
        "GRU, reset-before": partial(rk.GRU, reset_after=False),
        "GRU, layer_norm": partial(rk.GRU, layer_norm=True),
        "MGU": rk.MGU,
        "RNN": rk.RNN,
        "RNN, relu": partial(rk.RNN, nonlinearity="relu"),
        "IndRNN": rk.IndRNN,
        "SRU": rk.SRU,
        "MinGRU": rk.MinGRU,
    },
}


def training(layer, x, dy, threads):
    _, _, tape = layer.record(x, num_threads=threads)
    return tape.backward(dy, num_threads=threads)


def runs(kind, layer, x, dy, threads):
    if kind == "inference":
        return partial(layer.freeze(), x, num_threads=threads)
    return partial(training, layer, x, dy, threads)


def table(makers, kind, shape, options, threads):
    """Markdown of one table: {label: function of (I, H) that makes the layer}."""
    steps, rows, inputs, hidden = shape
    rng = np.random.default_rng(0)
    x = rng.standard_normal((steps, rows, inputs), np.float32)
    dy = rng.standard_normal((steps, rows, hidden), np.float32)
    functions = {}
    for label, make in makers.items():
        layer = make(inputs, hidden)
        outputs = getattr(layer, "proj_size", 0) or hidden
        functions[label] = runs(kind, layer, x, np.ascontiguousarray(dy[..., :outputs]), threads)
    ms, _ = interleaved(functions, options.seconds, options.rounds)
    plain = ms[next(iter(makers))]
    lines = [f"| {label} | {time:.3f} | {time / plain:.2f} |" for label, time in ms.items()]
    return "\n".join(["| | ms | ratio |", "|---|---|---|", *lines])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = ["training", "inference"]
    parser.add_argument("--shapes", type=parse_shape, nargs="+", default=VARIANT_SHAPES)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--work", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each table")
    parser.add_argument("--rounds", type=int, help="measure so often instead")
    options = parser.parse_args()
    for kind in options.work:
        for threads in options.threads:
            for sizes in options.shapes:
                for title, makers in TABLES.items():
                    print(f"\n{title}: {kind}, (T, B, I, H) = {sizes}, {threads} thread(s)\n")
                    print(table(makers, kind, sizes, options, threads), flush=True)


if __name__ == "__main__":
    main()
