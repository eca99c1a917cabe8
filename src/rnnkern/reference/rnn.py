"""The simple recurrent network of Elman, "Finding structure in time" (Cognitive Science, 1990)."""

from collections.abc import Callable, Mapping
from typing import Any, Unpack

import numpy.typing as npt

from . import act, stack
from .stack import Array, BackwardOptions, ForwardOptions, States, Tape, Weights

ACTIVATIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Array, Array], Array]]] = {
    "tanh": (act.tanh, act.tanh_backward),
    "relu": (act.relu, act.relu_backward),
}


class RNNCell:
    """h' = act(W x + b_ih + U h + b_hh), with act either tanh or relu."""

    blocks = 1
    states = 1

    def __init__(self, nonlinearity: str) -> None:
        if nonlinearity not in ACTIVATIONS:
            raise ValueError(f"nonlinearity: expected 'tanh' or 'relu', got {nonlinearity!r}")
        self.act, self.act_backward = ACTIVATIONS[nonlinearity]

    def forward(self, w: Weights, x: Array, state: States) -> tuple[States, Any]:
        (h,) = state
        h_next = self.act(x @ w.ih.T + w.bias_ih + h @ w.hh.T + w.bias_hh)
        return (h_next,), (x, h, h_next)

    def backward(self, w: Weights, cache: Any, dstate: States) -> tuple[Array, States, Weights]:
        x, h, h_next = cache
        (dh_next,) = dstate
        da = self.act_backward(h_next, dh_next)
        db = da.sum(axis=0)
        return da @ w.ih, (da @ w.hh,), Weights(da.T @ x, da.T @ h, db, db)


def rnn_forward(
    x: npt.ArrayLike,
    params: Mapping[str, npt.ArrayLike],
    hx: npt.ArrayLike | None = None,
    *,
    nonlinearity: str = "tanh",
    **options: Unpack[ForwardOptions],
) -> tuple[Array, Array, Tape]:
    """Run a stack of RNN layers; see `stack.forward`. Returns y, h_n and a tape."""
    y, h_n, tape = stack.forward(RNNCell(nonlinearity), x, params, hx, **options)
    return y, h_n, tape


def rnn_backward(
    tape: Tape,
    dy: npt.ArrayLike | None = None,
    dhx_n: npt.ArrayLike | None = None,
    **options: Unpack[BackwardOptions],
) -> tuple[Array, Array, dict[str, Array]]:
    """From the gradients of y and h_n to those of x, hx and params; see `stack.backward`."""
    dx, dhx, grads = stack.backward(tape, dy, dhx_n, **options)
    return dx, dhx, grads
