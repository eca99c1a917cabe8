"""The simple recurrent network of Elman, "Finding structure in time" (Cognitive Science, 1990)."""

from collections.abc import Mapping
from typing import Any, Unpack

import numpy.typing as npt

from . import act, stack
from .product import product, product_backward
from .stack import (
    BIASES,
    Array,
    Cell,
    ForwardOptions,
    Sizes,
    States,
    Tape,
    Weights,
)


class RNNCell(Cell):
    """h' = act(W x + b_ih + U h + b_hh). W x and U h may be normalised."""

    name = "rnn"
    blocks = 1
    states = ("h",)
    optional = (BIASES, ("norm_ih", "norm_hh"))
    masks = ("hidden_dropout", "weight_dropout", "zoneout_h")

    def __init__(self, nonlinearity: act.Spec, clip: float | None, norm_eps: float) -> None:
        self.act = act.resolve("nonlinearity", nonlinearity, clip)
        self.eps = act.above_0("norm_eps", norm_eps)

    def shapes(self, s: Sizes) -> dict[str, tuple[int, ...]]:
        products = {"weight_ih": (s.G, s.inputs), "weight_hh": (s.G, s.P)}
        return {**products, **dict.fromkeys((*BIASES, "norm_ih", "norm_hh"), (s.G,))}

    def forward(self, w: Weights, x: Array, state: States, m: Array) -> tuple[States, Any]:
        of_x, cache_x = product(w, "ih", x, self.eps)
        of_h, cache_h = product(w, "hh", state["hd"], self.eps)
        a = of_x + w["bias_ih"] + of_h + w["bias_hh"]
        h = self.act(a)
        return {"h": h}, (cache_x, cache_h, a, h)

    def backward(self, w: Weights, cache: Any, dafter: States) -> tuple[Array, States, Weights]:
        cache_x, cache_h, a, h = cache
        da = self.act.backward(a, h, dafter["h"])
        dx, dw_x = product_backward(w, "ih", cache_x, da)
        dhd, dw_h = product_backward(w, "hh", cache_h, da)
        return dx, {"hd": dhd}, dw_x | dw_h


def rnn_forward(
    x: npt.ArrayLike,
    params: Mapping[str, npt.ArrayLike],
    hx: npt.ArrayLike | None = None,
    *,
    nonlinearity: act.Spec = "tanh",
    clip: float | None = None,
    norm_eps: float = 1e-5,
    **options: Unpack[ForwardOptions],
) -> tuple[Array, Array, Tape]:
    """Run a stack of RNN layers; see `stack.forward`. Returns y, h_n and a tape."""
    y, h_n, tape = stack.forward(RNNCell(nonlinearity, clip, norm_eps), x, params, hx, **options)
    return y, h_n, tape


rnn_backward = stack.backward
