"""What is left of a signal, or of a gradient, over many steps: products of factors.

    python examples/worked/long_products.py

Shows that one factor, repeated, vanishes below 1 and explodes above it; that a saturated tanh has
next to no slope to pass on; and that along the cell state of an LSTM the factor is the forget gate,
which may be as near to 1 as it likes. It proves nothing about matrices, whose products may grow
before they decay, nor about trained gates, which change with every step and depend on h: here the
path along the cell state is the only one.
"""

import numpy as np
from handmade import F64, column, force_gates, linear_rnn

import rnnkern as rk


def forward(w, distance, x=1.0):
    """x w^k for k = 0 ... distance: the states after a single input."""
    y, _ = linear_rnn(w)(column([x] + [0.0] * distance))
    return y[:, 0]


def backward(w, distance, dh=1.0):
    """dh w^k for k = 0 ... distance: the gradients of the states k steps before the last."""
    _, _, tape = linear_rnn(w).record(column([0.0] * (distance + 1)))
    dx, _ = tape.backward(dhx_n=np.array([[dh]], F64))  # that of an input is that of its state
    return dx[::-1, 0]


def tanh_and_slope(x):
    """tanh x, and what of a gradient passes it."""
    rnn = rk.RNN(1, 1, bias=False, dtype=F64)
    rnn.weight_ih_l0 = [[1.0]]
    y, _, tape = rnn.record(column([x]))
    dx, _ = tape.backward(np.ones_like(y))
    return float(y[0, 0]), float(dx[0, 0])


def through_gate(f, steps):
    """What a forget gate f keeps of c = 1, and of a gradient 1 on the way back."""
    lstm = force_gates(rk.LSTM(1, 1, dtype=F64), i=0, f=f, g=0, o=0)
    one, zero = np.ones((1, 1)), np.zeros((1, 1))
    _, (_, c), tape = lstm.record(column([0.0] * steps), (zero, one))
    _, (_, dc) = tape.backward(dhx_n=(zero, one))
    return float(c[0, 0]), float(dc[0, 0])


GATES = [(0.8, 3), (0.9, 8), (0.99, 100)]


def main():
    print("distance   0.5^k                1.5^k")
    for k, pair in enumerate(zip(backward(0.5, 16), backward(1.5, 16), strict=True)):
        print(f"{k:8}  ", *(f"{np.format_float_positional(factor):20}" for factor in pair))
    print()
    for w, distance, dh in [(0.5, 4, 2), (1.5, 4, 2), (0.5, 20, 1), (1.2, 20, 1)]:
        print(f"a gradient of {dh} times {w}^{distance} is {backward(w, distance, dh)[-1]:.6g}")
    print("\ntanh {:.0f} is {:.3f}, with slope {:.3f}".format(2, *tanh_and_slope(2)))
    print()
    for f, steps in GATES:
        c, dc = through_gate(f, steps)
        print(f"a forget gate of {f} leaves after {steps:3} steps {c:.9g} of c, {dc:.9g} of dL/dc")


if __name__ == "__main__":
    main()
