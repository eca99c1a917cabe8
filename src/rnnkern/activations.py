"""Activation functions: their names, their parameters, and what may be said of them.

An activation is a name, or a tuple of a name and parameters: ``"tanh"``, ``("elu", 0.5)``,
``("hard_sigmoid", 0.2, 0.5)``.

    sigmoid            1 / (1 + e^-x)
    tanh
    relu               max(0, x)
    hard_sigmoid       max(0, min(1, alpha x + beta)), alpha 1/6, beta 0.5
    softsign           x / (1 + |x|)
    identity           x
    affine             alpha x + beta, alpha 1, beta 0
    leaky_relu         x, below zero alpha x, alpha 0.01
    thresholded_relu   x where x > alpha, else 0, alpha 1
    scaled_tanh        alpha tanh(beta x), alpha 1, beta 1
    elu                x, below zero alpha (e^x - 1), alpha 1
    softplus           log(1 + e^x)

Derivatives are taken from the value: those of relu, thresholded_relu and hard_sigmoid are 0 at
their edges.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple, TypeAlias

from .validation import finite, one_of

Activation: TypeAlias = str | tuple[str, float] | tuple[str, float, float]
"""A name, or a name with alpha and beta."""

_DEFAULTS: dict[str, tuple[float, ...]] = {
    "sigmoid": (),
    "tanh": (),
    "relu": (),
    "hard_sigmoid": (1 / 6, 0.5),
    "softsign": (),
    "identity": (),
    "affine": (1.0, 0.0),
    "leaky_relu": (0.01,),
    "thresholded_relu": (1.0,),
    "scaled_tanh": (1.0, 1.0),
    "elu": (1.0,),
    "softplus": (),
}
_NOT_NEGATIVE = ("leaky_relu", "thresholded_relu", "elu")  # their derivative is taken from y
_NOT_ZERO = ("scaled_tanh",)


class Function(NamedTuple):
    """An activation as the kernels take it."""

    kind: str
    alpha: float = 0.0
    beta: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind}({self.alpha:g}, {self.beta:g})" if any(self[1:]) else self.kind


def activation(name: str, value: Any) -> Activation:
    """``value`` in its shortest form, checked: a name alone where all parameters are the default.

    TypeError or ValueError for what is no activation; ``name`` is that of the argument.
    """
    if isinstance(value, str) and value in _DEFAULTS:
        return value
    kind, *given = value if isinstance(value, tuple | list) and len(value) > 1 else (value,)
    kind = one_of(name, kind, tuple(_DEFAULTS))
    defaults = _DEFAULTS[kind]
    if len(given) > len(defaults):
        takes = f"at most {len(defaults)}" if defaults else "no"
        raise ValueError(f"{name}: expected {takes} parameters of {kind!r}, got {value!r}")
    alpha_beta = [
        finite(f"{letter} of {kind} in {name}", number)
        for letter, number in zip(("alpha", "beta"), given, strict=False)
    ]
    parameters = (*alpha_beta, *defaults[len(given) :])
    if (kind in _NOT_NEGATIVE and parameters[0] < 0) or (kind in _NOT_ZERO and not parameters[0]):
        expected = "of at least 0" if kind in _NOT_NEGATIVE else "other than 0"
        raise ValueError(
            f"alpha of {kind} in {name}: expected a number {expected}, got {parameters[0]:g}"
        )
    while parameters and parameters[-1] == defaults[len(parameters) - 1]:
        parameters = parameters[:-1]
    return (kind, *parameters) if parameters else kind  # type: ignore[return-value]


@cache
def function(value: Activation) -> Function:
    """What the kernels compute for what ``activation`` returned."""
    kind, *given = (value,) if isinstance(value, str) else value
    parameters = (*given, *_DEFAULTS[kind][len(given) :])
    if kind == "identity":
        return Function("affine", 1.0)
    return Function(kind, *parameters)
