"""The minimal gated unit: a GRU whose one gate both resets and updates.

Zhou, Wu, Zhang and Zhou, "Minimal gated unit for recurrent neural networks" (International
Journal of Automation and Computing, 2016).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np
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


class MGUCell(Cell):
    """Rows of the weights in the order f, n.

    f  = s(W x + b_ih + U h + b_hh)                     gate
    n  = act(W x + b_ih + U (f * h) + b_hh)             candidate
    h' = (1 - f) * h + f * n
    """

    name = "mgu"
    blocks = 2
    states = ("h",)
    optional = (BIASES,)
    masks = ("hidden_dropout", "candidate_dropout", "weight_dropout", "zoneout_h")

    def __init__(self, activations: Sequence[act.Spec]) -> None:
        self.gate, self.candidate = act.resolve_all(activations, 2)

    def shapes(self, s: Sizes) -> dict[str, tuple[int, ...]]:
        products = {"weight_ih": (s.G, s.inputs), "weight_hh": (s.G, s.P)}
        return {**products, **dict.fromkeys(BIASES, (s.G,))}

    def forward(self, w: Weights, x: Array, state: States, m: Array) -> tuple[States, Any]:
        h, hd = state["h"], state["hd"]
        u_f, u_n = np.split(w["weight_hh"], 2)
        of_x, cache_x = product(w, "ih", x)
        a_f, a_n = np.split(of_x + w["bias_ih"] + w["bias_hh"], 2, axis=1)
        a_f = a_f + hd @ u_f.T
        f = self.gate(a_f)
        a_n = a_n + (f * hd) @ u_n.T
        n = self.candidate(a_n)
        h_next = (1 - f) * h + f * (m * n)
        return {"h": h_next}, (cache_x, m, h, hd, a_f, f, a_n, n)

    def backward(self, w: Weights, cache: Any, dafter: States) -> tuple[Array, States, Weights]:
        cache_x, m, h, hd, a_f, f, a_n, n = cache
        dh_next = dafter["h"]
        u_f, u_n = np.split(w["weight_hh"], 2)
        da_n = self.candidate.backward(a_n, n, dh_next * f * m)
        dfh = da_n @ u_n  # the gradient of f * h
        da_f = self.gate.backward(a_f, f, dh_next * (m * n - h) + dfh * hd)
        dhd = dfh * f + da_f @ u_f
        dx, dw = product_backward(w, "ih", cache_x, np.concatenate([da_f, da_n], axis=1))
        dw["weight_hh"] = np.concatenate([da_f.T @ hd, da_n.T @ (f * hd)])
        dw["bias_hh"] = dw["bias_ih"]
        return dx, {"h": dh_next * (1 - f), "hd": dhd}, dw


def mgu_forward(
    x: npt.ArrayLike,
    params: Mapping[str, npt.ArrayLike],
    hx: npt.ArrayLike | None = None,
    *,
    activations: Sequence[act.Spec] = ("sigmoid", "tanh"),
    **options: Unpack[ForwardOptions],
) -> tuple[Array, Array, Tape]:
    """Run a stack of MGU layers; see `stack.forward`. Returns y, h_n and a tape.

    activations are those of the gate and of the candidate.
    """
    y, h_n, tape = stack.forward(MGUCell(activations), x, params, hx, **options)
    return y, h_n, tape


mgu_backward = stack.backward
