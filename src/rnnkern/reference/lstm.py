"""Long short-term memory, with what was added to it since.

Hochreiter and Schmidhuber, "Long short-term memory" (Neural Computation, 1997), with the forget
gate of Gers, Schmidhuber and Cummins, "Learning to forget" (Neural Computation, 2000).

Peepholes: Gers, Schraudolph and Schmidhuber, "Learning precise timing with LSTM recurrent
networks" (JMLR, 2002). Coupled gates: Greff et al., "LSTM: a search space odyssey" (IEEE TNNLS,
2017). Projection, and the clipping of c: Sak, Senior and Beaufays, "Long short-term memory
recurrent neural network architectures for large scale acoustic modeling" (Interspeech 2014).
Layer normalisation: see `product`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from . import act, stack
from .product import layer_norm, layer_norm_backward, product, product_backward
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

StatePair = tuple[npt.ArrayLike, npt.ArrayLike]
NORMS = ("norm_ih", "norm_hh", "norm_c", "norm_c_bias")


class LSTMCell(Cell):
    """Rows of the weights in the order i, f, g, o; with coupled gates e, g, o.

    i, f = s(W x + b_ih + U h + b_hh + p * c)       input and forget gate
    g    = act(W x + b_ih + U h + b_hh)             candidate
    c'   = f * c + i * g                            may be clipped
    o    = s(W x + b_ih + U h + b_hh + p * c')      output gate
    h'   = V (o * act(n(c')))

    The peepholes p, the projection V and the normalisation of W x, U h and (n) of c' are there if
    their parameters are. Of coupled gates only e is computed: f = e and i = 1 - e where the input
    gate is coupled to it, i = e and f = 1 - e where the forget gate is.
    """

    name = "lstm"
    states = ("h", "c")
    optional = (BIASES, ("weight_hr",), ("weight_ch",), NORMS)
    masks = ("hidden_dropout", "candidate_dropout", "weight_dropout", "zoneout_h", "zoneout_c")

    def __init__(
        self,
        coupled: str | None,
        activations: Sequence[act.Spec],
        clip: float | None,
        cell_clip: float | None,
        norm_eps: float,
    ) -> None:
        if coupled not in (None, "input", "forget"):
            raise ValueError(f"coupled: expected None, 'input' or 'forget', got {coupled!r}")
        self.coupled = coupled
        self.blocks = 4 if coupled is None else 3
        self.gate, self.candidate, self.output = act.resolve_all(activations, 3, clip)
        self.cell_clip = act.above_0_or_none("cell_clip", cell_clip)
        self.eps = act.above_0("norm_eps", norm_eps)

    def shapes(self, s: Sizes) -> dict[str, tuple[int, ...]]:
        return {
            "weight_ih": (s.G, s.inputs),
            "weight_hh": (s.G, s.P),
            "bias_ih": (s.G,),
            "bias_hh": (s.G,),
            "weight_hr": (s.P, s.H),
            "weight_ch": (s.G - s.H,),  # the candidate has no peephole
            "norm_ih": (s.G,),
            "norm_hh": (s.G,),
            "norm_c": (s.H,),
            "norm_c_bias": (s.H,),
        }

    def both(self, gates: list[Array]) -> tuple[Array, Array]:
        """The input and the forget gate from those of them that were computed."""
        if self.coupled is None:
            return gates[0], gates[1]
        (e,) = gates
        return (1 - e, e) if self.coupled == "input" else (e, 1 - e)

    def both_backward(self, di: Array, df: Array) -> list[Array]:
        if self.coupled is None:
            return [di, df]
        return [df - di] if self.coupled == "input" else [di - df]

    def forward(self, w: Weights, x: Array, state: States, m: Array) -> tuple[States, Any]:
        c_before = state["c"]
        of_x, cache_x = product(w, "ih", x, self.eps)
        of_h, cache_h = product(w, "hh", state["hd"], self.eps)
        a = of_x + w["bias_ih"] + of_h + w["bias_hh"]
        *a_gates, a_g, a_o = np.split(a, self.blocks, axis=1)

        if "weight_ch" in w:
            *p_gates, p_o = np.split(w["weight_ch"], self.blocks - 1)
            a_gates = [a + p * c_before for a, p in zip(a_gates, p_gates, strict=True)]
        gates = [self.gate(a) for a in a_gates]
        i, f = self.both(gates)
        g = self.candidate(a_g)
        c = act.clamp(f * c_before + i * (m * g), self.cell_clip)
        if "weight_ch" in w:
            a_o = a_o + p_o * c
        o = self.gate(a_o)

        n, cache_n = c, None
        if "norm_c" in w:
            n, cache_n = layer_norm(c, w["norm_c"], self.eps)
            n = n + w["norm_c_bias"]
        q = self.output(n)
        h = o * q
        if "weight_hr" in w:
            h = h @ w["weight_hr"].T
        products = cache_x, cache_h, cache_n
        return {"h": h, "c": c}, (products, m, c_before, a_gates, gates, a_g, g, c, a_o, o, n, q)

    def backward(self, w: Weights, cache: Any, dafter: States) -> tuple[Array, States, Weights]:
        products, m, c_before, a_gates, gates, a_g, g, c, a_o, o, n, q = cache
        cache_x, cache_h, cache_n = products
        i, f = self.both(gates)
        dh, dc = dafter["h"], dafter["c"]
        dw: Weights = {}

        if "weight_hr" in w:
            dw["weight_hr"] = dh.T @ (o * q)
            dh = dh @ w["weight_hr"]
        da_o = self.gate.backward(a_o, o, dh * q)
        dn = self.output.backward(n, q, dh * o)
        if "norm_c" in w:
            dw["norm_c_bias"] = dn.sum(axis=0)
            dn, dw["norm_c"] = layer_norm_backward(cache_n, dn)
        dc = dc + dn  # c' also acts through h',
        if "weight_ch" in w:
            *p_gates, p_o = np.split(w["weight_ch"], self.blocks - 1)
            dc = dc + da_o * p_o  # and through o
        dc = act.clamp_backward(c, dc, self.cell_clip)

        d_gates = self.both_backward(dc * (m * g), dc * c_before)
        da_gates = [self.gate.backward(*of) for of in zip(a_gates, gates, d_gates, strict=True)]
        da_g = self.candidate.backward(a_g, g, dc * i * m)
        dc_before = dc * f
        if "weight_ch" in w:
            dp = [np.sum(da * c_before, axis=0) for da in da_gates]
            dw["weight_ch"] = np.concatenate([*dp, np.sum(da_o * c, axis=0)])
            dc_before = dc_before + sum(da * p for da, p in zip(da_gates, p_gates, strict=True))

        da = np.concatenate([*da_gates, da_g, da_o], axis=1)
        dx, dw_x = product_backward(w, "ih", cache_x, da)
        dhd, dw_h = product_backward(w, "hh", cache_h, da)
        return dx, {"hd": dhd, "c": dc_before}, dw | dw_x | dw_h


def lstm_forward(
    x: npt.ArrayLike,
    params: Mapping[str, npt.ArrayLike],
    hx: StatePair | None = None,
    *,
    coupled: str | None = None,
    activations: Sequence[act.Spec] = ("sigmoid", "tanh", "tanh"),
    clip: float | None = None,
    cell_clip: float | None = None,
    norm_eps: float = 1e-5,
    **options: Unpack[ForwardOptions],
) -> tuple[Array, tuple[Array, Array], Tape]:
    """Run a stack of LSTM layers; see `stack.forward`. Returns y, (h_n, c_n) and a tape.

    activations are those of the gates, of the candidate and of c on its way to h. clip bounds
    what goes into them, cell_clip bounds c.
    """
    cell = LSTMCell(coupled, activations, clip, cell_clip, norm_eps)
    y, (h_n, c_n), tape = stack.forward(cell, x, params, hx, **options)
    return y, (h_n, c_n), tape


lstm_backward = stack.backward
