"""First values: distributions, blocks, the forget gate, seeds, errors that write nothing."""

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import rnnkern as rk
from rnnkern.initializers import initialize
from rnnkern.parameters import Module
from rnnkern.recurrent import Recurrent

I, H = 5, 8  # noqa: E741
KINDS = [rk.RNN, rk.LSTM, rk.GRU, rk.RNNCell, rk.LSTMCell, rk.GRUCell]
NAMES = [f"{name}_{kind}" for name in ("glorot", "he") for kind in ("uniform", "normal")]


class Stub(Recurrent):
    """A layer of any parameters, for kinds of cells and options whatever the package has."""

    def __init__(self, cell: str, shapes: Any, hidden_size: int, **options: Any) -> None:
        self._cell = cell
        self.hidden_size, self.bias = hidden_size, "bias_ih_l0" in shapes
        vars(self).update(options)
        Module.__init__(self, shapes, np.float64)

    def __repr__(self) -> str:
        return f"Stub({self._cell})"


def stub(cell: str, gates: int, hidden_size: int = H, **options: Any) -> Stub:
    rows = gates * hidden_size
    shapes = {"weight_ih_l0": (rows, I), "weight_hh_l0": (rows, hidden_size)}
    shapes |= {"bias_ih_l0": (rows,), "bias_hh_l0": (rows,)}
    return Stub(cell, shapes, hidden_size, **options)


def projected(width: int) -> Stub:
    shapes = {"weight_ih_l0": (4 * H, I), "weight_hh_l0": (4 * H, width)}
    return Stub("lstm", shapes | {"weight_hr_l0": (width, H)}, H)


def indrnn() -> Stub:
    shapes = {"weight_ih_l0": (H, I), "weight_hh_l0": (H,), "bias_ih_l0": (H,)}
    return Stub("indrnn", shapes, H)


def of_kind(layer: Any, kind: str) -> list[Any]:
    return [view for name, view in layer.params.items() if name.startswith(kind)]


def blocks(layer: Any, kind: str) -> list[Any]:
    h = layer.hidden_size
    return [v[i : i + h] for v in of_kind(layer, kind) for i in range(0, len(v), h)]


@pytest.mark.parametrize("cls", KINDS)
def test_uniform_is_what_layers_have_from_the_start(cls: Any) -> None:
    options = {} if "Cell" in cls.__name__ else {"num_layers": 2, "bidirectional": True}
    layer, other = cls(I, H, seed=3, **options), cls(I, H, seed=4, **options)
    assert (
        initialize(other, weight_ih="uniform", weight_hh="uniform", bias="uniform", seed=3) is None
    )
    np.testing.assert_array_equal(other.flat_params, layer.flat_params)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("per_gate", [True, False])
def test_variance_and_bounds(name: str, per_gate: bool) -> None:
    lstm = rk.LSTM(60, 100, dtype=np.float64)
    initialize(lstm, weight_ih=name, weight_hh=(name, -2), per_gate=per_gate, seed=1)
    rows = 100 if per_gate else 400
    for weights, scale in ((lstm.weight_ih_l0, 1), (lstm.weight_hh_l0, 2)):
        fan_in = weights.shape[1]
        variance = scale**2 * 2 / (fan_in + (rows if name.startswith("glorot") else 0))
        assert weights.var() == pytest.approx(variance, rel=0.05)
        assert abs(weights.mean()) < 0.02 * scale
        bound, largest = math.sqrt(3 * variance), abs(weights).max()
        if name.endswith("uniform"):
            assert 0.99 * bound < largest <= bound
        else:
            assert 2 * bound < largest  # not truncated


@pytest.mark.parametrize("name", NAMES)
def test_bounds_are_those_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    lstm = rk.LSTM(60, 100)
    initialize(lstm, weight_ih=name, seed=1)
    theirs = torch.empty(100, 60)
    generator = torch.Generator().manual_seed(1)
    rule = name.replace("glorot", "xavier").replace("he", "kaiming")
    options = {"nonlinearity": "relu"} if name.startswith("he") else {}
    getattr(torch.nn.init, f"{rule}_")(theirs, generator=generator, **options)
    for block in blocks(lstm, "weight_ih"):
        assert block.std() == pytest.approx(float(theirs.std()), rel=0.06)
        if name.endswith("uniform"):
            assert abs(block).max() == pytest.approx(float(theirs.abs().max()), rel=0.01)


@pytest.mark.parametrize("cls", KINDS)
def test_orthogonal_blocks(cls: Any) -> None:
    options = {} if "Cell" in cls.__name__ else {"num_layers": 2, "bidirectional": True}
    layer = cls(I, H, dtype=np.float64, **options)
    before = layer.state_dict()
    initialize(layer, weight_ih="orthogonal", weight_hh=("orthogonal", 0.5), seed=0)
    found = blocks(layer, "weight_hh")
    for block in found:
        np.testing.assert_allclose(block @ block.T, 0.25 * np.eye(H), atol=1e-14)
    assert len({block.tobytes() for block in found}) == len(found)
    for block in blocks(layer, "weight_ih"):  # of I columns, above the first layer of 2*H
        product = block.T @ block if block.shape[1] < H else block @ block.T
        np.testing.assert_allclose(product, np.eye(len(product)), atol=1e-14)
    for name, view in layer.params.items():
        assert np.array_equal(view, before[name]) == name.startswith("bias")


def test_orthogonal_matrices_are_equally_likely() -> None:
    """Without the signs of R the diagonal would have a mean far from zero."""
    gru = rk.GRU(I, 4, num_layers=300, dtype=np.float64)
    initialize(gru, weight_hh="orthogonal", seed=0)
    found = np.stack(blocks(gru, "weight_hh"))
    assert abs(found.mean(0)).max() < 0.07
    np.testing.assert_allclose((found**2).mean(0), 0.25, atol=0.03)


@pytest.mark.parametrize("width", [3, 8])
def test_projection(width: int) -> None:
    lstm = projected(width)
    initialize(lstm, weight_hh="orthogonal", weight_hr="orthogonal", seed=0)
    for block in blocks(lstm, "weight_hh"):
        np.testing.assert_allclose(block.T @ block, np.eye(width), atol=1e-14)
    wide = lstm.weight_hr_l0
    np.testing.assert_allclose(wide @ wide.T, np.eye(width), atol=1e-14)
    initialize(lstm, weight_hh="identity", weight_hr="glorot_uniform", seed=0)
    np.testing.assert_array_equal(lstm.weight_hh_l0, np.tile(np.eye(H, width), (4, 1)))
    assert abs(wide).max() <= math.sqrt(6 / (width + H))


def test_keras() -> None:
    lstm = rk.LSTM(60, 100, dtype=np.float64)
    initialize(
        lstm,
        weight_ih="glorot_uniform",
        weight_hh="orthogonal",
        bias="zeros",
        forget_bias=1,
        per_gate=False,
        seed=0,
    )
    bound = math.sqrt(6 / (60 + 4 * 100))
    assert 0.99 * bound < abs(lstm.weight_ih_l0).max() <= bound
    w = lstm.weight_hh_l0
    np.testing.assert_allclose(w.T @ w, np.eye(100), atol=1e-13)
    np.testing.assert_array_equal(lstm.bias_ih_l0, np.repeat([0, 1, 0, 0], 100))
    assert not lstm.bias_hh_l0.any()


@pytest.mark.parametrize("cls", [rk.RNN, rk.RNNCell])
def test_identity_keeps_the_state(cls: Any) -> None:
    rnn = cls(I, H, nonlinearity="relu")
    initialize(rnn, weight_hh="identity", bias=0)
    h0 = np.random.default_rng(0).random((3, H), np.float32)
    if cls is rk.RNN:
        h = rnn(np.zeros((20, 3, I), np.float32), h0[None])[1][0]
    else:
        h = rnn(np.zeros((3, I), np.float32), h0)
    np.testing.assert_array_equal(h, h0)
    initialize(rnn, weight_hh=("identity", 0.01))
    np.testing.assert_array_equal(of_kind(rnn, "weight_hh")[0], np.float32(0.01) * np.eye(H))


def test_indrnn_has_a_vector() -> None:
    layer = indrnn()
    u = layer.weight_hh_l0
    initialize(layer, weight_hh=("identity", 0.9))
    assert (u == 0.9).all()
    initialize(layer, weight_hh="uniform", weight_ih="he_normal", bias=0.25, seed=0)
    assert 0 < abs(u).max() <= 1 / math.sqrt(H)
    assert (layer.bias_ih_l0 == 0.25).all()
    initialize(layer, weight_hh=lambda shape, rng: rng.uniform(0.5, 1, shape), seed=0)
    assert u.min() >= 0.5
    with pytest.raises(
        ValueError, match=r"^weight_hh: expected 'uniform', 'identity' or 'zeros', got 'orthogonal'"
    ):
        initialize(layer, weight_hh="orthogonal")


@pytest.mark.parametrize("bias", [None, "zeros", "uniform", 3.0])
def test_forget_bias(bias: Any) -> None:
    lstm = rk.LSTM(I, H, num_layers=2, bidirectional=True, seed=0)
    before = lstm.state_dict()
    initialize(lstm, bias=bias, forget_bias=1.5, seed=2)
    other = rk.LSTM(I, H, num_layers=2, bidirectional=True, seed=0)
    initialize(other, bias=bias, seed=2)  # the forget gate changes nothing of what is drawn
    for name, view in lstm.params.items():
        if name.startswith("bias"):
            assert (view[H : 2 * H] == (1.5 if name.startswith("bias_ih") else 0)).all()
            rest = np.r_[:H, 2 * H : 4 * H]
            np.testing.assert_array_equal(view[rest], other.params[name][rest])
        else:
            np.testing.assert_array_equal(view, before[name])


def test_forget_bias_holds_the_cell_state() -> None:
    cell = rk.LSTMCell(I, H)
    initialize(cell, weight_ih=0, weight_hh="zeros", bias="zeros", forget_bias=2)
    c = np.ones((1, H), np.float32)
    _, c_n = cell(np.zeros((1, I), np.float32), (np.zeros_like(c), c))
    np.testing.assert_allclose(c_n, 1 / (1 + math.exp(-2)), rtol=1e-6)


@pytest.mark.parametrize(
    ("cell", "gates", "options", "rows"),
    [
        ("lstm", 4, {"coupled": None}, 1),
        ("lstm", 3, {"coupled": "input"}, 0),
        ("mgu", 2, {}, 0),
        ("sru", 4, {}, 1),
    ],
)
def test_rows_of_the_forget_gate(cell: str, gates: int, options: Any, rows: int) -> None:
    layer = stub(cell, gates, **options)
    initialize(layer, bias="zeros", forget_bias=-1)
    expected = np.zeros(gates * H)
    expected[rows * H : (rows + 1) * H] = -1
    np.testing.assert_array_equal(layer.bias_ih_l0, expected)
    assert not layer.bias_hh_l0.any()


@pytest.mark.parametrize(
    "layer",
    [
        rk.RNN(I, H),
        rk.GRU(I, H),
        rk.GRUCell(I, H),
        stub("lstm", 3, coupled="forget"),
        stub("mingru", 2),
        indrnn(),
    ],
)
def test_no_forget_gate(layer: Any) -> None:
    with pytest.raises(ValueError, match=r"^forget_bias: expected None, as .* has no forget gate"):
        initialize(layer, forget_bias=1)


def test_seeds() -> None:
    def values(seed: Any, **options: Any) -> Any:
        gru = rk.GRU(I, H, num_layers=2, bidirectional=True, seed=0, **options)
        rules = {"bias": "uniform", "weight_hh": "orthogonal", "weight_ih": "glorot_normal"}
        initialize(gru, **rules, seed=seed)
        return gru.flat_params

    first = values(1, dtype=np.float64)
    np.testing.assert_array_equal(first, values(np.random.default_rng(1), dtype=np.float64))
    np.testing.assert_array_equal(first.astype(np.float32), values(1))
    assert not np.array_equal(first, values(2, dtype=np.float64))
    assert not np.array_equal(values(None), values(None))
    rng = np.random.default_rng(1)
    assert not np.array_equal(values(rng), values(rng))


def test_functions_and_numbers() -> None:
    lstm = rk.LSTM(I, H, num_layers=2, learn_initial_state=True)
    lstm.initial_h_l0.fill(7)
    shapes: list[Any] = []

    def rule(shape: Any, rng: np.random.Generator) -> Any:
        shapes.append(shape)
        return np.full(shape, len(shapes))  # integers are cast

    initialize(lstm, weight_ih=rule, weight_hh=np.float32(0.5), bias=-1)
    assert shapes == [(H, I)] * 4 + [(H, H)] * 4
    np.testing.assert_array_equal(lstm.weight_ih_l0[:, 0], np.repeat([1, 2, 3, 4], H))
    assert (lstm.weight_hh_l1 == 0.5).all()
    assert (lstm.bias_hh_l1 == -1).all()
    assert (lstm.initial_h_l0 == 7).all()
    shapes.clear()
    initialize(lstm, bias=rule, per_gate=False)
    assert shapes == [(4 * H,)] * 4


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"weight_ih": "xavier"}, ValueError, r"weight_ih: expected 'uniform', .*, got 'xavier'"),
        ({"bias": "he_normal"}, ValueError, "bias: expected 'uniform' or 'zeros', got 'he_normal'"),
        ({"bias": "identity"}, ValueError, "bias: expected 'uniform' or 'zeros', got 'identity'"),
        ({"weight_hh": ("eye", 1)}, ValueError, "name of weight_hh: expected .*, got 'eye'"),
        ({"weight_hh": ("identity", "2")}, TypeError, "scale of weight_hh: .*, got str"),
        ({"weight_hh": ("identity", 1, 2)}, TypeError, "weight_hh: .*, got a tuple of 3"),
        ({"weight_hh": np.eye(H)}, TypeError, "weight_hh: expected a name, .*, got ndarray"),
        ({"weight_hh": True}, TypeError, "weight_hh: expected a name, .*, got bool"),
        ({"bias": math.nan}, ValueError, "bias: expected .* a finite number .*, got nan"),
        ({"bias": 10**400}, ValueError, "bias: expected .* a finite number"),
        ({"bias": 1e39}, ValueError, r"bias: expected .* finite in float32, got 1e\+39"),
        ({"bias": lambda shape, rng: [1]}, ValueError, r"result of bias: expected shape \(8,\)"),
        ({"bias": lambda shape, rng: None}, TypeError, "result of bias: .* real numbers, got None"),
        ({"bias": lambda shape, rng: [math.inf] * H}, ValueError, "bias: .* finite .*, got inf"),
        ({"forget_bias": "1"}, TypeError, "forget_bias: expected a finite number, got str"),
        ({"forget_bias": math.inf}, ValueError, "forget_bias: expected a finite number, got inf"),
        ({"forget_bias": -1e39}, ValueError, "forget_bias: expected .* finite in float32"),
        ({"weight_hr": "zeros"}, ValueError, r"weight_hr: .* LSTM\(5, 8\) has none, got 'zeros'"),
        ({"per_gate": 1}, TypeError, "per_gate: expected True or False, got 1"),
        ({"seed": "a"}, TypeError, "seed: "),
        ({"seed": -1}, ValueError, "seed: "),
    ],
)
def test_errors_write_nothing(arguments: Any, error: Any, message: str) -> None:
    lstm = rk.LSTM(I, H, seed=0)
    before = lstm.flat_params.copy()
    with pytest.raises(error, match=f"^{message}"):
        initialize(lstm, **{"weight_ih": "zeros", **arguments})
    np.testing.assert_array_equal(lstm.flat_params, before)


def test_what_the_layer_does_not_have() -> None:
    lstm = rk.LSTM(I, H, bias=False)
    with pytest.raises(ValueError, match=r"^bias: expected None, as LSTM.* has none, got 'zeros'"):
        initialize(lstm, bias="zeros")
    with pytest.raises(ValueError, match=r"^forget_bias: .* has no bias, got 1\.0"):
        initialize(lstm, forget_bias=1)
    sru = Stub("sru", {"weight_ih_l0": (4 * H, I)}, H)
    with pytest.raises(ValueError, match=r"^weight_hh: expected None, as .* has none"):
        initialize(sru, weight_hh="zeros")
    for wrong in (rk.train.Linear(2, 3), lstm.freeze(), None):
        with pytest.raises(TypeError, match=r"^layer: expected a recurrent layer or cell, got"):
            initialize(wrong, weight_ih="zeros")  # type: ignore[arg-type]


def test_import_is_light() -> None:
    program = (
        "import sys, numpy; before = set(sys.modules); import rnnkern.initializers\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert not any(name.startswith("numpy.random") for name in run.stdout.split())
