"""Layers whose numbers are chosen by hand, for the examples beside this file; float64 throughout.

A layer with zero weights computes what its biases say, so a bias of logit(p) makes a gate p at
every step: logit(0) and logit(1) are infinite, and close and open a gate exactly.
"""

import numpy as np

import rnnkern as rk

ROWS = {"LSTM": "ifgo", "GRU": "rzn", "MinGRU": "zn"}  # the gates of a layer, in its weights' order
F64 = np.float64


def logit(p):
    """The number that the logistic function turns into p."""
    with np.errstate(divide="ignore"):
        return np.log(p) - np.log1p(-p)


def bias_of(kind, gate, value):
    """The bias that gives a gate this value, or a candidate (g of an LSTM, n of the others)."""
    if gate not in "gn":
        return logit(value)
    return value if kind == "MinGRU" else np.arctanh(value)  # a MinGRU's candidate has no tanh


def force_gates(layer, **values):
    """Zero all weights, and give every gate its value, or its values (H,); returns the layer."""
    kind, units = type(layer).__name__, layer.hidden_size
    biases = [bias_of(kind, gate, np.full(units, values[gate], F64)) for gate in ROWS[kind]]
    layer.flat_params = np.zeros_like(layer.flat_params)
    layer.bias_ih_l0 = np.concatenate(biases)
    return layer


def linear_rnn(w):
    """One unit, h' = x + w h: without activation and bias a product is all that is left."""
    rnn = rk.RNN(1, 1, nonlinearity="identity", bias=False, dtype=F64)
    rnn.weight_ih_l0, rnn.weight_hh_l0 = [[1.0]], [[w]]
    return rnn


def column(numbers):
    """A sequence of single numbers (T,) as the layers take it: (T, 1)."""
    return np.array(numbers, F64)[:, None]
