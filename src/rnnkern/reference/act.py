"""Activations, and clipping. The way back is written in terms of the activation's own value y.

The names, and the parameters alpha and beta that some have, are those of the ONNX operators RNN,
GRU and LSTM. Sources beside the usual two: leaky ReLU, Maas, Hannun and Ng, "Rectifier
nonlinearities improve neural network acoustic models" (ICML 2013); ELU, Clevert, Unterthiner and
Hochreiter, "Fast and accurate deep network learning by exponential linear units" (ICLR 2016);
thresholded ReLU, Konda, Memisevic and Krueger, "Zero-bias autoencoders and the benefits of
co-adapting features" (ICLR 2015); softsign, Bergstra, Desjardins, Lamblin and Bengio, "Quadratic
polynomials learn better image features" (2009); hard sigmoid, Courbariaux, Bengio and David,
"BinaryConnect" (NIPS 2015).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.floating[Any]]

Spec = str | tuple[Any, ...]  # a name, or (name, alpha) or (name, alpha, beta)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), by an exponential that cannot overflow and a sum that cannot cancel."""
    e = np.exp(-np.abs(x))
    y: Array = np.where(x >= 0, 1, e) / (1 + e)
    return y


def sigmoid_backward(y: Array, dy: Array) -> Array:
    return dy * y * (1 - y)


def tanh(x: Array) -> Array:
    return np.tanh(x)


def tanh_backward(y: Array, dy: Array) -> Array:
    return dy * (1 - y * y)


def relu(x: Array) -> Array:
    return np.maximum(x, 0)  # unlike np.where(x > 0, x, 0), this keeps NaN


def relu_backward(y: Array, dy: Array) -> Array:
    """The slope at 0 is 0, that of NaN is 1, both as in torch; a choice, so that 0 * inf is 0."""
    return np.where(y <= 0, 0, dy)


def hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    y: Array = np.clip(alpha * x + beta, 0, 1)
    return y


def hard_sigmoid_backward(y: Array, dy: Array, alpha: float, beta: float) -> Array:
    return np.where((y > 0) & (y < 1), alpha * dy, 0)


def softsign(x: Array) -> Array:
    finite = np.clip(x, -1e30, 1e30)  # infinity over infinity would be NaN
    y: Array = finite / (1 + np.abs(finite))
    return y


def softsign_backward(y: Array, dy: Array) -> Array:
    slope: Array = (1 - np.abs(y)) ** 2
    return dy * slope


def identity(x: Array) -> Array:
    return x


def identity_backward(y: Array, dy: Array) -> Array:
    return dy


def affine(x: Array, alpha: float, beta: float) -> Array:
    return alpha * x + beta


def affine_backward(y: Array, dy: Array, alpha: float, beta: float) -> Array:
    return alpha * dy


def leaky_relu(x: Array, alpha: float) -> Array:
    return np.where(x >= 0, x, alpha * x)


def leaky_relu_backward(y: Array, dy: Array, alpha: float) -> Array:
    return np.where(y <= 0, alpha * dy, dy)


def thresholded_relu(x: Array, alpha: float) -> Array:
    return np.where(x <= alpha, 0, x)


def thresholded_relu_backward(y: Array, dy: Array, alpha: float) -> Array:
    return relu_backward(y, dy)


def scaled_tanh(x: Array, alpha: float, beta: float) -> Array:
    y: Array = alpha * np.tanh(beta * x)
    return y


def scaled_tanh_backward(y: Array, dy: Array, alpha: float, beta: float) -> Array:
    return dy * (beta * (alpha - y * y / alpha))


def elu(x: Array, alpha: float) -> Array:
    y: Array = np.where(x >= 0, x, alpha * np.expm1(np.minimum(x, 0)))
    return y


def elu_backward(y: Array, dy: Array, alpha: float) -> Array:
    return np.where(y >= 0, dy, dy * (y + alpha))


def softplus(x: Array) -> Array:
    """log(1 + exp(x)), by an exponential that cannot overflow."""
    y: Array = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
    return y


def softplus_backward(y: Array, dy: Array) -> Array:
    return dy * -np.expm1(-y)


def clamp(a: Array, limit: float | None) -> Array:
    return a if limit is None else np.clip(a, -limit, limit)


def clamp_backward(a: Array, da: Array, limit: float | None) -> Array:
    """Nothing goes back where a was at or beyond the limit; a may also be the clamped value."""
    return da if limit is None else np.where(np.abs(a) >= limit, 0, da)


class Kind(NamedTuple):
    forward: Callable[..., Array]  # of x and the parameters
    backward: Callable[..., Array]  # of y, dy and the parameters
    defaults: tuple[float, ...] = ()


KINDS = {
    "sigmoid": Kind(sigmoid, sigmoid_backward),
    "tanh": Kind(tanh, tanh_backward),
    "relu": Kind(relu, relu_backward),
    "hard_sigmoid": Kind(hard_sigmoid, hard_sigmoid_backward, (1 / 6, 0.5)),
    "softsign": Kind(softsign, softsign_backward),
    "identity": Kind(identity, identity_backward),
    "affine": Kind(affine, affine_backward, (1.0, 0.0)),
    "leaky_relu": Kind(leaky_relu, leaky_relu_backward, (0.01,)),
    "thresholded_relu": Kind(thresholded_relu, thresholded_relu_backward, (1.0,)),
    "scaled_tanh": Kind(scaled_tanh, scaled_tanh_backward, (1.0, 1.0)),
    "elu": Kind(elu, elu_backward, (1.0,)),
    "softplus": Kind(softplus, softplus_backward),
}


@dataclass(frozen=True)
class Activation:
    """One of the above with its parameters, behind the clipping of its input to [-clip, clip]."""

    kind: Kind
    parameters: tuple[float, ...] = ()
    clip: float | None = None

    def __call__(self, a: Array) -> Array:
        return self.kind.forward(clamp(a, self.clip), *self.parameters)

    def backward(self, a: Array, y: Array, dy: Array) -> Array:
        """The gradient of a, which only the clipping needs."""
        return clamp_backward(a, self.kind.backward(y, dy, *self.parameters), self.clip)


def resolve(argument: str, spec: Any, clip: float | None = None) -> Activation:
    """The activation that a name or a tuple (name, alpha, beta) means."""
    name, *given = (spec,) if isinstance(spec, str) else tuple(spec or [None])
    if name not in KINDS:
        raise ValueError(f"{argument}: expected one of {', '.join(KINDS)}, got {spec!r}")
    kind = KINDS[name]
    if len(given) > len(kind.defaults):
        raise ValueError(
            f"{argument}: expected at most {len(kind.defaults)} parameters of {name}, got {given}"
        )
    parameters = tuple(float(v) for v in (*given, *kind.defaults[len(given) :]))
    if not all(map(np.isfinite, parameters)):
        raise ValueError(f"{argument}: expected finite parameters of {name}, got {given}")
    if name in ("leaky_relu", "thresholded_relu", "elu") and parameters[0] < 0:
        raise ValueError(f"{argument}: expected alpha >= 0 of {name}, got {parameters[0]}")
    if name == "scaled_tanh" and parameters[0] == 0:
        raise ValueError(f"{argument}: expected alpha != 0 of {name}, got {parameters[0]}")
    return Activation(kind, parameters, above_0_or_none("clip", clip))


def resolve_all(specs: Sequence[Any], count: int, clip: float | None = None) -> list[Activation]:
    """Those of the argument activations."""
    if isinstance(specs, str) or len(specs) != count:
        raise ValueError(f"activations: expected {count} of them, got {specs!r}")
    return [resolve("activations", spec, clip) for spec in specs]


def above_0(argument: str, value: float) -> float:
    if not value > 0:
        raise ValueError(f"{argument}: expected a number above 0, got {value}")
    return value


def above_0_or_none(argument: str, value: float | None) -> float | None:
    return None if value is None else above_0(argument, value)
