"""Runs RNN, LSTM and GRU nodes of ONNX for the outside oracle onnx_backend_runner.py.

rnnkern has all that the operators' text asks for, but: direction="reverse" alone, for which the
sequences are turned around here, within their lengths; activations that differ between the two
directions, float16, and a few alphas that training cannot have, which are refused.
"""

from typing import Any

import numpy as np

from rnnkern import functional

# For each operator the order of its gates in ours; for each gate of ours where it is in W and R.
GATES = {"RNN": (0,), "GRU": (1, 0, 2), "LSTM": (0, 2, 3, 1)}  # z r h, i o f c
COUPLED = (0, 3, 1)  # i c o: f = 1 - i
PEEPHOLES, COUPLED_PEEPHOLES = (0, 2, 1), (0, 1)  # of i o f

DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
ACTIVATIONS: dict[str, tuple[str, float | None, float | None]] = {  # defaults of alpha and beta
    "sigmoid": ("sigmoid", None, None),
    "tanh": ("tanh", None, None),
    "relu": ("relu", None, None),
    "softsign": ("softsign", None, None),
    "softplus": ("softplus", None, None),
    "affine": ("affine", 1.0, 0.0),
    "leakyrelu": ("leaky_relu", 0.01, None),
    "thresholdedrelu": ("thresholded_relu", 1.0, None),
    "scaledtanh": ("scaled_tanh", 1.0, 1.0),
    "hardsigmoid": ("hard_sigmoid", 0.2, 0.5),
    "elu": ("elu", 1.0, None),
}
NOT_NEGATIVE = ("leaky_relu", "thresholded_relu", "elu")  # their alphas
Array = np.ndarray


def run_node(op_type: str, attributes: dict[str, Any], inputs: list[Array | None]) -> list[Array]:
    """Y, Y_h and, of the LSTM, Y_c."""
    X, W, R, B, lengths, h, c, P = (*inputs, *[None] * (8 - len(inputs)))
    if X.dtype not in (np.float32, np.float64):
        raise NotImplementedError(f"sequences of {X.dtype}")
    direction = attributes.get("direction", "forward")
    if len(W) != (2 if direction == "bidirectional" else 1):
        raise ValueError(f"W of {len(W)} directions with direction={direction!r}")
    if attributes.get("hidden_size", R.shape[2]) != R.shape[2]:
        raise ValueError(f"R of shape {R.shape} with hidden_size={attributes['hidden_size']}")
    batched = bool(attributes.get("layout", 0))
    if batched:
        X, h, c = (None if a is None else a.swapaxes(0, 1) for a in (X, h, c))
    if direction == "reverse":
        X = turned(X, lengths)

    coupled = op_type == "LSTM" and bool(attributes.get("input_forget", 0))
    hx = states(op_type, h, c, (len(W), X.shape[1], R.shape[2]), X.dtype)
    forward = getattr(functional, f"{op_type.lower()}_forward")
    weights = params(op_type, coupled, W, R, B, P)
    Y, hx_n = forward(X, weights, hx, lengths=lengths, **options(op_type, attributes, len(W)))

    if direction == "reverse":
        Y = turned(Y, lengths)
    Y = Y.reshape(*Y.shape[:2], len(W), -1)
    outputs = list(hx_n) if op_type == "LSTM" else [hx_n]
    if batched:
        return [Y.swapaxes(0, 1), *(a.swapaxes(0, 1) for a in outputs)]
    return [Y.swapaxes(1, 2), *outputs]


def turned(sequences: Array, lengths: Array | None) -> Array:
    """Sequences (T, B, ...) from their ends to their starts; what is behind lengths stays."""
    if lengths is None:
        return sequences[::-1]
    result = sequences.copy()
    for row, length in enumerate(lengths):
        result[:length, row] = sequences[:length, row][::-1]
    return result


def states(
    op_type: str, h: Array | None, c: Array | None, shape: tuple[int, ...], dtype: Any
) -> Any:
    if op_type != "LSTM" or (h is None and c is None):
        return h
    return tuple(np.zeros(shape, dtype) if a is None else a for a in (h, c))


def params(
    op_type: str, coupled: bool, W: Array, R: Array, B: Array | None, P: Array | None
) -> dict[str, Array]:
    """ONNX's weights of each direction in our order and by our names."""
    gates = len(GATES[op_type])
    order = COUPLED if coupled else GATES[op_type]
    peepholes = COUPLED_PEEPHOLES if coupled else PEEPHOLES
    named = {}
    for d, suffix in enumerate(["l0", "l0_reverse"][: len(W)]):
        named[f"weight_ih_{suffix}"] = chosen(W[d], gates, order)
        named[f"weight_hh_{suffix}"] = chosen(R[d], gates, order)
        if B is not None:
            of_input, recurrent = np.split(B[d], 2)
            named[f"bias_ih_{suffix}"] = chosen(of_input, gates, order)
            named[f"bias_hh_{suffix}"] = chosen(recurrent, gates, order)
        if P is not None:
            named[f"weight_ch_{suffix}"] = chosen(P[d], 3, peepholes)
    return named


def chosen(rows: Array, blocks: int, order: tuple[int, ...]) -> Array:
    """The blocks of rows that `order` names, in that order."""
    parts = np.split(rows, blocks)
    return np.concatenate([parts[i] for i in order])


def options(op_type: str, attributes: dict[str, Any], directions: int) -> dict[str, Any]:
    """A node's attributes as the options of our function."""
    found: dict[str, Any] = {"clip": attributes.get("clip")}
    functions = activations(op_type, attributes, directions)
    if op_type == "RNN":
        return found | {"nonlinearity": functions[0]}
    if op_type == "GRU":
        found["reset_after"] = bool(attributes.get("linear_before_reset", 0))
    elif attributes.get("input_forget", 0):
        found["coupled"] = "forget"
    return found | {"activations": functions}


def activations(op_type: str, attributes: dict[str, Any], directions: int) -> tuple[Any, ...]:
    """Those of both directions, with alpha and beta, of which each takes the next if it has any."""
    names = attributes.get("activations") or DEFAULTS[op_type] * directions
    if len(names) != directions * len(DEFAULTS[op_type]):
        raise ValueError(f"{len(names)} activations for {directions} directions of {op_type}")
    given = [iter(attributes.get(f"activation_{letter}") or ()) for letter in ("alpha", "beta")]
    found = []
    for name in names:
        if name.lower() not in ACTIVATIONS:
            raise NotImplementedError(f"activation {name}")
        ours, *defaults = ACTIVATIONS[name.lower()]
        numbers = [
            next(values, default)
            for values, default in zip(given, defaults, strict=True)
            if default is not None
        ]
        if (ours in NOT_NEGATIVE and numbers[0] < 0) or (ours == "scaled_tanh" and not numbers[0]):
            raise NotImplementedError(f"activation {name} with alpha {numbers[0]}")
        found.append((ours, *numbers) if numbers else ours)
    forward, backward = found[: len(DEFAULTS[op_type])], found[-len(DEFAULTS[op_type]) :]
    if forward != backward:
        raise NotImplementedError(f"directions with activations {forward} and {backward}")
    return tuple(forward)
