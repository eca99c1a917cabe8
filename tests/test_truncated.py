"""Truncated backpropagation through time against its definition."""

import copy
from typing import Any

import numpy as np
import pytest
from support import VARIANTS, regularization, shaken

import rnnkern as rk
from rnnkern import reference
from rnnkern.truncated import truncated_bptt

T, B, I, H = 23, 3, 4, 5  # noqa: E741
CLASSES = [rk.RNN, rk.LSTM, rk.GRU]


def inputs(seed: int = 0, steps: int = T) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((steps, B, I)), rng.standard_normal((steps, B, H))


def layer_of(cls: Any, **options: Any) -> Any:
    return cls(I, H, num_layers=2, dtype=np.float64, seed=1, **options)


def function(layer: Any, way: str) -> Any:
    return getattr(reference, f"{type(layer).__name__.lower()}_{way}")


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(("k1", "k2"), [(5, 5), (5, 10), (4, 7), (1, 3), (3, 40), (23, 23)])
def test_the_definition(cls: Any, k1: int, k2: int) -> None:
    """The loss at each k1 new steps goes back through k2 steps, from the states as they are."""
    x, dy = inputs()
    layer = layer_of(cls)
    want = {name: np.zeros_like(p) for name, p in layer.params.items()}
    whole, _, _ = function(layer, "forward")(x, layer.params)
    outputs, covered = [], []
    for chunk in truncated_bptt(layer, x, k1=k1, k2=k2):
        start, stop = chunk.steps.start, chunk.steps.stop
        cut = max(0, start - (k2 - k1))
        _, state, _ = function(layer, "forward")(x[:cut], layer.params)
        _, _, tape = function(layer, "forward")(x[cut:stop], layer.params, state)
        padded = np.zeros((stop - cut, B, H))
        padded[start - cut :] = dy[start:stop]
        for name, grad in function(layer, "backward")(tape, padded)[2].items():
            want[name] += grad
        outputs.append(chunk.y)
        covered.extend(range(start, stop))
        chunk.backward(dy[chunk.steps])
    assert covered == list(range(T))
    np.testing.assert_allclose(np.concatenate(outputs), whole, atol=1e-12)
    for name, grad in layer.grads.items():
        np.testing.assert_allclose(grad, want[name], atol=1e-12)


@pytest.mark.parametrize("cls", CLASSES)
def test_the_value_crosses_the_border_and_the_gradient_does_not(cls: Any) -> None:
    x, _ = inputs()
    layer = layer_of(cls)
    first, second = truncated_bptt(layer, x, k1=12)
    y, _ = layer(x)
    np.testing.assert_array_equal(np.concatenate([first.y, second.y]), y)
    alone, _ = layer(x[12:])
    assert not np.allclose(second.y, alone)  # the value has crossed
    second.backward(np.ones_like(second.y))
    cut = layer.grads.flat.copy()
    layer.zero_grad()
    _, _, tape = layer.record(x)
    tape.backward(np.concatenate([np.zeros_like(first.y), np.ones_like(second.y)]))
    assert not np.allclose(layer.flat_grads, cut)  # what the whole sequence adds
    layer.zero_grad()
    _, _, tape = layer.record(x[12:], first.hx_n)
    tape.backward(np.ones_like(second.y))
    np.testing.assert_array_equal(layer.flat_grads, cut)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("k1", [23, 9, 4])
def test_masks_are_those_of_the_whole(name: str, k1: int) -> None:
    """Chunks that go back to the start have gradients that add up to those of the whole."""
    cls, options = VARIANTS[name]
    more: dict[str, Any] = {"dropout": 0.2, "regularization": regularization(cls, 0.2)}
    layer = shaken(cls(I, 18, 2, dtype=np.float64, seed=1, **options, **more))
    x, _ = inputs()
    resets = np.arange(T * B).reshape(T, B) == 40
    settings = {"dropout_seed": 7, "first_step": 100, "resets": resets}
    y, state, tape = layer.record(x, **settings)
    tape.backward(np.cos(y))
    want = layer.flat_grads.copy()
    layer.zero_grad()
    chunks = list(truncated_bptt(layer, x, k1=k1, k2=2 * T, **settings))
    np.testing.assert_array_equal(np.concatenate([chunk.y for chunk in chunks]), y)
    states = (s if isinstance(s, tuple) else (s,) for s in (chunks[-1].hx_n, state))
    for got, expected in zip(*states, strict=True):
        np.testing.assert_array_equal(got, expected)
    for chunk in chunks:
        chunk.backward(np.cos(chunk.y))
    np.testing.assert_allclose(layer.flat_grads, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["lstm", "sru"])
def test_masks_are_those_of_the_whole_in_chunks_that_overlap(name: str) -> None:
    """Their outputs, from states that were advanced with masks."""
    cls, options = VARIANTS[name]
    more: dict[str, Any] = {"dropout": 0.2, "regularization": regularization(cls, 0.2)}
    layer = shaken(cls(I, 18, 2, seed=1, batch_first=True, **options, **more))
    x = inputs()[0].astype(np.float32).swapaxes(0, 1)
    y, _, _ = copy.deepcopy(layer).record(x)
    found = [chunk.y for chunk in truncated_bptt(layer, x, k1=5, k2=8)]
    np.testing.assert_array_equal(np.concatenate(found, axis=1), y)  # and one seed drawn for all


def test_a_state_that_is_carried_between_unrelated_sequences_leaks() -> None:
    x, _ = inputs()
    layer = layer_of(rk.LSTM)
    _, state = layer(x)
    other, _ = inputs(1)
    leaked, _ = layer(other, state)
    clean, _ = layer(other)
    assert not np.allclose(leaked, clean)
    resets = np.zeros((2 * T, B), bool)
    resets[T] = True
    y, _ = layer(np.concatenate([x, other]), resets=resets)
    np.testing.assert_array_equal(y[T:], clean)


@pytest.mark.parametrize("batch_first", [False, True])
def test_lengths_resets_and_layout(batch_first: bool) -> None:
    x, dy = inputs()
    rng = np.random.default_rng(3)
    lengths, resets = np.array([23, 0, 11]), rng.random((T, B)) < 0.2
    layer = layer_of(rk.GRU, batch_first=batch_first)
    turn = (lambda a: a.swapaxes(0, 1)) if batch_first else (lambda a: a)
    arguments = {"lengths": lengths, "resets": turn(resets)}
    y, h = layer(turn(x), **arguments)
    time = 1 if batch_first else 0
    chunks = list(truncated_bptt(layer, turn(x), k1=5, k2=8, **arguments))
    np.testing.assert_array_equal(np.concatenate([c.y for c in chunks], axis=time), y)
    np.testing.assert_array_equal(chunks[-1].hx_n, h)
    for chunk in chunks:
        dx, _ = chunk.backward(turn(dy[chunk.steps]))
        assert dx.shape == turn(x[max(0, chunk.steps.start - 3) : chunk.steps.stop]).shape


def test_one_sequence() -> None:
    x, _ = inputs()
    layer = layer_of(rk.LSTM)
    chunks = list(truncated_bptt(layer, x[:, 0], k1=10))
    np.testing.assert_array_equal(np.concatenate([c.y for c in chunks]), layer(x[:, 0])[0])


def test_training_in_between_changes_what_follows() -> None:
    x, dy = inputs()
    layer = layer_of(rk.RNN)
    for chunk in truncated_bptt(layer, x, k1=5, k2=10, num_threads=1):
        chunk.backward(dy[chunk.steps])
        layer.flat_params = layer.flat_params - 0.01 * layer.flat_grads
        layer.zero_grad()
    assert np.isfinite(layer.flat_params).all()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"k1": 0}, "k1"),
        ({"k1": 5, "k2": 4}, "k2"),
        ({"k1": 1.5}, "k1"),
        ({"k1": 2, "k2": 0}, "k2"),
        ({"k1": 2, "first_step": -1}, "first_step"),
        ({"k1": 2, "first_step": True}, "first_step"),
    ],
)
def test_wrong_options(options: Any, word: str) -> None:
    with pytest.raises((TypeError, ValueError), match=word):
        truncated_bptt(layer_of(rk.RNN), inputs()[0], **options)


def test_bidirectional_is_refused_and_dy_is_checked() -> None:
    with pytest.raises(ValueError, match="bidirectional"):
        truncated_bptt(layer_of(rk.GRU, bidirectional=True), inputs()[0], k1=4)
    _, chunk, *_ = truncated_bptt(layer_of(rk.GRU), inputs()[0], k1=4, k2=8)
    with pytest.raises(ValueError, match="dy"):
        chunk.backward(np.zeros((8, B, H)))
