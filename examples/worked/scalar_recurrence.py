"""h' = x + w h with numbers that can be checked by hand: forward, back through time, one step down.

    python examples/worked/scalar_recurrence.py

Shows that w, which every step shares, receives one contribution from each: the gradient of the
state after the step times the state before it. Their sum is the derivative of the loss, as the
closed form and two differences say. It shows a single step of gradient descent that reduces the
loss; it does not prove that every step does, or that a longer one would.
"""

from typing import NamedTuple

import numpy as np
from handmade import column, linear_rnn


class Run(NamedTuple):
    """One sequence, forward and backward."""

    states: np.ndarray  # h_1 ... h_T
    loss: float  # (h_T - target)^2 / 2
    state_grads: np.ndarray  # dL/dh_1 ... dL/dh_T
    contributions: np.ndarray  # to dL/dw, of each step
    total: float  # dL/dw


def run(w, x, target):
    """Runs the recurrence over x from h_0 = 0."""
    rnn = linear_rnn(w)
    y, h, tape = rnn.record(column(x))
    dx, _ = tape.backward(dhx_n=h - target)
    states = y[:, 0]
    state_grads = dx[:, 0]  # x_t is added to h_t, so that the two have one gradient
    before = np.concatenate([[0.0], states[:-1]])
    return Run(
        states=states,
        loss=float((states[-1] - target) ** 2 / 2),
        state_grads=state_grads,
        contributions=state_grads * before,
        total=float(rnn.grads["weight_hh_l0"][0, 0]),
    )


def closed_form(w):
    """dL/dw for x = (1, 0, 0) and target 1, where L = (w^2 - 1)^2 / 2."""
    return 2 * w * (w**2 - 1)


def by_differences(w, x, target, step=1e-5):
    """dL/dw from the losses on both sides of w."""
    return (run(w + step, x, target).loss - run(w - step, x, target).loss) / (2 * step)


def descend(w, x, target, rate):
    """w after one step of gradient descent, and the run there."""
    w = w - rate * run(w, x, target).total
    return w, run(w, x, target)


FIRST = {"w": 0.5, "x": (1, 0, 0), "target": 1}
SECOND = {"w": 0.5, "x": (1, 2, -1), "target": 0}  # so that L = h^2 / 2


def show(case):
    result = run(**case)
    print("w = {w}, x = {x}, target {target}".format(**case))
    for name, values in result._asdict().items():
        print(f"  {name:16}", *(f"{value + 0.0:.13g}" for value in np.atleast_1d(values)))
    print(f"  {'by differences':16} {by_differences(**case):.9f}")


def main():
    show(FIRST)
    print(f"  {'closed form':16} {closed_form(FIRST['w']):.13g}")
    w, after = descend(**FIRST, rate=0.1)
    print(f"after a step of rate 0.1 w is {w:.13g}", end=", ")
    print(f"the state {after.states[-1]:.13g} and the loss {after.loss:.13g}\n")
    show(SECOND)


if __name__ == "__main__":
    main()
