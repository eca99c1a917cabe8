"""`layer.describe` counts what a layer has and needs."""

import dataclasses
import itertools

import numpy as np
import pytest

import rnnkern as rk

I, H, P = 7, 20, 6  # noqa: E741
SIZES = [{}, {"num_layers": 3}, {"bidirectional": True}, {"num_layers": 2, "bidirectional": True}]
LAYERS = [
    (rk.RNN, {}),
    (rk.RNN, {"layer_norm": True, "nonlinearity": "relu"}),
    (rk.LSTM, {}),
    (rk.LSTM, {"proj_size": P, "peephole": True, "learn_initial_state": True}),
    (rk.LSTM, {"coupled": "input", "peephole": True}),
    (rk.LSTM, {"layer_norm": True, "bias": False, "dtype": np.float64}),
    (rk.GRU, {"layer_norm": True}),
    (rk.GRU, {"reset_after": False, "learn_initial_state": True}),
    (rk.MGU, {"regularization": rk.Regularization(weight_dropout=0.5, zoneout_h=0.1)}),
    (rk.IndRNN, {}),
    (rk.SRU, {"learn_initial_state": True}),
    (rk.MinGRU, {"bias": False}),
]
ALL = [(cls, {**options, **sizes}) for (cls, options), sizes in itertools.product(LAYERS, SIZES)]


@pytest.mark.parametrize(("cls", "options"), ALL, ids=str)
def test_everything_is_counted_once(cls, options):
    layer = cls(I, H, **options, seed=0)
    found = layer.describe(9, 4)
    assert found.layer == repr(layer)
    assert found.parameter_count == layer.flat_params.size
    sizes = {name: array.size for name, array in layer.params.items()}
    parts = {"bias": "bias", "normalisation": "norm", "initial": "initial"}
    parts |= {"projection": "weight_hr", "peephole": "weight_ch"}
    for part in found.parameters:
        begin = parts.get(part, part)
        assert found.parameters[part] == sum(n for k, n in sizes.items() if k.startswith(begin))
    # each weight is used once
    assert len(found.multiply_adds) == layer.num_layers
    for k, count in enumerate(found.multiply_adds):
        assert count == sum(
            n for name, n in sizes.items()
            if name.startswith("weight") and name.removesuffix("_reverse").endswith(f"_l{k}")
        )  # fmt: skip


@pytest.mark.parametrize(("cls", "options"), ALL, ids=str)
@pytest.mark.parametrize(("T", "B"), [(1, 1), (9, 4), (0, 0)])
def test_bytes(cls, options, T, B):
    layer = cls(I, H, **options, seed=0)
    found = layer.describe(T, B).bytes
    memory = layer.memory_estimate(T, B)
    assert {name: found[name] for name in memory} == memory
    assert found["parameters"] == layer.flat_params.nbytes
    x = np.zeros((3, 1, I), layer.dtype)
    states = layer(x)[1]
    states = states if isinstance(states, tuple) else (states,)
    assert found["state"] == sum(state.nbytes for state in states)


def test_tape_is_what_recording_keeps():
    layer = rk.LSTM(I, H, seed=0)
    _, _, tape = layer.record(np.zeros((9, 4, I), np.float32))
    assert layer.describe(9, 4).bytes["tape"] == tape.nbytes


@pytest.mark.parametrize(
    ("layer", "weights", "biases"),
    [
        (rk.RNN(I, H), H * I + H * H, 2 * H),
        (rk.LSTM(I, H), 4 * (H * I + H * H), 8 * H),
        (rk.LSTM(I, H, coupled="forget"), 3 * (H * I + H * H), 6 * H),
        (rk.LSTM(I, H, proj_size=P), 4 * H * (I + P) + P * H, 8 * H),
        (rk.LSTM(I, H, peephole=True), 4 * H * (I + H) + 3 * H, 8 * H),
        (rk.LSTM(I, H, peephole=True, coupled="input"), 3 * H * (I + H) + 2 * H, 6 * H),
        (rk.GRU(I, H), 3 * (H * I + H * H), 6 * H),
        (rk.MGU(I, H), 2 * (H * I + H * H), 4 * H),
        (rk.IndRNN(I, H), H * I + H, H),
        (rk.SRU(I, H), 4 * H * I + 2 * H, 4 * H),
        (rk.MinGRU(I, H), 2 * H * I, 2 * H),
        (rk.LSTM(I, H, num_layers=2, bidirectional=True),
         8 * H * (I + H) + 8 * H * (2 * H + H), 32 * H),
    ],
)  # fmt: skip
def test_formulas(layer, weights, biases):
    found = layer.describe()
    assert sum(found.multiply_adds) == weights
    assert found.parameters["bias"] == biases
    assert found.parameter_count == weights + biases


@pytest.mark.parametrize(
    ("layer", "sets", "count"),
    [
        (rk.LSTM(I, H), 2, 4 * H * (I + H + 1)),
        (rk.LSTM(I, H, bias=False), 0, 4 * H * (I + H)),
        (rk.SRU(I, H), 1, 4 * H * I + 2 * H + 4 * H),
    ],
)
def test_sets_of_biases(layer, sets, count):
    found = layer.describe()
    assert (found.bias_sets, found.one_bias_count) == (sets, count)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("name", "options"), [("RNN", {}), ("LSTM", {}), ("GRU", {}), ("LSTM", {"proj_size": P})]
)
def test_torch_has_as_many(name, options, bias, sizes):
    torch = pytest.importorskip("torch")
    found = getattr(rk, name)(I, H, bias=bias, **options, **sizes).describe()
    twin = getattr(torch.nn, name)(I, H, bias=bias, **options, **sizes)
    counts = {k: p.numel() for k, p in twin.named_parameters()}
    assert found.parameter_count == sum(counts.values())
    assert sum(found.multiply_adds) == sum(n for k, n in counts.items() if k.startswith("weight"))


def test_table():
    text = str(rk.LSTM(40, 128, 2, proj_size=64).describe(100, 16))
    lines = text.splitlines()
    assert lines[0] == "LSTM(40, 128, num_layers=2, proj_size=64)"
    rows = [line.rsplit(maxsplit=1) for line in lines]
    assert ["parameters", "137,216"] in rows
    assert ["  (with one set of biases)", "136,192"] in rows
    assert ["multiply-adds a step and row", "135,168"] in rows
    assert ["  layer 0", f"{4 * 128 * (40 + 64) + 64 * 128:,}"] in rows
    assert ["  state", f"{2 * (64 + 128) * 4:,}"] in rows
    assert "bytes for T=100, B=16" in lines
    assert "peephole" not in text
    assert "layer 0" not in str(rk.SRU(2, 3).describe())


def test_it_does_not_change():
    found = rk.GRU(2, 3).describe()
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.steps = 3


@pytest.mark.parametrize("arguments", [(-1, 2), (2, 1.5), ("3", 1), (True, 1)])
def test_wrong_sizes(arguments):
    with pytest.raises((TypeError, ValueError), match=r"T|B"):
        rk.GRU(2, 3).describe(*arguments)
