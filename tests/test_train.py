"""The training kit: numerical derivatives, torch as an outside oracle, edge cases, messages."""

import copy
import math
import pickle
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import numeric_derivative

from rnnkern import train
from rnnkern.train import (
    SGD,
    Adam,
    Embedding,
    Linear,
    clip_grad_norm,
    masked_mean,
    masked_mean_backward,
    softmax_cross_entropy,
)

try:
    import torch
except ImportError:
    torch = None

needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")
both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def rng(*seed):
    return np.random.default_rng(seed)


def derivative(f, array, h=1e-3):
    """4-point numerical derivative of the scalar f() by each entry of array, which f reads."""
    result = np.empty_like(array)
    for index in np.ndindex(array.shape):
        result[index] = numeric_derivative(f, array, index, h)
    return result


def close(got, expected, rtol=1e-8, atol=1e-10):
    expected = expected.detach().numpy() if hasattr(expected, "detach") else expected
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=atol)


def tolerance(dtype):
    return {"rtol": 2e-5, "atol": 2e-6} if dtype == np.float32 else {"rtol": 1e-11, "atol": 1e-13}


# --- Embedding -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (4,), (3, 5), (2, 3, 2), (0,), (2, 0)])
def test_embedding_forward_and_backward(shape):
    embedding = Embedding(6, 3, dtype=np.float64, seed=0)
    ids = rng(1).integers(0, 6, shape)
    w = rng(2).normal(size=(*shape, 3))
    y, tape = embedding.record(ids)
    assert y.shape == (*shape, 3)
    assert y.dtype == np.float64
    np.testing.assert_array_equal(y, embedding.weight[ids])
    np.testing.assert_array_equal(y, embedding(ids))
    assert not np.shares_memory(y, embedding.flat_params)
    embedding.grads["weight"][...] = 1
    assert tape.backward(w) is None
    expected = derivative(lambda: float((embedding(ids) * w).sum()), embedding.weight)
    close(embedding.grads["weight"], 1 + expected)


@both_dtypes
@pytest.mark.parametrize("padding_idx", [0, 2, 4, -1])
def test_embedding_padding_row(dtype, padding_idx):
    embedding = Embedding(5, 2, padding_idx, dtype=dtype, seed=0)
    row = padding_idx % 5
    assert embedding.padding_idx == row
    assert not embedding.weight[row].any()
    assert embedding.weight.any(axis=1).sum() == 4
    ids = np.arange(10) % 5
    dy = np.ones((10, 2), dtype)
    dy[ids == row] = np.nan  # what stands at padding must not matter
    y, tape = embedding.record(ids)
    assert not y[ids == row].any()
    tape.backward(dy)
    expected = np.full((5, 2), 2.0)
    expected[row] = 0
    np.testing.assert_array_equal(embedding.grads["weight"], expected)
    everything_padded, tape = embedding.record([row, row])
    embedding.zero_grad()
    tape.backward(np.ones_like(everything_padded))
    assert not embedding.flat_grads.any()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 8), max_size=40), st.integers(1, 3), st.none() | st.integers(-9, 8))
def test_embedding_backward_is_add_at(ids, width, padding_idx):
    # Whole numbers add without rounding, so the order of a sum cannot show.
    dy = rng(len(ids)).integers(-50, 50, (len(ids), width)).astype(np.float32)
    embedding = Embedding(9, width, padding_idx, seed=0)
    embedding.record(ids)[1].backward(dy)
    expected = np.zeros((9, width), np.float32)
    np.add.at(expected, np.array(ids, int), dy)
    if padding_idx is not None:
        expected[padding_idx] = 0
    np.testing.assert_array_equal(embedding.grads["weight"], expected)


def test_embedding_backward_does_not_depend_on_other_ids():
    dy = rng(0).normal(size=(1000, 4)).astype(np.float32)
    alone = Embedding(50, 4, seed=0)
    alone.record(np.full(1000, 7))[1].backward(dy)
    ids = np.insert(np.full(1000, 7), np.arange(0, 1000, 3), 3)
    among = Embedding(50, 4, seed=0)
    spread = rng(1).normal(size=(len(ids), 4)).astype(np.float32)
    spread[ids == 7] = dy
    before = spread.copy()
    among.record(ids)[1].backward(spread)
    np.testing.assert_array_equal(alone.grads["weight"][7], among.grads["weight"][7])
    np.testing.assert_array_equal(spread, before)
    close(alone.grads["weight"][7], dy.sum(axis=0, dtype=np.float64), rtol=1e-5, atol=1e-4)


def test_embedding_init():
    embedding = Embedding(200, 50, seed=3)
    assert embedding.dtype == np.float32
    assert abs(embedding.weight.mean()) < 0.03
    assert abs(embedding.weight.std() - 1) < 0.03
    same = Embedding(200, 50, dtype=np.float64, seed=3)
    np.testing.assert_array_equal(embedding.weight, same.weight.astype(np.float32))
    assert (embedding.weight != Embedding(200, 50, seed=4).weight).any()
    assert repr(Embedding(3, 2, 1)) == "Embedding(3, 2, padding_idx=1, dtype=float32)"


def test_embedding_tape_keeps_ids_and_takes_other_grads():
    embedding = Embedding(3, 1, seed=0)
    ids = np.array([0, 1])
    _, tape = embedding.record(ids)
    ids[:] = 2
    own = embedding.grads.zeros_like()
    tape.backward(np.ones((2, 1), np.float32), grads=own)
    assert own["weight"].ravel().tolist() == [1, 1, 0]
    assert not embedding.flat_grads.any()


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([0, 5], ValueError, r"ids: expected integers from 0 to 4, got 5 at index \(1,\)"),
        ([[0], [-1]], ValueError, r"ids: expected integers from 0 to 4, got -1 at index \(1, 0\)"),
        (7, ValueError, "ids: expected integers from 0 to 4, got 7"),
        (np.array([2**63], np.uint64), ValueError, "ids: expected integers from 0 to 4"),
        ([1.0], TypeError, "ids: expected integers, got dtype float64"),
        ([True], TypeError, "ids: expected integers, got dtype bool"),
        (np.zeros(0), TypeError, "ids: expected integers, got dtype float64"),
        ([2**70], TypeError, "ids: expected integers, got dtype object"),
        ("a", TypeError, "ids: expected integers"),
    ],
)
def test_embedding_refuses_ids(ids, error, message):
    embedding = Embedding(5, 2)
    with pytest.raises(error, match=message):
        embedding(ids)
    with pytest.raises(error, match=message):
        embedding.record(ids)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64, ">i2"])
def test_embedding_takes_any_integers(dtype):
    embedding = Embedding(300, 2, seed=0)
    np.testing.assert_array_equal(embedding(np.array([3, 1], dtype)), embedding.weight[[3, 1]])
    assert embedding([]).shape == (0, 2)


def test_embedding_refuses_arguments():
    with pytest.raises(ValueError, match="num_embeddings: expected a positive integer, got 0"):
        Embedding(0, 1)
    with pytest.raises(TypeError, match=r"embedding_dim: expected a positive integer, got 1\.5"):
        Embedding(1, 1.5)
    with pytest.raises(ValueError, match="padding_idx: expected an integer from -3 to 2, got 3"):
        Embedding(3, 1, 3)
    with pytest.raises(TypeError, match="padding_idx: expected an integer"):
        Embedding(3, 1, 1.0)
    with pytest.raises(TypeError, match="dtype: expected float32 or float64"):
        Embedding(3, 1, dtype=np.float16)
    _, tape = Embedding(3, 2).record([0, 1])
    with pytest.raises(ValueError, match=r"dy: expected shape \(2, 2\), got \(2, 3\)"):
        tape.backward(np.zeros((2, 3), np.float32))
    with pytest.raises(TypeError, match="dy: expected float32, got float64; convert it with"):
        tape.backward(np.zeros((2, 2)))


# --- Linear --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("lead", [(), (1,), (4,), (2, 3), (0,), (2, 0)])
def test_linear_forward_and_backward(lead, bias):
    linear = Linear(3, 2, bias, dtype=np.float64, seed=0)
    x = rng(1).normal(size=(*lead, 3))
    w = rng(2).normal(size=(*lead, 2))
    y, tape = linear.record(x)
    assert y.shape == (*lead, 2)
    expected = np.einsum("...i,oi->...o", x, linear.weight) + (linear.bias if bias else 0)
    close(y, expected)
    np.testing.assert_array_equal(y, linear(x))
    linear.flat_grads[:] = 1
    dx = tape.backward(w)
    assert dx.shape == x.shape

    def loss():
        return float((linear(x) * w).sum())

    close(dx, derivative(loss, x))
    close(linear.flat_grads, 1 + derivative(loss, linear.flat_params))
    assert tape.backward(w, need_dx=False) is None  # adds again
    close(linear.flat_grads, 1 + 2 * derivative(loss, linear.flat_params))


def test_linear_init():
    linear = Linear(16, 4000, seed=0)
    assert linear.weight.shape == (4000, 16)
    assert linear.bias.shape == (4000,)
    for values in (linear.weight, linear.bias):
        assert np.abs(values).max() <= 0.25
        assert abs(values.mean()) < 0.01
        assert abs(values.std() - 0.25 / math.sqrt(3)) < 0.005
    assert list(Linear(2, 3, False).params) == ["weight"]
    assert repr(Linear(2, 3, False)) == "Linear(2, 3, bias=False, dtype=float32)"


def test_linear_tape_survives_an_optimiser_step_and_takes_other_grads():
    linear = Linear(3, 2, dtype=np.float64, seed=0)
    x, dy = rng(0).normal(size=(4, 3)), rng(1).normal(size=(4, 2))
    _, tape = linear.record(x)
    weight = linear.weight.copy()
    linear.flat_params[:] = np.nan
    own = linear.grads.zeros_like()
    close(tape.backward(dy, grads=own), dy @ weight)
    close(own["weight"], dy.T @ x)
    close(own["bias"], dy.sum(axis=0))
    assert not linear.flat_grads.any()


@both_dtypes
def test_linear_takes_any_layout(dtype):
    linear = Linear(3, 2, dtype=dtype, seed=0)
    x = rng(0).normal(size=(5, 4, 3)).astype(dtype)
    expected = linear(x)
    assert expected.dtype == dtype
    swapped = x.dtype.newbyteorder()
    for other in (np.asfortranarray(x), x[::-1, :, ::-1][::-1, :, ::-1], x.astype(swapped)):
        got = linear(other)
        assert got.dtype == dtype
        close(got, expected, **tolerance(dtype))


def test_linear_refuses():
    linear = Linear(3, 2)
    with pytest.raises(ValueError, match=r"x: expected shape \(\.\.\., 3\), got \(4, 2\)"):
        linear(np.zeros((4, 2), np.float32))
    with pytest.raises(ValueError, match=r"x: expected shape \(\.\.\., 3\), got \(\)"):
        linear(np.float32(1))
    with pytest.raises(
        TypeError, match=r"x: expected float32, got float64; convert it with np\.as"
    ):
        linear.record(np.zeros((4, 3)))
    _, tape = linear.record(np.zeros((4, 3), np.float32))
    with pytest.raises(ValueError, match=r"dy: expected shape \(4, 2\), got \(4, 3\)"):
        tape.backward(np.zeros((4, 3), np.float32))
    with pytest.raises(ValueError, match="in_features"):
        Linear(0, 1)
    with pytest.raises(TypeError, match="out_features"):
        Linear(1, None)


def linear_tape():
    return Linear(3, 2, seed=0).record(np.ones((4, 3), np.float32))[1]


def embedding_tape():
    return Embedding(2, 2, seed=0).record([0, 1, 0, 1])[1]


@pytest.mark.parametrize("tape", [linear_tape, embedding_tape])
@pytest.mark.parametrize(
    ("weight", "error", "message"),
    [
        (
            np.zeros((1, 2), np.float32),
            ValueError,
            r"grads\['weight'\]: expected shape",
        ),  # broadcasts
        (np.zeros(2, np.float32), ValueError, r"grads\['weight'\]: expected shape"),
        (np.zeros((2, 3)), TypeError, r"grads\['weight'\]: expected float32, got float64"),
        ([[0.0]], TypeError, r"grads\['weight'\]: expected a NumPy array, got a list of 1"),
        (None, TypeError, r"grads\['weight'\]: expected a NumPy array, got None"),
    ],
)
def test_tapes_refuse_grads(tape, weight, error, message):
    tape, dy = tape(), np.ones((4, 2), np.float32)
    own = {"weight": weight}
    if isinstance(tape, train.LinearTape):
        own["bias"] = np.zeros(2, np.float32)
    with pytest.raises(error, match=f"^{message}"):
        tape.backward(dy, grads=own)
    for container in ([], 3, "text"):
        with pytest.raises(TypeError, match=r"^grads: expected a mapping of names to arrays"):
            tape.backward(dy, grads=container)
    with pytest.raises(ValueError, match=r"^grads: missing 'weight'"):
        tape.backward(dy, grads={})


def test_a_refused_backward_adds_nothing():
    linear = Linear(3, 2, seed=0)
    _, tape = linear.record(np.ones((4, 3), np.float32))
    own = {"weight": np.zeros((2, 3), np.float32)}
    with pytest.raises(ValueError, match=r"^grads: missing 'bias'"):
        tape.backward(np.ones((4, 2), np.float32), grads=own)
    assert not own["weight"].any()


def test_linear_tape_survives_a_new_shape_of_x():
    linear = Linear(3, 2, seed=0)
    x, dy = np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)
    _, tape = linear.record(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy 2.5
        x.shape = (12,)
    assert tape.backward(dy).shape == (4, 3)


def test_masked_arrays_are_refused():
    x = np.ma.masked_equal(np.ones((4, 3), np.float32), 0)
    for call in (
        lambda: Linear(3, 2)(x),
        lambda: masked_mean(x[None], [1] * 4),
        lambda: softmax_cross_entropy(x, [0] * 4),
        lambda: Embedding(3, 2)(np.ma.masked_equal([0, 1], 0)),
        lambda: clip_grad_norm([x], 1.0),
    ):
        with pytest.raises(TypeError, match="expected an array without a mask, got a MaskedArray"):
            call()


@pytest.mark.parametrize("wrong", [1, 0, None, "no"])
def test_switches_are_booleans(wrong):
    for name, call in {
        "bias": lambda: Linear(3, 2, wrong),
        "need_dx": lambda: linear_tape().backward(np.ones((4, 2), np.float32), need_dx=wrong),
        "batch_first": lambda: masked_mean(np.ones((1, 1, 1)), [1], batch_first=wrong),
        "batch_first ": lambda: masked_mean_backward(np.ones((1, 1)), [1], 1, batch_first=wrong),
        "nesterov": lambda: SGD([Linear(1, 1)], 0.1, 0.9, nesterov=wrong),
    }.items():
        with pytest.raises(TypeError, match=f"^{name.strip()}: expected True or False"):
            call()
    assert Linear(3, 2, np.bool_(False)).params.keys() == {"weight"}


@pytest.mark.parametrize("make", [lambda: Linear(3, 2, seed=0), lambda: Embedding(4, 2, 1, seed=0)])
def test_modules_copy(make):
    module = make()
    for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert repr(twin) == repr(module)
        np.testing.assert_array_equal(twin.flat_params, module.flat_params)
        twin.flat_params[:] = 0
        assert not twin.weight.any()
    assert module.weight.any()


# --- masked mean ---------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("F", [1, 3])
def test_masked_mean_forward_and_backward(batch_first, F):
    T, lengths = 11, np.array([4, 11, 0, 1])
    y = rng(0).normal(size=(4, T, F))
    expected = np.stack([y[b, :n].sum(axis=0) / max(n, 1) for b, n in enumerate(lengths)])
    for b, n in enumerate(lengths):
        y[b, n:] = np.nan
    y = np.ascontiguousarray(y if batch_first else y.swapaxes(0, 1))
    before = y.copy()
    close(masked_mean(y, lengths, batch_first=batch_first), expected)
    np.testing.assert_array_equal(y, before)

    w = rng(1).normal(size=(4, F))
    w[2] = np.nan  # a row without steps hands nothing on
    dy = masked_mean_backward(w, lengths, T, batch_first=batch_first)
    assert dy.shape == y.shape
    w[2] = 0

    def loss():
        return float((masked_mean(y, lengths, batch_first=batch_first) * w).sum())

    close(dy, derivative(loss, y))
    behind = np.isnan(before)
    assert not dy[behind].any()
    assert dy[~behind].all()


@pytest.mark.parametrize("batch_first", [False, True])
def test_masked_mean_of_as_many_rows_as_steps(batch_first):
    """No shape tells a mistaken layout here."""
    y, lengths = rng(0).normal(size=(3, 3, 2)), [1, 3, 2]
    rows = y if batch_first else y.swapaxes(0, 1)
    close(
        masked_mean(y, lengths, batch_first=batch_first),
        np.stack([row[:n].mean(axis=0) for row, n in zip(rows, lengths, strict=True)]),
    )
    dy = masked_mean_backward(np.ones((3, 2)), lengths, 3, batch_first=batch_first)
    for row, n in zip(dy if batch_first else dy.swapaxes(0, 1), lengths, strict=True):
        close(row, np.repeat(np.arange(3) < n, 2).reshape(3, 2) / n)


@both_dtypes
@pytest.mark.parametrize("F", [1, 5, 16])
def test_masked_mean_depends_on_the_own_real_steps_only(dtype, F):
    y = rng(F).normal(size=(700, 3, F)).astype(dtype)
    lengths = [650, 129, 300]
    got = masked_mean(y, lengths)
    assert got.dtype == dtype
    assert masked_mean_backward(got, lengths, 700).dtype == dtype
    for b, n in enumerate(lengths):
        alone = y[:n, b : b + 1].copy()
        np.testing.assert_array_equal(masked_mean(alone, [n])[0], got[b])
    first = np.ascontiguousarray(y.swapaxes(0, 1))
    np.testing.assert_array_equal(masked_mean(first, lengths, batch_first=True), got)


def test_foreign_byte_order():
    y = rng(0).normal(size=(3, 2, 4))
    dm = masked_mean(y, [3, 1])
    got = masked_mean(y.astype(">f8"), np.array([3, 1], ">i4"))
    back = masked_mean_backward(dm.astype(">f8"), [3, 1], 3)
    loss, dlogits = softmax_cross_entropy(dm.astype(">f8"), [0, 1])
    assert got.dtype.isnative
    assert back.dtype.isnative
    assert dlogits.dtype.isnative
    np.testing.assert_array_equal(got, dm)
    np.testing.assert_array_equal(back, masked_mean_backward(dm, [3, 1], 3))
    assert loss == softmax_cross_entropy(dm, [0, 1])[0]


def test_masked_mean_empty():
    assert masked_mean(np.zeros((3, 0, 2)), []).shape == (0, 2)
    assert masked_mean(np.zeros((0, 2, 3)), [0, 0]).tolist() == [[0, 0, 0]] * 2
    assert masked_mean(np.zeros((4, 2, 0)), [1, 4]).shape == (2, 0)
    assert masked_mean_backward(np.zeros((0, 2)), [], 3).shape == (3, 0, 2)
    assert masked_mean_backward(np.ones((2, 3)), [0, 0], 0, batch_first=True).shape == (2, 0, 3)


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        ([4, 1], ValueError, r"lengths: expected integers from 0 to 3, got 4 at index \(0,\)"),
        ([1, -1], ValueError, r"lengths: expected integers from 0 to 3, got -1 at index \(1,\)"),
        ([1, 1.5], TypeError, "lengths: expected integers, got dtype float64"),
        ([1], ValueError, r"lengths: expected shape \(2,\), got \(1,\)"),
        (2, ValueError, r"lengths: expected shape \(2,\), got \(\)"),
        (None, TypeError, "lengths: expected integers, got None"),
    ],
)
def test_masked_mean_refuses_lengths(lengths, error, message):
    with pytest.raises(error, match=message):
        masked_mean(np.zeros((3, 2, 1)), lengths)
    with pytest.raises(error, match=message):
        masked_mean_backward(np.zeros((2, 1)), lengths, 3)


def test_masked_mean_refuses():
    with pytest.raises(ValueError, match=r"y: expected shape \(T, B, F\), got \(3, 2\)"):
        masked_mean(np.zeros((3, 2)), [1, 1])
    with pytest.raises(ValueError, match=r"y: expected shape \(B, T, F\), got \(3, 2\)"):
        masked_mean(np.zeros((3, 2)), [1, 1], batch_first=True)
    with pytest.raises(TypeError, match="y: expected float32 or float64, got int64"):
        masked_mean(np.zeros((3, 2, 1), np.int64), [1, 1])
    with pytest.raises(ValueError, match=r"dm: expected shape \(B, F\), got \(2,\)"):
        masked_mean_backward(np.zeros(2), [1, 1], 3)
    with pytest.raises(ValueError, match="T: expected an integer from 0"):
        masked_mean_backward(np.zeros((2, 1)), [0, 0], -1)
    with pytest.raises(TypeError, match="T: expected an integer"):
        masked_mean_backward(np.zeros((2, 1)), [0, 0], 3.0)


# --- loss ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("N", [1, 2, 5])
@pytest.mark.parametrize("C", [1, 2, 4])
def test_cross_entropy_forward_and_backward(N, C):
    logits = rng(N, C).normal(size=(N, C)) * 3
    before = logits.copy()
    targets = rng(N).integers(0, C, N)
    loss, dlogits = softmax_cross_entropy(logits, targets)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert isinstance(loss, float)
    close(loss, -np.log(p[np.arange(N), targets]).mean())
    close(dlogits, derivative(lambda: softmax_cross_entropy(logits, targets)[0], logits))
    np.testing.assert_allclose(logits, before)


def test_cross_entropy_is_stable():
    logits = np.array([[1e4, 0.0], [-1e30, 1e30], [-np.inf, 2.0]], np.float32)
    loss, dlogits = softmax_cross_entropy(logits, [0, 1, 1])
    assert loss == 0
    assert dlogits.dtype == np.float32
    assert not dlogits.any()
    loss, dlogits = softmax_cross_entropy(np.array([[1000.0, 0.0]]), [1])
    assert loss == 1000
    assert dlogits.tolist() == [[1, -1]]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_cross_entropy_keeps_bad_values_in_their_row(bad):
    logits = np.zeros((3, 2))
    logits[1, 0] = bad
    loss, dlogits = softmax_cross_entropy(logits, [0, 0, 1])
    assert math.isnan(loss)
    assert np.isnan(dlogits[1]).any()
    close(dlogits[[0, 2]], np.array([[-0.5, 0.5], [0.5, -0.5]]) / 3)


def test_cross_entropy_without_rows():
    for C in (0, 3):
        loss, dlogits = softmax_cross_entropy(np.zeros((0, C), np.float32), [])
        assert loss == 0
        assert dlogits.shape == (0, C)
        assert dlogits.dtype == np.float32


@pytest.mark.parametrize(
    ("targets", "error", "message"),
    [
        ([0, 3], ValueError, r"targets: expected integers from 0 to 2, got 3 at index \(1,\)"),
        (
            [-100, 0],
            ValueError,
            r"targets: expected integers from 0 to 2, got -100 at index \(0,\)",
        ),
        ([0.0, 1.0], TypeError, "targets: expected integers, got dtype float64"),
        ([0], ValueError, r"targets: expected shape \(2,\), got \(1,\)"),
        ([[0], [1]], ValueError, r"targets: expected shape \(2,\), got \(2, 1\)"),
    ],
)
def test_cross_entropy_refuses_targets(targets, error, message):
    with pytest.raises(error, match=message):
        softmax_cross_entropy(np.zeros((2, 3)), targets)


def test_cross_entropy_refuses_logits():
    with pytest.raises(ValueError, match=r"logits: expected shape \(N, C\), got \(3,\)"):
        softmax_cross_entropy(np.zeros(3), [0])
    with pytest.raises(
        ValueError, match=r"logits: expected at least one class, got shape \(2, 0\)"
    ):
        softmax_cross_entropy(np.zeros((2, 0)), [0, 0])
    with pytest.raises(TypeError, match="logits: expected float32 or float64, got int64"):
        softmax_cross_entropy(np.zeros((1, 3), np.int64), [0])


# --- clip_grad_norm ------------------------------------------------------------------------------


def plain(**arrays):
    """A module that is no Module: two dicts."""
    return SimpleNamespace(
        params=dict(arrays), grads={name: np.zeros_like(array) for name, array in arrays.items()}
    )


def test_clip_scales_everything_by_one_factor():
    linear = Linear(3, 2, dtype=np.float64)
    linear.flat_grads[:] = 1  # 8 entries
    other = plain(a=np.zeros((2, 2), order="F"), b=np.zeros(()))
    other.grads["a"][...] = 2  # 4 entries
    other.grads["b"][...] = 1
    array = np.full(3, 5.0, np.float32)[::-1]
    own = {"w": np.full(2, 3.0)}
    norm = math.sqrt(8 + 16 + 1 + 75 + 18)
    everything = [linear, other, array, own]
    close(clip_grad_norm(everything, 100), norm)
    assert array.tolist() == [5, 5, 5]  # below the limit nothing changes
    assert clip_grad_norm(everything, math.inf) == clip_grad_norm(everything, norm + 1)
    close(clip_grad_norm(iter(everything), 2), norm)
    factor = 2 / (norm + 1e-6)
    close(linear.grads["bias"], np.full(2, factor))
    close(other.grads["a"], np.full((2, 2), 2 * factor))
    close(other.grads["b"], factor)
    close(array, np.full(3, 5 * factor), rtol=1e-6)
    close(own["w"], np.full(2, 3 * factor))
    close(clip_grad_norm(everything, math.inf), 2 * norm / (norm + 1e-6), rtol=1e-6)


def test_clip_counts_the_millionth():
    array = np.array([1e-6])
    assert clip_grad_norm(array, 1e-6) == 1e-6
    close(array, [5e-7])


def test_clip_takes_one_module_array_or_mapping():
    linear = Linear(1, 1)
    for one in (linear, linear.flat_grads, linear.grads, dict(linear.grads)):
        linear.flat_grads[:] = [3, 4]
        assert clip_grad_norm(one, 1) == 5
        close(linear.flat_grads, [0.6, 0.8], rtol=1e-6)
    assert clip_grad_norm([], 1) == 0
    assert clip_grad_norm([np.zeros(0)], 1) == 0
    linear.flat_grads[:] = 1
    assert clip_grad_norm(linear, 0) == math.sqrt(2)
    assert not linear.flat_grads.any()


def test_clip_of_long_arrays_is_exact_and_does_not_overflow():
    n = 3 * train._RUN + 7
    array = rng(0).normal(size=n).astype(np.float32)
    expected = math.sqrt(math.fsum(float(x) ** 2 for x in array))
    close(clip_grad_norm(array, math.inf), expected, rtol=1e-14)
    close(clip_grad_norm(array, 1), expected, rtol=1e-14)
    close(clip_grad_norm(array, math.inf), 1, rtol=1e-5)
    array[:] = 1e30  # its square is no float32
    close(clip_grad_norm(array, math.inf), 1e30 * math.sqrt(n), rtol=1e-6)


def test_clip_shows_nan_and_infinity():
    for bad, first in ((np.nan, np.ones(2)), (np.inf, np.ones(2))):
        second = np.array([bad])
        norm = clip_grad_norm([first, second], 1)
        np.testing.assert_equal(norm, bad)
        assert np.isnan(second).all()
        assert np.isnan(first).all() if math.isnan(bad) else not first.any()


def test_clip_refuses():
    with pytest.raises(TypeError, match="modules_or_arrays: expected modules and arrays of float"):
        clip_grad_norm([np.zeros(2, int)], 1)
    with pytest.raises(TypeError, match=r"modules_or_arrays: .*, got str"):
        clip_grad_norm(["weight"], 1)
    with pytest.raises(TypeError, match="modules_or_arrays: expected modules or arrays, got int"):
        clip_grad_norm(3, 1)
    twice = np.ones(2)
    with pytest.raises(ValueError, match=r"modules_or_arrays: .* once, got one twice"):
        clip_grad_norm([twice, twice], 1)
    fixed = np.full(2, 9.0)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="modules_or_arrays: expected writable arrays"):
        clip_grad_norm([twice, fixed], 1)
    assert twice.tolist() == [1, 1]
    for wrong in (-1, math.nan):
        with pytest.raises(
            ValueError, match=r"max_norm: .* of at least 0 \(inf is accepted\), got"
        ):
            clip_grad_norm(twice, wrong)
    with pytest.raises(TypeError, match="max_norm: expected a number, got None"):
        clip_grad_norm(twice, None)


# --- optimisers ----------------------------------------------------------------------------------

OPTIONS = [
    (SGD, {"lr": 0.1}),
    (SGD, {"lr": 0.1, "weight_decay": 0.05}),
    (SGD, {"lr": 0.1, "momentum": 0.9}),
    (SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.05}),
    (SGD, {"lr": 0.1, "momentum": 0.8, "nesterov": True}),
    (SGD, {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.05, "nesterov": True}),
    (Adam, {}),
    (Adam, {"lr": 0.05, "betas": (0.7, 0.95), "eps": 1e-3}),
    (Adam, {"lr": 0.05, "weight_decay": 0.1}),
    (Adam, {"lr": 0.05, "betas": (0.0, 0.0)}),
]
every_option = pytest.mark.parametrize(
    ("kind", "options"), OPTIONS, ids=lambda o: o.__name__ if isinstance(o, type) else str(o)
)


def written_out(kind, param, gradients, options):
    """The formulas, one number at a time, as the papers and torch's documentation give them."""
    param = [float(x) for x in param.ravel()]
    o = {"momentum": 0, "weight_decay": 0, "nesterov": False, "lr": 1e-3, "betas": (0.9, 0.999)}
    o |= {"eps": 1e-8} | options
    for i in range(len(param)):
        b = m = v = 0.0
        for t, gradient in enumerate(gradients, 1):
            g = float(gradient.ravel()[i]) + o["weight_decay"] * param[i]
            if kind is SGD:
                b = o["momentum"] * b + g
                param[i] -= o["lr"] * (g + o["momentum"] * b if o["nesterov"] else b)
            else:
                b1, b2 = o["betas"]
                m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
                root = math.sqrt(v / (1 - b2**t)) + o["eps"]
                param[i] -= o["lr"] * m / (1 - b1**t) / root
    return param


@every_option
@pytest.mark.parametrize("layout", ["module", "dicts", "fortran"])
def test_optimiser_formulas(kind, options, layout):
    if layout == "module":
        module = Linear(3, 2, dtype=np.float64, seed=0)
    else:
        order = "F" if layout == "fortran" else "C"
        module = plain(w=np.array(rng(0).normal(size=(4, 3)), order=order), s=np.array(2.0))
    arrays = list(module.params.values())
    start = [array.copy() for array in arrays]
    gradients = [[rng(t, i).normal(size=a.shape) for i, a in enumerate(arrays)] for t in range(6)]
    optimiser = kind([module], **options)
    for step in gradients:
        for own, gradient in zip(module.grads.values(), step, strict=True):
            own[...] = gradient
        optimiser.step()
        for own, gradient in zip(module.grads.values(), step, strict=True):
            np.testing.assert_array_equal(own, gradient)  # a step leaves the gradients alone
    for i, array in enumerate(arrays):
        expected = written_out(kind, start[i], [step[i] for step in gradients], options)
        close(array.ravel(), expected, rtol=1e-12, atol=1e-14)
    optimiser.zero_grad()
    assert not any(own.any() for own in module.grads.values())


@needs_torch
@both_dtypes
@every_option
def test_optimiser_against_torch(kind, options, dtype):
    ours = [Linear(7, 5, dtype=dtype, seed=0), Embedding(9, 4, 2, dtype=dtype, seed=1)]
    theirs = [torch.nn.Linear(7, 5), torch.nn.Embedding(9, 4, 2)]
    for a, b in zip(ours, theirs, strict=True):
        b.to(torch.from_numpy(np.zeros(0, dtype)).dtype)
        b.load_state_dict({n: torch.from_numpy(w) for n, w in a.state_dict().items()})
    mine = kind(ours, **options)
    other = getattr(torch.optim, kind.__name__)(
        [p for m in theirs for p in m.parameters()], **options
    )
    for t in range(30):
        for m, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            for name, p in b.named_parameters():
                gradient = rng(t, m).normal(size=p.shape).astype(dtype)
                if name == "weight" and m == 1:
                    gradient[2] = 0
                a.grads[name] = gradient
                p.grad = torch.from_numpy(gradient)
        mine.step()
        other.step()
        if t == 15:  # a schedule
            mine.lr *= np.float64(0.5)
            other.param_groups[0]["lr"] *= 0.5
    for a, b in zip(ours, theirs, strict=True):
        assert a.flat_params.dtype == dtype
        for name, p in b.named_parameters():
            close(a.params[name], p, **tolerance(dtype))
    assert not ours[1].weight[2].any()


@every_option
def test_runs_do_not_show(kind, options, monkeypatch):
    results = []
    for run in (train._RUN, 5):
        monkeypatch.setattr(train, "_RUN", run)
        linear = Linear(6, 7, seed=0)
        optimiser = kind([linear], **options)
        for t in range(3):
            linear.flat_grads[:] = rng(t).normal(size=49)
            optimiser.step()
        results.append(linear.flat_params.copy())
    np.testing.assert_array_equal(*results)


@every_option
@both_dtypes
def test_padding_row_stays_zero(kind, options, dtype):
    embedding = Embedding(5, 3, 0, dtype=dtype, seed=0)
    before = embedding.weight.copy()
    optimiser = kind([embedding], **options)
    for t in range(5):
        optimiser.zero_grad()
        y, tape = embedding.record([[0, 1], [4, 0], [2, 3]])
        tape.backward(rng(t).normal(size=y.shape).astype(dtype))
        clip_grad_norm([embedding], 1)
        optimiser.step()
    assert not embedding.weight[0].any()
    assert (embedding.weight[1:] != before[1:]).all()


@pytest.mark.parametrize("kind", [SGD, Adam])
@both_dtypes
def test_averages_without_gradients_do_not_end_in_subnormals(kind, dtype):
    linear = Linear(2, 2, dtype=dtype, seed=0)
    optimiser = kind([linear], 1e-3, *([0.9] if kind is SGD else []))
    linear.flat_grads[:] = np.finfo(dtype).tiny / np.finfo(dtype).eps * 100
    optimiser.step()
    name = "momentum_buffer.0" if kind is SGD else "first_moment.0"
    assert optimiser.state_dict()[name].all()
    linear.zero_grad()
    for _ in range(100):
        optimiser.step()
    assert not optimiser.state_dict()[name].any()


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_a_schedule_in_float64_leaves_the_step_in_float32(kind):
    results = []
    for number in (float, np.float64):
        linear = Linear(40, 40, seed=0)
        optimiser = kind([linear], 1)
        optimiser.lr = number(0.1)
        linear.flat_grads[:] = rng(0).normal(size=linear.flat_grads.size)
        optimiser.step()
        results.append(linear.flat_params.copy())
    np.testing.assert_array_equal(*results)


@every_option
def test_state_dict_resumes(kind, options, tmp_path):
    def steps(linear, optimiser, first, last):
        for t in range(first, last):
            linear.flat_grads[:] = rng(t).normal(size=8)
            optimiser.step()

    straight = Linear(3, 2, seed=0)
    optimiser = kind([straight], **options)
    steps(straight, optimiser, 0, 3)
    optimiser.lr *= 0.5
    np.savez(tmp_path / "state.npz", **optimiser.state_dict())
    resumed = copy.deepcopy(straight)
    state = optimiser.state_dict()
    twin_module, twin = pickle.loads(pickle.dumps((resumed, kind([resumed], **options))))
    steps(straight, optimiser, 3, 6)

    # Other values than those that the state brings; momentum decides which buffers there are.
    wrong = {"lr": 7.0, "weight_decay": 3.0} | ({"betas": (0.1, 0.2)} if kind is Adam else {})
    wrong |= {"momentum": 0.1} if "momentum" in options else {}
    other = kind([resumed], **wrong)
    with np.load(tmp_path / "state.npz") as stored:
        other.load_state_dict(stored)
    assert other.steps == 3
    steps(resumed, other, 3, 6)
    np.testing.assert_array_equal(resumed.flat_params, straight.flat_params)

    assert twin.modules[0] is twin_module
    twin.load_state_dict(state)
    steps(twin_module, twin, 3, 6)
    np.testing.assert_array_equal(twin_module.flat_params, straight.flat_params)
    assert twin.lr == optimiser.lr  # plain numbers again, not arrays
    assert isinstance(twin.lr, float)
    if kind is Adam:
        assert twin.betas == optimiser.betas
    else:
        assert twin.nesterov is optimiser.nesterov


def test_state_dict_is_a_copy_and_loading_refuses():
    linear = Linear(3, 2, seed=0)
    adam = Adam([linear])
    linear.flat_grads[:] = 1
    state = adam.state_dict()
    adam.step()
    assert not state["first_moment.0"].any()
    assert state["steps"] == 0
    adam.load_state_dict(state)
    assert not adam.state_dict()["second_moment.0"].any()
    state["first_moment.0"] = np.full(8, 9.0)
    state["second_moment.0"] = np.zeros(7)
    state["extra"] = state.pop("eps")
    with pytest.raises(ValueError, match="load_state_dict") as caught:
        adam.load_state_dict(state)
    for part in ("missing 'eps'", "unexpected 'extra'", "second_moment.0: expected shape (8,)"):
        assert part in str(caught.value)
    with pytest.raises(ValueError, match="missing 'momentum'"):
        SGD([linear], 0.1).load_state_dict(adam.state_dict())
    with pytest.raises(ValueError, match="lr: expected a number of at least 0"):
        adam.load_state_dict(adam.state_dict() | {"lr": -1, "first_moment.0": np.ones(8)})
    assert adam.lr == 1e-3
    assert not adam.state_dict()["first_moment.0"].any()


@pytest.mark.parametrize(
    ("kind", "options", "error", "message"),
    [
        (SGD, {"lr": -0.1}, ValueError, r"lr: expected a number of at least 0, finite, got -0\.1"),
        (SGD, {"lr": "0.1"}, TypeError, "lr: expected a number, got '0.1'"),
        (SGD, {"lr": None}, TypeError, "lr: expected a number, got None"),
        (SGD, {"lr": math.inf}, ValueError, "lr: expected a number of at least 0, finite"),
        (SGD, {"lr": 1, "momentum": -1}, ValueError, "momentum: expected a number"),
        (SGD, {"lr": 1, "weight_decay": math.nan}, ValueError, "weight_decay: expected a number"),
        (SGD, {"lr": 1, "nesterov": True}, ValueError, "nesterov: expected a momentum above 0"),
        (Adam, {"lr": -1}, ValueError, "lr: expected a number"),
        (Adam, {"betas": 0.9}, TypeError, r"betas: expected a pair of numbers, got 0\.9"),
        (Adam, {"betas": (0.9, 0.99, 0.9)}, TypeError, "betas: expected a pair"),
        (Adam, {"betas": (1.0, 0.9)}, ValueError, r"betas\[0\]: .* at least 0 and below 1, got 1"),
        (Adam, {"betas": (0.9, -0.1)}, ValueError, r"betas\[1\]: .* below 1, got -0\.1"),
        (Adam, {"eps": 0}, ValueError, "eps: expected a number above 0, got 0"),
        (Adam, {"weight_decay": -1}, ValueError, "weight_decay: expected a number"),
    ],
)
def test_optimisers_refuse_options(kind, options, error, message):
    with pytest.raises(error, match=message):
        kind([Linear(1, 1)], **options)


@pytest.mark.parametrize(
    ("kind", "name", "value", "error", "message"),
    [
        (SGD, "lr", -1, ValueError, "lr: expected a number of at least 0"),
        (SGD, "lr", "fast", TypeError, "lr: expected a number, got 'fast'"),
        (SGD, "lr", np.nan, ValueError, "lr: expected a number of at least 0"),
        (SGD, "weight_decay", None, TypeError, "weight_decay: expected a number"),
        (SGD, "nesterov", 1, TypeError, "nesterov: expected True or False"),
        (SGD, "nesterov", True, ValueError, "nesterov: expected a momentum above 0"),
        (SGD, "momentum", 0.9, ValueError, "momentum: expected 0 as when SGD was built"),
        (Adam, "lr", [0.1], TypeError, "lr: expected a number"),
        (Adam, "betas", (0.9, 1), ValueError, r"betas\[1\]: expected"),
        (Adam, "eps", 0, ValueError, "eps: expected a number above 0"),
    ],
)
def test_optimisers_refuse_assignments(kind, name, value, error, message):
    optimiser = kind([Linear(1, 1)], 0.1)
    before = getattr(optimiser, name)
    with pytest.raises(error, match=f"^{message}"):
        setattr(optimiser, name, value)
    assert getattr(optimiser, name) == before
    optimiser.lr = np.float32(0.5)
    assert optimiser.lr == 0.5


def test_momentum_stays_above_zero():
    sgd = SGD([Linear(1, 1)], 0.1, 0.9, nesterov=True)
    sgd.momentum = 0.5
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=r"^(nesterov|momentum): expected"):
            sgd.momentum = wrong
    sgd.nesterov = False
    with pytest.raises(ValueError, match=r"^momentum: expected one above 0 as when SGD was built"):
        sgd.momentum = 0
    assert sgd.momentum == 0.5


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_optimisers_refuse_modules(kind):
    linear = Linear(1, 1)
    for wrong in (linear, linear.params, "text", 3):
        with pytest.raises(TypeError, match="modules: expected a list of modules, got"):
            kind(wrong, 0.1)
    with pytest.raises(ValueError, match="modules: expected at least one module"):
        kind([], 0.1)
    with pytest.raises(TypeError, match="modules: expected params and grads, got ndarray"):
        kind([linear.flat_params], 0.1)
    with pytest.raises(ValueError, match=r"modules: .* got one twice"):
        kind([linear, linear], 0.1)
    with pytest.raises(TypeError, match=r"modules: .* float32 or float64, got int64"):
        kind([plain(a=np.zeros(2, np.int64))], 0.1)
    uneven = plain(a=np.zeros(2))
    uneven.grads["a"] = np.zeros(3)
    with pytest.raises(ValueError, match=r"modules: expected a gradient of shape \(2,\), got"):
        kind([uneven], 0.1)


# --- everything together -------------------------------------------------------------------------


class Classifier:
    """Embedding, mean over the real steps, linear layer: a bag of words."""

    def __init__(self, dtype=np.float64, seed=0):
        self.embedding = Embedding(12, 6, 0, dtype=dtype, seed=seed)
        self.linear = Linear(6, 3, dtype=dtype, seed=seed + 1)
        self.modules = [self.embedding, self.linear]

    def loss_and_gradients(self, ids, lengths, targets):
        x, embedding_tape = self.embedding.record(ids)
        logits, linear_tape = self.linear.record(masked_mean(x, lengths, batch_first=True))
        loss, dlogits = softmax_cross_entropy(logits, targets)
        dm = linear_tape.backward(dlogits)
        embedding_tape.backward(masked_mean_backward(dm, lengths, ids.shape[1], batch_first=True))
        return loss


def bags():
    lengths = np.array([4, 7, 1, 3, 5, 2])
    ids = rng(0).integers(1, 12, (6, 7))
    ids[np.arange(7) >= lengths[:, None]] = 0
    return ids, lengths, np.array([0, 1, 2, 0, 1, 2])


def test_gradients_of_a_whole_model():
    model, batch = Classifier(), bags()
    model.loss_and_gradients(*batch)
    got = [module.flat_grads.copy() for module in model.modules]

    for module, gradient in zip(model.modules, got, strict=True):
        expected = derivative(lambda: model.loss_and_gradients(*batch), module.flat_params)
        close(gradient, expected, atol=1e-9)


@both_dtypes
def test_a_whole_model_learns(dtype):
    model, batch = Classifier(dtype), bags()
    adam = Adam(model.modules, lr=0.05)
    losses = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(60):
            adam.zero_grad()
            losses.append(model.loss_and_gradients(*batch))
            clip_grad_norm(model.modules, 1.0)
            adam.step()
    assert losses[0] > 0.8
    assert losses[-1] < 0.05
    assert not model.embedding.weight[0].any()


@needs_torch
@both_dtypes
def test_a_whole_model_against_torch(dtype):
    model, (ids, lengths, targets) = Classifier(dtype), bags()
    embedding, linear = torch.nn.Embedding(12, 6, padding_idx=0), torch.nn.Linear(6, 3)
    theirs = (embedding, linear)
    kind = torch.from_numpy(np.zeros(0, dtype)).dtype
    for a, b in zip(model.modules, theirs, strict=True):
        b.to(kind).load_state_dict({n: torch.from_numpy(w) for n, w in a.state_dict().items()})
    parameters = [p for m in theirs for p in m.parameters()]
    ours, other = Adam(model.modules, 0.01), torch.optim.Adam(parameters, 0.01)
    for _ in range(10):
        ours.zero_grad()
        loss = model.loss_and_gradients(ids, lengths, targets)
        norm = clip_grad_norm(model.modules, 0.3)
        ours.step()
        other.zero_grad()
        mean = embedding(torch.from_numpy(ids)).sum(dim=1) / torch.from_numpy(lengths)[:, None]
        expected = torch.nn.functional.cross_entropy(linear(mean), torch.from_numpy(targets))
        expected.backward()
        expected_norm = torch.nn.utils.clip_grad_norm_(parameters, 0.3)
        assert norm > 0.3
        close(loss, expected, **tolerance(dtype))
        close(norm, expected_norm, **tolerance(dtype))
        for a, b in zip(model.modules, theirs, strict=True):
            for name, p in b.named_parameters():
                close(a.grads[name], p.grad, **tolerance(dtype))
        other.step()
    for a, b in zip(model.modules, theirs, strict=True):
        for name, p in b.named_parameters():
            close(a.params[name], p, rtol=1e-3, atol=1e-4 if dtype == np.float32 else 1e-10)


@needs_torch
def test_loads_torch_modules():
    theirs = torch.nn.Linear(4, 3)
    linear = Linear(4, 3)
    linear.load_state_dict(theirs.state_dict())
    x = rng(0).normal(size=(2, 5, 4)).astype(np.float32)
    close(linear(x), theirs(torch.from_numpy(x)), **tolerance(np.float32))
    with pytest.raises(ValueError, match=r"load_state_dict: .*grad"):
        linear.load_state_dict(dict(theirs.named_parameters()))  # tensors that require gradients
