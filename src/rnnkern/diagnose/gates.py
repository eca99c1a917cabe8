"""Gates and states: maps, distribution, saturation, range."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..structure import CELLS, gates_of
from ..validation import Array, positive_int
from .inputs import dy_at, prepared, recorded, row_lengths, sweep_name

__all__ = ["GateStatistics", "gate_maps", "gate_statistics", "state_range"]

QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)
"""Of `state_range`."""

_CANDIDATES = {
    "rnn": "h", "lstm": "g", "gru": "n", "gru_before": "n", "mgu": "n", "indrnn": "h",
    "sru": "nx", "mingru": "n",
}  # fmt: skip
_BOUNDS = {
    "sigmoid": (0.0, 1.0), "hard_sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0), "softsign": (-1.0, 1.0),
}  # fmt: skip


def gate_names(layer: Any) -> tuple[str, ...]:
    """Which entries of a trace are gates: none for the RNN and the IndRNN."""
    options = layer._structure.options
    if options.coupled is not None:
        return ("e", "o")
    candidates = _CANDIDATES.get(options.cell, "")
    return tuple(gate for gate in CELLS[options.cell].gates if gate not in candidates)


def gate_maps(
    layer: Any, x: ArrayLike, *, row: int = 0, lengths: ArrayLike | None = None, hx: Any = None
) -> dict[str, Array]:
    """Gates, candidates and states of one sequence, position by unit, as a trace shows them.

    Karpathy, Johnson & Fei-Fei 2015, "Visualizing and understanding recurrent networks", look at
    text like this. For the digits of a memory task, to an LSTM of input_size 10:

        digits = [6, 7, 0, 0, 1, 0, 0, 0, 0, 0]
        maps = gate_maps(lstm, np.eye(10, dtype=np.float32)[digits])
        plots.gate_maps(maps, labels=digits).savefig("gates.png")

    Args:
        layer, x, lengths, hx: see the layer.
        row: which one of the batch.

    Returns:
        By name (`functional.ForwardOptions` lists them, "i", "f", "g", "o", "c", "h" of the LSTM)
        (L*D, T, H), with T the row's real steps.

    Proves: what each gate did at each position of this sequence: a forget gate near 1 hands c on
    nearly unchanged, near 0 it drops it.
    Does not prove: why, nor that the task needs it. A gate is multiplied with something: an open
    input gate over a candidate near 0 writes nothing. One sequence is an anecdote: see
    `gate_statistics` for many, `perturbation` and `ablation` for what is used.
    """
    layer, x, hx = prepared(layer, x, hx, gradients=False)
    ends = row_lengths(lengths, x)
    if not -len(ends) <= row < len(ends):
        raise ValueError(f"row: expected an integer below {len(ends)}, the rows of x, got {row}")
    _, _, trace = layer(x, hx, lengths=ends, trace=True)
    return {name: values[:, : ends[row], row] for name, values in trace.items()}


class GateStatistics(NamedTuple):
    """Of one gate or candidate; see `gate_statistics`."""

    thresholds: tuple[float, float] | None
    mean: Array
    low: Array
    high: Array
    counts: Array
    edges: Array
    gradients: dict[str, Array]


def gate_statistics(
    layer: Any,
    x: ArrayLike,
    dy: ArrayLike | None = None,
    dhx_n: Any = None,
    *,
    lengths: ArrayLike | None = None,
    hx: Any = None,
    bins: int = 20,
) -> dict[str, GateStatistics]:
    """How gates are distributed and saturated, beside the gradients of their parameters.

    Karpathy, Johnson & Fei-Fei 2015 count gates below 0.1 and above 0.9 as saturated; so do these.
    In the same place of tanh (0.9 of the way from its lower bound) lies 0.8.

    Args:
        layer, x, lengths, hx: see the layer.
        dy: gradient of the loss with respect to y, in y's shape (time-major: (T, B, D*P)). None,
            where dhx_n is None too: 1/sqrt(D*P) everywhere at each row's last real step.
        dhx_n: gradient of the final states, see `Tape.backward`.
        bins: of the histogram.

    Returns:
        For each block of rows of the weights, by its name in a trace:
        thresholds: what low and high mean, (0.1, 0.9) after a sigmoid; None where the activation
            has no bounds, and then low and high are NaN.
        mean, low, high: (L*D,) over real steps, rows and units: the mean value, the shares below
            and above the thresholds.
        counts, edges: the histogram, (L*D, bins) and (bins+1,).
        gradients: (L*D,) by kind of parameter ("weight_ih", "weight_hh", "bias_ih", ...): the norm
            of the gradient of this gate's rows.

    Proves: how often a gate is (nearly) shut or open, and how much gradient reaches its parameters
    from this loss.
    Does not prove: that saturation is wrong: a gate that decided firmly and rightly is saturated,
    and its gradient small, too. Neither does a share near 0 show health: a gate that is 0.5
    everywhere decides nothing. Saturation with a loss that is still high is what to look for.
    """
    positive_int("bins", bins)
    layer, x, hx = prepared(layer, x, hx)
    ends = row_lengths(lengths, x)
    y, _, tape = recorded(layer, x, hx, lengths=ends, trace=True)
    if dy is None and dhx_n is None:
        dy = dy_at(ends - 1, y, None)
    grads = tape.zero_grads()
    tape.backward(dy, dhx_n, grads=grads, need_dx=False)
    real = np.arange(len(x))[:, None] < ends
    return {
        name: _statistics(
            tape.trace[name][:, real], _thresholds(layer, name), bins, _norms(layer, grads, letter)
        )
        for letter, name in _blocks(layer).items()
    }


def _blocks(layer: Any) -> dict[str, str]:
    """The blocks of rows of the weights, and the names of a trace under which their values are."""
    options = layer._structure.options
    computed = {"input": "f", "forget": "i"}.get(options.coupled or "")
    return {b: "e" if b == computed else b for b in gates_of(options.cell, options.coupled)}


def _thresholds(layer: Any, name: str) -> tuple[float, float] | None:
    """A tenth of the way from the activation's bounds, if it has any."""
    options = layer._structure.options
    activation = options.gate if name in gate_names(layer) else options.candidate
    if activation is None or activation.kind not in _BOUNDS:
        return None
    low, high = _BOUNDS[activation.kind]
    tenth = (high - low) / 10
    return low + tenth, high - tenth


def _statistics(
    values: Array, thresholds: tuple[float, float] | None, bins: int, gradients: dict[str, Array]
) -> GateStatistics:
    flat = values.reshape(len(values), -1).astype(np.float64)
    nothing = np.full(len(flat), np.nan)
    if not flat.size:
        edges = np.linspace(0.0, 1.0, bins + 1)
        counts = np.zeros((len(flat), bins), int)
        return GateStatistics(thresholds, nothing, nothing, nothing, counts, edges, gradients)
    span = (flat.min(), flat.max())
    low = high = nothing
    if thresholds is not None:
        tenth = (thresholds[1] - thresholds[0]) / 8
        span = (thresholds[0] - tenth, thresholds[1] + tenth)
        low, high = (flat < thresholds[0]).mean(axis=1), (flat > thresholds[1]).mean(axis=1)
    edges = np.histogram_bin_edges(flat, bins, span)
    counts = np.array([np.histogram(sweep, edges)[0] for sweep in flat])
    return GateStatistics(thresholds, flat.mean(axis=1), low, high, counts, edges, gradients)


def _norms(layer: Any, grads: dict[str, Array], block: str) -> dict[str, Array]:
    """Norms (L*D,) of the gradients of a block's rows, by kind of parameter."""
    structure, H = layer._structure, layer.hidden_size
    sweeps = [sweep_name(layer, k) for k in range(structure.sweeps)]
    found = {}
    for kind in structure.kinds:
        letters = gates_of(structure.options.cell, structure.options.coupled)
        if kind == "weight_ch":  # of the gates alone
            letters = "".join(b for b in letters if _blocks(layer)[b] in gate_names(layer))
        if kind in ("weight_hr", "norm_c", "norm_c_bias") or block not in letters:
            continue
        rows = slice(letters.index(block) * H, (letters.index(block) + 1) * H)
        blocks = [grads[f"{kind}_{sweep}"][rows].astype(np.float64) for sweep in sweeps]
        found[kind] = np.array([np.linalg.norm(gradient) for gradient in blocks])
    return found


def state_range(
    layer: Any, x: ArrayLike, *, lengths: ArrayLike | None = None, hx: Any = None
) -> dict[str, Array]:
    """How the values of the states spread from step to step.

    Args:
        layer, x, lengths, hx: see the layer.

    Returns:
        By name, "c" where the cell has one and "h", (L*D, T, 5), the minimum, the quantiles 5 %,
        50 % and 95 %, and the maximum over units and rows after each step; NaN where no row is
        that long.

    Proves: whether c grows along the sequence. Beyond about 3 the tanh in front of h is flat, and
    its gradient gone: that is what `cell_clip` bounds.
    Does not prove: that a wide c is a fault: a counter in c grows because it counts (Gers &
    Schmidhuber 2001; Weiss, Goldberg & Yahav 2018). That the range is level on these lengths says
    nothing of longer sequences.
    """
    layer, x, hx = prepared(layer, x, hx, gradients=False)
    ends = row_lengths(lengths, x)
    _, _, trace = layer(x, hx, lengths=ends, trace=True)
    states = {name: trace[name] for name in ("c", "h") if name in trace}
    found = {
        name: np.full((*values.shape[:2], len(QUANTILES)), np.nan)
        for name, values in states.items()
    }
    for name, values in states.items():
        for t in range(int(ends.max())):
            real = values[:, t, ends > t].reshape(len(values), -1)
            found[name][:, t] = np.quantile(real, QUANTILES, axis=1).T
    return found
