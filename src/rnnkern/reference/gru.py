"""The gated recurrent unit, in its two forms.

Cho et al., "Learning phrase representations using RNN encoder-decoder for statistical machine
translation" (EMNLP 2014). The paper's first version (arXiv 1406.1078v1) and the cuDNN library
apply the reset gate after the recurrent product, the published version before it. With the first
form the two products may be normalised, see `product`.
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


class GRUCell(Cell):
    """What the two forms share. Rows of the weights in the order r, z, n."""

    name = "gru"
    blocks = 3
    states = ("h",)
    optional: tuple[tuple[str, ...], ...] = (BIASES,)
    masks = ("hidden_dropout", "candidate_dropout", "weight_dropout", "zoneout_h")

    def __init__(
        self, activations: Sequence[act.Spec], clip: float | None, norm_eps: float
    ) -> None:
        self.gate, self.candidate = act.resolve_all(activations, 2, clip)
        self.eps = act.above_0("norm_eps", norm_eps)

    def shapes(self, s: Sizes) -> dict[str, tuple[int, ...]]:
        products = {"weight_ih": (s.G, s.inputs), "weight_hh": (s.G, s.P)}
        return {**products, **dict.fromkeys(BIASES, (s.G,))}


class GRUCellResetAfter(GRUCell):
    """The reset gate acts on U h + b_hh.

    r, z = s(W x + b_ih + U h + b_hh)                   reset and update gate
    n    = act(W x + b_ih + r * (U h + b_hh))           candidate
    h'   = (1 - z) * n + z * h
    """

    optional = (BIASES, ("norm_ih", "norm_hh"))

    def shapes(self, s: Sizes) -> dict[str, tuple[int, ...]]:
        return {**super().shapes(s), "norm_ih": (s.G,), "norm_hh": (s.G,)}

    def forward(self, w: Weights, x: Array, state: States, m: Array) -> tuple[States, Any]:
        h = state["h"]
        of_x, cache_x = product(w, "ih", x, self.eps)
        of_h, cache_h = product(w, "hh", state["hd"], self.eps)
        x_r, x_z, x_n = np.split(of_x + w["bias_ih"], 3, axis=1)
        h_r, h_z, h_n = np.split(of_h + w["bias_hh"], 3, axis=1)
        a_r, a_z = x_r + h_r, x_z + h_z
        r, z = self.gate(a_r), self.gate(a_z)
        a_n = x_n + r * h_n
        n = self.candidate(a_n)
        h_next = (1 - z) * (m * n) + z * h
        return {"h": h_next}, (cache_x, cache_h, m, h, a_r, r, a_z, z, a_n, n, h_n)

    def backward(self, w: Weights, cache: Any, dafter: States) -> tuple[Array, States, Weights]:
        cache_x, cache_h, m, h, a_r, r, a_z, z, a_n, n, h_n = cache
        dh_next = dafter["h"]
        dn, dz, dh = dh_next * (1 - z) * m, dh_next * (h - m * n), dh_next * z
        da_n = self.candidate.backward(a_n, n, dn)
        da_z = self.gate.backward(a_z, z, dz)
        da_r = self.gate.backward(a_r, r, da_n * h_n)
        dax = np.concatenate([da_r, da_z, da_n], axis=1)
        dah = np.concatenate([da_r, da_z, da_n * r], axis=1)  # r stands before all of U h + b_hh
        dx, dw_x = product_backward(w, "ih", cache_x, dax)
        dhd, dw_h = product_backward(w, "hh", cache_h, dah)
        return dx, {"h": dh, "hd": dhd}, dw_x | dw_h


class GRUCellResetBefore(GRUCell):
    """The reset gate acts on h.

    r, z = s(W x + b_ih + U h + b_hh)                   reset and update gate
    n    = act(W x + b_ih + U (r * h) + b_hh)           candidate
    h'   = (1 - z) * n + z * h
    """

    def forward(self, w: Weights, x: Array, state: States, m: Array) -> tuple[States, Any]:
        h, hd = state["h"], state["hd"]
        u_r, u_z, u_n = np.split(w["weight_hh"], 3)
        of_x, cache_x = product(w, "ih", x)
        a_r, a_z, a_n = np.split(of_x + w["bias_ih"] + w["bias_hh"], 3, axis=1)
        a_r, a_z = a_r + hd @ u_r.T, a_z + hd @ u_z.T
        r, z = self.gate(a_r), self.gate(a_z)
        a_n = a_n + (r * hd) @ u_n.T
        n = self.candidate(a_n)
        h_next = (1 - z) * (m * n) + z * h
        return {"h": h_next}, (cache_x, m, h, hd, a_r, r, a_z, z, a_n, n)

    def backward(self, w: Weights, cache: Any, dafter: States) -> tuple[Array, States, Weights]:
        cache_x, m, h, hd, a_r, r, a_z, z, a_n, n = cache
        dh_next = dafter["h"]
        u_r, u_z, u_n = np.split(w["weight_hh"], 3)
        dn, dz, dh = dh_next * (1 - z) * m, dh_next * (h - m * n), dh_next * z
        da_n = self.candidate.backward(a_n, n, dn)
        da_z = self.gate.backward(a_z, z, dz)
        drh = da_n @ u_n  # the gradient of r * h
        da_r = self.gate.backward(a_r, r, drh * hd)
        dhd = drh * r + da_r @ u_r + da_z @ u_z
        dx, dw = product_backward(w, "ih", cache_x, np.concatenate([da_r, da_z, da_n], axis=1))
        dw["weight_hh"] = np.concatenate([da_r.T @ hd, da_z.T @ hd, da_n.T @ (r * hd)])
        dw["bias_hh"] = dw["bias_ih"]
        return dx, {"h": dh, "hd": dhd}, dw


def gru_forward(
    x: npt.ArrayLike,
    params: Mapping[str, npt.ArrayLike],
    hx: npt.ArrayLike | None = None,
    *,
    reset_after: bool = True,
    activations: Sequence[act.Spec] = ("sigmoid", "tanh"),
    clip: float | None = None,
    norm_eps: float = 1e-5,
    **options: Unpack[ForwardOptions],
) -> tuple[Array, Array, Tape]:
    """Run a stack of GRU layers; see `stack.forward`. Returns y, h_n and a tape.

    activations are those of the gates and of the candidate; clip bounds what goes into them.
    """
    kind = GRUCellResetAfter if reset_after else GRUCellResetBefore
    y, h_n, tape = stack.forward(kind(activations, clip, norm_eps), x, params, hx, **options)
    return y, h_n, tape


gru_backward = stack.backward
