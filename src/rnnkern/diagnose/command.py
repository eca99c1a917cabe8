"""`python -m rnnkern diagnose MODEL DATA`: the diagnostics of a saved layer on a saved sequence.

Prints the numbers that say most; `--output` writes all of them as CSV, and pictures where
matplotlib is installed.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ..files import load
from ..layers import _Layer
from ..validation import Array, as_array, as_floats, as_integers, check_shape
from .gates import QUANTILES, gate_maps, gate_names, gate_statistics, state_range
from .gradients import clipping, gradient_by_lag, truncation
from .inputs import dy_at, has_zoneout, prepared, recorded, row_lengths, sweep_name
from .jacobians import jacobian_products, nonnormal_example
from .perturb import perturbation
from .probe import linear_probe

__all__ = ["main"]

LARGEST_STATE = 400  # numbers, of which Jacobians are computed unless they are asked for
FEWEST_ROWS = 4
LABELS = 40  # positions of a gate map, at most, that are labelled
LOSSES = 64  # at most, whose truncation is looked at
MAX_NORM = 1.0
_CAUSAL = ("lag", "jacobian", "truncation")  # what bidirectional layers do not have
_GRADIENTS = (*_CAUSAL, "saturation", "clip")


@dataclass(frozen=True)
class Case:
    """What there is to look at; x, lengths and targets as `load_data` returns them."""

    layer: Any
    x: Array
    lengths: Array
    targets: Array | None
    seed: int

    @property
    def one(self) -> Array:
        """The real steps of the first row that has some, (T, I)."""
        row = int(np.argmax(self.lengths > 0))
        rows = self.x.swapaxes(0, 1) if self.x.ndim == 3 and not self.layer.batch_first else self.x
        sequence = rows[row] if self.x.ndim == 3 else rows
        return np.asarray(sequence[: self.lengths[row]])

    @property
    def ragged(self) -> Any:
        """The lengths as the layer takes them."""
        return self.lengths if self.x.ndim == 3 else int(self.lengths[0])


@dataclass
class Findings:
    """Of one diagnostic: lines to print, a table for a file, and who draws it."""

    lines: list[str]
    columns: tuple[str, ...]
    rows: Iterable[Sequence[Any]]
    draw: Callable[[Any], Any] | None = field(default=None)  # of the module plots


# --- the diagnostics -----------------------------------------------------------------------------


def _long(layer: Any, named: dict[str, Array]) -> Iterator[tuple[Any, ...]]:
    """Arrays (L*D, n, ...) as rows of name, layer, n, and the mean over what else there is."""
    for name, values in named.items():
        for k, of_sweep in enumerate(values):
            for i, value in enumerate(of_sweep):
                known = np.atleast_1d(value)[~np.isnan(np.atleast_1d(value))]
                yield name, sweep_name(layer, k), i, known.mean() if known.size else np.nan


def _directions(case: Case) -> dict[str, bool]:
    return {"bidirectional": case.layer.bidirectional}


def _labels(x: Array) -> list[int] | None:
    """What a short sequence of symbols, one-hot, says; None for any other."""
    symbols = np.asarray(x.argmax(axis=1))
    one_hot = np.array_equal(x, np.eye(x.shape[1])[symbols])
    return symbols.tolist() if one_hot and len(x) <= LABELS else None


def _lag(case: Case) -> Findings:
    norms = gradient_by_lag(case.layer, case.x, lengths=case.ragged)
    rows = list(_long(case.layer, norms))
    lines = []
    for name, values in norms.items():
        for k in range(len(values)):
            label = sweep_name(case.layer, k)
            curve = [row[3] for row in rows if row[:2] == (name, label)]
            lags = sorted(
                {1, len(curve) // 4, len(curve) // 2, len(curve) - 1} & {*range(len(curve))}
            )
            text = ", ".join(f"lag {i}: {curve[i]:.3g}" for i in lags)
            lines.append(f"{name} of {label}: {text}")
    columns = ("state", "layer", "lag", "mean_gradient_norm")
    return Findings(lines, columns, rows, lambda plots: plots.gradient_by_lag(norms))


def _jacobian(case: Case) -> Findings:
    found = jacobian_products(case.layer, case.one)
    largest = found.singular_values[:, 0]
    lines = [
        f"largest singular value of the product of {len(largest) - 1} steps: {largest[-1]:.3g} "
        f"(bound by the steps' norms: {found.bound[-1]:.3g})",
        f"largest of all lags: {largest.max():.3g} at lag {largest.argmax()}; spectral radius of a "
        f"step: {found.radius.min():.3g} to {found.radius.max():.3g}",
    ]
    rows = zip(
        range(len(largest)), largest, np.median(found.singular_values, axis=1), found.bound,
        [np.nan, *found.radius], strict=True,
    )  # fmt: skip
    columns = ("lag", "largest_singular_value", "median_singular_value", "bound", "step_radius")
    return Findings(lines, columns, rows, lambda plots: plots.jacobian_products(found))


def _gates(case: Case) -> Findings:
    maps = gate_maps(case.layer, case.one)
    gates = gate_names(case.layer)
    lines = [
        f"{name} of {sweep_name(case.layer, k)}: mean {of_sweep.mean():.3f}, "
        f"from {of_sweep.min():.3f} to {of_sweep.max():.3f}"
        for name, values in maps.items()
        if name in (*gates, "c", "h")
        for k, of_sweep in enumerate(values)
    ]
    rows = (
        (name, sweep_name(case.layer, k), t, unit, value)
        for name, values in maps.items()
        for (k, t, unit), value in np.ndenumerate(values)
    )
    columns = ("name", "layer", "position", "unit", "value")
    return Findings(
        lines,
        columns,
        rows,
        lambda plots: plots.gate_maps(maps, labels=_labels(case.one), **_directions(case)),
    )


def _saturation(case: Case) -> Findings:
    found = gate_statistics(case.layer, case.x, lengths=case.ragged)
    lines, rows = [], []
    for name, gate in found.items():
        low, high = gate.thresholds or (np.nan, np.nan)
        for k in range(len(gate.mean)):
            label = sweep_name(case.layer, k)
            norm = float(np.sqrt(sum(of_kind[k] ** 2 for of_kind in gate.gradients.values())))
            rows.append((name, label, gate.mean[k], low, gate.low[k], high, gate.high[k], norm))
            share = (
                f"below {low:g}: {gate.low[k]:.1%}, above {high:g}: {gate.high[k]:.1%}"
                if gate.thresholds
                else "no bounds"
            )
            lines.append(
                f"{name} of {label}: mean {gate.mean[k]:.3f}, {share}; gradient {norm:.3g}"
            )
    columns = (
        "name", "layer", "mean", "low_threshold", "share_low", "high_threshold", "share_high",
        "gradient_norm",
    )  # fmt: skip
    return Findings(
        lines, columns, rows, lambda plots: plots.gate_statistics(found, **_directions(case))
    )


def _range(case: Case) -> Findings:
    found = state_range(case.layer, case.x, lengths=case.ragged)
    lines = [
        f"{name} of {sweep_name(case.layer, k)}: first step {of_sweep[0, 0]:.3g} to "
        f"{of_sweep[0, -1]:.3g}, all steps {np.nanmin(of_sweep):.3g} to {np.nanmax(of_sweep):.3g}"
        for name, values in found.items()
        for k, of_sweep in enumerate(values)
    ]
    rows = (
        (name, sweep_name(case.layer, k), t, *quantiles)
        for name, values in found.items()
        for k, of_sweep in enumerate(values)
        for t, quantiles in enumerate(of_sweep)
    )
    columns = ("state", "layer", "step", *(f"quantile_{q:g}" for q in QUANTILES))
    return Findings(
        lines, columns, rows, lambda plots: plots.state_range(found, **_directions(case))
    )


def _perturbation(case: Case) -> Findings:
    found = perturbation(case.layer, case.x, lengths=case.ragged, seed=case.seed)
    lines = []
    for kind, change in found.change.items():
        most = int(np.argmax(change))
        lines.append(
            f"{kind} {found.width} steps: the last output changes by {change[0]:.3g} at the start, "
            f"{change[-1]:.3g} at the end, most ({change[most]:.3g}) from step {found.starts[most]}"
        )
    rows = (
        (kind, start, found.width, value)
        for kind, change in found.change.items()
        for start, value in zip(found.starts, change, strict=True)
    )
    columns = ("kind", "start", "width", "relative_change_of_last_output")
    return Findings(lines, columns, rows, lambda plots: plots.perturbation(found))


def _truncation(case: Case) -> Findings:
    T = len(case.one)
    k1 = max(1, T // 4)
    steps = np.unique(np.linspace(0, T - 1, min(T, LOSSES)).round().astype(int))
    found = truncation(case.layer, case.one, k1, 2 * k1, steps=steps)
    lines = [
        f"k1 = {found.k1}, k2 = {found.k2}, a loss at {len(steps)} of {T} steps: the parameters' "
        f"gradient keeps {found.norm_ratio:.3g} of its norm, cosine {found.cosine:.3g}"
    ]
    rows = (
        (name, sweep_name(case.layer, k), lag, full[k, lag], found.kept[name][k, lag],
         found.share[name][k, lag])
        for name, full in found.full.items()
        for k, lag in np.ndindex(full.shape)
    )  # fmt: skip
    columns = ("state", "layer", "lag", "full", "kept", "share")
    return Findings(lines, columns, rows, lambda plots: plots.truncation(found))


@dataclass
class _Gradient:
    """A gradient that belongs to no module."""

    grads: dict[str, Array]


def _clip(case: Case) -> Findings:
    layer, x, _ = prepared(case.layer, case.x)
    y, _, tape = recorded(layer, x, lengths=case.lengths)
    grads = tape.zero_grads()
    tape.backward(dy_at(case.lengths - 1, y, None), grads=grads, need_dx=False)
    found = clipping(_Gradient(grads), MAX_NORM)
    after = float(np.linalg.norm(found.after))
    lines = [f"norm of the gradient {found.norm:.3g}, clipped to {MAX_NORM:g}: {after:.3g}"]
    rows = zip(found.names, found.before, found.after, strict=True)
    columns = ("parameter", "norm_before", "norm_after")
    return Findings(lines, columns, rows, lambda plots: plots.clipping(found))


def _probe(case: Case) -> Findings:
    layer, x, _ = prepared(case.layer, case.x, gradients=False)
    y, _ = layer(x, lengths=case.lengths)
    rows = np.flatnonzero(case.lengths)
    targets = np.asarray(case.targets)[rows]
    found = linear_probe(y[case.lengths[rows] - 1, rows], targets, seed=case.seed)
    measure = "R^2" if found.classes is None else "accuracy"
    lines = [
        f"{measure} of a linear probe of the targets on the last output: {found.score:.3f} held "
        f"out, {found.train_score:.3f} in training, {found.chance:.3f} by chance"
    ]
    row = (measure, found.score, found.train_score, found.chance)
    columns = ("measure", "test", "training", "chance")
    return Findings(lines, columns, [row], lambda plots: plots.linear_probe(found))


def _nonnormal(case: Case) -> Findings:
    found = nonnormal_example()
    lines = [
        f"U = {found.U.tolist()}: spectral radius {found.radius:g}, yet the norm of U^n is "
        f"{found.peak:.3g} at n = {found.at}, and {found.states[-1]:.3g} at n = "
        f"{len(found.states) - 1} (an example; the model is not in it)"
    ]
    steps = range(len(found.states))
    rows = zip(steps, found.states, found.gradients, found.eigenvalues, strict=True)
    columns = ("step", "state_norm", "gradient_norm", "radius_to_the_step")
    return Findings(lines, columns, rows, lambda plots: plots.nonnormal_example(found))


_WHAT: dict[str, tuple[str, Callable[[Case], Findings]]] = {
    "lag": ("How far back does the gradient reach?", _lag),
    "jacobian": ("How much can a gradient grow or vanish?", _jacobian),
    "gates": ("What does each gate do? (first row)", _gates),
    "saturation": ("Are gates saturated, do their parameters get a gradient?", _saturation),
    "range": ("How wide are the states?", _range),
    "perturbation": ("Which spans does the result depend on?", _perturbation),
    "truncation": ("What does truncation keep of the gradient? (first row)", _truncation),
    "clip": ("What does clipping change?", _clip),
    "probe": ("Can the targets be read from the outputs?", _probe),
    "nonnormal": ("Does a spectral radius below 1 forbid growth?", _nonnormal),
}


# --- files ---------------------------------------------------------------------------------------


def load_layer(path: str) -> Any:
    """The layer in a file; OSError or ValueError."""
    layer = load(path)
    if not isinstance(layer, _Layer):
        raise ValueError(f"{path}: expected a layer, got a {type(layer).__name__}")
    if not np.isfinite(layer.flat_params).all():
        raise ValueError(f"{path}: expected finite parameters, got NaN or infinity")
    return layer


def load_data(path: str, layer: Any, length: int | None) -> tuple[Array, Array, Array | None]:
    """x as the layer takes it, the lengths (B,), and the targets (B,) if there are any.

    Raises:
        OSError: the file cannot be opened.
        ValueError, TypeError: it does not hold what this layer reads.
    """
    arrays = _arrays(path)
    try:
        if "x" not in arrays:
            raise ValueError(f"expected an array x in it, got {', '.join(arrays) or 'none'}")
        x = as_floats("x", arrays["x"], layer.dtype)
        if length is not None:
            x = x[:, :length] if x.ndim == 3 and layer.batch_first else x[:length]
        _, rows, _ = prepared(layer, x, gradients=False)
        if not np.isfinite(x).all():
            raise ValueError("x: expected finite numbers, got NaN or infinity")
        lengths = row_lengths(None, rows)
        if "lengths" in arrays:
            given = as_integers("lengths", arrays["lengths"], 0, 2**31 - 1).reshape(-1)
            lengths = row_lengths(np.minimum(given, len(rows)) if length else given, rows)
        if not lengths.any():
            raise ValueError("lengths: expected at least one row with a step, got none")
        targets = None
        if "targets" in arrays:
            targets = as_array("targets", arrays["targets"])
            check_shape("targets", targets, lengths.shape)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    return x, lengths, targets


def _arrays(path: str) -> dict[str, Array]:
    """Those of an .npz file, or that of an .npy file as x."""
    with open(path, "rb") as file:
        try:
            # zipfile and NumPy's format raise nearly anything for damaged files.
            loaded: Any = np.load(file, allow_pickle=False)
            return {"x": loaded} if isinstance(loaded, np.ndarray) else dict(loaded.items())
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise ValueError(f"{path}: not an .npy or .npz file, or damaged; {reason}") from error


def check_finite(case: Case) -> None:
    """ValueError for states that overflow, of which no diagnostic says more."""
    layer, x, _ = prepared(case.layer, case.x, gradients=False)
    _, _, trace = layer(x, lengths=case.lengths, trace=True)
    whole = [np.isfinite(values).all(axis=(0, 2, 3)) for values in trace.values()]
    if not np.all(whole):
        step = int(np.argmin(np.all(whole, axis=0)))
        hint = f"look at the steps before it with --length {step}" if step else "check its weights"
        raise ValueError(f"the layer overflows at step {step} of this data: {hint}")


def _write(folder: Path, name: str, findings: Findings, plots: Any) -> None:
    with open(folder / f"{name}.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(findings.columns)
        writer.writerows(findings.rows)
    if plots is not None and findings.draw is not None:
        findings.draw(plots).savefig(folder / f"{name}.png")


# --- command line --------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    what = "\n".join(f"  {name:<14}{question}" for name, (question, _) in _WHAT.items())
    parser = argparse.ArgumentParser(
        prog="python -m rnnkern diagnose",
        description="Say what a recurrent layer remembers. The loss is the sum of the outputs at\n"
        "the last real step of each row, scaled to a gradient of norm 1 there.",
        epilog=f"what there is to ask:\n{what}\n\n"
        "What each answer proves, and what it does not: the docstrings of rnnkern.diagnose.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="a file that layer.save wrote")
    add(
        "data",
        metavar="DATA",
        help="an .npy file of x, (T, I) or (T, B, I), with batch_first (B, T, I), of the layer's "
        "dtype; or an .npz file of x and, if there are any, lengths (B,) and targets (B,)",
    )
    add("--output", metavar="DIR", help="where CSV files and pictures go")
    add("--what", nargs="+", choices=_WHAT, metavar="NAME", help="some of the list below")
    add("--length", type=_positive, metavar="N", help="look at the first N steps alone")
    add("--seed", type=_natural, default=0, metavar="N", help="of shuffles and splits (default: 0)")
    return parser


def _natural(text: str, low: int = 0) -> int:
    if not text.isdecimal() or int(text) < low:
        raise argparse.ArgumentTypeError(f"expected an integer of at least {low}, got {text!r}")
    return int(text)


def _positive(text: str) -> int:
    return _natural(text, 1)


def _obstacle(name: str, case: Case, asked: bool) -> str | None:
    """Why this model or data cannot answer a question, if it cannot."""
    states = case.layer._structure.states.values()
    size = case.layer.num_layers * sum(states)
    if name in _CAUSAL and case.layer.bidirectional:
        return "the layer is bidirectional, its states depend on later steps too"
    if name == "jacobian" and size > LARGEST_STATE and not asked:
        return f"a state of {size} numbers takes long; ask with --what jacobian"
    if name in _GRADIENTS and has_zoneout(case.layer):
        return "the layer has zoneout, which is drawn at random where there are gradients"
    if name == "probe" and case.targets is None:
        return "DATA has no targets"
    if name == "probe" and np.count_nonzero(case.lengths) < FEWEST_ROWS:
        return f"a probe needs at least {FEWEST_ROWS} rows to learn from some and test on others"
    return None


def _plots() -> Any:
    """The module that draws, or None (with a word) where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        print("matplotlib is not installed (pip install 'rnnkern[plot]'): CSV files alone")
        return None
    from . import plots

    return plots


def _run(args: argparse.Namespace) -> None:
    layer = load_layer(args.model)
    case = Case(layer, *load_data(args.data, layer, args.length), args.seed)
    check_finite(case)
    asked = args.what is not None
    folder, plots = None, None
    if args.output is not None:
        folder = Path(args.output)
        folder.mkdir(parents=True, exist_ok=True)
        plots = _plots()
    steps, rows = int(case.lengths.max()), len(case.lengths)
    print(f"{layer!r}: up to {steps} steps, {rows} row(s)")
    for name in dict.fromkeys(args.what or _WHAT):
        question, answer = _WHAT[name]
        reason = _obstacle(name, case, asked)
        if reason is not None:
            if asked:
                raise ValueError(f"{name}: {reason}")
            print(f"\n{name}: left out, {reason}")
            continue
        findings = answer(case)
        print(f"\n{name}: {question}", *findings.lines, sep="\n  ", flush=True)
        if folder is not None:
            _write(folder, name, findings, plots)
    if folder is not None:
        print(f"\nwritten to {os.path.join(args.output, '')}")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 2 if a file or an argument cannot be used."""
    args = _parser().parse_args(argv)
    try:
        _run(args)
    except (OSError, ValueError, TypeError, MemoryError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0
