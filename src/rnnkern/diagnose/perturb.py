"""Spans of the input shuffled, delayed or blanked, and what that does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..validation import Array, as_array, axis_length, finite, one_of, positive_int
from .inputs import prepared, row_lengths

__all__ = ["Perturbation", "blank", "delay", "perturbation", "shuffle"]

KINDS = ("shuffle", "delay", "blank")


def shuffle(
    x: ArrayLike,
    start: int,
    stop: int,
    *,
    seed: int | np.random.Generator | None = None,
    lengths: ArrayLike | None = None,
    batch_first: bool = False,
) -> Array:
    """A copy of x with the steps start..stop-1 of each row in random order.

    x (T, B, I), with batch_first (B, T, I), or (T, I). Each row has an order of its own, of its
    real steps alone where lengths are given.
    """
    changed, rows = _rows(x, batch_first)
    rng = np.random.default_rng(seed)
    ends = row_lengths(lengths, rows)
    for b in range(rows.shape[1]):
        span = slice(start, min(stop, int(ends[b])))
        rows[span, b] = rng.permutation(rows[span, b])
    return changed


def delay(
    x: ArrayLike,
    start: int,
    stop: int,
    by: int = 1,
    *,
    fill: float = 0.0,
    batch_first: bool = False,
) -> Array:
    """A copy of x with the steps start..stop-1 moved back by `by` steps inside this span.

    The span's first `by` steps become `fill`, its last ones are lost; the rest of x stays where it
    is. x as for `shuffle`.
    """
    changed, rows = _rows(x, batch_first)
    span = rows[start:stop]
    by = min(axis_length("by", by), len(span))
    span[by:] = span[: len(span) - by].copy()
    span[:by] = fill
    return changed


def blank(
    x: ArrayLike, start: int, stop: int, *, fill: float = 0.0, batch_first: bool = False
) -> Array:
    """A copy of x with the steps start..stop-1 set to `fill`. x as for `shuffle`."""
    changed, rows = _rows(x, batch_first)
    rows[start:stop] = fill
    return changed


def _rows(x: ArrayLike, batch_first: bool) -> tuple[Array, Array]:
    """A copy, and a view of it as (T, B, I)."""
    changed = np.array(as_array("x", x))
    if changed.ndim not in (2, 3):
        raise ValueError(f"x: expected 2 or 3 dimensions, got shape {changed.shape}")
    if changed.ndim == 2:
        return changed, changed[:, None]
    return changed, changed.swapaxes(0, 1) if batch_first else changed


class Perturbation(NamedTuple):
    """See `perturbation`."""

    starts: Array
    width: int
    baseline: float
    change: dict[str, Array]
    outputs: dict[str, Array]
    loss: bool


def perturbation(
    layer: Any,
    x: ArrayLike,
    loss: Callable[[Any, Any], float] | None = None,
    *,
    kinds: Sequence[str] = KINDS,
    width: int | None = None,
    by: int = 1,
    fill: float = 0.0,
    lengths: ArrayLike | None = None,
    hx: Any = None,
    shuffles: int = 4,
    seed: int | np.random.Generator | None = 0,
) -> Perturbation:
    """Shuffle, delay or blank one span of the input after the other, and measure what changes.

    Occlusion (Zeiler & Fergus 2014) along time; Khandelwal, He, Qi & Jurafsky 2018, "Sharp nearby,
    fuzzy far away", shuffle and drop words of the context to find how far back a model looks.

    Args:
        layer, x, lengths, hx: see the layer.
        loss: a function of y and hx_n, laid out as the layer returns them, that gives a number.
        kinds: some of "shuffle", "delay", "blank".
        width: steps of a span; default an eighth of the sequence, at least two.
        by: steps of a delay.
        fill: what blanks; for standardised input 0, its mean.
        shuffles: orders of each span that are tried; their changes are averaged.
        seed: of the orders.

    Returns:
        starts: (N,) of spans that lie side by side; the last may be shorter than width.
        baseline: the loss of x as it is; without a loss NaN.
        change: by kind (N,): the loss with the span changed, minus baseline. Without a loss the
            relative change of the output at each row's last real step.
        outputs: by kind (N, T): the relative change of the outputs at each step, ||y' - y|| / ||y||
            over rows and units; NaN where no row is that long.
        loss: whether there was one.

    Proves: that the result depends on the span (or, for "shuffle" and "delay", on the order or the
    time of what is in it), as far as it changes.
    Does not prove: that a span without effect is not remembered: it may say the same as others, or
    matter only together with them. A blank is an input that training may never have shown, so a
    large change can also be the network's surprise. Compare kinds, and spans of several widths.
    """
    whole, sequence, start = prepared(layer, x, hx, gradients=False)
    T, ends = len(sequence), row_lengths(lengths, sequence)
    width = max(2, T // 8) if width is None else positive_int("width", width)
    by, fill, rng = positive_int("by", by), finite("fill", fill), np.random.default_rng(seed)
    make: dict[str, Callable[[int, int], Array]] = {
        "shuffle": lambda a, b: shuffle(sequence, a, b, seed=rng, lengths=ends),
        "delay": lambda a, b: delay(sequence, a, b, by, fill=fill),
        "blank": lambda a, b: blank(sequence, a, b, fill=fill),
    }
    tries = {"shuffle": positive_int("shuffles", shuffles)}

    def run(changed: Array) -> tuple[Array, float]:
        y, hx_n = whole(changed, start, lengths=ends)
        value = np.nan if loss is None else float(loss(*_as_given(layer, x, y, hx_n)))
        return y.astype(np.float64), value

    y, baseline = run(sequence)

    def measure(kind: str, a: int) -> tuple[Array, float]:
        other, value = run(make[kind](a, min(a + width, T)))
        last = _relative_last(y, other, ends) if loss is None else value - baseline
        return _relative(y, other, ends), last

    starts = range(0, T, width)
    change: dict[str, Array] = {}
    outputs: dict[str, Array] = {}
    for kind in kinds:
        count = tries.get(one_of("kinds", kind, KINDS), 1)
        found = [[measure(kind, a) for _ in range(count)] for a in starts]
        outputs[kind] = np.array([np.mean([o for o, _ in span], axis=0) for span in found])
        change[kind] = np.array([np.mean([c for _, c in span]) for span in found])
    return Perturbation(np.array(starts), width, baseline, change, outputs, loss is not None)


def _as_given(layer: Any, x: Any, y: Array, hx_n: Any) -> tuple[Array, Any]:
    """y (T, B, F) and hx_n as the layer would return them for x."""
    if np.ndim(x) == 2:
        parts = tuple(part[:, 0] for part in hx_n) if isinstance(hx_n, tuple) else hx_n[:, 0]
        return y[:, 0], parts
    return (y.swapaxes(0, 1) if layer.batch_first else y), hx_n


def _relative(y: Array, other: Array, ends: Array) -> Array:
    """(T,) of outputs (T, B, F), which are zero behind lengths."""
    size, moved = (np.linalg.norm(a, axis=(1, 2)) for a in (y, other - y))
    ratio = np.divide(moved, size, out=np.where(moved > 0, np.inf, 0.0), where=size > 0)
    return np.where(np.arange(len(y)) < ends.max(), ratio, np.nan)


def _relative_last(y: Array, other: Array, ends: Array) -> float:
    rows = np.flatnonzero(ends)
    if not len(rows):
        return np.nan
    last, changed = (a[ends[rows] - 1, rows][None] for a in (y, other))
    return float(_relative(last, changed, np.ones(1))[0])
