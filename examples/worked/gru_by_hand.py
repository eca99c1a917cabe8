"""One step of a GRU with given gates, in both conventions for z and with both places for r.

    python examples/worked/gru_by_hand.py

Shows that one z means opposite things in two families of papers: "keep", h' = (1-z) n + z h, as in
torch, Keras and this package's GRU, and "write", h' = (1-z) h + z n, as in its MinGRU. The two are
one model: 1 - logistic(a) is logistic(-a), so W_z, U_z and b_z change their sign and no more. Where
r acts is another matter, on h before U or on U h + b_hh after it: for one unit without bias that is
the same, for two it is not. Nothing here says which form is better; both can be trained.
"""

import numpy as np
from handmade import F64, force_gates

import rnnkern as rk


def gru(z, r=1.0, n=0.0, U=((0.0,),), reset_after=False):
    """Gates z and r; U for the candidate, which without it is n."""
    layer = rk.GRU(1, len(U), reset_after=reset_after, dtype=F64)
    force_gates(layer, r=r, z=z, n=n)
    layer.weight_hh_l0[-len(U) :] = U
    return layer


def step(layer, h):
    """The candidate and h', both (H,)."""
    _, after, trace = layer(np.zeros((1, 1)), np.array([h], F64), trace=True)
    return trace["n"][0, 0], after[0]


def swapped(layer):
    """A GRU with the other meaning of z: what says how much to keep now says how much to write."""
    units = layer.hidden_size
    for rows in layer.params.values():
        rows[units : 2 * units] *= -1
    return layer


def keep():
    """z = 0.9 keeps nine tenths; r = 0.25 lets the candidate see a quarter of h."""
    return step(gru(z=0.9, r=0.25, U=[[1.0]]), [0.8])


def write(z):
    """h' from h = 1 and a candidate of -0.5, by a MinGRU and by a swapped GRU."""
    mingru = force_gates(rk.MinGRU(1, 1, dtype=F64), z=z, n=-0.5)
    return [step(layer, [1.0])[1][0] for layer in (mingru, swapped(gru(z, n=-0.5)))]


def kept(h, reset_after):
    """h' with z = 1 and r = 0, in one of the two forms."""
    return step(gru(z=1.0, r=0.0, n=0.5, U=[[1.0]], reset_after=reset_after), [h])[1][0]


def places_of_reset():
    """Candidates of two units that look at each other, with r = (1, 0): before U, and after it."""
    U = [[0.0, 1.0], [1.0, 0.0]]
    return [step(gru(0.0, r=[1.0, 0.0], U=U, reset_after=a), [0.2, 0.4])[0] for a in (False, True)]


def main():
    candidate, h = keep()
    print(f"keep:  h 0.8, z 0.9, r 0.25  ->  candidate {candidate[0]:.6f}, h' {h[0]:.6f}")
    for z in (0.2, 0.9):
        by_mingru, by_gru = write(z)
        print(f"write: h 1, candidate -0.5, z {z}  ->  h' {by_mingru:.6g}, by a GRU {by_gru:.6g}")
    print("z 1, r 0 keeps h = 0.8:", *(kept(0.8, after) for after in (False, True)))
    for name, candidates in zip(("before", "after"), places_of_reset(), strict=True):
        print(f"h (0.2, 0.4), r (1, 0), reset {name} U  ->  candidates", *candidates.round(6))


if __name__ == "__main__":
    main()
