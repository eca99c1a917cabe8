"""Cells: single steps with the bits of layers, and torch's numbers and names."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from cases import as_tuple
from support import Array, assert_bits

import rnnkern as rk
from rnnkern import reference

try:
    import torch

    HAVE_TORCH = True
except ImportError:
    HAVE_TORCH = False

I, H = 5, 17  # noqa: E741

# name, class, its layer, options of the cell alone
KINDS: dict[str, tuple[type, type, dict[str, Any]]] = {
    "rnn_tanh": (rk.RNNCell, rk.RNN, {}),
    "rnn_relu": (rk.RNNCell, rk.RNN, {"nonlinearity": "relu"}),
    "lstm": (rk.LSTMCell, rk.LSTM, {}),
    "gru_after": (rk.GRUCell, rk.GRU, {}),
    "gru_before": (rk.GRUCell, rk.GRU, {"reset_after": False}),
}
each_kind = pytest.mark.parametrize("kind", KINDS)
with_bias = pytest.mark.parametrize("bias", [True, False], ids=["bias", "nobias"])
rows = pytest.mark.parametrize("shape", [(), (1,), (7,), (0,)], ids=["one", "B1", "B7", "B0"])


def cell_and_layer(kind: str, dtype: Any, bias: bool = True) -> tuple[Any, Any]:
    """A cell, and a layer with the same parameters."""
    cls, layer_cls, options = KINDS[kind]
    cell = cls(I, H, bias, **options, dtype=dtype, seed=0)
    cell.flat_params *= 3
    layer = layer_cls(I, H, bias=bias, **options, dtype=dtype)
    layer.load_state_dict({f"{name}_l0": p for name, p in cell.state_dict().items()})
    return cell, layer


def draw(kind: str, shape: tuple[int, ...], dtype: Any, seed: int = 0) -> tuple[Array, Any, Any]:
    """x, the state and an upstream gradient of the state."""
    rng = np.random.default_rng(seed)

    def normal(n: int) -> Array:
        return rng.standard_normal((*shape, n)).astype(dtype)

    x = normal(I)
    if kind != "lstm":
        return x, normal(H), normal(H)
    return x, (normal(H), normal(H)), (normal(H), normal(H))


def expanded(states: Any) -> Any:
    """The states of a cell as those of a layer."""
    return tuple(s[None] for s in states) if isinstance(states, tuple) else states[None]


def assert_states(got: Any, want: Any, axis: bool = False) -> None:
    """Bit for bit; with `axis` the wanted ones are a layer's."""
    assert isinstance(got, tuple) == isinstance(want, tuple)
    for a, b in zip(as_tuple(got), as_tuple(want), strict=True):
        assert_bits(a, b[0] if axis else b)


# --- numbers -------------------------------------------------------------------------------------


@each_kind
@with_bias
@rows
def test_a_step_has_the_bits_of_the_layer(kind: str, bias: bool, shape: Any, dtype: Any) -> None:
    cell, layer = cell_and_layer(kind, dtype, bias)
    x, hx, dhx_n = draw(kind, shape, dtype)
    _, want, layer_tape = layer.record(x[None], expanded(hx))
    layer_dx, layer_dhx = layer_tape.backward(None, expanded(dhx_n))
    got, tape = cell.record(x, hx)
    dx, dhx = tape.backward(dhx_n)
    assert as_tuple(got)[0].shape == (*shape, H)
    for result in (got, cell(x, hx), cell.freeze()(x, hx)):
        assert_states(result, want, axis=True)
    assert_bits(dx, layer_dx[0])
    assert_states(dhx, layer_dhx, axis=True)
    for name, gradient in cell.grads.items():
        assert_bits(gradient, layer.grads[f"{name}_l0"], name)


@each_kind
@rows
def test_without_a_state_it_is_zero(kind: str, shape: Any, dtype: Any) -> None:
    cell, _ = cell_and_layer(kind, dtype)
    x, hx, dhx_n = draw(kind, shape, dtype)
    zeros = tuple(map(np.zeros_like, hx)) if kind == "lstm" else np.zeros_like(hx)
    assert_states(cell(x), cell(x, zeros))
    state, tape = cell.record(x)
    assert_states(state, cell(x))
    _, dhx = tape.backward(dhx_n)
    assert [s.shape for s in as_tuple(dhx)] == [s.shape for s in as_tuple(hx)]


@each_kind
def test_steps_have_the_bits_of_the_sequence(kind: str, dtype: Any) -> None:
    """Forward one by one, backward through the chain of steps."""
    cell, layer = cell_and_layer(kind, dtype)
    _, hx, dhx_n = draw(kind, (3,), dtype)
    x = np.random.default_rng(1).standard_normal((9, 3, I)).astype(dtype)
    y, hx_n, layer_tape = layer.record(x, expanded(hx))
    layer_dx, layer_dhx = layer_tape.backward(None, expanded(dhx_n))

    state, tapes = hx, []
    for t in range(9):
        state, tape = cell.record(x[t], state)
        assert_bits(state[0] if kind == "lstm" else state, y[t])
        tapes.append(tape)
    assert_states(state, hx_n, axis=True)
    gradient = dhx_n
    for t in reversed(range(9)):
        dx, gradient = tapes[t].backward(gradient)
        assert_bits(dx, layer_dx[t])
    assert_states(gradient, layer_dhx, axis=True)
    tolerance = 1e-12 if dtype == np.float64 else 1e-4  # here a sum of nine sums
    for name, g in cell.grads.items():
        np.testing.assert_allclose(g, layer.grads[f"{name}_l0"], tolerance, tolerance)


@each_kind
@with_bias
def test_reference(kind: str, bias: bool) -> None:
    cell, _ = cell_and_layer(kind, np.float64, bias)
    x, hx, dhx_n = draw(kind, (7,), np.float64)
    state, tape = cell.record(x, hx)
    dx, dhx = tape.backward(dhx_n)
    stem = kind.partition("_")[0]
    params = {f"{name}_l0": p for name, p in cell.params.items()}
    _, want, want_tape = getattr(reference, f"{stem}_forward")(
        x[None], params, expanded(hx), **KINDS[kind][2]
    )
    want_dx, want_dhx, grads = getattr(reference, f"{stem}_backward")(
        want_tape, None, expanded(dhx_n)
    )
    pairs = [(dx, want_dx[0]), *((g, grads[f"{name}_l0"]) for name, g in cell.grads.items())]
    for got, expected in ((state, want), (dhx, want_dhx)):
        pairs += [(a, b[0]) for a, b in zip(as_tuple(got), as_tuple(expected), strict=True)]
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.skipif(not HAVE_TORCH, reason="torch is not installed")
@pytest.mark.parametrize("kind", ["rnn_tanh", "rnn_relu", "lstm", "gru_after"])
@with_bias
@pytest.mark.parametrize("shape", [(), (7,)], ids=["one", "B7"])
@pytest.mark.parametrize("given", [True, False], ids=["hx", "zeros"])
def test_torch(kind: str, bias: bool, shape: Any, given: bool) -> None:
    cls, _, options = KINDS[kind]
    cell = cls(I, H, bias, **options, dtype=np.float64)
    twin = getattr(torch.nn, cls.__name__)(I, H, bias, **options, dtype=torch.float64)
    assert list(cell.params) == [name for name, _ in twin.named_parameters()]
    cell.load_state_dict(twin.state_dict())
    cell.flat_params *= 2
    twin.load_state_dict({name: torch.from_numpy(p) for name, p in cell.state_dict().items()})

    x, hx, dhx_n = draw(kind, shape, np.float64)
    state, tape = cell.record(x, hx if given else None)
    dx, dhx = tape.backward(dhx_n)

    tx = torch.from_numpy(x).requires_grad_()
    thx = [torch.from_numpy(s).requires_grad_() for s in as_tuple(hx)] if given else []
    arguments = [tuple(thx) if kind == "lstm" else thx[0]] if given else []
    want = as_tuple(twin(tx, *arguments))
    upstream = [torch.from_numpy(s) for s in as_tuple(dhx_n)]
    grads = torch.autograd.grad(want, [tx, *thx, *twin.parameters()], upstream)
    got = [*as_tuple(state), dx, *(as_tuple(dhx) if given else ()), *cell.grads.values()]
    for a, b in zip(got, [*(s.detach() for s in want), *grads], strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-12, atol=1e-12)


# --- tapes ---------------------------------------------------------------------------------------


@each_kind
def test_a_tape_is_used_once_unless_retained(kind: str) -> None:
    cell, _ = cell_and_layer(kind, np.float32)
    x, hx, dhx_n = draw(kind, (3,), np.float32)
    _, tape = cell.record(x, hx)
    dx, dhx = tape.backward(dhx_n, retain=True)
    once = cell.flat_grads.copy()
    own = cell.grads.zeros_like()
    dx2, dhx2 = tape.backward(dhx_n, grads=own, retain=True)
    assert_bits(own.flat, once)
    assert_bits(cell.flat_grads, once)
    assert_bits(dx, dx2)
    assert_states(dhx, dhx2)
    assert tape.backward(dhx_n, need_dx=False)[0] is None
    assert_bits(cell.flat_grads, 2 * once)
    with pytest.raises(RuntimeError, match="has been used"):
        tape.backward(dhx_n)


@each_kind
def test_nothing_between_record_and_backward_changes_gradients(kind: str) -> None:
    cell, layer = cell_and_layer(kind, np.float32)
    x, hx, dhx_n = draw(kind, (3,), np.float32)
    layer_dx, layer_dhx = layer.record(x[None], expanded(hx))[2].backward(None, expanded(dhx_n))
    state, tape = cell.record(x, hx)
    cell.flat_params *= 2
    for s in (*as_tuple(state), *as_tuple(hx)):
        s[...] = np.nan
    dx, dhx = tape.backward(dhx_n)
    assert_bits(dx, layer_dx[0])
    assert_states(dhx, layer_dhx, axis=True)
    assert_bits(cell.flat_grads, layer.flat_grads)


@each_kind
def test_no_gradient_is_a_zero_gradient(kind: str) -> None:
    cell, _ = cell_and_layer(kind, np.float32)
    x, hx, _ = draw(kind, (3,), np.float32)
    dx, dhx = cell.record(x, hx)[1].backward()
    assert dx.shape == x.shape
    assert not any(a.any() for a in (dx, *as_tuple(dhx), cell.flat_grads))


# --- arrays and errors ---------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize(
    "change",
    [
        np.asfortranarray,
        lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
        lambda a: a[..., ::-1].copy()[..., ::-1],
        lambda a: a.astype(a.dtype.newbyteorder()),
    ],
    ids=["fortran", "strided", "negative", "swapped"],
)
def test_arrays_of_any_kind_give_the_same_bits(kind: str, change: Any, dtype: Any) -> None:
    cell, _ = cell_and_layer(kind, dtype)
    given = draw(kind, (7,), dtype)
    x, hx, dhx_n = (tuple(map(change, a)) if isinstance(a, tuple) else change(a) for a in given)
    want, want_tape = cell.record(*given[:2])
    state, tape = cell.record(x, hx)
    assert_states(state, want)
    want_dx, want_dhx = want_tape.backward(given[2])
    dx, dhx = tape.backward(dhx_n)
    assert_bits(dx, want_dx)
    assert_states(dhx, want_dhx)


X, STATE = np.zeros((2, 5), np.float32), np.zeros((2, 17), np.float32)
BAD_CALLS: list[tuple[Any, Any, type, str]] = [
    (np.zeros((2, 4), np.float32), None, ValueError, r"x: expected shape \(B, 5\) or \(5,\), got"),
    (np.zeros((1, 2, 5), np.float32), None, ValueError, r"x: expected shape .* \(1, 2, 5\)"),
    (np.float32(1), None, ValueError, r"x: expected shape .* got \(\)"),
    (X.astype(np.float64), None, TypeError, r"x: expected float32.*np\.asarray\(x, np\.float32\)"),
    (X.astype(int), None, TypeError, "x: expected float32"),
    (None, None, TypeError, "x: expected numbers, got None"),
    (X, STATE[:1], ValueError, r"hx: expected shape \(2, 17\), got \(1, 17\)"),
    (X, STATE[None], ValueError, r"hx: expected shape \(2, 17\), got \(1, 2, 17\)"),
    (X, STATE[0], ValueError, r"hx: expected shape \(2, 17\), got \(17,\)"),
    (X[0], STATE, ValueError, r"hx: expected shape \(17,\), got \(2, 17\)"),
    (np.ma.masked_equal(X, 1), None, TypeError, "x: expected an array without a mask"),
    (X, np.ma.masked_equal(STATE, 1), TypeError, "hx: expected an array without a mask"),
    (X, STATE.astype(np.float64), TypeError, r"hx: expected float32.*np\.asarray"),
    (X, (STATE, STATE), TypeError, "hx: expected one array, got a tuple of 2"),
]


@pytest.mark.parametrize(("x", "hx", "error", "message"), BAD_CALLS)
def test_arguments_are_checked(x: Any, hx: Any, error: type[Exception], message: str) -> None:
    cell = rk.GRUCell(5, 17)
    for call in (cell, cell.record, cell.freeze()):
        with pytest.raises(error, match=message):
            call(x, hx)


def test_threads_are_checked() -> None:
    cell = rk.GRUCell(5, 17)
    for call in (cell, cell.record, cell.freeze()):
        with pytest.raises(ValueError, match="num_threads"):
            call(X, num_threads=0)
    with pytest.raises(ValueError, match="num_threads"):
        cell.record(X)[1].backward(num_threads=0)


@pytest.mark.parametrize(
    ("hx", "error", "message"),
    [
        (STATE, TypeError, r"hx: expected a tuple \(h, c\)"),
        ((STATE,), TypeError, r"hx: expected a tuple \(h, c\), got a tuple of 1"),
        ((STATE, STATE[:1]), ValueError, r"c of hx: expected shape \(2, 17\)"),
        ((STATE, STATE.astype(float)), TypeError, "c of hx: expected float32"),
        ((STATE, None), TypeError, "c of hx: expected numbers, got None"),
        ((STATE, [[1.0], []]), ValueError, "c of hx: .* got a list of 2"),
    ],
)
def test_lstm_states_are_a_pair(hx: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        rk.LSTMCell(5, 17)(X, hx)


def test_backward_is_checked_and_leaves_the_tape_usable() -> None:
    cell = rk.LSTMCell(5, 17)
    _, tape = cell.record(X)
    bad: list[tuple[Any, type, str]] = [
        (STATE, TypeError, r"dhx_n: expected a tuple \(h, c\)"),
        ((STATE, STATE[:1]), ValueError, r"c of dhx_n: expected shape \(2, 17\)"),
        ((STATE, STATE.astype(float)), TypeError, "c of dhx_n: expected float32"),
    ]
    for dhx_n, error, message in bad:
        with pytest.raises(error, match=message):
            tape.backward(dhx_n)
    with pytest.raises(ValueError, match=r"^grads: missing 'weight_ih', missing 'weight_hh'"):
        tape.backward(grads={})
    for grads in ([], 3, "text"):
        with pytest.raises(TypeError, match=r"^grads: expected a mapping"):
            tape.backward(grads=grads)
    wrong = dict(cell.grads) | {"bias_hh": np.zeros(3, np.float32)}
    with pytest.raises(
        ValueError, match=r"^grads\['bias_hh'\]: expected shape \(68,\), got \(3,\)"
    ):
        tape.backward(grads=wrong)
    tape.backward((STATE, STATE))


# --- parameters, copies, files -------------------------------------------------------------------


@each_kind
def test_names_and_shapes_are_those_of_torch(kind: str) -> None:
    cell, _ = cell_and_layer(kind, np.float32)
    G = {"rnn": 1, "lstm": 4, "gru": 3}[kind.partition("_")[0]] * H
    shapes = {"weight_ih": (G, I), "weight_hh": (G, H), "bias_ih": (G,), "bias_hh": (G,)}
    assert {name: p.shape for name, p in cell.params.items()} == shapes
    assert cell.weight_hh is cell.params["weight_hh"]
    assert np.shares_memory(cell.weight_hh, cell.flat_params)


@pytest.mark.thread_unsafe(reason="reads a file: see test_layers")
@each_kind
def test_copies_files_and_snapshots(kind: str, dtype: Any, tmp_path: Any) -> None:
    cell, _ = cell_and_layer(kind, dtype)
    x, hx, _ = draw(kind, (7,), dtype)
    want = cell(x, hx)
    cell.save(tmp_path / "cell")
    twins = [copy.deepcopy(cell), pickle.loads(pickle.dumps(cell)), rk.load(tmp_path / "cell")]
    frozen = cell.freeze()
    cell.flat_params = np.zeros(cell.flat_params.size)
    for twin in twins:
        assert type(twin) is type(cell)
        assert repr(twin) == repr(cell)
        assert_states(twin(x, hx), want)
        assert np.shares_memory(twin.weight_ih, twin.flat_params)
    assert_states(frozen(x, hx), want)


def test_options_are_fixed() -> None:
    cell = rk.GRUCell(3, 4)
    for name in ("input_size", "hidden_size", "bias", "reset_after"):
        with pytest.raises(AttributeError, match=f"{name} is fixed once a GRUCell is built"):
            setattr(cell, name, getattr(cell, name))
    assert not hasattr(cell, "num_layers")
    assert not hasattr(cell, "dropout")
