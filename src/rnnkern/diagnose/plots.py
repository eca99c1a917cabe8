"""Pictures of what the diagnostics return: each function takes a result and returns a Figure.

    figure = plots.gradient_by_lag(diagnose.gradient_by_lag(lstm, x))
    figure.savefig("lag.png")

They need matplotlib (`pip install 'rnnkern[plot]'`), which is imported when the first is drawn, and
not pyplot: no window opens and nothing global changes. What a picture proves and what it does not
is in the docstring of the function that computes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..validation import Array
from .gates import GateStatistics
from .gradients import Clipping, Truncation
from .jacobians import JacobianProducts, NonNormal
from .perturb import Perturbation
from .probe import Ablation, Probe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "clipping",
    "gate_maps",
    "gate_statistics",
    "gradient_by_lag",
    "jacobian_products",
    "linear_probe",
    "nonnormal_example",
    "perturbation",
    "state_range",
    "truncation",
]

# Okabe & Ito's colours, which differ for colour-blind eyes too; lines differ in style besides.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", "-.", ":")
_GATE, _SIGNED = "cividis", "PuOr"  # maps of 0..1, and of both signs
_SMALLEST = 1e-300  # of what a logarithmic axis shows

_TITLES = {
    "i": "input gate", "f": "forget gate", "g": "candidate", "o": "output gate",
    "e": "coupled gate", "r": "reset gate", "z": "update gate", "n": "candidate",
    "x": "highway", "c": "cell state", "h": "output", "a": "before the activation", "u": "U h + b",
}  # fmt: skip


def _figure(
    rows: int = 1, columns: int = 1, size: tuple[float, float] = (7.0, 4.2)
) -> tuple[Figure, Any]:
    """A Figure, and its axes (rows, columns)."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "pictures need matplotlib, which the extra [plot] brings: pip install 'rnnkern[plot]'"
        ) from error
    figure: Figure = Figure(figsize=size, dpi=120, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _line(index: int) -> dict[str, Any]:
    """Colour and style of a curve."""
    return {"color": _COLOURS[index % len(_COLOURS)], "linestyle": _STYLES[index % len(_STYLES)]}


def _positive(values: Any) -> Array:
    """Zeros, which a logarithmic axis cannot show, as gaps."""
    found = np.asarray(values, np.float64)
    return np.where(found > _SMALLEST, found, np.nan)


def _sweeps(count: int, bidirectional: bool = False) -> list[str]:
    """Names of layers and directions."""
    if not bidirectional:
        return [f"layer {k}" for k in range(count)]
    return [f"layer {k // 2} {('forward', 'reverse')[k % 2]}" for k in range(count)]


def _decorate(axes: Any, title: str, x: str, y: str, legend: bool = True) -> None:
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    if legend and axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=9, framealpha=0.8, edgecolor="none")


def gradient_by_lag(norms: Mapping[str, Array]) -> Figure:
    """Of `diagnose.gradient_by_lag`: a curve (the geometric mean of the rows) for each layer."""
    figure, ((axes,),) = _figure()
    curve = 0
    for name, of_sweeps in norms.items():
        for k, label in enumerate(_sweeps(len(of_sweeps))):
            with np.errstate(divide="ignore"):
                logs = np.log(of_sweeps[k].astype(np.float64))
            typical = _positive(np.exp(_mean(logs)))
            axes.plot(typical, label=f"{name} of {label}", **_line(curve))
            if of_sweeps.shape[-1] > 1:
                low, high = (_positive(_extreme(f, of_sweeps[k])) for f in (np.nanmin, np.nanmax))
                axes.fill_between(
                    np.arange(len(typical)),
                    low,
                    high,
                    color=_line(curve)["color"],
                    alpha=0.15,
                    lw=0,
                )
            curve += 1
    axes.set_yscale("log")
    _decorate(
        axes,
        "How far back does the gradient reach?",
        "lag (steps before the loss)",
        "norm of the gradient of the state",
    )
    return figure


def _mean(values: Array) -> Array:
    """Over the rows that have a number."""
    count = (~np.isnan(values)).sum(axis=-1)
    return np.where(count > 0, np.nansum(values, axis=-1) / np.maximum(count, 1), np.nan)


def _extreme(function: Any, values: Array) -> Array:
    """The least or largest of the rows, NaN where no row has a number."""
    empty = np.asarray(np.isnan(values).all(axis=-1))
    return np.where(empty, np.nan, function(np.where(empty[:, None], 0, values), axis=-1))


def jacobian_products(products: JacobianProducts) -> Figure:
    """Of `diagnose.jacobian_products`: the singular values by lag, and their bound."""
    figure, ((axes,),) = _figure()
    values = products.singular_values
    axes.plot(_positive(values[:, 0]), label="largest singular value", **_line(0))
    axes.plot(_positive(np.median(values, axis=1)), label="median singular value", **_line(2))
    axes.plot(_positive(products.bound), label="product of the steps' norms (bound)", **_line(1))
    axes.axhline(1, color="grey", lw=0.8)
    axes.set_yscale("log")
    _decorate(
        axes,
        "How much can a gradient grow or vanish?",
        "lag (steps back from the last)",
        "singular value of the product of Jacobians",
    )
    return figure


def nonnormal_example(example: NonNormal) -> Figure:
    """Of `diagnose.nonnormal_example`: growth before decay, beside the eigenvalues' powers."""
    figure, ((axes,),) = _figure()
    axes.plot(_positive(example.states), label="state: norm of U$^n$", **_line(0))
    axes.plot(_positive(example.gradients), label="gradient, sent back n steps", **_line(1))
    axes.plot(
        _positive(example.eigenvalues), label=f"eigenvalues: {example.radius:g}$^n$", **_line(3)
    )
    axes.plot([example.at], [example.peak], "o", color=_COLOURS[0])
    axes.annotate(
        f"{example.peak:.3g} at step {example.at}",
        (example.at, example.peak),
        xytext=(8, 4),
        textcoords="offset points",
    )
    axes.axhline(1, color="grey", lw=0.8)
    axes.set_yscale("log")
    _decorate(
        axes,
        f"Does a spectral radius of {example.radius:g} forbid growth?",
        "steps n",
        "norm (1 at the start)",
    )
    return figure


def gate_maps(
    maps: Mapping[str, Array],
    *,
    labels: Sequence[Any] | None = None,
    names: Sequence[str] | None = None,
    sweep: int = 0,
    bidirectional: bool = False,
) -> Figure:
    """Of `diagnose.gate_maps`: a heat map, position by unit, of each gate and state.

    labels: of the positions, such as the digits that were read. names: which entries, default all
    but "u". sweep: the layer, or with bidirectional the layer and direction, from 0.
    """
    chosen = [name for name in maps if name != "u"] if names is None else list(names)
    columns = min(2, len(chosen))
    rows = -(-len(chosen) // columns)
    T = maps[chosen[0]].shape[1]
    width = min(14.0, max(4.5, 0.3 * T)) * columns
    figure, axes = _figure(rows, columns, (width, 2.6 * rows + 0.5))
    for place, name in zip(axes.flat, chosen, strict=False):
        values = maps[name][sweep].T.astype(np.float64)
        image = place.imshow(values, aspect="auto", interpolation="nearest", **_colours(values))
        figure.colorbar(image, ax=place, label=f"value of {name}")
        if labels is not None:
            place.set_xticks(range(T), [str(label) for label in labels])
        title = f"{_TITLES.get(name, '')} {name}".strip()
        _decorate(place, title, "position" if labels is None else "input", "unit", legend=False)
    for place in axes.flat[len(chosen) :]:
        place.set_visible(False)
    where = _sweeps(sweep + 1, bidirectional)[sweep]
    figure.suptitle(f"What does each gate do at each position? ({where})")
    return figure


def _colours(values: Array) -> dict[str, Any]:
    """Gates on a scale from 0 to 1, what has both signs on one that is symmetric."""
    if values.size and values.min() >= 0 and values.max() <= 1:
        return {"cmap": _GATE, "vmin": 0.0, "vmax": 1.0}
    limit = float(np.abs(values).max(initial=0)) or 1.0
    return {"cmap": _SIGNED, "vmin": -limit, "vmax": limit}


def gate_statistics(
    statistics: Mapping[str, GateStatistics], *, bidirectional: bool = False
) -> Figure:
    """Of `diagnose.gate_statistics`: histograms, saturated shares, and gradients beside them."""
    figure, axes = _figure(len(statistics), 2, (9.5, 2.5 * len(statistics) + 0.6))
    for (left, right), (name, found) in zip(axes, statistics.items(), strict=True):
        sweeps = _sweeps(len(found.counts), bidirectional)
        for k, counts in enumerate(found.counts):
            share = counts / max(1, counts.sum())
            label = sweeps[k]
            if found.thresholds is not None:
                label += f": {found.low[k]:.0%} low, {found.high[k]:.0%} high"
            left.stairs(share, found.edges, label=label, **_line(k))
        for threshold in found.thresholds or ():
            left.axvline(threshold, color="grey", lw=0.8)
        left.set_ylim(0, 1.5 * left.get_ylim()[1])  # room for the legend
        _decorate(left, f"How is {name} distributed?", f"value of {name}", "share of values")
        kinds = list(found.gradients)
        height = 0.8 / max(1, len(found.counts))
        for k in range(len(found.counts)):
            sizes = [found.gradients[kind][k] for kind in kinds]
            place = np.arange(len(kinds)) + k * height
            right.barh(place, sizes, height, color=_COLOURS[k % len(_COLOURS)], label=sweeps[k])
        right.set_yticks(np.arange(len(kinds)) + 0.4 - height / 2, kinds)
        right.invert_yaxis()
        _decorate(
            right, f"Do the parameters of {name} get a gradient?", "norm of the gradient", "",
            legend=len(found.counts) > 1,
        )  # fmt: skip
    return figure


def state_range(ranges: Mapping[str, Array], *, bidirectional: bool = False) -> Figure:
    """Of `diagnose.state_range`: for each state and layer a band from 5 % to 95 %, and extremes."""
    count = max(len(quantiles) for quantiles in ranges.values())
    figure, axes = _figure(count, len(ranges), (5.0 * len(ranges), 2.6 * count + 0.6))
    names = _sweeps(count, bidirectional)
    for column, (name, of_sweeps) in enumerate(ranges.items()):
        for k, quantiles in enumerate(of_sweeps):
            place, steps = axes[k, column], np.arange(len(quantiles))
            least, low, middle, high, most = quantiles.T
            place.fill_between(
                steps, low, high, color=_COLOURS[0], alpha=0.3, lw=0, label="5 % to 95 %"
            )
            place.plot(steps, middle, label="median", **_line(0))
            place.plot(steps, least, label="minimum, maximum", **_line(1))
            place.plot(steps, most, **_line(1))
            _decorate(
                place, f"How wide is {name} of {names[k]}?", "step", f"value of {name}",
                legend=k == column == 0,
            )  # fmt: skip
    return figure


def perturbation(found: Perturbation) -> Figure:
    """Of `diagnose.perturbation`: the change by span, and how long the outputs show it."""
    kinds = list(found.change)
    figure, axes = _figure(1, 1 + len(kinds), (5.0 + 3.6 * len(kinds), 3.8))
    first, *others = axes[0]
    middle = found.starts + found.width / 2
    for k, kind in enumerate(kinds):
        first.plot(middle, found.change[kind], marker="os^"[k % 3], ms=4, label=kind, **_line(k))
    first.axhline(0, color="grey", lw=0.8)
    measured = "change of the loss" if found.loss else "relative change of the last output"
    _decorate(
        first, "Which spans does the result depend on?", f"step (spans of {found.width})", measured
    )
    most = max(float(np.nanmax(np.nan_to_num(found.outputs[kind], posinf=0))) for kind in kinds)
    for place, kind in zip(others, kinds, strict=True):
        outputs = found.outputs[kind]
        extent = (-0.5, outputs.shape[1] - 0.5, len(outputs) * found.width - 0.5, -0.5)
        image = place.imshow(
            outputs, aspect="auto", interpolation="nearest", cmap=_GATE, vmin=0, vmax=most or 1,
            extent=extent,
        )  # fmt: skip
        _decorate(place, f"{kind}: how long is it seen?", "step of the output", "span from step")
    figure.colorbar(image, ax=others, label="relative change of the outputs")
    return figure


def truncation(found: Truncation) -> Figure:
    """Of `diagnose.truncation`: norms by lag in full and truncated, and the share that is kept."""
    name = next(iter(found.full))
    figure, ((left, right),) = _figure(1, 2, (11.0, 4.2))
    for k, label in enumerate(_sweeps(len(found.full[name]))):
        left.plot(_positive(found.full[name][k]), label=f"full, {label}", **_line(2 * k))
        left.plot(_positive(found.kept[name][k]), label=f"truncated, {label}", **_line(2 * k + 1))
        right.plot(found.share[name][k], label=label, **_line(k))
    left.set_yscale("log")
    right.set_ylim(-0.03, 1.03)
    for lag, where in ((found.k2 - found.k1, "k2 $-$ k1"), (found.k2, "k2")):
        right.axvline(lag, color="grey", lw=0.8)
        right.annotate(
            where, (lag, 0.06), xytext=(3, 0), textcoords="offset points", color="dimgrey"
        )
    lags = "lag (steps before the loss)"
    _decorate(left, "How far does each loss reach?", lags, f"norm of the gradient of {name}")
    title = f"What is kept with k1 = {found.k1}, k2 = {found.k2}?"
    _decorate(right, title, lags, "truncated / full")
    figure.suptitle(
        f"Gradient of all parameters: {found.norm_ratio:.3g} of the full norm, "
        f"cosine {found.cosine:.3g}",
        fontsize=10,
    )
    return figure


def clipping(found: Clipping | Sequence[Clipping]) -> Figure:
    """Of `diagnose.clipping`: of one gradient a bar for each parameter, of many the norm."""
    if isinstance(found, Clipping):
        return _clipped_parameters(found)
    figure, ((axes,),) = _figure()
    norms = np.array([each.norm for each in found])
    limits = np.array([each.max_norm for each in found])
    axes.plot(_positive(norms), label="before", **_line(0))
    axes.plot(_positive(np.minimum(norms, limits)), label="after", **_line(1))
    axes.set_yscale("log")
    share = (norms > limits).mean()
    title = f"How often is the gradient clipped? ({share:.0%} of the steps)"
    _decorate(axes, title, "step of training", "norm of the gradient")
    return figure


def _clipped_parameters(found: Clipping) -> Figure:
    figure, ((axes,),) = _figure(size=(7.0, 1.6 + 0.35 * len(found.names)))
    place = np.arange(len(found.names))
    axes.barh(place - 0.2, found.before, 0.4, color=_COLOURS[0], label="before")
    axes.barh(place + 0.2, found.after, 0.4, color=_COLOURS[1], label="after")
    axes.set_yticks(place, found.names)
    axes.invert_yaxis()
    title = f"What does clipping to {found.max_norm:g} change? (norm of all {found.norm:.3g})"
    _decorate(axes, title, "norm of the gradient", "")
    return figure


def linear_probe(probe: Probe, ablated: Ablation | None = None) -> Figure:
    """Of `diagnose.linear_probe`: its score beside chance; with an ablation, whether it is used."""
    figure, places = _figure(1, 1 if ablated is None else 2, (4.5 if ablated is None else 9.0, 3.6))
    left = places[0, 0]
    scores = {"chance": probe.chance, "test": probe.score, "training": probe.train_score}
    left.bar(list(scores), list(scores.values()), color=["grey", *_COLOURS[:2]])
    left.set_ylim(min(0.0, *scores.values()), 1)
    measure = "R$^2$" if probe.classes is None else "accuracy"
    _decorate(left, "Can it be read from the states?", "", f"{measure} of the probe", legend=False)
    if ablated is not None:
        right = places[0, 1]
        right.axhline(ablated.baseline, label="states as they are", **_line(0))
        right.axhline(ablated.ablated, label="without the probe's directions", **_line(1))
        spread = np.linspace(-0.3, 0.3, len(ablated.random))
        right.plot(spread, ablated.random, "o", color="grey", ms=4, label="without random ones")
        right.set_xticks([])
        right.set_xlim(-1, 1)
        _decorate(right, "Does the head use it?", "", "loss of the head")
    return figure
