"""The final states of one layer as the initial states of another, with gradients through both."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import numeric_derivative

import rnnkern as rk

EXAMPLE = Path(__file__).parent.parent / "examples" / "copy_sequence.py"
T, B, I, H = 5, 3, 4, 6  # noqa: E741


@pytest.mark.parametrize("cls", [rk.RNN, rk.LSTM, rk.GRU])
@pytest.mark.parametrize("checkpoint", [None, "auto"])
def test_gradients_go_through_both(cls: Any, checkpoint: Any) -> None:
    rng = np.random.default_rng(0)
    encoder, decoder = (cls(I, H, num_layers=2, dtype=np.float64, seed=k) for k in (1, 2))
    x, p, dy = (rng.standard_normal((T, B, n)) for n in (I, I, H))
    lengths = np.array([5, 2, 0])

    def loss() -> float:
        _, state = encoder(x, lengths=lengths)
        return float((dy * decoder(p, state)[0]).sum())

    _, state, encoded = encoder.record(x, lengths=lengths, checkpoint=checkpoint)
    _, _, decoded = decoder.record(p, state, checkpoint=checkpoint)
    _, dstate = decoded.backward(dy)
    dx, _ = encoded.backward(dhx_n=dstate)
    places = [(x, dx), *((encoder.params[n], encoder.grads[n]) for n in encoder.params)]
    for values, gradient in places:
        for index in rng.integers(0, values.size, 3):
            at = np.unravel_index(index, values.shape)
            numeric = numeric_derivative(loss, values, at)
            assert gradient[at] == pytest.approx(numeric, rel=1e-7, abs=1e-9)


def test_the_example_learns_to_copy() -> None:
    spec = importlib.util.spec_from_file_location("copy_sequence", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    assert example.main(["--steps", "400"]) > 0.7
