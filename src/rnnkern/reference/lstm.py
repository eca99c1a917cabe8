"""Long short-term memory.

Hochreiter and Schmidhuber, "Long short-term memory" (Neural Computation, 1997), with the forget
gate of Gers, Schmidhuber and Cummins, "Learning to forget" (Neural Computation, 2000).
"""

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from . import stack
from .act import sigmoid, sigmoid_backward, tanh, tanh_backward
from .stack import Array, BackwardOptions, ForwardOptions, States, Tape, Weights

StatePair = tuple[npt.ArrayLike, npt.ArrayLike]


class LSTMCell:
    """Rows of the weights in the order i, f, g, o.

    i, f, o = sigmoid(W x + b_ih + U h + b_hh)      input, forget and output gate
    g       = tanh(W x + b_ih + U h + b_hh)         candidate
    c'      = f * c + i * g
    h'      = o * tanh(c')
    """

    blocks = 4
    states = 2

    def forward(self, w: Weights, x: Array, state: States) -> tuple[States, Any]:
        h, c = state
        a_i, a_f, a_g, a_o = np.split(x @ w.ih.T + w.bias_ih + h @ w.hh.T + w.bias_hh, 4, axis=1)
        i, f, g, o = sigmoid(a_i), sigmoid(a_f), tanh(a_g), sigmoid(a_o)
        c_next = f * c + i * g
        tanh_c = tanh(c_next)
        h_next = o * tanh_c
        return (h_next, c_next), (x, h, c, i, f, g, o, tanh_c)

    def backward(self, w: Weights, cache: Any, dstate: States) -> tuple[Array, States, Weights]:
        x, h, c, i, f, g, o, tanh_c = cache
        dh_next, dc_next = dstate
        do = dh_next * tanh_c
        dc_next = dc_next + tanh_backward(tanh_c, dh_next * o)  # c' also acts through h'
        di, df, dg, dc = dc_next * g, dc_next * c, dc_next * i, dc_next * f
        da = np.concatenate(
            [
                sigmoid_backward(i, di),
                sigmoid_backward(f, df),
                tanh_backward(g, dg),
                sigmoid_backward(o, do),
            ],
            axis=1,
        )
        db = da.sum(axis=0)
        return da @ w.ih, (da @ w.hh, dc), Weights(da.T @ x, da.T @ h, db, db)


def lstm_forward(
    x: npt.ArrayLike,
    params: Mapping[str, npt.ArrayLike],
    hx: StatePair | None = None,
    **options: Unpack[ForwardOptions],
) -> tuple[Array, tuple[Array, Array], Tape]:
    """Run a stack of LSTM layers; see `stack.forward`. Returns y, (h_n, c_n) and a tape."""
    y, (h_n, c_n), tape = stack.forward(LSTMCell(), x, params, hx, **options)
    return y, (h_n, c_n), tape


def lstm_backward(
    tape: Tape,
    dy: npt.ArrayLike | None = None,
    dhx_n: StatePair | None = None,
    **options: Unpack[BackwardOptions],
) -> tuple[Array, tuple[Array, Array], dict[str, Array]]:
    """From the gradients of y and (h_n, c_n) to those of x, (h, c) and params; see
    `stack.backward`."""
    dx, (dh, dc), grads = stack.backward(tape, dy, dhx_n, **options)
    return dx, (dh, dc), grads
