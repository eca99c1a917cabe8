"""Learned initial states."""

import copy
import pickle
from itertools import product
from typing import Any

import numpy as np
import pytest
from support import numeric_derivative

import rnnkern as rk
from rnnkern import functional, isa

T, B, I, H = 6, 4, 3, 17  # noqa: E741
KINDS = [
    (rk.RNN, {}), (rk.LSTM, {}), (rk.GRU, {}), (rk.GRU, {"reset_after": False}),
    (rk.LSTM, {"proj_size": 5, "peephole": True, "coupled": "forget"}),
    (rk.LSTM, {"proj_size": 16, "layer_norm": True, "norm_eps": 0.1}),
    *((cls, {}) for cls in (rk.MGU, rk.IndRNN, rk.SRU, rk.MinGRU)),
]  # fmt: skip
IDS = [
    "rnn", "lstm", "gru", "gru_before", "lstm_proj", "lstm_norm", "mgu", "indrnn", "sru", "mingru",
]  # fmt: skip
kinds = pytest.mark.parametrize(("cls", "options"), KINDS, ids=IDS)


def layer_of(cls: Any, options: Any = None, **more: Any) -> Any:
    more = {"num_layers": 2, "bidirectional": True, "dtype": np.float64, **more}
    layer = cls(I, H, learn_initial_state=True, seed=0, **(options or {}), **more)
    rng = np.random.default_rng(5)
    for name, value in layer.params.items():
        if name.startswith("initial"):
            assert not value.any()
            value[:] = rng.standard_normal(value.size)
    return layer


def names(layer: Any, part: str) -> list[str]:
    return [name for name in layer.params if name.startswith(f"initial_{part}")]


def learned(layer: Any) -> Any:
    """(L*D, P), or of c (L*D, H); for the LSTM a tuple."""
    widths = layer._structure.states
    stacked = tuple(np.stack([layer.params[n] for n in names(layer, p)]) for p in widths)
    assert [s.shape for s in stacked] == [(layer._structure.sweeps, w) for w in widths.values()]
    return stacked if len(stacked) > 1 else stacked[0]


def parts(state: Any) -> tuple[Any, ...]:
    return state if isinstance(state, tuple) else (state,)


def rows(state: Any) -> Any:
    if isinstance(state, tuple):
        return tuple(rows(s) for s in state)
    return np.repeat(state[:, None], B, axis=1)


def arguments() -> tuple[Any, dict[str, Any]]:
    rng = np.random.default_rng(1)
    resets = rng.random((T, B)) < 0.3
    return rng.standard_normal((T, B, I)), {"resets": resets, "lengths": np.array([6, 0, 2, 5])}


@kinds
def test_as_given_states(cls: Any, options: Any) -> None:
    layer, (x, more) = layer_of(cls, options), arguments()
    plain = cls(I, H, num_layers=2, bidirectional=True, dtype=np.float64, **options)
    plain.load_state_dict(layer.state_dict(), strict=False)
    y, h = layer(x, **more)
    state = learned(layer)
    want, want_h = plain(x, rows(state), restart_state=state, **more)
    np.testing.assert_array_equal(y, want)
    for got, expected in zip(parts(h), parts(want_h), strict=True):
        np.testing.assert_array_equal(got, expected)
    zeros = rows(learned(layer_of(cls, options)))
    zeros = tuple(0 * z for z in zeros) if isinstance(zeros, tuple) else 0 * zeros
    given, _ = layer(x, zeros, restart_state=zeros, **more)
    np.testing.assert_array_equal(given, plain(x, **more)[0])
    np.testing.assert_array_equal(layer.freeze()(x, **more)[0], y)


@kinds
@pytest.mark.parametrize("start", [False, True])
def test_the_gradient_sums_over_rows_that_start_and_restart(
    cls: Any, options: Any, start: bool
) -> None:
    layer, (x, more) = layer_of(cls, options), arguments()
    hx = rows(learned(layer)) if start else None
    y, _, tape = layer.record(x, hx, **more)
    rng = np.random.default_rng(2)
    dy = rng.standard_normal(y.shape)
    dhx_n = rows(learned(layer))
    tape.backward(dy, dhx_n)
    analytic = {n: g.copy() for n, g in layer.grads.items() if n.startswith("initial")}

    def loss() -> float:
        out, state = layer(x, hx, **more)
        states = zip(parts(dhx_n), parts(state), strict=True)
        return float((dy * out).sum() + sum((d * s).sum() for d, s in states))

    for name, gradient in analytic.items():
        for unit in (0, 3, -1):
            numeric = numeric_derivative(loss, layer.params[name], unit)
            assert gradient[unit] == pytest.approx(numeric, rel=1e-7, abs=1e-8)


@kinds
def test_the_same_bits_everywhere(cls: Any, options: Any) -> None:
    results, (x, more) = [], arguments()
    for level, num_threads in product(isa.available(), (1, 2, 3)):
        with isa.using(level):
            layer = layer_of(cls, options, dropout=0.5)
            for checkpoint in (None, "gates", "auto", 1):
                layer.zero_grad()
                settings = {"checkpoint": checkpoint, "num_threads": num_threads}
                y, _, tape = layer.record(x, dropout_seed=3, **settings, **more)
                tape.backward(np.cos(y), num_threads=num_threads)
                results.append(layer.flat_grads.copy())
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_one_sequence_and_functions() -> None:
    layer, (x, _) = layer_of(rk.LSTM, num_layers=1, bidirectional=False), arguments()
    y, _ = layer(x)
    np.testing.assert_array_equal(layer(x[:, 1])[0], y[:, 1])
    alone, _, tape = functional.lstm_forward(x, layer.params, record=True)
    np.testing.assert_array_equal(alone, y)
    _, _, grads = functional.lstm_backward(tape, np.ones_like(y))
    assert set(grads) == set(layer.params)
    layer.record(x)[2].backward(np.ones_like(y))
    np.testing.assert_array_equal(grads["initial_c_l0"], layer.grads["initial_c_l0"])
    assert tape.restart_state_grad is None
    with pytest.raises(ValueError, match="initial_c_l0"):
        functional.lstm_forward(x, {k: v for k, v in layer.params.items() if k != "initial_c_l0"})


def test_files_copies_and_repr(tmp_path: Any) -> None:
    layer, (x, more) = layer_of(rk.GRU), arguments()
    layer.save(tmp_path / "gru.npz")
    twins = [rk.load(tmp_path / "gru.npz"), copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
    for twin in twins:
        np.testing.assert_array_equal(twin(x, **more)[0], layer(x, **more)[0])
        assert repr(twin) == repr(layer)
    assert "learn_initial_state=True" in repr(layer)
    with pytest.raises(TypeError, match="learn_initial_state"):
        rk.GRU(I, H, learn_initial_state=1)


@kinds
def test_a_stream_starts_from_them(cls: Any, options: Any) -> None:
    layer, (x, _) = layer_of(cls, options, bidirectional=False), arguments()
    stream = layer.stream(B)
    y, _ = layer(x)
    np.testing.assert_array_equal(np.stack([stream.step(step) for step in x]), y)
    stream.reset([1])
    np.testing.assert_array_equal(stream.step(x[0])[1], y[0, 1])
    layer.params[names(layer, "")[0]][:] = 7
    twin = stream.fork()
    for again in (stream, twin):
        again.refresh()
        assert (parts(again.restart_state)[0][0] == 7).all()
