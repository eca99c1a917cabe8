"""Jacobians of steps and of their products, by vector-Jacobian products through the kernels.

A row of `dhx_n` that is a unit vector comes back from `tape.backward` as a row of the Jacobian, so
a batch of as many rows as the state has numbers gives all of it in one backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..layers import RNN
from ..validation import Array, finite, positive_int
from .inputs import check_causal, prepared, recorded

__all__ = [
    "JacobianProducts",
    "NonNormal",
    "jacobian_products",
    "nonnormal_example",
    "step_jacobians",
]


def step_jacobians(layer: Any, x: ArrayLike, hx: Any = None) -> Array:
    """The Jacobian of each step: of the state after it with respect to the state before.

    Args:
        layer: unidirectional.
        x: one sequence, (T, I).
        hx: the state before it, as for one sequence. None: zeros, or what the layer learned.

    Returns:
        (T, S, S). A state has S = L*P numbers, for the LSTM L*(P + H), for the SRU L*H: h of all
        layers, then c of all layers. Entry [t, i, j] is the derivative of i after step t by j
        before it.

    Proves: what a small change of the state becomes one step later, to first order, at this point
    of this run. Eigenvalues and singular values of one step say how it turns, stretches, shrinks.
    Does not prove: anything on its own about many steps (see `jacobian_products`), nor about
    changes that are not small: a saturated unit has derivative zero and still moves.
    """
    layer, x, hx = prepared(layer, x, hx)
    states = _states_before(layer, x, hx)
    identity = np.eye(_size(layer), dtype=layer.dtype)
    return np.array([_pulled_back(layer, x[t], state, identity) for t, state in enumerate(states)])


class JacobianProducts(NamedTuple):
    """See `jacobian_products`."""

    singular_values: Array
    bound: Array
    radius: Array


def jacobian_products(layer: Any, x: ArrayLike, hx: Any = None) -> JacobianProducts:
    """Singular values of the products J_T J_{T-1} ... of step Jacobians, by lag.

    These products are what carries a gradient back in time (Bengio, Simard & Frasconi 1994); the
    product of the steps' norms bounds them (Pascanu, Mikolov & Bengio 2013). Each product is the
    one before it, sent back through one more step by the kernels. Time and memory grow with S**2
    and an SVD's S**3: for up to some hundred numbers of state.

    Args:
        layer, x, hx: see `step_jacobians`.

    Returns:
        singular_values: float64 (T+1, S), falling along the second axis: of the product of the last
            t Jacobians; for t = 0 all are 1. Those below about 1e-7 (float64: 1e-16) of the
            largest are rounding; the largest is right however small or large it is.
        bound: (T+1,) the product of the largest singular values of the single steps.
        radius: (T,) the spectral radius of each step, of the last step first.

    Proves: the largest singular value is the most that any gradient (of the state at the end) can
    have grown, or has left, after t steps back; if it is 1e-9, every gradient has vanished. That it
    lies far below `bound` shows that the steps do not stretch the same directions.
    Does not prove: that the actual loss excites that direction (see `gradient_by_lag`), nor that
    the spectral radius tells the story: see `nonnormal_example`. It is of one sequence and of the
    weights as they are.
    """
    layer, x, hx = prepared(layer, x, hx)
    states = list(_states_before(layer, x, hx))
    identity = np.eye(_size(layer), dtype=layer.dtype)
    product, scale, bound = identity, 0.0, 0.0  # logarithms, so that nothing underflows
    singular_values, bounds, radius = [np.ones(len(identity))], [1.0], []
    for t in reversed(range(len(x))):
        both = _pulled_back(layer, x[t], states[t], np.concatenate([product, identity]))
        if not np.isfinite(both).all():
            raise ValueError(f"x: expected finite states and Jacobians, got others at step {t}")
        product, step = both[: len(identity)], both[len(identity) :].astype(np.float64)
        largest = float(np.abs(product).max())
        if largest:
            product, scale = product / product.dtype.type(largest), scale + np.log(largest)
        values = np.linalg.svd(product.astype(np.float64), compute_uv=False)
        with np.errstate(divide="ignore", under="ignore", over="ignore"):
            bound += np.log(np.linalg.norm(step, 2))
            singular_values.append(np.exp(scale) * values)
            bounds.append(float(np.exp(bound)))
        radius.append(np.abs(np.linalg.eigvals(step)).max())
    return JacobianProducts(np.array(singular_values), np.array(bounds), np.array(radius))


def _states_before(layer: Any, x: Array, hx: Any) -> Iterator[Any]:
    """The state before each step, of one row."""
    check_causal(layer, "a Jacobian")
    if x.shape[1] != 1:
        raise ValueError(f"x: expected one sequence (T, I), got {x.shape[1]} rows")
    stream = layer.stream()
    if hx is not None:
        stream.state = hx
    for frame in x:
        yield stream.state
        stream.step(frame)


def _size(layer: Any) -> int:
    return int(layer.num_layers * sum(layer._structure.states.values()))


def _pulled_back(layer: Any, frame: Array, state: Any, rows: Array) -> Array:
    """rows (n, S) times the Jacobian of a step from this state, by one backward of n rows."""
    n, L, widths = len(rows), layer.num_layers, list(layer._structure.states.values())
    parts = state if isinstance(state, tuple) else (state,)
    hx = tuple(np.repeat(part, n, axis=1) for part in parts)
    cuts = np.split(rows, np.cumsum([L * width for width in widths])[:-1], axis=1)
    dhx_n = tuple(
        np.ascontiguousarray(cut.reshape(n, L, width).swapaxes(0, 1))
        for cut, width in zip(cuts, widths, strict=True)
    )
    one = len(widths) == 1
    x = np.repeat(frame[None], n, axis=1)
    _, _, tape = recorded(layer, x, hx[0] if one else hx)
    _, dhx = tape.backward(dhx_n=dhx_n[0] if one else dhx_n, need_dx=False)
    found = (dhx,) if one else dhx
    return np.concatenate([part.swapaxes(0, 1).reshape(n, -1) for part in found], axis=1)


class NonNormal(NamedTuple):
    """See `nonnormal_example`."""

    layer: RNN
    U: Array
    radius: float
    states: Array
    gradients: Array
    eigenvalues: Array
    peak: float
    at: int


def nonnormal_example(
    radius: float = 0.9, coupling: float = 2.0, size: int = 2, steps: int = 60
) -> NonNormal:
    """A stable recurrence that grows before it decays: U = radius * I + coupling * superdiagonal.

    All eigenvalues of U are `radius`, but U is not normal (U U^T differs from U^T U), its
    eigenvectors coincide, and its powers are large before they are small: for two units
    U^n = [[r^n, n c r^(n-1)], [0, r^n]]. Trefethen & Embree 2005, "Spectra and pseudospectra";
    in networks Ganguli, Huh & Sompolinsky 2008 and Goldman 2009.

    Args:
        radius: the spectral radius, from 0 to 1, both excluded, for a stable recurrence.
        coupling: how strongly each unit drives the one before it.
        size, steps: units, and how many powers.

    Returns:
        layer: RNN(1, size, nonlinearity="identity") with weight_hh = U, through which it was run.
        U: (size, size).
        states: (steps+1,) the largest norm of a state n steps after a state of norm 1: the norm of
            U^n, from the layer's outputs.
        gradients: (steps+1,) the same of gradients sent back, by `jacobian_products`.
        eigenvalues: (steps+1,) radius**n, what a normal matrix with these eigenvalues would give.
        peak, at: the largest of `states`, and its step.

    Proves: a spectral radius below 1 does not keep states and gradients from growing at first, by
    any factor that one likes; it only says how they decay in the end.
    Does not prove: that trained networks behave so (look at `jacobian_products` of yours), or that
    transient growth is bad: it is also how a linear network can remember longer.
    """
    if not 0 < finite("radius", radius) < 1:
        raise ValueError(f"radius: expected a number between 0 and 1, got {radius!r}")
    size, steps = positive_int("size", size), positive_int("steps", steps)
    U = radius * np.eye(size) + finite("coupling", coupling) * np.eye(size, k=1)
    layer = RNN(1, size, nonlinearity="identity", bias=False, dtype=np.float64, seed=0)
    layer.load_state_dict({"weight_ih_l0": np.zeros((size, 1)), "weight_hh_l0": U})
    y, _ = layer(np.zeros((steps, size, 1)), np.eye(size)[None])  # row i starts at unit vector i
    states = np.array([1.0, *np.linalg.norm(y, 2, axis=(1, 2))])
    products = jacobian_products(layer, np.zeros((steps, 1)))
    at = int(states.argmax())
    return NonNormal(
        layer, U, radius, states, products.singular_values[:, 0],
        radius ** np.arange(steps + 1.0), float(states[at]), at,
    )  # fmt: skip
