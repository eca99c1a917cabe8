"""Activations. The way back is written in terms of the activation's own value y."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), by an exponential that cannot overflow and a sum that cannot cancel."""
    e = np.exp(-np.abs(x))
    y: Array = np.where(x >= 0, 1, e) / (1 + e)
    return y


def sigmoid_backward(y: Array, dy: Array) -> Array:
    return dy * y * (1 - y)


def tanh(x: Array) -> Array:
    return np.tanh(x)


def tanh_backward(y: Array, dy: Array) -> Array:
    return dy * (1 - y * y)


def relu(x: Array) -> Array:
    return np.maximum(x, 0)  # unlike np.where(x > 0, x, 0), this keeps NaN


def relu_backward(y: Array, dy: Array) -> Array:
    """The slope at 0 is 0, that of NaN is 1, both as in torch; a choice, so that 0 * inf is 0."""
    return np.where(y <= 0, 0, dy)
