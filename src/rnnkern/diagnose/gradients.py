"""How far back gradients reach, and what truncation and clipping leave of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..train import clip_grad_norm
from ..truncated import truncated_bptt
from ..validation import Array, as_floats, as_integers, check_shape, integer, positive
from .inputs import check_causal, dy_at, named, prepared, recorded, row_lengths

__all__ = ["Clipping", "Truncation", "clipping", "gradient_by_lag", "truncation"]


def gradient_by_lag(
    layer: Any,
    x: ArrayLike,
    dy: ArrayLike | None = None,
    *,
    step: int | None = None,
    lengths: ArrayLike | None = None,
    hx: Any = None,
    clip_state_grad: float | None = None,
) -> dict[str, Array]:
    """Norms of the gradients of h and c by time lag, of a loss at one step of each row.

    Hochreiter 1991 and Bengio, Simard & Frasconi 1994 ("Learning long-term dependencies with
    gradient descent is difficult") measure exactly this, Pascanu, Mikolov & Bengio 2013 ("On the
    difficulty of training recurrent neural networks") bound it by products of step Jacobians.

    Args:
        layer: unidirectional.
        x: inputs (T, B, I), with batch_first (B, T, I), or (T, I).
        dy: the loss's gradient of the output at that step, (P,) or (B, P). By default all elements
            are 1/sqrt(P): the loss is the sum of the outputs, scaled to a gradient of norm 1.
        step: where the loss is, from -T to T-1. None: at each row's last real step.
        lengths, hx: see the layer.
        clip_state_grad: see `Tape.backward`: the norms with that clipping.

    Returns:
        By name of the state, "h" and "c", (L, T, B), at index t of the second axis the norm t steps
        before the loss, NaN before the sequence. That of h counts what the layer above reads at the
        same step; that of c has h of the same step held fixed, and so is zero at lag 0.

    Proves: how strongly this loss, with these weights and on these inputs, depends on a small
    change of the state at each lag; a gradient of 1e-12 there cannot teach these steps anything.
    Does not prove: that the network cannot learn the dependency (the gradient is of the weights as
    they are), nor that a large gradient points anywhere useful, nor that information is kept: a
    state may hold what this loss does not read.
    """
    layer, x, hx = prepared(layer, x, hx)
    check_causal(layer, "the gradient by lag")
    real = row_lengths(lengths, x)
    ends = real - 1
    if step is not None:
        T = len(x)
        at = integer("step", step, f"an integer from {-T} to {T - 1}", -T, T - 1) % T
        ends = np.where(ends >= at, at, -1)
    y, _, tape = recorded(layer, x, hx, lengths=real)
    tape.backward(
        dy_at(ends, y, dy), need_dx=False, state_grads=True, clip_state_grad=clip_state_grad
    )
    return {
        name: _by_lag(norms, ends) for name, norms in named(layer, tape.state_grad_norms).items()
    }


def _by_lag(norms: Array, ends: Array) -> Array:
    """(L, T, B) by step, as (L, T, B) by steps before each row's end."""
    steps = ends - np.arange(norms.shape[1])[:, None]
    found = np.take_along_axis(norms, np.maximum(steps, 0)[None], axis=1)
    return np.where(steps >= 0, found, np.nan)


class Truncation(NamedTuple):
    """See `truncation`."""

    k1: int
    k2: int
    full: dict[str, Array]
    kept: dict[str, Array]
    share: dict[str, Array]
    norm_ratio: float
    cosine: float


def truncation(
    layer: Any,
    x: ArrayLike,
    k1: int,
    k2: int | None = None,
    *,
    dy: ArrayLike | None = None,
    hx: Any = None,
    steps: ArrayLike | None = None,
) -> Truncation:
    """What `truncated_bptt` keeps of the full gradient, by lag and in sum (Williams & Peng 1990).

    There is a loss at each of `steps`. Each of them becomes a row of its own that ends there, so
    one batch shows how far every single loss reaches, in full and across the chunks' borders.

    Args:
        layer: unidirectional.
        x: one sequence, (T, I).
        k1, k2: see `truncated_bptt`.
        dy: the losses' gradient of the outputs, (T, P); by default all elements are 1/sqrt(P).
        hx: the state before the first step, as for one sequence.
        steps: where losses are, integers from 0 to T-1; by default everywhere. Memory grows with
            their number times T.

    Returns:
        full, kept: by name of the state (L, T): norms of the gradients of the state by lag, means
            over the losses that have such a lag (NaN where none has), as `gradient_by_lag`.
        share: kept / full, from 1 to 0; NaN where full is zero.
        norm_ratio, cosine: of the gradient of all parameters, truncated against full.

    Proves: which lags the truncated gradient does not see with these weights, and how far its sum
    is from the full one in length and direction. The share is 1 up to the lag k2 - k1, and 0 from
    k2 on.
    Does not prove: that training suffers. What is cut may be tiny or noise, and the *value* of the
    state still crosses the border: a network may use what it is never taught to keep.
    """
    layer, x, hx = prepared(layer, x, hx)
    check_causal(layer, "truncation")
    T, B = x.shape[:2]
    if B != 1:
        raise ValueError(f"x: expected one sequence (T, I), got {B} rows")
    steps = np.arange(T) if steps is None else as_integers("steps", steps, 0, T - 1).reshape(-1)
    if not len(steps):
        raise ValueError("steps: expected at least one, got none")
    rows = np.repeat(x, len(steps), axis=1)
    start = None if hx is None else _of_rows(hx, len(steps))
    if dy is not None:
        dy = as_floats("dy", dy, layer.dtype)
        check_shape("dy", dy, (T, layer._structure.features))
        dy = dy[steps]
    y, _, tape = recorded(layer, rows, start, lengths=steps + 1)
    dys, full_grads, grads = dy_at(steps, y, dy), tape.zero_grads(), tape.zero_grads()
    tape.backward(dys, grads=full_grads, need_dx=False, state_grads=True)
    full = named(layer, tape.state_grad_norms)
    kept = {name: np.zeros_like(norms) for name, norms in full.items()}
    for chunk in truncated_bptt(layer, rows, start, k1=k1, k2=k2, lengths=steps + 1):
        chunk.backward(dys[chunk.steps], grads=grads, need_dx=False, state_grads=True)
        here = (steps >= chunk.steps.start) & (steps < chunk.steps.stop)
        for name, norms in named(layer, chunk.tape.state_grad_norms).items():
            reach = slice(chunk.steps.stop - norms.shape[1], chunk.steps.stop)
            kept[name][:, reach, here] = norms[:, :, here]
    full = {name: _mean_by_lag(norms, steps) for name, norms in full.items()}
    kept = {name: _mean_by_lag(norms, steps) for name, norms in kept.items()}
    with np.errstate(invalid="ignore"):  # 0 / 0
        share = {name: np.where(full[name] > 0, kept[name] / full[name], np.nan) for name in full}
    return Truncation(
        k1, k1 if k2 is None else k2, full, kept, share, *_compared(grads, full_grads)
    )


def _of_rows(hx: Any, count: int) -> Any:
    """The state of one row for so many."""
    if isinstance(hx, tuple):
        return tuple(_of_rows(part, count) for part in hx)
    return np.repeat(hx, count, axis=1)


def _mean_by_lag(norms: Array, ends: Array) -> Array:
    """(L, T): the mean over the rows that have such a lag."""
    found = _by_lag(norms.astype(np.float64), ends)
    count = (~np.isnan(found)).sum(axis=-1)
    return np.where(count > 0, np.nansum(found, axis=-1) / np.maximum(count, 1), np.nan)


def _compared(grads: dict[str, Array], full: dict[str, Array]) -> tuple[float, float]:
    """The ratio of the norms of two gradients, and the cosine of the angle between them."""
    a, b = (np.concatenate([g.ravel() for g in each.values()]) for each in (grads, full))
    a, b = a.astype(np.float64), b.astype(np.float64)
    norm_a, norm_b = np.linalg.norm(a), np.linalg.norm(b)
    if not norm_a or not norm_b:
        return (0.0 if norm_b else np.nan), np.nan
    return float(norm_a / norm_b), float(a @ b / (norm_a * norm_b))


class Clipping(NamedTuple):
    """See `clipping`."""

    names: list[str]
    before: Array
    after: Array
    norm: float
    max_norm: float


def clipping(modules: Any, max_norm: float) -> Clipping:
    """Norms of the gradients before and after `clip_grad_norm`, which is run on copies.

    Clipping by the common norm is Pascanu, Mikolov & Bengio's (2013). For clipping inside the
    sequence (Graves 2013) compare `gradient_by_lag` with and without `clip_state_grad`.

    Args:
        modules: a list of modules, or one, whose `grads` hold a gradient.
        max_norm: see `clip_grad_norm`.

    Returns:
        names: of the parameters, "0.weight_ih_l0" where there are several modules.
        before, after: the norm of each parameter's gradient, (len(names),).
        norm: that of all of them before clipping; max_norm as given.

    Proves: whether this gradient is clipped, and by how much: all of it by one factor, so that its
    direction stays.
    Does not prove: that clipping is why training is stable, or that max_norm is well chosen; look
    at many steps, and at how often the norm is above it. A gradient that vanished is not helped.
    """
    several = list(modules) if isinstance(modules, list | tuple) else [modules]
    positive("max_norm", max_norm)
    copies = {
        (f"{i}.{name}" if len(several) > 1 else name): np.array(gradient)
        for i, module in enumerate(several)
        for name, gradient in module.grads.items()
    }
    before = _norms(copies)
    norm = clip_grad_norm(list(copies.values()), max_norm)
    return Clipping(list(copies), before, _norms(copies), norm, float(max_norm))


def _norms(arrays: dict[str, Array]) -> Array:
    return np.array([np.linalg.norm(a.astype(np.float64)) for a in arrays.values()])
