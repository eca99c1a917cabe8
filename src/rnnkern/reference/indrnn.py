"""The independently recurrent network: each unit sees of the state only its own element.

Li, Li, Cook, Zhu and Gao, "Independently recurrent neural network (IndRNN): building a longer and
deeper RNN" (CVPR 2018).
"""

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from . import act, stack
from .product import product, product_backward
from .stack import Array, Cell, ForwardOptions, Sizes, States, Tape, Weights


class IndRNNCell(Cell):
    """h' = act(W x + b_ih + u * h), u a vector."""

    name = "indrnn"
    blocks = 1
    states = ("h",)
    optional = (("bias_ih",),)
    masks = ("hidden_dropout", "zoneout_h")

    def __init__(self, nonlinearity: act.Spec) -> None:
        self.act = act.resolve("nonlinearity", nonlinearity)

    def shapes(self, s: Sizes) -> dict[str, tuple[int, ...]]:
        return {"weight_ih": (s.H, s.inputs), "weight_hh": (s.H,), "bias_ih": (s.H,)}

    def forward(self, w: Weights, x: Array, state: States, m: Array) -> tuple[States, Any]:
        hd = state["hd"]
        of_x, cache_x = product(w, "ih", x)
        a = of_x + w["bias_ih"] + w["weight_hh"] * hd
        h = self.act(a)
        return {"h": h}, (cache_x, hd, a, h)

    def backward(self, w: Weights, cache: Any, dafter: States) -> tuple[Array, States, Weights]:
        cache_x, hd, a, h = cache
        da = self.act.backward(a, h, dafter["h"])
        dx, dw = product_backward(w, "ih", cache_x, da)
        dw["weight_hh"] = np.sum(da * hd, axis=0)
        return dx, {"hd": da * w["weight_hh"]}, dw


def indrnn_forward(
    x: npt.ArrayLike,
    params: Mapping[str, npt.ArrayLike],
    hx: npt.ArrayLike | None = None,
    *,
    nonlinearity: act.Spec = "relu",
    **options: Unpack[ForwardOptions],
) -> tuple[Array, Array, Tape]:
    """Run a stack of IndRNN layers; see `stack.forward`. Returns y, h_n and a tape."""
    y, h_n, tape = stack.forward(IndRNNCell(nonlinearity), x, params, hx, **options)
    return y, h_n, tape


indrnn_backward = stack.backward
