"""First values of the parameters of layers and cells, other than torch's.

    initialize(lstm, weight_hh="orthogonal", bias="zeros", forget_bias=1, seed=0)

"uniform"          uniform in +-1/sqrt(H), which layers and cells have from the start, as torch's
"glorot_uniform"   uniform in +-sqrt(6 / (fan_in + fan_out)) (Glorot & Bengio 2010)
"glorot_normal"    normal, variance 2 / (fan_in + fan_out)
"he_uniform"       uniform in +-sqrt(6 / fan_in)
"he_normal"        normal, variance 2 / fan_in (He et al. 2015, for relu)
"orthogonal"       an orthogonal matrix, all of them equally likely (Saxe et al. 2014); rows are
                   orthonormal if there are no more of them than columns, else columns are
"identity"         ones on the diagonal (Le, Jaitly & Hinton 2015, for weight_hh of relu RNNs)
"zeros"            zero

Each gate's block of rows is a matrix of its own: for weight_ih (H, inputs), for weight_hh (H, H).
fan_in is the number of its columns, fan_out that of its rows. Keras draws all gates as one matrix,
(4*H, inputs) for the LSTM, so that fan_out is 4*H, and the columns of an orthogonal one have length
1 over all gates together. `per_gate=False` does that; the distribution that Keras begins with is

    initialize(layer, weight_ih="glorot_uniform", weight_hh="orthogonal", bias="zeros",
               per_gate=False)

with `forget_bias=1` for an LSTM. (Keras' normal distributions are truncated; these, as torch's, are
not.)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from .parameters import FloatArray, converted
from .recurrent import Recurrent, Seed
from .structure import gates_of
from .validation import Shape, boolean, described, one_of

__all__ = ["initialize"]

Name = Literal[
    "uniform",
    "glorot_uniform",
    "glorot_normal",
    "he_uniform",
    "he_normal",
    "orthogonal",
    "identity",
    "zeros",
]
# Quoted: numpy.random is slow to import.
Initializer: TypeAlias = (
    "Name | tuple[Name, float] | float | Callable[[Shape, np.random.Generator], ArrayLike] | None"
)
_Rule: TypeAlias = "Callable[[Shape, np.random.Generator], FloatArray]"

_ARGUMENTS = {
    "weight_ih": "weight_ih",
    "weight_hh": "weight_hh",
    "weight_hr": "weight_hr",
    "bias_ih": "bias",
    "bias_hh": "bias",
}
"""The argument that says how a kind of parameter begins."""


def initialize(
    layer: Recurrent,
    *,
    weight_ih: Initializer = None,
    weight_hh: Initializer = None,
    weight_hr: Initializer = None,
    bias: Initializer = None,
    forget_bias: float | None = None,
    per_gate: bool = True,
    seed: Seed = None,
) -> None:
    """Write first values into `layer.params`, for all layers and directions.

    How a kind of parameters begins is a name of this module's list; a tuple (name, scale), which
    multiplies; a number, for all elements; or a function of (shape, rng), rng a
    numpy.random.Generator, that returns an array of that shape. None leaves the kind as it is, and
    kinds that are no argument (peepholes, gains, learned initial states) are always left.

    Args:
        layer: a layer or a cell.
        weight_ih: of the input, each gate (H, inputs); inputs are I, above the first layer D*H,
            with a projection D*P.
        weight_hh: of the state, each gate (H, H), with a projection (H, P). For the IndRNN the
            diagonal alone, a vector (H,): "uniform", "identity" (ones), "zeros", a number or a
            function, say `lambda shape, rng: rng.uniform(0, 1, shape)`.
        weight_hr: the projection (P, H).
        bias: each gate (H,) of bias_ih and of bias_hh, which add up: "uniform", "zeros", a number
            or a function.
        forget_bias: bias of the forget gate (Gers et al. 2000; 1 in Jozefowicz et al. 2015). Goes
            over `bias`: the gate's rows of bias_ih become it, those of bias_hh zero.
        per_gate: False takes all gates of a parameter as one matrix, as Keras does.
        seed: an int makes the values reproducible; a numpy.random.Generator is drawn from.

    Values are drawn in float64, parameter after parameter in the order of `layer.params`, gate
    after gate, and are rounded to the layer's dtype. An orthogonal matrix is that of NumPy's QR
    decomposition, whose last bits may depend on the machine.

    Raises:
        TypeError: an argument of the wrong kind, or a function that returns no real numbers.
        ValueError: an unknown name; one that needs a matrix (all but "uniform" and "zeros") for a
            vector; an argument for what the layer does not have, be it a bias, a projection,
            recurrent weights or a forget gate; a function's array of the wrong shape; values that
            are not finite in the layer's dtype. Whatever is raised, nothing has been written.
    """
    if not isinstance(layer, Recurrent):
        raise TypeError(f"layer: expected a recurrent layer or cell, got {described(layer)}")
    boolean("per_gate", per_gate)
    try:
        rng = np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise type(error)(f"seed: {error}") from None
    given = {"weight_ih": weight_ih, "weight_hh": weight_hh, "weight_hr": weight_hr, "bias": bias}
    rules = _rules(layer, {key: value for key, value in given.items() if value is not None})
    forget = None if forget_bias is None else _forget_rows(layer, forget_bias)

    units, new = layer.hidden_size, {}
    for name, view in layer.params.items():
        kind = _kind(name)
        argument = _ARGUMENTS.get(kind, "")
        if argument in rules:
            whole = not per_gate or kind == "weight_hr"
            values = np.empty(view.shape)
            for block in [values] if whole else np.split(values, len(values) // units):
                block[...] = rules[argument](block.shape, rng)
            new[name] = _cast(argument, values, view.dtype)
        if forget is not None and argument == "bias":
            rows, value = forget
            new.setdefault(name, view.copy())[rows] = value if kind == "bias_ih" else 0
    for name, array in new.items():
        layer.params[name][...] = array


def _kind(name: str) -> str:
    """A parameter's name without its layer and direction; cells' have none."""
    return name.partition("_l")[0]


def _rules(layer: Recurrent, given: dict[str, Any]) -> dict[str, _Rule]:
    """What draws the values of a block, for each argument."""
    dimensions = {_ARGUMENTS.get(_kind(name)): view.ndim for name, view in layer.params.items()}
    rules = {}
    for argument, value in given.items():
        if argument not in dimensions:
            raise ValueError(f"{argument}: expected None, as {layer!r} has none, got {value!r}")
        names = get_args(Name)
        if dimensions[argument] == 1:
            identity = ("identity",) if argument == "weight_hh" else ()
            names = ("uniform", *identity, "zeros")
        rules[argument] = _rule(argument, value, names, layer.hidden_size)
    return rules


def _rule(argument: str, value: Any, names: tuple[str, ...], units: int) -> _Rule:
    if isinstance(value, str):
        return partial(_named, one_of(argument, value, names), units)
    if isinstance(value, tuple) and len(value) == 2:
        name = one_of(f"name of {argument}", value[0], names)
        scale = _finite(f"scale of {argument}", value[1], "a finite number")
        return lambda shape, rng: scale * _named(name, units, shape, rng)
    if callable(value):
        result = f"result of {argument}"
        return lambda shape, rng: converted(result, value(shape, rng), shape, np.float64)
    constant = _finite(argument, value, "a name, (name, scale), a finite number or a function")
    return lambda shape, rng: np.full(shape, constant)


def _named(name: str, units: int, shape: Shape, rng: np.random.Generator) -> FloatArray:
    """One block's values, in float64."""
    match name:
        case "zeros":
            return np.zeros(shape)
        case "identity":
            return np.ones(shape) if len(shape) == 1 else np.eye(shape[0], shape[1])
        case "orthogonal":
            return _orthogonal(shape, rng)
        case "uniform":
            bound = 1 / math.sqrt(units)
            return rng.uniform(-bound, bound, shape)
    rows, columns = shape
    variance = 2 / (rows + columns) if name.startswith("glorot") else 2 / columns
    if name.endswith("normal"):
        return rng.normal(0, math.sqrt(variance), shape)
    bound = math.sqrt(3 * variance)
    return rng.uniform(-bound, bound, shape)


def _orthogonal(shape: Shape, rng: np.random.Generator) -> FloatArray:
    """Uniformly distributed: the Q of a normal matrix, for an R of positive diagonal (Mezzadri)."""
    q, r = np.linalg.qr(rng.standard_normal((max(shape), min(shape))))
    q *= np.copysign(1, np.diagonal(r))
    return q if q.shape == shape else q.T


def _forget_rows(layer: Recurrent, value: Any) -> tuple[slice, FloatArray]:
    """The forget gate's rows, and what they become."""
    value = _finite("forget_bias", value, "a finite number")
    gates = gates_of(layer._cell, getattr(layer, "coupled", None))
    if "f" not in gates:
        raise ValueError(
            f"forget_bias: expected None, as {layer!r} has no forget gate, got {value}"
        )
    if not layer.bias:
        raise ValueError(f"forget_bias: expected None, as {layer!r} has no bias, got {value}")
    start = gates.index("f") * layer.hidden_size
    rows = slice(start, start + layer.hidden_size)
    return rows, _cast("forget_bias", np.array(value), layer.dtype)


def _finite(name: str, value: Any, expected: str) -> float:
    """`value` as a float; TypeError for what is no number, bools included."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name}: expected {expected}, got {described(value)}")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise ValueError(f"{name}: expected {expected}, got {value}")
    return found


def _cast(name: str, values: FloatArray, dtype: np.dtype[Any]) -> FloatArray:
    """`values` in the layer's dtype; ValueError where they are not finite there."""
    with np.errstate(over="ignore", under="ignore"):
        array: FloatArray = values.astype(dtype)
    wrong = ~np.isfinite(array)
    if wrong.any():
        raise ValueError(
            f"{name}: expected numbers that are finite in {dtype}, got {values[wrong][0]}"
        )
    return array
