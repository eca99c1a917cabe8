"""The products of a step with the weights, and layer normalisation, which may stand behind them.

Ba, Kiros and Hinton, "Layer normalization" (2016): mean and variance over the units of one row at
one step. The input product and the recurrent product are normalised apart, each over all gates
together, before the biases are added; as the paper has it for the LSTM.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def layer_norm(v: Array, gain: Array, eps: float) -> tuple[Array, Any]:
    """gain * (v - mean) / sqrt(variance + eps) for each row, and a cache."""
    v = v - v.mean(axis=1, keepdims=True)
    inverse = 1 / np.sqrt(np.mean(v * v, axis=1, keepdims=True) + eps)
    unit = v * inverse
    return gain * unit, (unit, inverse, gain)


def layer_norm_backward(cache: Any, dy: Array) -> tuple[Array, Array]:
    """The gradients of v and of the gain."""
    unit, inverse, gain = cache
    du = dy * gain
    along = np.mean(du * unit, axis=1, keepdims=True)  # what changes only the norm of v
    dv = inverse * (du - du.mean(axis=1, keepdims=True) - unit * along)
    return dv, np.sum(dy * unit, axis=0)


def product(w: dict[str, Array], of: str, v: Array, eps: float = 0.0) -> tuple[Array, Any]:
    """W v for weight_ih or weight_hh (of says which), normalised where there is a gain; a cache."""
    a = v @ w[f"weight_{of}"].T
    if f"norm_{of}" not in w:
        return a, (v, None)
    a, norm = layer_norm(a, w[f"norm_{of}"], eps)
    return a, (v, norm)


def product_backward(
    w: dict[str, Array], of: str, cache: Any, da: Array
) -> tuple[Array, dict[str, Array]]:
    """The gradients of v and of the weights, with that of the bias that is added to the product."""
    v, norm = cache
    dw = {f"bias_{of}": da.sum(axis=0)}
    if norm is not None:
        da, dw[f"norm_{of}"] = layer_norm_backward(norm, da)
    dw[f"weight_{of}"] = da.T @ v
    return da @ w[f"weight_{of}"], dw
