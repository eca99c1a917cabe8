"""The simple recurrent unit: all its products are of x.

Lei, Zhang, Wang, Dai and Artzi, "Simple recurrent units for highly parallelizable recurrence"
(EMNLP 2018).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from . import act, stack
from .product import product, product_backward
from .stack import Array, Cell, ForwardOptions, Sizes, States, Tape, Weights


class SRUCell(Cell):
    """Rows of the weights in the order n, f, r, x; of weight_ch in the order f, r.

    n  = W x + b                                        candidate
    f  = s(W x + b + v * c)                             forget gate
    r  = s(W x + b + v * c)                             reset gate, of the highway
    xh = W x + b                                        highway
    c' = f * c + (1 - f) * n                            the only state
    h' = r * act(c') + (1 - r) * xh                     the output
    """

    name = "sru"
    blocks = 4
    states = ("c",)
    optional = (("bias_ih",),)
    masks = ("candidate_dropout", "zoneout_c")

    def __init__(self, activations: Sequence[act.Spec]) -> None:
        self.gate, self.output = act.resolve_all(activations, 2)

    def shapes(self, s: Sizes) -> dict[str, tuple[int, ...]]:
        return {"weight_ih": (s.G, s.inputs), "bias_ih": (s.G,), "weight_ch": (2 * s.H,)}

    def forward(self, w: Weights, x: Array, state: States, m: Array) -> tuple[States, Any]:
        c_before = state["c"]
        v_f, v_r = np.split(w["weight_ch"], 2)
        of_x, cache_x = product(w, "ih", x)
        n, a_f, a_r, xh = np.split(of_x + w["bias_ih"], 4, axis=1)
        a_f, a_r = a_f + v_f * c_before, a_r + v_r * c_before
        f, r = self.gate(a_f), self.gate(a_r)
        c = f * c_before + (1 - f) * (m * n)
        q = self.output(c)
        h = r * q + (1 - r) * xh
        return {"h": h, "c": c}, (cache_x, m, c_before, n, a_f, f, a_r, r, xh, c, q)

    def backward(self, w: Weights, cache: Any, dafter: States) -> tuple[Array, States, Weights]:
        cache_x, m, c_before, n, a_f, f, a_r, r, xh, c, q = cache
        dh = dafter["h"]
        v_f, v_r = np.split(w["weight_ch"], 2)
        da_r = self.gate.backward(a_r, r, dh * (q - xh))
        dc = dafter["c"] + self.output.backward(c, q, dh * r)  # c' also acts through h'
        da_f = self.gate.backward(a_f, f, dc * (c_before - m * n))
        da = np.concatenate([dc * (1 - f) * m, da_f, da_r, dh * (1 - r)], axis=1)
        dx, dw = product_backward(w, "ih", cache_x, da)
        dv = [np.sum(da_f * c_before, axis=0), np.sum(da_r * c_before, axis=0)]
        dw["weight_ch"] = np.concatenate(dv)
        return dx, {"c": dc * f + da_f * v_f + da_r * v_r}, dw


def sru_forward(
    x: npt.ArrayLike,
    params: Mapping[str, npt.ArrayLike],
    hx: npt.ArrayLike | None = None,
    *,
    activations: Sequence[act.Spec] = ("sigmoid", "identity"),
    **options: Unpack[ForwardOptions],
) -> tuple[Array, Array, Tape]:
    """Run a stack of SRU layers; see `stack.forward`. Returns y, c_n and a tape.

    activations are those of the gates and of c on its way to h.
    """
    y, c_n, tape = stack.forward(SRUCell(activations), x, params, hx, **options)
    return y, c_n, tape


sru_backward = stack.backward
