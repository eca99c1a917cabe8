"""`rnnkern.diagnose`: numbers against derivatives and planted causes, pictures, the command."""

from __future__ import annotations

import csv
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import Array, numeric_derivative

import rnnkern as rk
from rnnkern import __main__, diagnose
from rnnkern.train import Linear, softmax_cross_entropy

T, B, I, H = 7, 3, 3, 5  # noqa: E741
DIGITS = [6, 7, 0, 0, 1, 0, 0, 0, 0, 0]

HELPERS = {"main", "plots", "shuffle", "delay", "blank", "without_directions"}

KINDS: list[tuple[Any, dict[str, Any]]] = [
    (rk.RNN, {}),
    (rk.RNN, {"nonlinearity": "relu", "layer_norm": True}),
    (rk.LSTM, {}),
    (rk.LSTM, {"proj_size": 4}),
    (rk.LSTM, {"peephole": True, "coupled": "input"}),
    (rk.LSTM, {"coupled": "forget", "learn_initial_state": True}),
    (rk.GRU, {"dropout": 0.4}),
    (rk.GRU, {"reset_after": False, "bias": False}),
    (rk.MGU, {}),
    (rk.IndRNN, {"nonlinearity": "tanh"}),
    (rk.SRU, {"regularization": rk.Regularization(output_dropout=0.5)}),
    (rk.MinGRU, {}),
]
IDS = [f"{c.__name__}-{'-'.join(o) or 'plain'}" for c, o in KINDS]
kinds = pytest.mark.parametrize(("cls", "options"), KINDS, ids=IDS)
with_pictures = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)


def layer_of(cls: Any, options: dict[str, Any], **more: Any) -> Any:
    layer = cls(I, H, **{"num_layers": 2, "dtype": np.float64, "seed": 0, **options, **more})
    layer.flat_params *= 2  # so that there is something to see
    for name, values in layer.params.items():
        if name.startswith("initial"):
            values[...] = 0.3
    return layer


def sequence(*shape: int) -> Array:
    return np.random.default_rng(1).standard_normal(shape or (T, B, I))


def parts(states: Any) -> tuple[Array, ...]:
    return states if isinstance(states, tuple) else (states,)


def like(template: Any, arrays: Any) -> Any:
    return tuple(arrays) if isinstance(template, tuple) else next(iter(arrays))


# ---- gradients


@kinds
def test_gradient_by_lag_is_the_derivative_by_the_state(cls: Any, options: Any) -> None:
    layer, x = layer_of(cls, options), sequence(T, I)
    found = diagnose.gradient_by_lag(layer, x)
    states = layer._structure.states
    assert list(found) == list(states)
    P = layer._structure.features
    for lag in (1, 2, T - 1):
        _, hx = layer(x[: T - lag])

        def loss(hx: Any = hx, lag: int = lag) -> float:
            return float(layer(x[T - lag :], hx)[0][-1].sum() / np.sqrt(P))

        for (name, norms), part in zip(found.items(), parts(hx), strict=True):
            assert norms.shape == (2, T, 1)
            grad = np.array([numeric_derivative(loss, part, at) for at in np.ndindex(part.shape)])
            want = np.linalg.norm(grad.reshape(2, -1), axis=1)
            of = slice(1, 2) if name == "h" else slice(2)  # the layer above reads the lower h
            np.testing.assert_allclose(norms[of, lag, 0], want[of], rtol=1e-6, atol=1e-10)


def test_gradient_by_lag_of_rows_steps_and_layouts() -> None:
    layer, x = layer_of(rk.LSTM, {}), sequence()
    lengths = [T, 4, 0]
    ragged = diagnose.gradient_by_lag(layer, x, lengths=lengths)["h"]
    assert np.isnan(ragged[:, 4:, 1]).all() and np.isnan(ragged[:, :, 2]).all()
    alone = diagnose.gradient_by_lag(layer, x[:4, 1])["h"]
    np.testing.assert_array_equal(ragged[:, :4, 1], alone[..., 0])
    earlier = diagnose.gradient_by_lag(layer, x, step=3)["h"]
    np.testing.assert_array_equal(earlier[:, :4, 1], alone[..., 0])
    assert np.isnan(earlier[:, 4:]).all()
    assert np.array_equal(earlier, diagnose.gradient_by_lag(layer, x, step=3 - T)["h"], True)
    first = layer_of(rk.LSTM, {}, batch_first=True)
    other = diagnose.gradient_by_lag(first, x.swapaxes(0, 1), lengths=lengths)["h"]
    np.testing.assert_array_equal(ragged, other)
    dy = np.eye(H)[:B] * 3
    assert np.allclose(diagnose.gradient_by_lag(layer, x, dy)["h"][1, 0], 3)
    clipped = diagnose.gradient_by_lag(layer, x, clip_state_grad=1e-3)["h"]
    assert clipped[:, 2:].max() <= 1e-3 * np.sqrt(H) < np.nanmax(ragged[:, 2:])


def test_nothing_is_left_behind() -> None:
    """Neither gradients nor another mask sequence, and dropout has no part in it."""
    layer, x = layer_of(rk.GRU, {"dropout": 0.5}), sequence()
    before, seed = layer.flat_params.copy(), layer._dropout_seed
    results = [diagnose.gradient_by_lag(layer, x)["h"] for _ in range(2)]
    diagnose.gate_statistics(layer, x)
    diagnose.truncation(layer, x[:, 0], 2)
    np.testing.assert_array_equal(*results)
    assert not layer.flat_grads.any()
    assert np.array_equal(before, layer.flat_params)
    assert layer._dropout_seed == seed and layer.dropout == 0.5


@kinds
def test_truncation(cls: Any, options: Any) -> None:
    layer, x, k1, k2 = layer_of(cls, options), sequence(10, I), 2, 5
    found = diagnose.truncation(layer, x, k1, k2)
    for name, share in found.share.items():
        known = ~np.isnan(share)
        np.testing.assert_allclose(share[known & (np.arange(10) <= k2 - k1)], 1, rtol=1e-6)
        assert (share[:, k2:][known[:, k2:]] == 0).all()
        full = np.zeros((2, 10, 10))
        for step in range(10):
            full[:, :, step] = diagnose.gradient_by_lag(layer, x, step=step)[name][..., 0]
        np.testing.assert_allclose(found.full[name], np.nanmean(full, axis=-1), rtol=1e-9)
    assert 0 < found.norm_ratio < 3 and 0 < found.cosine < 1
    whole = diagnose.truncation(layer, x, 10)
    assert whole.norm_ratio == pytest.approx(1) and whole.cosine == pytest.approx(1)
    sparse = diagnose.truncation(layer, x, k1, k2, steps=[9, 4])
    assert np.isnan(sparse.full[name]).sum() == 0
    assert diagnose.truncation(layer, x, k1, k2, steps=[4]).kept[name].shape == (2, 10)


def test_truncation_of_the_gradient_is_that_of_training() -> None:
    layer, x = layer_of(rk.LSTM, {}), sequence(10, I)
    dy = np.random.default_rng(3).standard_normal((10, H))
    _, _, tape = layer.record(x)
    tape.backward(dy)
    full = layer.flat_grads.copy()
    layer.zero_grad()
    for chunk in rk.truncated_bptt(layer, x, k1=3, k2=4):
        chunk.backward(dy[chunk.steps])
    cut = layer.flat_grads
    found = diagnose.truncation(layer, x, 3, 4, dy=dy)
    assert found.norm_ratio == pytest.approx(np.linalg.norm(cut) / np.linalg.norm(full))
    cosine = cut @ full / np.linalg.norm(cut) / np.linalg.norm(full)
    assert found.cosine == pytest.approx(cosine)


def test_clipping() -> None:
    layer, head = layer_of(rk.GRU, {}), Linear(H, 2, dtype=np.float64, seed=0)
    layer.flat_grads[...], head.flat_grads[...] = 1.0, 2.0
    before = layer.flat_grads.copy()
    found = diagnose.clipping([layer, head], 0.5)
    assert np.array_equal(layer.flat_grads, before)
    assert found.names[0] == "0.weight_ih_l0" and found.names[-1] == "1.bias"
    assert found.norm == pytest.approx(np.linalg.norm(found.before))
    assert np.linalg.norm(found.after) == pytest.approx(0.5, rel=1e-4)
    np.testing.assert_allclose(found.after / found.before, 0.5 / found.norm, rtol=1e-4)
    gentle = diagnose.clipping(layer, 1e6)
    assert np.array_equal(gentle.before, gentle.after) and gentle.names[0] == "weight_ih_l0"


# ---- Jacobians


def numeric_jacobian(layer: Any, x: Array, hx: Any) -> Array:
    """Of all steps of x: columns by columns."""
    columns = []
    for part in parts(hx):
        for at in np.ndindex(part.shape):

            def state(part: Array = part, at: Any = at) -> Array:
                return np.concatenate([p.ravel() for p in parts(layer(x, hx)[1])])

            columns.append(numeric_derivative(state, part, at))  # type: ignore[arg-type]
    return np.array(columns).T


@kinds
def test_jacobians_are_the_derivatives(cls: Any, options: Any) -> None:
    layer, x = layer_of(cls, options), sequence(4, I)
    found = diagnose.step_jacobians(layer, x)
    _, hx = layer(x[:2])
    np.testing.assert_allclose(found[2], numeric_jacobian(layer, x[2:3], hx), atol=1e-8)
    np.testing.assert_allclose(found[2], diagnose.step_jacobians(layer, x[2:], hx)[0], atol=1e-15)
    products = diagnose.jacobian_products(layer, x)
    product = np.eye(len(found[0]))
    for lag in range(5):
        want = np.linalg.svd(product, compute_uv=False)
        got = products.singular_values[lag]
        np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-12 * want[0])
        assert got[0] <= products.bound[lag] * (1 + 1e-9)
        if lag < 4:
            assert products.radius[lag] == pytest.approx(
                abs(np.linalg.eigvals(found[3 - lag])).max()
            )
            product = product @ found[3 - lag]
    whole = numeric_jacobian(layer, x[2:], hx)
    assert products.singular_values[2, 0] == pytest.approx(np.linalg.norm(whole, 2), rel=1e-6)


def test_jacobian_products_neither_underflow_nor_overflow() -> None:
    layer = rk.RNN(1, 2, nonlinearity="identity", bias=False, seed=0)
    for gain in (0.25, 4.0):
        layer.weight_hh_l0[...] = gain * np.eye(2)
        values = diagnose.jacobian_products(layer, np.zeros((200, 1), np.float32)).singular_values
        np.testing.assert_allclose(values[200], gain**200, rtol=1e-5)  # float32 ends at 1e-38, 1e38


def test_nonnormal_example() -> None:
    found = diagnose.nonnormal_example(radius=0.9, coupling=2.0, steps=60)
    assert (
        abs(np.linalg.eigvals(found.U)).max() == pytest.approx(0.9, abs=1e-6) and found.radius < 1
    )
    powers = [np.linalg.norm(np.linalg.matrix_power(found.U, n), 2) for n in range(61)]
    np.testing.assert_allclose(found.states, powers, rtol=1e-12)
    np.testing.assert_allclose(found.gradients, powers, rtol=1e-10)
    assert found.at == 9 and found.peak == pytest.approx(7.767732617523837)
    assert found.states[-1] < 1 and found.eigenvalues[60] == pytest.approx(0.9**60)
    assert found.layer.nonlinearity == "identity"
    assert diagnose.nonnormal_example(coupling=0.0).at == 0  # a normal one only decays
    longer = diagnose.nonnormal_example(0.8, 1.0, size=6, steps=100)
    assert longer.peak > 100 and longer.states[-1] < longer.peak / 100
    with pytest.raises(ValueError, match="radius"):
        diagnose.nonnormal_example(radius=1.0)


# ---- gates


@kinds
@pytest.mark.parametrize("bidirectional", [False, True])
def test_gates(cls: Any, options: Any, bidirectional: bool) -> None:
    layer = layer_of(cls, options, bidirectional=bidirectional)
    x, lengths, sweeps = sequence(), [T, 0, 4], 2 * (1 + bidirectional)
    maps = diagnose.gate_maps(layer, x, row=2, lengths=lengths)
    _, _, trace = layer(x, lengths=lengths, trace=True)
    for name, values in maps.items():
        np.testing.assert_array_equal(values, trace[name][:, :4, 2])
    dy = np.random.default_rng(2).standard_normal((T, B, layer._structure.features))
    found = diagnose.gate_statistics(layer, x, dy, lengths=lengths)
    plain = layer_of(
        cls, {**options, "dropout": 0.0, "regularization": None}, bidirectional=bidirectional
    )
    _, _, tape = plain.record(x, lengths=lengths)
    tape.backward(dy)
    real = np.arange(T)[:, None] < np.array(lengths)
    squares: dict[str, Any] = {}
    for name, gate in found.items():
        values = trace[name][:, real].reshape(sweeps, -1)
        np.testing.assert_allclose(gate.mean, values.mean(axis=1), atol=1e-12)
        assert (gate.counts.sum(axis=1) == values.shape[1]).all()
        if gate.thresholds is not None:
            np.testing.assert_array_equal(gate.low, (values < gate.thresholds[0]).mean(axis=1))
            np.testing.assert_array_equal(gate.high, (values > gate.thresholds[1]).mean(axis=1))
        else:
            assert np.isnan(gate.low).all()
        for kind, norms in gate.gradients.items():
            squares[kind] = squares.get(kind, 0) + norms[0] ** 2
    for kind, total in squares.items():  # the blocks are the whole parameter
        assert np.sqrt(total) == pytest.approx(np.linalg.norm(plain.grads[f"{kind}_l0"]))
    assert "weight_ih" in squares and ("weight_ch" in squares) == ("weight_ch_l0" in plain.grads)


def test_each_block_has_its_own_gradient() -> None:
    layer = layer_of(rk.LSTM, {})
    found = diagnose.gate_statistics(layer, sequence(), np.ones((T, B, H)))
    _, _, tape = layer.record(sequence())
    tape.backward(np.ones((T, B, H)))
    for block, name in enumerate("ifgo"):
        rows = layer.grads["weight_hh_l1"][block * H : (block + 1) * H]
        assert found[name].gradients["weight_hh"][1] == pytest.approx(np.linalg.norm(rows))
    assert found["f"].thresholds == pytest.approx((0.1, 0.9))
    assert found["g"].thresholds == pytest.approx((-0.8, 0.8))


def test_forced_gates_are_saturated() -> None:
    """Zero weights and a bias force any value of a gate."""
    layer = rk.GRU(I, H, seed=0)
    layer.flat_params[...] = 0.0
    layer.bias_ih_l0[:H] = 5  # r
    layer.bias_ih_l0[H : 2 * H] = -5  # z
    found = diagnose.gate_statistics(layer, sequence().astype(np.float32))
    assert (found["r"].high, found["r"].low) == (1, 0)
    assert (found["z"].high, found["z"].low) == (0, 1)
    assert (found["n"].high, found["n"].low) == (0, 0)


def test_state_range() -> None:
    layer, x = layer_of(rk.LSTM, {"proj_size": 4}), sequence()
    found = diagnose.state_range(layer, x, lengths=[5, 2, 0])
    _, _, trace = layer(x, lengths=[5, 2, 0], trace=True)
    assert list(found) == ["c", "h"] and found["c"].shape == (2, T, 5)
    assert np.isnan(found["c"][:, 5:]).all()
    np.testing.assert_array_equal(found["c"][:, 3, 0], trace["c"][:, 3, 0].min(axis=-1))
    np.testing.assert_array_equal(found["h"][:, 1, 4], trace["h"][:, 1, :2].max(axis=(1, 2)))
    assert list(diagnose.state_range(layer_of(rk.GRU, {}), x)) == ["h"]
    counter = rk.LSTM(1, 1, seed=0)  # c grows by one in each step
    counter.flat_params[...] = 0.0
    counter.bias_ih_l0[...] = [50, 50, 50, 50]
    ranges = diagnose.state_range(counter, np.zeros((20, 1), np.float32))
    np.testing.assert_allclose(ranges["c"][0, :, 2], np.arange(1, 21), rtol=1e-6)


# ---- perturbation


def test_shuffle_delay_blank() -> None:
    x = np.arange(12.0).reshape(6, 2, 1) + 1
    assert np.array_equal(diagnose.delay(x, 1, 5, 2)[:, 0, 0], [1, 0, 0, 3, 5, 11])
    assert np.array_equal(diagnose.delay(x, 4, 6, 9, fill=-1)[:, 0, 0], [1, 3, 5, 7, -1, -1])
    assert np.array_equal(diagnose.blank(x, 2, 4)[:, 1, 0], [2, 4, 0, 0, 10, 12])
    shuffled = diagnose.shuffle(x, 0, 5, seed=0, lengths=[6, 3])
    assert np.array_equal(np.sort(shuffled, axis=0), x) and not np.array_equal(shuffled, x)
    assert np.array_equal(shuffled[3:, 1], x[3:, 1])  # behind the length
    assert np.array_equal(shuffled[5], x[5])
    first = diagnose.blank(x.swapaxes(0, 1), 2, 4, batch_first=True)
    assert np.array_equal(first.swapaxes(0, 1), diagnose.blank(x, 2, 4))
    assert np.array_equal(x[:, 0, 0], [1, 3, 5, 7, 9, 11])


@pytest.mark.parametrize("layout", ["time", "batch_first", "single"])
def test_perturbation_finds_what_matters(layout: str) -> None:
    """A layer that keeps the later of the first two steps, and nothing else."""
    layer = rk.MinGRU(2, 1, batch_first=layout == "batch_first", dtype=np.float64, seed=0)
    layer.flat_params[...] = 0.0
    layer.weight_ih_l0[...] = [[80, 0], [0, 1]]  # x_0 opens, x_1 is kept
    layer.bias_ih_l0[0] = -40
    x = np.zeros((8, 4, 2))
    x[:2, :, 0], x[:, :, 1] = 1, np.random.default_rng(0).standard_normal((8, 4)) + 3
    x = x[:, 0] if layout == "single" else x
    given = x.swapaxes(0, 1) if layout == "batch_first" else x

    def loss(y: Array, hx_n: Array) -> float:
        assert hx_n.shape == ((1, 1) if layout == "single" else (1, 4, 1))
        assert y.shape == {"time": (8, 4, 1), "batch_first": (4, 8, 1), "single": (8, 1)}[layout]
        return float(np.square(hx_n[0] - x[1, ..., 1:]).mean())

    found = diagnose.perturbation(layer, given, loss, width=2)
    assert found.baseline == pytest.approx(0, abs=1e-20) and found.loss
    assert found.starts.tolist() == [0, 2, 4, 6]
    for kind in diagnose.perturb.KINDS:
        assert found.change[kind][0] > 1e-3
        assert np.abs(found.change[kind][1:]).max() < 1e-12
    outputs = diagnose.perturbation(layer, given, kinds=["blank"], width=2)
    assert np.isnan(outputs.baseline) and not outputs.loss
    np.testing.assert_allclose(outputs.change["blank"], [1, 0, 0, 0], atol=1e-12)
    assert outputs.outputs["blank"].shape == (4, 8)
    assert (outputs.outputs["blank"][1, :2] == 0).all()


def test_perturbation_of_ragged_rows() -> None:
    layer, x = layer_of(rk.LSTM, {}, bidirectional=True), sequence()
    found = diagnose.perturbation(layer, x, lengths=[4, 0, 2], width=3)
    for kind in found.change:
        assert (found.change[kind][2:] == 0).all() and found.change[kind][0] > 0
        assert np.isnan(found.outputs[kind][:, 4:]).all()


# ---- probe and ablation


def planted(n: int = 600) -> tuple[Array, Array, Array]:
    """States that hold a class of three in two directions, and a value in another."""
    rng = np.random.default_rng(0)
    classes, values = rng.integers(0, 3, n), rng.standard_normal(n)
    states = 0.3 * rng.standard_normal((n, 8))
    states[:, :2] += np.array([[0, 2], [2, -1], [-2, -1]])[classes]
    states[:, 3] += 2 * values
    return 5 + 3 * states, classes, values


def test_linear_probe_reads_classes_and_values() -> None:
    states, classes, values = planted()
    probe = diagnose.linear_probe(states, classes + 10)
    assert probe.classes is not None and probe.classes.tolist() == [10, 11, 12]
    assert probe.score > 0.97 > 0.5 > probe.chance
    said = probe.classes[probe(states).argmax(axis=-1)]
    assert (said == classes + 10).mean() > 0.97
    assert probe.directions.shape == (2, 8)
    np.testing.assert_allclose(probe.directions @ probe.directions.T, np.eye(2), atol=1e-12)
    probe = diagnose.linear_probe(states, values)
    assert probe.score > 0.9 and probe.chance == 0 and probe.directions.shape == (1, 8)
    assert np.corrcoef(probe(states)[:, 0], values)[0, 1] > 0.97
    noise = np.random.default_rng(5).integers(0, 2, len(states))
    assert abs(diagnose.linear_probe(states, noise).score - 0.5) < 0.15


def test_groups_are_held_out_together() -> None:
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(40), 20)
    states = rng.standard_normal((40, 60))[groups] + 0.01 * rng.standard_normal((800, 60))
    labels = rng.integers(0, 2, 40)[groups]  # nothing but the group says it
    assert diagnose.linear_probe(states, labels).score > 0.95
    assert diagnose.linear_probe(states, labels, groups=groups).score < 0.8


def test_ablation_shows_use() -> None:
    states, classes, values = planted()
    weight = np.zeros((1, 8))
    weight[0, 3] = 1 / 6  # a head that reads the value alone

    def loss(s: Array) -> float:
        return float(np.square((s - 5) @ weight[0] - values).mean())

    of_value = diagnose.ablation(states, diagnose.linear_probe(states, values).directions, loss)
    assert of_value.ablated > 0.9 and of_value.baseline < 0.05
    of_classes = diagnose.ablation(states, diagnose.linear_probe(states, classes).directions, loss)
    assert of_classes.ablated < 0.1  # readable, and not used
    assert of_classes.random.shape == (20,) and of_classes.random.min() > of_classes.baseline


def test_nothing_linear_is_left_without_the_directions() -> None:
    states, classes, _ = planted()
    probe = diagnose.linear_probe(states, classes)
    rest = diagnose.without_directions(states, probe.directions)
    assert diagnose.linear_probe(rest, classes).score < 0.5 < probe.score
    centre = states.mean(axis=0)
    np.testing.assert_allclose((rest - centre) @ probe.directions.T, 0, atol=1e-9)
    assert (
        diagnose.without_directions(states.astype(np.float32), probe.directions).dtype == np.float32
    )


def test_probe_of_a_trained_looking_network() -> None:
    """States of an untrained LSTM hold its last input: a probe reads it though no task uses it."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 4, (6, 300))
    lstm = rk.LSTM(4, 16, seed=0)
    y, _ = lstm(np.eye(4, dtype=np.float32)[ids])
    probe = diagnose.linear_probe(y[-1], ids[-1])
    assert probe.score > 0.9
    head = Linear(16, 2, seed=0)
    head.flat_params[...] = 0.0  # reads nothing
    target = rng.integers(0, 2, 300)
    found = diagnose.ablation(
        y[-1], probe.directions, lambda s: softmax_cross_entropy(head(s), target)[0], trials=3
    )
    assert found.ablated == pytest.approx(found.baseline)


# ---- arguments


def test_refusals() -> None:
    layer, x = layer_of(rk.GRU, {}), sequence()
    both = layer_of(rk.GRU, {}, bidirectional=True)
    for function in (diagnose.gradient_by_lag, diagnose.step_jacobians, diagnose.jacobian_products):
        with pytest.raises(ValueError, match="unidirectional"):
            function(both, x[:, 0])
    with pytest.raises(ValueError, match="unidirectional"):
        diagnose.truncation(both, x[:, 0], 2)
    for wrong in (x[:, :, :2], x[:0], x[None]):
        with pytest.raises(ValueError, match="x: expected"):
            diagnose.gradient_by_lag(layer, wrong)
    with pytest.raises(TypeError, match="x: expected float64, got float32"):
        diagnose.gate_maps(layer, x.astype(np.float32))
    with pytest.raises(TypeError, match="layer: expected a layer"):
        diagnose.gate_maps(rk.GRUCell(I, H), x)
    with pytest.raises(ValueError, match="one sequence"):
        diagnose.step_jacobians(layer, x)
    with pytest.raises(ValueError, match="one sequence"):
        diagnose.truncation(layer, x, 2)
    with pytest.raises(ValueError, match="step: expected"):
        diagnose.gradient_by_lag(layer, x, step=T)
    with pytest.raises(ValueError, match="dy: expected shape"):
        diagnose.gradient_by_lag(layer, x, np.ones(H + 1))
    with pytest.raises(ValueError, match="row: expected"):
        diagnose.gate_maps(layer, x, row=B)
    with pytest.raises(ValueError, match="kinds: expected"):
        diagnose.perturbation(layer, x, kinds=["mix"])
    with pytest.raises(ValueError, match="lengths"):
        diagnose.gradient_by_lag(layer, x, lengths=[1, 2])
    with pytest.raises(ValueError, match="test: expected"):
        diagnose.linear_probe(np.ones((2, 3)), [0, 1])
    with pytest.raises(ValueError, match="directions"):
        diagnose.without_directions(np.ones((2, 3)), np.ones((1, 4)))
    zoneout = layer_of(rk.GRU, {"regularization": rk.Regularization(zoneout_h=0.5)})
    with pytest.raises(ValueError, match="zoneout"):
        diagnose.gradient_by_lag(zoneout, x)
    assert np.array_equal(diagnose.gate_maps(zoneout, x)["h"][1], zoneout(x)[0][:, 0])


def test_every_docstring_says_what_it_proves() -> None:
    functions = [name for name in diagnose.__all__ if name[0].islower()]
    for name in set(functions) - HELPERS:
        text = getattr(diagnose, name).__doc__
        assert "Proves:" in text and "Does not prove:" in text, name


def test_imported_when_first_used() -> None:
    program = (
        "import sys, rnnkern\n"
        "assert not any(m.startswith('rnnkern.diagnose') for m in sys.modules)\n"
        "rnnkern.diagnose.nonnormal_example()\n"
        "assert 'matplotlib' not in sys.modules and 'rnnkern.diagnose.plots' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


# ---- pictures


@with_pictures
def test_pictures(tmp_path: Path) -> None:
    from rnnkern.diagnose import plots

    lstm = rk.LSTM(10, 6, num_layers=2, seed=0)
    digits = np.eye(10, dtype=np.float32)[DIGITS]
    batch = np.repeat(digits[:, None], 3, axis=1)
    probe = diagnose.linear_probe(*planted()[:2], steps=20)
    ablated = diagnose.Ablation(0.1, 0.5, np.array([0.1, 0.2]))
    clipped = diagnose.clipping(lstm, 1.0)
    figures = {
        "lag": plots.gradient_by_lag(diagnose.gradient_by_lag(lstm, batch, lengths=[10, 4, 0])),
        "jacobian": plots.jacobian_products(diagnose.jacobian_products(lstm, digits)),
        "nonnormal": plots.nonnormal_example(diagnose.nonnormal_example()),
        "gates": plots.gate_maps(diagnose.gate_maps(lstm, digits), labels=DIGITS, sweep=1),
        "saturation": plots.gate_statistics(diagnose.gate_statistics(lstm, batch)),
        "range": plots.state_range(diagnose.state_range(lstm, batch)),
        "perturbation": plots.perturbation(diagnose.perturbation(lstm, batch)),
        "probe": plots.linear_probe(probe, ablated),
        "truncation": plots.truncation(diagnose.truncation(lstm, digits, 2, 4)),
        "clipping": plots.clipping([clipped, clipped]),
        "clipped": plots.clipping(clipped),
    }
    for name, figure in figures.items():
        axes = [a for a in figure.axes if a.get_visible() and a.get_label() != "<colorbar>"]
        assert all(a.get_title() for a in axes), name
        assert all(a.get_xlabel() or a.get_ylabel() for a in axes), name
        figure.savefig(tmp_path / f"{name}.png", dpi=40)
        data = (tmp_path / f"{name}.png").read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) > 3_000, name


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from rnnkern.diagnose import plots

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"rnnkern\[plot\]"):
        plots.nonnormal_example(diagnose.nonnormal_example())


# ---- command line


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With models and data, and the current one."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rk.LSTM(10, 6, seed=0).save("lstm.npz")
    rk.GRU(10, 4, bidirectional=True, batch_first=True, seed=0).save("gru.npz")
    rk.GRU(10, 4, regularization=rk.Regularization(zoneout_h=0.2)).save("zoneout.npz")
    rk.GRUCell(10, 6, seed=0).save("cell.npz")
    np.save("digits.npy", np.eye(10, dtype=np.float32)[DIGITS])
    ids = rng.integers(0, 10, (12, 8))
    x = np.eye(10, dtype=np.float32)[ids]
    np.save("batch.npy", x)
    np.savez("all.npz", x=x, lengths=rng.integers(3, 13, 8), targets=ids[0])
    return tmp_path


def test_command_prints_numbers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["diagnose", "lstm.npz", "digits.npy"]) == 0
    printed = capsys.readouterr().out
    assert "7.77 at n = 9" in printed and "probe: left out" in printed
    assert all(f"\n{name}: " in printed for name in diagnose.command._WHAT)
    norms = diagnose.gradient_by_lag(rk.load("lstm.npz"), np.load("digits.npy"))
    assert f"lag 9: {norms['c'][0, 9, 0]:.3g}" in printed


@pytest.mark.parametrize("pictures", [False, pytest.param(True, marks=with_pictures)])
def test_command_writes_files(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    pictures: bool,
) -> None:
    if not pictures:
        monkeypatch.setattr(diagnose.command, "find_spec", lambda name: None)
    arguments = ["diagnose", "lstm.npz", "all.npz", "--output", "out/here", "--length", "9"]
    names = {"lag", "gates", "truncation"} if pictures else set(diagnose.command._WHAT)
    arguments += ["--what", *names] if pictures else []
    assert __main__.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "up to 9 steps" in printed and "left out" not in printed
    assert ("CSV files alone" in printed) != pictures
    assert {path.stem for path in Path("out/here").glob("*.csv")} == names
    assert {path.stem for path in Path("out/here").glob("*.png")} == (names if pictures else set())
    for path in Path("out/here").glob("*.csv"):
        header, *rows = csv.reader(path.read_text().splitlines())
        assert rows and all(len(row) == len(header) for row in rows), path
    lags = list(csv.DictReader(Path("out/here/lag.csv").read_text().splitlines()))
    assert {row["lag"] for row in lags} == {str(lag) for lag in range(9)}


def test_command_on_other_layers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["diagnose", "gru.npz", "batch.npy"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("left out, the layer is bidirectional") == 3
    assert "z of l0_reverse: mean" in printed
    assert __main__.main(["diagnose", "zoneout.npz", "batch.npy"]) == 0
    assert capsys.readouterr().out.count("zoneout, which") == 5


def test_command_is_deterministic(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for seed in ("1", "1", "2"):
        arguments = ["diagnose", "lstm.npz", "all.npz", "--what", "perturbation", "probe"]
        assert __main__.main([*arguments, "--seed", seed]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != printed[2]
    assert "lag:" not in printed[0]


def bad_data(name: str) -> None:
    x = np.load("batch.npy")
    wrong = {
        "double.npy": x.astype(np.float64),
        "narrow.npy": x[..., :4],
        "empty.npy": x[:0],
        "flat.npy": x[0, 0],
        "nan.npy": x * np.float32(np.nan),
        "objects.npy": np.array([{}], object),
        "text.npy": np.array(["a", "b"]),
    }
    archives: dict[str, Any] = {
        "nox.npz": {"y": x},
        "lengths.npz": {"x": x, "lengths": [1, 2]},
        "long.npz": {"x": x, "lengths": [99] * 8},
        "none.npz": {"x": x, "lengths": [0] * 8},
        "targets.npz": {"x": x, "targets": [1, 2]},
        "words.npz": {"x": x, "targets": list("abcdefgh")},
    }
    if name in wrong:
        np.save(name, wrong[name])
    elif name in archives:
        np.savez(name, **archives[name])
    elif name != "missing.npy":
        content = Path("batch.npy").read_bytes()
        Path(name).write_bytes({"cut.npy": content[:200], "nothing.npy": b""}.get(name, b"hello"))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("missing.npy", "No such file"),
        ("nothing.npy", "damaged"),
        ("cut.npy", "damaged"),
        ("prose.txt", "damaged"),
        ("double.npy", "expected float32, got float64"),
        ("narrow.npy", "expected shape (T, B, 10) or (T, 10), got (12, 8, 4)"),
        ("empty.npy", "at least one step"),
        ("flat.npy", "expected shape"),
        ("nan.npy", "finite"),
        ("objects.npy", "damaged"),
        ("text.npy", "expected float32"),
        ("nox.npz", "expected an array x in it, got y"),
        ("lengths.npz", "lengths: expected shape"),
        ("long.npz", "lengths: expected integers from 0 to 12"),
        ("none.npz", "at least one row with a step"),
        ("targets.npz", "targets"),
        ("words.npz", "targets: expected"),
    ],
)
def test_bad_data_is_one_clear_line(
    folder: Path, capsys: pytest.CaptureFixture[str], data: str, said: str
) -> None:
    bad_data(data)
    assert __main__.main(["diagnose", "lstm.npz", data]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("error: ")
    assert data in error and said in error


@pytest.mark.parametrize("model", ["missing.npz", "batch.npy", "cell.npz", "cut.npz", "all.npz"])
def test_bad_models_are_one_clear_line(
    folder: Path, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    Path("cut.npz").write_bytes(Path("lstm.npz").read_bytes()[:1000])
    assert __main__.main(["diagnose", model, "batch.npy"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and model in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lstm.npz", "batch.npy", "--what", "dance"], "dance"),
        (["lstm.npz", "batch.npy", "--length", "0"], "at least 1"),
        (["lstm.npz", "batch.npy", "--seed", "-1"], ""),
        (["lstm.npz"], "DATA"),
        (["gru.npz", "batch.npy", "--what", "lag"], "bidirectional"),
        (["lstm.npz", "batch.npy", "--what", "probe"], "no targets"),
        (["lstm.npz", "batch.npy", "--output", "batch.npy"], "exists"),
    ],
)
def test_bad_arguments(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    try:
        code = __main__.main(["diagnose", *arguments])
    except SystemExit as exit_:
        code = exit_.code  # type: ignore[assignment]
    assert code == 2
    assert said in capsys.readouterr().err


def test_overflow_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layer = rk.RNN(10, 2, nonlinearity="relu", seed=0)
    layer.weight_hh_l0[...] = 1e10 * np.eye(2)
    layer.bias_ih_l0[...] = 10
    layer.save("wild.npz")
    assert __main__.main(["diagnose", "wild.npz", "digits.npy"]) == 2
    assert "overflows at step 4 of this data" in capsys.readouterr().err
    assert __main__.main(["diagnose", "wild.npz", "digits.npy", "--length", "1"]) == 0
    with pytest.raises(ValueError, match="finite"):
        diagnose.jacobian_products(layer_of(rk.GRU, {}), sequence(T, I), np.full((2, H), np.nan))


@pytest.mark.parametrize("steps", [1, 9])
def test_a_dead_layer(folder: Path, capsys: pytest.CaptureFixture[str], steps: int) -> None:
    """No gradient and no output anywhere is an answer too, without a warning."""
    layer = rk.RNN(10, 2, nonlinearity="relu", seed=0)
    layer.bias_ih_l0[...] = -100
    layer.save("dead.npz")
    arguments = ["dead.npz", "digits.npy", "--length", str(steps)]
    assert __main__.main(["diagnose", *arguments]) == 0
    assert "h of l0: mean 0.000" in capsys.readouterr().out


def test_in_a_new_process(folder: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "rnnkern", "diagnose", "lstm.npz", "missing.npy"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert run.returncode == 2 and "Traceback" not in run.stderr and "missing.npy" in run.stderr
