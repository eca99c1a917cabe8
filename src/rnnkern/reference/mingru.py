"""The minimal GRU, whose gate and candidate see x alone.

Feng, Tung, Ahmed, Bengio and Hajimirsadeghi, "Were RNNs all we needed?" (2024).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from . import act, stack
from .product import product, product_backward
from .stack import Array, Cell, ForwardOptions, Sizes, States, Tape, Weights


class MinGRUCell(Cell):
    """Rows of the weights in the order z, n.

    z  = s(W x + b)                                     gate
    n  = act(W x + b)                                   candidate
    h' = (1 - z) * h + z * n
    """

    name = "mingru"
    blocks = 2
    states = ("h",)
    optional = (("bias_ih",),)
    masks = ("candidate_dropout", "zoneout_h")

    def __init__(self, activations: Sequence[act.Spec]) -> None:
        self.gate, self.candidate = act.resolve_all(activations, 2)

    def shapes(self, s: Sizes) -> dict[str, tuple[int, ...]]:
        return {"weight_ih": (s.G, s.inputs), "bias_ih": (s.G,)}

    def forward(self, w: Weights, x: Array, state: States, m: Array) -> tuple[States, Any]:
        h = state["h"]
        of_x, cache_x = product(w, "ih", x)
        a_z, a_n = np.split(of_x + w["bias_ih"], 2, axis=1)
        z, n = self.gate(a_z), self.candidate(a_n)
        return {"h": (1 - z) * h + z * (m * n)}, (cache_x, m, h, a_z, z, a_n, n)

    def backward(self, w: Weights, cache: Any, dafter: States) -> tuple[Array, States, Weights]:
        cache_x, m, h, a_z, z, a_n, n = cache
        dh = dafter["h"]
        da_z = self.gate.backward(a_z, z, dh * (m * n - h))
        da_n = self.candidate.backward(a_n, n, dh * z * m)
        dx, dw = product_backward(w, "ih", cache_x, np.concatenate([da_z, da_n], axis=1))
        return dx, {"h": dh * (1 - z)}, dw


def mingru_forward(
    x: npt.ArrayLike,
    params: Mapping[str, npt.ArrayLike],
    hx: npt.ArrayLike | None = None,
    *,
    activations: Sequence[act.Spec] = ("sigmoid", "identity"),
    **options: Unpack[ForwardOptions],
) -> tuple[Array, Array, Tape]:
    """Run a stack of minimal GRU layers; see `stack.forward`. Returns y, h_n and a tape.

    activations are those of the gate and of the candidate.
    """
    y, h_n, tape = stack.forward(MinGRUCell(activations), x, params, hx, **options)
    return y, h_n, tape


mingru_backward = stack.backward
