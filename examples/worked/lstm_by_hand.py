"""One step of an LSTM with given gates: c' = f c + i g, h = o tanh(c').

    python examples/worked/lstm_by_hand.py

Shows that the cell state is a sum of what f keeps and what i lets in, and that o decides what is
seen of it and changes nothing in it: a cell with o = 0 is hidden, not empty. It does not show how
a network finds such gates, only what they do once they are there.
"""

import numpy as np
from handmade import F64, force_gates

import rnnkern as rk

CASES = [
    {"c": 0.8, "f": 0.9, "i": 0.2, "g": 0.5, "o": 0.75},
    {"c": 2.0, "f": 0.8, "i": 0.25, "g": -0.4, "o": 0.5},
    {"c": 0.8, "f": 0.5, "i": 0.25, "g": -0.4, "o": 1.0},
    {"c": 0.8, "f": 0.5, "i": 0.25, "g": -0.4, "o": 0.0},
]


def step(c, **gates):
    """c' and h, and the gates as the kernel had them."""
    lstm = force_gates(rk.LSTM(1, 1, dtype=F64), **gates)
    state = np.zeros((1, 1)), np.full((1, 1), c)
    _, (h, c), trace = lstm(np.zeros((1, 1)), state, trace=True)
    return float(c[0, 0]), float(h[0, 0]), {gate: float(trace[gate].item()) for gate in "figo"}


def main():
    for case in CASES:
        c, h, gates = step(**case)
        words = "  ".join(f"{gate} {value:5.2f}" for gate, value in gates.items())
        print(f"c {case['c']}  {words}  ->  c' {c:.6g}  h {h:.6f}")


if __name__ == "__main__":
    main()
