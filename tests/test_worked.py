"""The worked examples: every number of the textbook, computed by the kernels."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from support import assert_bits

import rnnkern as rk

WORKED = Path(__file__).parent.parent / "examples" / "worked"
sys.path.insert(0, str(WORKED))  # the examples import what is beside them
scalar, products, lstm, gru, costs = map(
    import_module,
    [
        "scalar_recurrence", "long_products", "lstm_by_hand", "gru_by_hand", "lstm_against_gru",
    ],
)  # fmt: skip


def exactly(value):
    """Within rounding of float64."""
    return pytest.approx(value, rel=1e-14, abs=0)


def digits(number):
    """As many digits as a text gives: within half a unit of the last."""
    return pytest.approx(float(number), abs=0.5001 * 10.0 ** -len(number.partition(".")[2]))


# ---- scalar recurrence


@pytest.mark.parametrize(
    ("case", "states", "loss", "state_grads", "contributions", "total"),
    [
        (
            scalar.FIRST, [1, 0.5, 0.25], 0.28125,
            [-0.1875, -0.375, -0.75], [0, -0.375, -0.375], -0.75,
        ),
        (
            scalar.SECOND, [1, 2.5, 0.25], 0.03125,
            [0.0625, 0.125, 0.25], [0, 0.125, 0.625], 0.75,
        ),
    ],
)  # fmt: skip
def test_recurrence(case, states, loss, state_grads, contributions, total):
    found = scalar.run(**case)
    assert found.states.tolist() == states
    assert found.loss == loss
    assert found.state_grads.tolist() == state_grads
    assert found.contributions.tolist() == contributions
    assert found.total == found.contributions.sum() == total
    assert scalar.by_differences(**case) == pytest.approx(total, abs=1e-8)


def test_closed_form():
    assert scalar.closed_form(0.5) == scalar.run(**scalar.FIRST).total == -0.75


@pytest.mark.parametrize("w", [-1.3, -0.2, 0.0, 0.575, 1.0, 1.7])
def test_closed_form_elsewhere(w):
    case = scalar.FIRST | {"w": w}
    assert scalar.run(**case).total == pytest.approx(scalar.closed_form(w), rel=1e-13, abs=1e-15)
    assert scalar.by_differences(**case) == pytest.approx(scalar.closed_form(w), abs=1e-7)


def test_descent():
    w, after = scalar.descend(**scalar.FIRST, rate=0.1)
    assert w == exactly(0.575)
    assert after.states[-1] == exactly(0.330625)
    assert after.loss == exactly(0.2240314453125)


# ---- long products


@pytest.mark.parametrize(
    ("w", "last"), [(0.5, 0.0000152587890625), (1.5, 656.8408355712891)], ids=str
)
def test_factors(w, last):
    factors = products.backward(w, 16)
    assert factors.tolist() == [w**k for k in range(17)]
    assert factors[16] == last
    assert_bits(factors.copy(), products.forward(w, 16))


@pytest.mark.parametrize(
    ("w", "distance", "dh", "product"),
    [
        (0.5, 4, 2, "0.125"),
        (1.5, 4, 2, "10.125"),
        (0.5, 20, 1, "0.000000954"),
        (1.2, 20, 1, "38.3"),
    ],
)
def test_products(w, distance, dh, product):
    found = products.backward(w, distance, dh)[-1]
    assert found == digits(product)
    assert found == exactly(dh * w**distance)


def test_saturated_tanh():
    value, slope = products.tanh_and_slope(2)
    assert value == digits("0.964")
    assert value == exactly(np.tanh(2))
    assert slope == digits("0.071")
    assert slope == pytest.approx(1 / np.cosh(2) ** 2, rel=1e-13)


@pytest.mark.parametrize(
    ("f", "steps", "product"), [(0.9, 8, "0.43046721"), (0.99, 100, "0.366032"), (0.8, 3, "0.512")]
)
def test_forget_gates(f, steps, product):
    assert (f, steps) in products.GATES
    for found in products.through_gate(f, steps):
        assert found == digits(product)
        assert found == pytest.approx(f**steps, rel=1e-13)


# ---- gates by hand


@pytest.mark.parametrize(
    ("case", "c", "h"),
    [
        (lstm.CASES[0], 0.82, "0.506302"),
        (lstm.CASES[1], 1.5, "0.4526"),
        (lstm.CASES[2], 0.3, "0.291313"),
        (lstm.CASES[3], 0.3, "0.0"),
    ],
)
def test_lstm(case, c, h):
    found, output, gates = lstm.step(**case)
    assert found == exactly(c)
    assert output == digits(h)
    assert output == exactly(case["o"] * np.tanh(c))
    assert {"c": case["c"], **gates} == pytest.approx(case, rel=1e-14, abs=0)


def test_closed_output_gate_leaves_the_cell():
    shown, hidden = (lstm.step(**case) for case in lstm.CASES[2:])
    assert shown[0] == hidden[0]
    assert shown[1] > hidden[1] == 0


def test_gru_that_keeps():
    candidate, h = gru.keep()
    assert candidate[0] == digits("0.197375")
    assert candidate[0] == exactly(np.tanh(0.2))
    assert h[0] == digits("0.739738")


@pytest.mark.parametrize(("z", "h"), [(0.2, 0.7), (0.9, -0.35)])
def test_gru_that_writes(z, h):
    assert gru.write(z) == [exactly(h), exactly(h)]


@pytest.mark.parametrize("reset_after", [False, True])
@pytest.mark.parametrize("h", [0.8, -1.7, 1e-300])
def test_gru_that_changes_nothing(h, reset_after):
    assert gru.kept(h, reset_after) == h


def test_swapping_twice_changes_nothing():
    layer = rk.GRU(3, 5, seed=0)
    before = layer.flat_params.copy()
    x = np.random.default_rng(0).standard_normal((6, 3), np.float32)
    y, _ = layer(x)
    other, _ = gru.swapped(layer)(x)
    assert np.abs(other - y).max() > 0.01
    assert_bits(gru.swapped(layer).flat_params, before)


def test_places_of_reset():
    before, after = gru.places_of_reset()
    np.testing.assert_allclose(before, [0, np.tanh(0.2)], rtol=1e-14)
    np.testing.assert_allclose(after, [np.tanh(0.4), 0], rtol=1e-14)


# ---- costs


def test_costs():
    tables = costs.main(["--input", "12", "--hidden", "32", "--steps", "6", "--rows", "2"])
    assert list(tables) == ["width", "parameters", "time"]
    for rows in tables.values():
        assert [row["layer"] for row in rows] == [cls.__name__ for cls in costs.LAYERS]
        assert all(row["ms"] > 0 and row["tape"] > 0 for row in rows)
    width, parameters, time = ({row["layer"]: row for row in rows} for rows in tables.values())
    assert {row["units"] for row in width.values()} == {32}
    for count in ("parameters", "multiply-adds"):
        assert 4 * width["GRU"][count] == 3 * width["LSTM"][count] == 12 * width["RNN"][count]
    for row in parameters.values():
        assert row["parameters"] == pytest.approx(parameters["LSTM"]["parameters"], rel=0.05)
    assert time["LSTM"]["units"] == 32
    assert all(row["units"] % costs.PANEL == 0 for row in time.values())


@pytest.mark.parametrize(
    ("goal", "grain", "width"), [(10, 1, 3), (12, 1, 3), (13, 1, 4), (0, 1, 1), (900, 16, 32)]
)
def test_nearest(goal, grain, width):
    assert costs.nearest(lambda units: units**2, goal, grain) == width


# ---- as programs

PRINTED = {
    "scalar_recurrence": [
        "1 0.5 0.25", "0.28125", "-0.1875 -0.375 -0.75", "0 -0.375 -0.375",
        "total            -0.75", "by differences   -0.750000000", "closed form      -0.75",
        "0.575", "0.330625", "0.2240314453125",
        "1 2.5 0.25", "0.03125", "total            0.75",
    ],
    "long_products": [
        "0.0000152587890625", "656.8408355712891", "0.125", "10.125", "9.53674e-07", "38.3376",
        "0.964", "0.071", "0.43046721", "0.366032", "0.512",
    ],
    "lstm_by_hand": [
        "c' 0.82  h 0.506302", "c' 1.5  h 0.452574", "c' 0.3  h 0.291313", "c' 0.3  h 0.000000",
    ],
    "gru_by_hand": [
        "candidate 0.197375, h' 0.739738", "h' 0.7,", "h' -0.35,", "keeps h = 0.8: 0.8 0.8",
    ],
    "lstm_against_gru": ["at equal width", "at equal parameters", "at equal time", "MinGRU"],
}  # fmt: skip


SMALL = {"lstm_against_gru": ["--input", "8", "--hidden", "16", "--steps", "5", "--rows", "2"]}


@pytest.mark.parametrize("name", PRINTED)
def test_runs(name):
    result = subprocess.run(
        [sys.executable, str(WORKED / f"{name}.py"), *SMALL.get(name, [])],
        capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, "PYTHONUTF8": "1"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert [number for number in PRINTED[name] if number not in result.stdout] == []
