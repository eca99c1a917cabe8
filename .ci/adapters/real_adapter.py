"""Runs the layers of published models for the outside oracle real/check.py.

`run_layer` turns the weights of four frameworks into torch's names and order (rows i, f, g, o; r,
z, n), which are rnnkern's:

torch        as they are
onnx         W (D, G*H, I), R (D, G*H, H), B (D, 2*G*H): input biases, then recurrent ones
keras        kernel (I, G*H), recurrent_kernel (H, G*H): transposed; bias (G*H), or (2, G*H) of a
             GRU with reset_after
keras-cudnn  as Keras saves CuDNNLSTM and CuDNNGRU: every gate's block of kernel holds the bytes of
             its transpose, recurrent blocks are transposed; bias (2*G*H)

The order of the gates is the one that the layer's own description names.
"""

from typing import Any

import numpy as np

import rnnkern as rk

ORDER = {"LSTM": "ifgo", "GRU": "rzn", "RNN": "h"}
ALIASES = {"c": "g", "h": "n"}
ACTIVATIONS = {
    "LSTM": [["sigmoid", "tanh", "tanh"]],
    "GRU": [["sigmoid", "tanh"]],
    "RNN": [["tanh"], ["relu"]],
}
Weights = dict[str, np.ndarray]


def run_layer(
    layer: dict[str, Any], w: Weights, x: np.ndarray, h0: Any, c0: Any, lengths: Any
) -> tuple[Any, Any, Any]:
    """x (B, T, I) and states (D*L, B, H) in; y, h_n and c_n (None but for the LSTM) out."""
    op = layer["op"]
    activations = [name.lower() for name in layer["activations"]]
    if op not in ORDER or layer["peephole"] or activations not in ACTIVATIONS[op]:
        raise NotImplementedError(f"{op} with {layer['activations']}")
    weights = {
        "torch": lambda w, _: dict(w),
        "onnx": from_onnx,
        "keras": from_keras,
        "keras-cudnn": from_cudnn,
    }[layer["source"]](w, gate_order(layer))
    options = {}
    if op == "GRU":
        options["reset_after"] = layer["gru_reset"] == "after"
    elif op == "RNN":
        options["nonlinearity"] = activations[0]
    recurrent = getattr(rk, op)(
        layer["input_size"], layer["hidden_size"], layer["num_layers"], batch_first=True,
        bidirectional=layer["bidirectional"], bias="bias_ih_l0" in weights, **options,
    )  # fmt: skip
    recurrent.load_state_dict(weights)
    hx = None if h0 is None else h0
    if op == "LSTM" and h0 is not None:
        hx = (h0, np.zeros_like(h0) if c0 is None else c0)
    y, hx_n = recurrent(x, hx, lengths=lengths)
    return (y, *hx_n) if op == "LSTM" else (y, hx_n, None)


def gate_order(layer: dict[str, Any]) -> list[int]:
    """Where in the source's order each of our gates is."""
    ours = ORDER[layer["op"]]
    if len(ours) == 1:
        return [0]
    theirs = [name.strip() for name in layer["gates"].split(",")]
    theirs = [name if name in ours else ALIASES[name] for name in theirs]
    return [theirs.index(name) for name in ours]


def reorder(rows: np.ndarray, order: list[int]) -> np.ndarray:
    """(G*H, ...) with its G blocks in our order."""
    blocks = np.split(rows, len(order))
    return np.concatenate([blocks[i] for i in order])


def from_onnx(w: Weights, order: list[int]) -> Weights:
    named = {}
    for d, suffix in enumerate(["", "_reverse"][: len(w["W"])]):
        named[f"weight_ih_l0{suffix}"] = reorder(w["W"][d], order)
        named[f"weight_hh_l0{suffix}"] = reorder(w["R"][d], order)
        if "B" in w:
            of_input, recurrent = np.split(w["B"][d], 2)
            named[f"bias_ih_l0{suffix}"] = reorder(of_input, order)
            named[f"bias_hh_l0{suffix}"] = reorder(recurrent, order)
    return named


def from_keras(w: Weights, order: list[int]) -> Weights:
    if not {"kernel", "recurrent_kernel"} <= w.keys():
        raise NotImplementedError(f"Keras weights {sorted(w)}")
    named = {
        "weight_ih_l0": reorder(w["kernel"].T, order),
        "weight_hh_l0": reorder(w["recurrent_kernel"].T, order),
    }
    if "bias" in w:
        of_input, recurrent = w["bias"] if w["bias"].ndim == 2 else (w["bias"], 0 * w["bias"])
        named["bias_ih_l0"] = reorder(of_input, order)
        named["bias_hh_l0"] = reorder(recurrent, order)
    return named


def from_cudnn(w: Weights, order: list[int]) -> Weights:
    gates = len(order)
    plain = {
        "kernel": np.hstack(
            [k.T.reshape(k.shape, order="F") for k in np.hsplit(w["kernel"], gates)]
        ),
        "recurrent_kernel": np.hstack([k.T for k in np.hsplit(w["recurrent_kernel"], gates)]),
    }
    if "bias" in w:
        plain["bias"] = w["bias"].reshape(2, -1)
    return from_keras(plain, order)
