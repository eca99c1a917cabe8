"""Voice activity as it streams: the LSTM of silero-vad on a recording, a frame of 32 ms at a time.

    python examples/voice_activity.py

Prints where there is speech, and what a step takes. The file data/silero_vad.npz holds weights as
ONNX has them, and what the model's encoder makes of each frame; data/README.md says whose they are.
"""

import math
import time
from pathlib import Path

import numpy as np

import rnnkern as rk

DATA = Path(__file__).parent / "data" / "silero_vad.npz"
FRAME = 0.032  # seconds


def lstm_from_onnx(W, R, B):
    """An rnnkern.LSTM from ONNX's W (4H, I), R (4H, H) and B (8H).

    ONNX has the gates in the order i, o, f, c, torch and rnnkern in the order i, f, c, o.
    """
    hidden = R.shape[1]

    def reordered(rows):
        return rows.reshape(4, hidden, -1)[[0, 2, 3, 1]].reshape(rows.shape)

    lstm = rk.LSTM(W.shape[1], hidden)
    of_input, recurrent = np.split(B, 2)
    lstm.load_state_dict(
        {
            "weight_ih_l0": reordered(W),
            "weight_hh_l0": reordered(R),
            "bias_ih_l0": reordered(of_input),
            "bias_hh_l0": reordered(recurrent),
        }
    )
    return lstm


class VoiceActivity:
    """How probable speech is, after each frame of one recording."""

    def __init__(self, model):
        self.stream = lstm_from_onnx(model["W"], model["R"], model["B"]).freeze().stream()
        self.weight, self.bias = model["output_weight"], model["output_bias"].item()

    def step(self, features):
        """From the features (128,) of the next frame, float32, to a probability."""
        h = self.stream.step(features)
        return 1 / (1 + math.exp(-float(np.maximum(h, 0) @ self.weight) - self.bias))


def segments(probabilities, threshold=0.5):
    """Pairs (start, end) in seconds where frames are speech."""
    speech = np.concatenate([[False], np.asarray(probabilities) > threshold, [False]])
    return (FRAME * np.flatnonzero(speech[1:] != speech[:-1])).reshape(-1, 2)


def main():
    with np.load(DATA) as file:
        model = dict(file)
    detector = VoiceActivity(model)
    start = time.perf_counter()
    probabilities = [detector.step(frame) for frame in model["features"]]
    seconds = (time.perf_counter() - start) / len(probabilities)
    print("".join(" .:-=+*#%@"[int(9.99 * p)] for p in probabilities), " one column a frame")
    for first, last in segments(probabilities):
        print(f"speech from {first:.2f} s to {last:.2f} s")
    error = np.abs(np.array(probabilities) - model["probabilities"]).max()
    print(f"within {error:.0e} of the probabilities that silero-vad gives with ONNX Runtime")
    print(f"{1e6 * seconds:.1f} µs a frame, {FRAME / seconds:.0f} times as fast as real time")


if __name__ == "__main__":
    main()
