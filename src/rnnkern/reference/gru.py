"""The gated recurrent unit, in its two forms.

Cho et al., "Learning phrase representations using RNN encoder-decoder for statistical machine
translation" (EMNLP 2014). The paper's first version (arXiv 1406.1078v1) and the cuDNN library
apply the reset gate after the recurrent product, the published version before it.
"""

from collections.abc import Mapping
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from . import stack
from .act import sigmoid, sigmoid_backward, tanh, tanh_backward
from .stack import Array, BackwardOptions, ForwardOptions, States, Tape, Weights


class GRUCellResetAfter:
    """Rows of the weights in the order r, z, n.

    r, z = sigmoid(W x + b_ih + U h + b_hh)             reset and update gate
    n    = tanh(W x + b_ih + r * (U h + b_hh))          candidate
    h'   = (1 - z) * n + z * h
    """

    blocks = 3
    states = 1

    def forward(self, w: Weights, x: Array, state: States) -> tuple[States, Any]:
        (h,) = state
        x_r, x_z, x_n = np.split(x @ w.ih.T + w.bias_ih, 3, axis=1)
        h_r, h_z, h_n = np.split(h @ w.hh.T + w.bias_hh, 3, axis=1)
        r = sigmoid(x_r + h_r)
        z = sigmoid(x_z + h_z)
        n = tanh(x_n + r * h_n)
        h_next = (1 - z) * n + z * h
        return (h_next,), (x, h, r, z, n, h_n)

    def backward(self, w: Weights, cache: Any, dstate: States) -> tuple[Array, States, Weights]:
        x, h, r, z, n, h_n = cache
        (dh_next,) = dstate
        dn, dz, dh = dh_next * (1 - z), dh_next * (h - n), dh_next * z
        da_n = tanh_backward(n, dn)
        da_z = sigmoid_backward(z, dz)
        da_r = sigmoid_backward(r, da_n * h_n)
        dax = np.concatenate([da_r, da_z, da_n], axis=1)
        dah = np.concatenate([da_r, da_z, da_n * r], axis=1)  # r stands before all of U h + b_hh
        dw = Weights(dax.T @ x, dah.T @ h, dax.sum(axis=0), dah.sum(axis=0))
        return dax @ w.ih, (dh + dah @ w.hh,), dw


class GRUCellResetBefore:
    """Rows of the weights in the order r, z, n.

    r, z = sigmoid(W x + b_ih + U h + b_hh)             reset and update gate
    n    = tanh(W x + b_ih + U (r * h) + b_hh)          candidate
    h'   = (1 - z) * n + z * h
    """

    blocks = 3
    states = 1

    def forward(self, w: Weights, x: Array, state: States) -> tuple[States, Any]:
        (h,) = state
        u_r, u_z, u_n = np.split(w.hh, 3)
        a_r, a_z, a_n = np.split(x @ w.ih.T + w.bias_ih + w.bias_hh, 3, axis=1)
        r = sigmoid(a_r + h @ u_r.T)
        z = sigmoid(a_z + h @ u_z.T)
        n = tanh(a_n + (r * h) @ u_n.T)
        h_next = (1 - z) * n + z * h
        return (h_next,), (x, h, r, z, n)

    def backward(self, w: Weights, cache: Any, dstate: States) -> tuple[Array, States, Weights]:
        x, h, r, z, n = cache
        (dh_next,) = dstate
        u_r, u_z, u_n = np.split(w.hh, 3)
        dn, dz, dh = dh_next * (1 - z), dh_next * (h - n), dh_next * z
        da_n = tanh_backward(n, dn)
        da_z = sigmoid_backward(z, dz)
        drh = da_n @ u_n  # the gradient of r * h
        da_r = sigmoid_backward(r, drh * h)
        dh = dh + drh * r + da_r @ u_r + da_z @ u_z
        da = np.concatenate([da_r, da_z, da_n], axis=1)
        du = np.concatenate([da_r.T @ h, da_z.T @ h, da_n.T @ (r * h)])
        db = da.sum(axis=0)
        return da @ w.ih, (dh,), Weights(da.T @ x, du, db, db)


def gru_forward(
    x: npt.ArrayLike,
    params: Mapping[str, npt.ArrayLike],
    hx: npt.ArrayLike | None = None,
    *,
    reset_after: bool = True,
    **options: Unpack[ForwardOptions],
) -> tuple[Array, Array, Tape]:
    """Run a stack of GRU layers; see `stack.forward`. Returns y, h_n and a tape."""
    y, h_n, tape = stack.forward(
        GRUCellResetAfter() if reset_after else GRUCellResetBefore(), x, params, hx, **options
    )
    return y, h_n, tape


def gru_backward(
    tape: Tape,
    dy: npt.ArrayLike | None = None,
    dhx_n: npt.ArrayLike | None = None,
    **options: Unpack[BackwardOptions],
) -> tuple[Array, Array, dict[str, Array]]:
    """From the gradients of y and h_n to those of x, hx and params; see `stack.backward`."""
    dx, dhx, grads = stack.backward(tape, dy, dhx_n, **options)
    return dx, dhx, grads
