"""Runs the cases of the outside oracle golden.py through rnnkern's layers.

The environment chooses how: GOLDEN_DTYPE (float32, float64), GOLDEN_CHECKPOINT (none, gates, auto
or a number of steps), GOLDEN_THREADS; RNNKERN_ISA chooses the level, as always.
"""

import os
from typing import Any

import numpy as np

import rnnkern as rk

DTYPE = np.dtype(os.environ.get("GOLDEN_DTYPE", "float64"))
CHECKPOINT = os.environ.get("GOLDEN_CHECKPOINT", "none")
THREADS = int(os.environ.get("GOLDEN_THREADS", "1"))


def run(case: dict[str, Any], given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs, final states and all gradients of a case, under the oracle's names."""
    options = {"nonlinearity": case["nonlinearity"]} if case["op"] == "RNN" else {}
    if case["proj"]:
        options["proj_size"] = case["proj"]
    layer = getattr(rk, case["op"])(
        case["I"], case["H"], case["L"], bias=case["bias"], batch_first=case["batch_first"],
        bidirectional=case["bidirectional"], dtype=DTYPE, **options,
    )  # fmt: skip
    layer.load_state_dict({name: given[name] for name in layer.params})
    arrays = {name: a.astype(DTYPE) for name, a in given.items() if name != "lengths"}

    def states(stem: str) -> Any:
        """The state whose parts are named h... and c..., as the layer takes it."""
        if stem.format("h") not in arrays:
            return None
        parts = [arrays[stem.format(part)] for part in "hc" if stem.format(part) in arrays]
        return tuple(parts) if case["op"] == "LSTM" else parts[0]

    def named(stem: str, state: Any) -> dict[str, np.ndarray]:
        parts = state if isinstance(state, tuple) else (state,)
        return {stem.format(part): a for part, a in zip("hc", parts, strict=False)}

    hx = states("{}0")
    y, hx_n, tape = layer.record(
        arrays["x"], hx, lengths=given.get("lengths"), num_threads=THREADS,
        checkpoint=int(CHECKPOINT) if CHECKPOINT.isdigit() else
        None if CHECKPOINT == "none" else CHECKPOINT,
    )  # fmt: skip
    dx, dhx = tape.backward(arrays["dy"], states("d{}n"), num_threads=THREADS)
    results = {"y": y, "dx": dx, **named("{}n", hx_n)}
    if hx is not None:
        results |= named("d{}0", dhx)
    return results | {f"d{name}": gradient for name, gradient in layer.grads.items()}
