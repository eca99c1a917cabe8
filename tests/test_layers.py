"""Layers: the same numbers as the functions, the reference and torch; options, copies, files."""

from __future__ import annotations

import copy
import io
import json
import pickle
import subprocess
import sys
import threading
import tracemalloc
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import CASES, DROPOUT_SEED, Case, Data, as_tuple, make
from support import (
    CHECKPOINTS,
    VARIANTS,
    Array,
    Recording,
    assert_bits,
    assert_same_bits,
    function_options,
    regularization,
    shaken,
)

import rnnkern as rk
from rnnkern import _core, files, functional, reference
from rnnkern.arguments import network, new_call

try:
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    HAVE_TORCH = True
except ImportError:
    HAVE_TORCH = False

needs_torch = pytest.mark.skipif(not HAVE_TORCH, reason="torch is not installed")

LAYERS: list[Any] = [rk.RNN, rk.LSTM, rk.GRU, rk.MGU, rk.IndRNN, rk.SRU, rk.MinGRU]
CELLS = [rk.RNNCell, rk.LSTMCell, rk.GRUCell]

# Everything together: stacked, both directions, ragged, resets, restart states, dropout.
FULL = {
    name: Case(name, 9, 5, 6, 17, 3, True, True, layout, "zeros", "sparse", restart, True, 0.3)
    for name, layout, restart in [
        ("rnn_tanh", "time", "rows"),
        ("rnn_relu", "batch", "shared"),
        ("lstm", "batch", "shared"),
        ("gru_after", "time", "shared"),
        ("gru_before", "batch", "rows"),
    ]
}
full = pytest.mark.parametrize("case", FULL.values(), ids=FULL)
each_class = pytest.mark.parametrize("cls", LAYERS)
each_module = pytest.mark.parametrize("cls", LAYERS + CELLS)

# NumPy parses a file's header with `ast`, which CPython 3.11 cannot do in two threads at once.
sequential = pytest.mark.thread_unsafe(reason="ast in threads")


def layer_of(data: Data, **options: Any) -> Any:
    """The layer of a case, with its parameters."""
    case = data.case
    chosen = {
        "bias": case.bias,
        "batch_first": case.layout == "batch",
        "dropout": case.dropout,
        "bidirectional": case.bidirectional,
        "dtype": data.x.dtype,
        **case.options,
        **options,
    }
    layer = getattr(rk, case.function.upper())(case.I, case.H, case.L, **chosen)
    layer.load_state_dict(data.params)
    return layer


def arguments(data: Data) -> dict[str, Any]:
    """What calls of a layer take beside x."""
    names = ("hx", "lengths", "resets", "restart_state")
    return {name: getattr(data, name) for name in names}


def named(y: Any, hx_n: Any, dx: Any = None, dhx: Any = None) -> dict[str, Array]:
    """Results under the names of `Data.outputs`."""
    groups = {"hx_n": hx_n, "hx": dhx}
    given = {key: value for key, value in groups.items() if value is not None}
    out = {f"{key}[{i}]": a for key, s in given.items() for i, a in enumerate(as_tuple(s))}
    return out | {key: a for key, a in {"y": y, "x": dx}.items() if a is not None}


def outputs(layer: Any, data: Data, **options: Any) -> dict[str, Array]:
    """As `Data.outputs`, by a layer."""
    options = {**arguments(data), "dropout_seed": DROPOUT_SEED, **options}
    y, hx_n, tape = layer.record(options.pop("x", data.x), **options)
    layer.zero_grad()
    dx, dhx = tape.backward(data.dy, data.dhx_n)
    out = named(y, hx_n, dx, dhx) | {name: g.copy() for name, g in layer.grads.items()}
    if options["restart_state"] is not None:
        states = as_tuple(tape.restart_state_grad)
        out |= {f"restart_state[{i}]": a for i, a in enumerate(states)}
    return out


def assert_close(got: dict[str, Any], want: dict[str, Any], tolerance: float = 1e-12) -> None:
    assert got.keys() == want.keys()
    for name in want:
        a, b = np.asarray(got[name]), np.asarray(want[name])
        assert a.shape == b.shape, name
        scale = max(1.0, np.abs(b).max(initial=0))
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale, err_msg=name)


def small(cls: type, **options: Any) -> Any:
    return cls(3, 4, **{"seed": 0, **options})


def normal(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(1).standard_normal(shape).astype(dtype)


# --- numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference(case: Case) -> None:
    data = make(case)
    assert_close(outputs(layer_of(data), data), data.outputs(reference))


@full
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_all_options_at_once(case: Case, checkpoint: Any, dtype: Any) -> None:
    """Against the reference, and to the last bit against the functions, whatever is kept."""
    data = make(case, dtype)
    got = outputs(layer_of(data), data, checkpoint=checkpoint)
    assert_close(got, data.outputs(reference), 1e-12 if dtype == np.float64 else 2e-5)
    assert_same_bits(got, data.outputs(Recording()))


@full
def test_inference_is_recording_without_dropout(case: Case, dtype: Any) -> None:
    data = make(replace(case, dropout=0.0), dtype)
    want = named(*layer_of(data).record(data.x, **arguments(data))[:2])
    for dropout in (0.0, 0.9):
        layer = layer_of(data, dropout=dropout)
        assert_same_bits(named(*layer(data.x, **arguments(data))), want)
        assert_same_bits(named(*layer.freeze()(data.x, **arguments(data))), want)


@pytest.mark.parametrize("batch_first", [False, True])
@each_class
def test_one_sequence_is_a_batch_of_one(cls: type, batch_first: bool) -> None:
    layer = small(cls, num_layers=2, bidirectional=True, batch_first=batch_first)
    one, batch = layer_results(layer, normal(5, 3), 4), []
    axis = 0 if batch_first else 1
    batch = layer_results(layer, np.expand_dims(normal(5, 3), axis), [4])
    assert one["y"].shape == (5, 8)
    assert one["hx_n[0]"].shape == (4, 4)
    for name, a in batch.items():
        where = 1 if name.startswith("hx") else axis
        assert_bits(one[name], np.squeeze(a, where), name)


def layer_results(layer: Any, x: Array, lengths: Any = None, **options: Any) -> dict[str, Array]:
    y, hx_n, tape = layer.record(x, lengths=lengths, **options)
    return named(y, hx_n, *tape.backward(y, hx_n))


@each_class
def test_without_a_state_it_is_zero(cls: type) -> None:
    layer, x = small(cls, num_layers=2), normal(5, 2, 3)
    zeros = np.zeros((2, 2, 4), np.float32)
    given = layer(x, (zeros, zeros) if cls is rk.LSTM else zeros)
    assert_same_bits(named(*layer(x)), named(*given))


@pytest.mark.parametrize(("T", "B"), [(0, 2), (3, 0), (0, 0), (3, 2)])
@each_class
def test_nothing_to_do(cls: type, T: int, B: int) -> None:
    """No steps, no rows, or (the last) rows of length 0: states pass, gradients are zero."""
    layer = small(cls, num_layers=2, bidirectional=True)
    x = np.full((T, B, 3), np.nan, np.float32)
    state = normal(4, B, 4)
    hx = (state, -state) if cls is rk.LSTM else state
    y, hx_n, tape = layer.record(x, hx, lengths=np.zeros(B, int))
    dx, dhx = tape.backward(np.ones_like(y), hx)
    assert y.shape == (T, B, 8)
    assert not y.any()
    assert not dx.any()
    assert not layer.flat_grads.any()
    want = {f"{key}[{i}]": a for key in ("hx_n", "hx") for i, a in enumerate(as_tuple(hx))}
    assert_same_bits({k: a for k, a in named(y, hx_n, dx, dhx).items() if k in want}, want)
    assert_same_bits(named(*layer(x, hx, lengths=[0] * B)), named(y, hx_n))


def test_output_array_and_no_output() -> None:
    layer, x = small(rk.GRU), normal(5, 2, 3)
    y, h = layer(x)
    out = np.empty((5, 2, 8), np.float32)[..., :4]
    given, h2 = layer(x, out=out)
    assert given is out
    assert_same_bits(named(given, h2), named(y, h))
    for shape in ((0, 2), (5, 0)):
        empty = np.zeros((*shape, 4), np.float32)
        assert layer(np.zeros((*shape, 3), np.float32), out=empty)[0] is empty
    nothing, h3 = layer(x, need_output=False)
    assert nothing is None
    assert_bits(h3, h)


# --- torch ---------------------------------------------------------------------------------------


def torch_twin(layer: Any, **options: Any) -> Any:
    names = ("num_layers", "bias", "batch_first", "bidirectional", "nonlinearity", "proj_size")
    chosen = {name: getattr(layer, name) for name in names if name in vars(layer)}
    cls = getattr(torch.nn, type(layer).__name__)
    return cls(layer.input_size, layer.hidden_size, **chosen, dtype=torch.float64, **options)


OF_TORCH: list[dict[str, Any]] = [
    {},
    {"num_layers": 3, "bidirectional": True},
    {"num_layers": 2, "batch_first": True, "bias": False},
    {"bidirectional": True, "batch_first": True},
]


@needs_torch
@pytest.mark.parametrize("lengths", [None, [4, 7, 1]])
@pytest.mark.parametrize(
    ("cls", "options"),
    [
        *((cls, options) for cls in (rk.RNN, rk.LSTM, rk.GRU) for options in OF_TORCH),
        *((rk.LSTM, {**options, "proj_size": p}) for p, options in enumerate(OF_TORCH, 2)),
    ],
    ids=str,
)
def test_torch(cls: type, options: dict[str, Any], lengths: Any) -> None:
    layer = cls(5, 6, **options, dtype=np.float64, seed=0)
    twin = torch_twin(layer)
    assert list(layer.params) == [name for name, _ in twin.named_parameters()]
    layer.load_state_dict(twin.state_dict())  # theirs into ours
    layer.flat_params *= 1.5
    twin.load_state_dict({name: torch.from_numpy(p) for name, p in layer.state_dict().items()})

    x = normal(3, 7, 5, dtype=np.float64) if layer.batch_first else normal(7, 3, 5, dtype=float)
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    state = normal(count, 3, 6, dtype=np.float64)
    hx = (state[..., : options.get("proj_size", 6)], 2 * state) if cls is rk.LSTM else state
    y, hx_n, tape = layer.record(x, hx, lengths=lengths)
    dx, dhx = tape.backward(np.cos(y), hx)

    tx = torch.from_numpy(x).requires_grad_()
    thx = [torch.from_numpy(s.copy()).requires_grad_() for s in as_tuple(hx)]
    given = tuple(thx) if cls is rk.LSTM else thx[0]
    if lengths is None:
        ty, thx_n = twin(tx, given)
    else:
        keywords = {"batch_first": layer.batch_first, "enforce_sorted": False}
        ty, thx_n = twin(pack_padded_sequence(tx, torch.tensor(lengths), **keywords), given)
        ty, _ = pad_packed_sequence(ty, layer.batch_first, total_length=7)
    finals = list(as_tuple(thx_n))
    inputs = [tx, *thx, *twin.parameters()]
    upstream = [torch.cos(ty.detach()), *(torch.from_numpy(s) for s in as_tuple(hx))]
    grads = torch.autograd.grad([ty, *finals], inputs, upstream)
    want = named(
        ty.detach(), tuple(s.detach() for s in finals), grads[0], tuple(grads[1 : 1 + len(thx)])
    )
    want |= dict(zip(layer.params, grads[1 + len(thx) :], strict=True))
    assert_close({**named(y, hx_n, dx, dhx), **layer.grads}, want)


@needs_torch
def test_torch_parameters_and_dtypes() -> None:
    """Tensors of other float dtypes are cast; what cannot become an array is named."""
    twin = torch.nn.GRU(3, 4)
    layer = rk.GRU(3, 4, dtype=np.float64)
    layer.load_state_dict(twin.state_dict())
    assert layer.bias_hh_l0.tolist() == twin.bias_hh_l0.tolist()
    with pytest.raises(ValueError, match=r"^load_state_dict: ") as caught:
        layer.load_state_dict(dict(twin.named_parameters()))
    for name in layer.params:
        caught.match(rf"{name}: .* requires grad; pass {name}\.detach\(\)\.numpy\(\)")


# --- arrays of any kind --------------------------------------------------------------------------


def strided(a: Array) -> Array:
    return np.repeat(a, 2, axis=-1)[..., ::2] if a.ndim else a


def negative(a: Array) -> Array:
    every = (slice(None, None, -1),) * a.ndim
    return a[every].copy()[every]


def unaligned(a: Array) -> Array:
    memory = np.empty(a.nbytes + 1, np.uint8)
    view = memory[1:].view(a.dtype).reshape(a.shape)
    view[...] = a
    return view


def read_only(a: Array) -> Array:
    a = a.copy()
    a.flags.writeable = False
    return a


KINDS = {
    "strided": strided,
    "fortran": np.asfortranarray,
    "negative": negative,
    "swapped": lambda a: a.astype(a.dtype.newbyteorder()),
    "unaligned": unaligned,
    "read_only": read_only,
    "mixed": lambda a: negative(strided(np.asfortranarray(a.astype(a.dtype.newbyteorder())))),
}


@full
@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_any_kind_give_the_same_bits(case: Case, kind: str, dtype: Any) -> None:
    data = make(case, dtype)
    want = outputs(layer_of(data), data)

    def changed(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(changed, value))
        return KINDS[kind](value)

    names = ("x", "hx", "lengths", "resets", "restart_state", "dy", "dhx_n")
    twin = replace(data, **{name: changed(getattr(data, name)) for name in names})
    layer = layer_of(data)
    layer.load_state_dict({name: changed(a) for name, a in data.params.items()})
    assert_same_bits(outputs(layer, twin), want)


@pytest.mark.parametrize("lengths", [[2, 0, 5], (2, 0, 5), np.array([2, 0, 5], np.uint8)])
def test_lengths_and_resets_of_any_kind(lengths: Any) -> None:
    layer, x = small(rk.LSTM), normal(5, 3, 3)
    resets = np.zeros((5, 3), bool)
    resets[2, 2] = True
    want = named(*layer(x, lengths=np.array([2, 0, 5]), resets=resets))
    for given in (resets.tolist(), resets.astype(np.int8), resets * 2):
        assert_same_bits(named(*layer(x, lengths=lengths, resets=given)), want)


# --- errors --------------------------------------------------------------------------------------

OPTIONS: list[tuple[str, Any, type]] = [
    ("input_size", 0, ValueError),
    ("input_size", -1, ValueError),
    ("input_size", 2.5, TypeError),
    ("input_size", "3", TypeError),
    ("hidden_size", 0, ValueError),
    ("hidden_size", -1, ValueError),
    ("hidden_size", 4.0, TypeError),
    ("hidden_size", None, TypeError),
    ("input_size", True, TypeError),
    ("bias", 1, TypeError),
    ("bias", "yes", TypeError),
    ("bias", None, TypeError),
    ("dtype", np.float16, TypeError),
    ("dtype", "text", TypeError),
    ("dtype", None, TypeError),
    ("dtype", ">f4", TypeError),
    ("seed", -1, ValueError),
    ("seed", "one", TypeError),
    ("seed", 0.5, TypeError),
]
LAYER_OPTIONS: list[tuple[str, Any, type]] = [
    ("num_layers", 0, ValueError),
    ("num_layers", 1.0, TypeError),
    ("num_layers", True, TypeError),
    ("batch_first", 0, TypeError),
    ("batch_first", "no", TypeError),
    ("bidirectional", None, TypeError),
    ("dropout", -0.1, ValueError),
    ("dropout", 1.5, ValueError),
    ("dropout", float("nan"), ValueError),
    ("dropout", "0.5", TypeError),
    ("dropout", True, TypeError),
    ("dropout", None, TypeError),
]


@each_module
@pytest.mark.parametrize(("name", "value", "error"), OPTIONS)
def test_options_are_checked(cls: type, name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"^{name}: "):
        cls(**{"input_size": 3, "hidden_size": 4, name: value})


@each_class
@pytest.mark.parametrize(("name", "value", "error"), LAYER_OPTIONS)
def test_layer_options_are_checked(
    cls: type, name: str, value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=f"^{name}: "):
        cls(3, 4, **{name: value})


NUMBER, ABOVE = "expected a number", "expected a (finite )?number above 0"
OWN_OPTIONS: list[tuple[list[Any], dict[str, Any], type, str]] = [
    ([rk.RNN], {"nonlinearity": "sigmoidal"}, ValueError,
     "nonlinearity: expected 'sigmoid', .* or 'softplus', got 'sigmoidal'"),
    *[([rk.RNN, rk.RNNCell, rk.IndRNN], {"nonlinearity": value}, ValueError,
       f"nonlinearity: {expected}, got ")
      for value, expected in [
          (None, "expected 'sigmoid', .*"), (["tanh"], "expected 'sigmoid', .*"),
          (("elu", 1, 2), "expected at most 1 parameters of 'elu'"),
          (("tanh", 1), "expected no parameters of 'tanh'"),
      ]],
    *[([rk.RNN, rk.IndRNN], {"nonlinearity": value}, error,
       f"{of} in nonlinearity: expected {says}")
      for value, of, error, says in [
          (("elu", "1"), "alpha of elu", TypeError, "a number, got '1'"),
          (("affine", 1, np.inf), "beta of affine", ValueError, "a finite number, got inf"),
          (("hard_sigmoid", np.nan), "alpha of hard_sigmoid", ValueError, "a finite number"),
          *[((name, -1), f"alpha of {name}", ValueError, "a number of at least 0, got -1")
            for name in ("leaky_relu", "thresholded_relu", "elu")],
          (("scaled_tanh", 0), "alpha of scaled_tanh", ValueError, "a number other than 0, got 0"),
      ]],
    *[([cls], {"activations": value}, ValueError,
       rf"activations: expected {n} activations of the {cls.__name__} \({parts}\), got ")
      for cls, n, parts in [
          (rk.LSTM, 3, "gate, candidate, output"), (rk.GRU, 2, "gate, candidate"),
          (rk.MGU, 2, "gate, candidate"), (rk.SRU, 2, "gate, output"),
          (rk.MinGRU, 2, "gate, candidate"),
      ]
      for value in ("tanh", None, ["tanh"], ("tanh",) * 4, {"gate": "tanh"})],
    ([rk.GRU, rk.MGU, rk.MinGRU], {"activations": ("tanh", "tan")}, ValueError,
     r"activations \(candidate\): expected 'sigmoid', .*, got 'tan'"),
    ([rk.LSTM], {"activations": ("tanh", "tanh", ("elu", -1))}, ValueError,
     r"alpha of elu in activations \(output\): expected a number of at least 0, got -1"),
    *[(classes, {name: value}, error, f"{name}: {says}, got ")
      for classes, name in [([rk.RNN, rk.LSTM, rk.GRU], "clip"), ([rk.LSTM], "cell_clip"),
                            ([rk.RNN, rk.LSTM, rk.GRU], "norm_eps")]
      for value, error, says in [
          (0, ValueError, ABOVE), (-1.5, ValueError, ABOVE), (np.nan, ValueError, ABOVE),
          (np.inf, ValueError, "expected a finite number above 0"), ("1", TypeError, NUMBER),
          ([1], TypeError, NUMBER),
      ]],
    ([rk.LSTM], {"norm_eps": None}, TypeError, "norm_eps: expected a number, got None"),
    *[(classes, {name: value}, TypeError, f"{name}: expected True or False, got ")
      for classes, name in [([rk.RNN, rk.LSTM, rk.GRU], "layer_norm"), ([rk.LSTM], "peephole"),
                            ([rk.GRU, rk.GRUCell], "reset_after")]
      for value in (1, None, "no")],
    ([rk.GRU], {"layer_norm": True, "reset_after": False}, ValueError,
     "layer_norm: expected False with reset_after=False, got True"),
    *[([rk.LSTM], {"coupled": value}, ValueError, "coupled: expected 'input' or 'forget', got ")
      for value in ("output", True, 0)],
    *[([rk.LSTM], {"proj_size": n}, ValueError,
       f"proj_size: expected less than hidden_size = 4, got {n}") for n in (4, 5)],
    ([rk.LSTM], {"proj_size": -1}, ValueError, "proj_size: expected an integer of at least 0"),
    *[([rk.LSTM], {"proj_size": value}, TypeError, "proj_size: expected an integer of at least 0")
      for value in (2.0, True, None)],
    *[(LAYERS, {"regularization": value}, TypeError,
       f"regularization: expected a rnnkern.Regularization or None, got {got}")
      for value, got in [(0.5, "float"), ({}, "dict"), (rk.Regularization, "type")]],
]  # fmt: skip


@pytest.mark.parametrize(("classes", "options", "error", "says"), OWN_OPTIONS)
def test_own_options_are_checked(
    classes: list[Any], options: dict[str, Any], error: type[Exception], says: str
) -> None:
    for cls in classes:
        with pytest.raises(error, match=f"^{says}"):
            cls(3, 4, **options)


@pytest.mark.parametrize("name", [*rk.LSTM._defaults(), "nonlinearity", "reset_after"])
def test_options_of_other_classes_are_refused(name: str) -> None:
    for cls in LAYERS + CELLS:
        if name not in cls._defaults():
            with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
                cls(3, 4, **{name: None})


@pytest.mark.parametrize("cls", LAYERS)
def test_what_a_cell_lacks_is_refused(cls: Any) -> None:
    lacks = {
        rk.RNN: ["candidate_dropout", "zoneout_c"], rk.LSTM: [], rk.GRU: ["zoneout_c"],
        rk.MGU: ["zoneout_c"], rk.IndRNN: ["candidate_dropout", "weight_dropout", "zoneout_c"],
        rk.SRU: ["hidden_dropout", "weight_dropout", "zoneout_h"],
        rk.MinGRU: ["hidden_dropout", "weight_dropout", "zoneout_c"],
    }[cls]  # fmt: skip
    for field in fields(rk.Regularization):
        given = rk.Regularization(**{field.name: True if field.name == "variational" else 0.5})
        if field.name not in lacks:
            assert cls(3, 4, regularization=given).regularization is given
            continue
        says = f"^regularization: the {cls.__name__} has no {field.name}, expected 0, got 0.5$"
        layer = small(cls)
        with pytest.raises(ValueError, match=says):
            cls(3, 4, regularization=given)
        with pytest.raises(ValueError, match=says):
            layer.regularization = given
        assert layer.regularization is None


def test_options_can_be_numpy_scalars() -> None:
    layer = rk.LSTM(np.int64(3), np.uint8(4), np.int32(2), np.bool_(True), dropout=np.float32(0.5))
    assert repr(layer) == "LSTM(3, 4, num_layers=2, dropout=0.5)"
    assert type(layer.hidden_size) is int
    assert type(layer.dropout) is float


@each_module
def test_sizes_too_large_for_memory(cls: type) -> None:
    with pytest.raises(ValueError, match="too large"):
        cls(2**40, 2**40)


@pytest.mark.parametrize("num_layers", [2**27, 2**40, 2**70])
@each_class
def test_too_many_layers(cls: type, num_layers: int) -> None:
    """Refused before there are names of their parameters, which would fill the memory."""
    with pytest.raises(ValueError, match=r"^too large: \d+ parameters do not fit into memory"):
        cls(1, 1, num_layers)


def test_dropout_of_one_layer_warns_here() -> None:
    with pytest.warns(UserWarning, match="dropout=0.5 has no effect with num_layers=1") as caught:
        rk.GRU(3, 4, dropout=0.5)
    assert caught[0].filename == __file__


def test_options_are_fixed_but_two() -> None:
    layer = rk.LSTM(3, 4, num_layers=2)
    for name in ("input_size", "hidden_size", "num_layers", "bias", "bidirectional", "proj_size"):
        with pytest.raises(AttributeError, match=f"{name} is fixed"):
            setattr(layer, name, getattr(layer, name))
    layer.batch_first, layer.dropout = True, 1
    assert repr(layer) == "LSTM(3, 4, num_layers=2, batch_first=True, dropout=1.0)"
    assert layer(normal(5, 2, 3))[1][0].shape == (2, 5, 4)
    with pytest.raises(ValueError, match="dropout"):
        layer.dropout = 2
    with pytest.raises(TypeError, match="batch_first"):
        layer.batch_first = 1
    assert layer.dropout == 1


X, STATE = np.zeros((5, 2, 3), np.float32), np.zeros((1, 2, 4), np.float32)
BAD_CALLS: list[tuple[str, dict[str, Any], type, str]] = [
    ("x", {"x": np.zeros(3, np.float32)}, ValueError, "x: expected"),
    ("x", {"x": np.zeros((1, 5, 2, 3), np.float32)}, ValueError, "x: expected"),
    ("x", {"x": np.zeros((5, 2, 4), np.float32)}, ValueError, "x: expected input_size = 3"),
    (
        "x",
        {"x": X.astype(np.float64)},
        TypeError,
        r"x: expected float32.*np\.asarray\(x, np\.float32\)",
    ),
    ("x", {"x": X.astype(int)}, TypeError, "x: expected float32"),
    ("x", {"x": X.astype(np.complex64)}, TypeError, "x: expected float32"),
    ("x", {"x": None}, TypeError, "x: expected float32, got"),
    ("x", {"x": "text"}, TypeError, "x: expected float32, got"),
    ("hx", {"hx": np.zeros((2, 2, 4), np.float32)}, ValueError, "hx: expected shape"),
    ("hx", {"hx": np.zeros((1, 3, 4), np.float32)}, ValueError, "hx: expected shape"),
    ("hx", {"hx": np.zeros((1, 4), np.float32)}, ValueError, "hx: expected shape"),
    (
        "hx",
        {"hx": STATE.astype(np.float64)},
        TypeError,
        r"hx: expected float32.*np\.asarray\(hx, np\.float32\)",
    ),
    ("hx", {"hx": (STATE, STATE)}, TypeError, "hx: expected one array, got a tuple of 2"),
    ("lengths", {"lengths": [5, 6]}, ValueError, "lengths: expected integers from 0 to 5, got 6"),
    ("lengths", {"lengths": [-1, 5]}, ValueError, "lengths: expected integers from 0 to 5, got -1"),
    ("lengths", {"lengths": [2**62, 5]}, ValueError, "lengths: expected integers"),
    ("lengths", {"lengths": [5.0, 5.0]}, TypeError, "lengths: expected integers"),
    ("lengths", {"lengths": [True, True]}, TypeError, "lengths: expected integers"),
    ("lengths", {"lengths": [5]}, ValueError, "lengths: expected shape"),
    ("lengths", {"lengths": 5}, ValueError, "lengths: expected shape"),
    ("lengths", {"lengths": [[5, 5]]}, ValueError, "lengths: expected shape"),
    ("resets", {"resets": np.zeros((2, 5), bool)}, ValueError, "resets: expected shape"),
    ("resets", {"resets": np.zeros((5, 2, 1), bool)}, ValueError, "resets: expected shape"),
    ("resets", {"resets": np.zeros((5, 2))}, TypeError, "resets: expected booleans"),
    ("restart_state", {"restart_state": np.zeros((2, 4), np.float32)}, ValueError, "restart_state"),
    ("restart_state", {"restart_state": STATE.astype(float)}, TypeError, "restart_state"),
    ("num_threads", {"num_threads": 0}, ValueError, "num_threads"),
    ("num_threads", {"num_threads": 1.5}, TypeError, "num_threads"),
    ("other", {"other": 0}, TypeError, "other"),
]


@pytest.mark.parametrize(("argument", "given", "error", "message"), BAD_CALLS)
def test_arguments_are_checked(
    argument: str, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    layer = small(rk.GRU)
    for call in (layer, layer.record, layer.freeze()):
        with pytest.raises(error, match=message):
            call(**{"x": X, **given})


BAD_OUTPUTS: list[tuple[dict[str, Any], type]] = [
    ({"out": np.zeros((2, 5, 4), np.float32)}, ValueError),
    ({"out": np.zeros((5, 2, 4))}, TypeError),
    ({"out": [[0.0]]}, TypeError),
    ({"out": read_only(np.zeros((5, 2, 4), np.float32))}, ValueError),
    ({"out": np.broadcast_to(np.float32(0), (5, 2, 4))}, ValueError),
    ({"out": np.zeros((5, 2, 4), np.float32), "need_output": False}, ValueError),
]


@pytest.mark.parametrize(("given", "error"), BAD_OUTPUTS)
def test_outputs_are_checked(given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="out"):
        small(rk.GRU)(X, **given)


@pytest.mark.parametrize("hx", [STATE, [STATE], (STATE, STATE, STATE), "hc"])
def test_lstm_states_are_a_pair(hx: Any) -> None:
    with pytest.raises(TypeError, match=r"hx: expected a tuple \(h, c\)"):
        small(rk.LSTM)(X, hx)
    with pytest.raises(ValueError, match="c of hx: expected shape"):
        small(rk.LSTM)(X, (STATE, STATE[..., :3]))


@pytest.mark.parametrize("checkpoint", ["all", 0, -1, 1.5, True])
def test_checkpoint_is_checked(checkpoint: Any) -> None:
    with pytest.raises(ValueError, match="checkpoint: expected"):
        small(rk.RNN).record(X, checkpoint=checkpoint)


@pytest.mark.parametrize("seed", [-1, 2**64, 0.5, True])
def test_dropout_seed_is_checked(seed: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^dropout_seed: expected an integer"):
        small(rk.RNN).record(X, dropout_seed=seed)


# --- tapes ---------------------------------------------------------------------------------------


@full
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_nothing_between_record_and_backward_changes_gradients(case: Case, checkpoint: Any) -> None:
    data = make(case, np.float32)
    want = outputs(layer_of(data), data, checkpoint=checkpoint)
    layer, given = layer_of(data), copy.deepcopy(arguments(data))
    y, hx_n, tape = layer.record(data.x, **given, checkpoint=checkpoint, dropout_seed=DROPOUT_SEED)
    result = named(y.copy(), copy.deepcopy(hx_n))
    layer.flat_params *= 2  # an optimiser's step
    layer.dropout = 0.0
    y *= 3
    for state in (*as_tuple(hx_n), *as_tuple(given["hx"]), *as_tuple(given["restart_state"])):
        state[...] = np.nan
    given["lengths"][...] = 0
    given["resets"][...] = True
    dx, dhx = tape.backward(data.dy, data.dhx_n)
    result |= {**named(None, None, dx, dhx), **layer.grads}
    restart = as_tuple(tape.restart_state_grad)
    result |= {f"restart_state[{i}]": a for i, a in enumerate(restart)}
    assert_same_bits(result, want)


@each_class
def test_a_tape_is_used_once_unless_retained(cls: type) -> None:
    layer, x = small(cls, num_layers=2), normal(5, 2, 3)
    y, _, tape = layer.record(x)
    dx, _ = tape.backward(y, retain=True)
    once = layer.flat_grads.copy()
    dx2, _ = tape.backward(y)
    assert_bits(dx, dx2)
    assert_bits(layer.flat_grads, 2 * once)
    with pytest.raises(RuntimeError, match="has been used"):
        tape.backward(y)


def test_a_refused_backward_leaves_the_tape_usable() -> None:
    layer, x = small(rk.GRU), normal(5, 2, 3)
    y, _, tape = layer.record(x)
    for wrong, error in ((y[:4], ValueError), (y.astype(float), TypeError)):
        with pytest.raises(error, match="dy: expected"):
            tape.backward(wrong)
    with pytest.raises(ValueError, match="dhx_n: expected shape"):
        tape.backward(y, y)
    with pytest.raises(ValueError, match="grads: missing"):
        tape.backward(y, grads={})
    with pytest.raises(
        TypeError, match=r"^grads: expected a mapping of names to arrays, got a list"
    ):
        tape.backward(y, grads=[])
    tape.backward(y)
    assert layer.flat_grads.any()


def test_gradients_of_ones_own() -> None:
    layer, x = small(rk.LSTM, num_layers=2), normal(5, 2, 3)
    y, _, tape = layer.record(x)
    own = layer.grads.zeros_like()
    dx, _ = tape.backward(y, grads=own, need_dx=False)
    assert dx is None
    assert not layer.flat_grads.any()
    y, _, tape = layer.record(x)
    tape.backward(y)
    assert_bits(own.flat, layer.flat_grads)
    assert layer.flat_grads.all()
    layer.zero_grad()
    assert not layer.flat_grads.any()


# --- dropout -------------------------------------------------------------------------------------


def masking(p: float, seed: Any = 0, H: int = 64, T: int = 50) -> tuple[Any, Array]:
    """A layer whose outputs are its dropout mask's factors, and an input for it."""
    layer = rk.RNN(1, H, 2, "relu", dropout=p, seed=seed)
    layer.flat_params = np.zeros(layer.flat_params.size)
    layer.bias_ih_l0[:] = 1  # the first layer gives ones, the second passes them on
    layer.weight_ih_l1[...] = np.eye(H)
    return layer, np.zeros((T, 8, 1), np.float32)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.75])
def test_dropout_keeps_the_mean(p: float) -> None:
    layer, x = masking(p)
    mask = layer.record(x)[0]
    values, counts = np.unique(mask, return_counts=True)
    assert values.tolist() == [0, np.float32(1 / (1 - p))]
    n = mask.size
    assert abs(counts[0] / n - p) < 4 * np.sqrt(p * (1 - p) / n)
    for axes in ((0, 1), (0, 2), (1, 2)):  # no unit, row or step is treated apart
        part = (mask == 0).mean(axis=axes)
        assert np.abs(part - p).max() < 6 * np.sqrt(p * (1 - p) * part.size / n)


def test_dropout_of_all() -> None:
    layer, x = masking(1.0)
    y, _, tape = layer.record(x)
    assert not y.any()
    dx, _ = tape.backward(np.ones_like(y))
    assert not dx.any()


def test_dropout_is_for_recording() -> None:
    layer, x = masking(0.5)
    assert (layer(x)[0] == 1).all()
    assert (layer.freeze()(x)[0] == 1).all()


def test_each_call_draws_new_masks_in_a_sequence_that_the_seed_determines() -> None:
    (a, x), (b, _), (c, _) = masking(0.5, 7), masking(0.5, 7), masking(0.5, 8)
    first = [a.record(x)[0] for _ in range(3)]
    second = [b.record(x, num_threads=1 + i)[0] for i in range(3)]
    other = [c.record(x)[0] for _ in range(3)]
    for y, z in zip(first, second, strict=True):
        assert_bits(y, z)
    seen = [*first, *other, masking(0.5, None)[0].record(x)[0], masking(0.5, None)[0].record(x)[0]]
    for i, y in enumerate(seen):
        for z in seen[:i]:
            assert abs((y == z).mean() - 0.5) < 0.02  # independent
    a.record(x, dropout_seed=5)
    assert_bits(a.record(x)[0], b.record(x)[0])  # a fixed seed takes none of the sequence
    assert_bits(a.record(x, dropout_seed=5)[0], c.record(x, dropout_seed=5)[0])


@sequential
def test_masks_go_on_in_copies_and_files(tmp_path: Path) -> None:
    layer, x = masking(0.5)
    layer.record(x)
    layer.save(tmp_path / "layer")
    twins = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), rk.load(tmp_path / "layer")]
    want = layer.record(x)[0]
    for twin in twins:
        assert_bits(twin.record(x)[0], want)


def test_threads_never_share_a_mask() -> None:
    layer, x = masking(0.5, H=32, T=4)

    def record(_: int) -> list[bytes]:
        return [layer.record(x)[0].tobytes() for _ in range(20)]

    with ThreadPoolExecutor(8) as pool:
        masks = [mask for masks in pool.map(record, range(8)) for mask in masks]
    assert len(set(masks)) == len(masks) == 160


@pytest.mark.thread_unsafe(reason="sets how often threads take turns")
def test_threads_never_draw_one_seed_twice() -> None:
    """As above, with a switch of threads possible at every call."""
    layer = masking(0.5)[0]
    first, interval = layer._dropout_seed, sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            draws = pool.map(lambda _: [layer._next_dropout_seed() for _ in range(5000)], range(8))
            seeds = [seed for drawn in draws for seed in drawn]
    finally:
        sys.setswitchinterval(interval)
    assert sorted((seed - first) % 2**64 for seed in seeds) == list(range(40_000))


@full
def test_dropout_does_not_depend_on_threads(case: Case) -> None:
    data = make(replace(case, B=40), np.float32)
    want = outputs(layer_of(data), data, num_threads=1)
    for n in (2, 3, 8):
        assert_same_bits(outputs(layer_of(data), data, num_threads=n), want)


# --- parameters ----------------------------------------------------------------------------------


@each_module
def test_first_values(cls: type, dtype: Any) -> None:
    layer = cls(50, 64, dtype=dtype, seed=3)
    bound = 1 / 8
    for p in layer.params.values():
        assert p.dtype == dtype
        assert np.abs(p).max() <= bound
        assert abs(p.mean()) < bound / 4
        assert p.std() == pytest.approx(bound / np.sqrt(3), rel=0.25)
    assert np.abs(layer.flat_params).max() > 0.99 * bound
    assert_bits(cls(50, 64, dtype=dtype, seed=3).flat_params, layer.flat_params)
    assert (cls(50, 64, dtype=dtype, seed=4).flat_params != layer.flat_params).mean() > 0.99
    assert (cls(50, 64, dtype=dtype).flat_params != cls(50, 64, dtype=dtype).flat_params).any()
    single = cls(50, 64, seed=3).flat_params
    assert_bits(layer.flat_params.astype(np.float32), single)
    rng = np.random.default_rng(3)
    assert_bits(cls(50, 64, dtype=dtype, seed=rng).flat_params, layer.flat_params)
    assert not layer.flat_grads.any()


def test_names_shapes_and_views() -> None:
    layer = rk.LSTM(3, 4, num_layers=2, bidirectional=True)
    shapes = {
        f"{kind}_l{k}{suffix}": shape
        for k in range(2)
        for suffix in ("", "_reverse")
        for kind, shape in [
            ("weight_ih", (16, 8 if k else 3)),
            ("weight_hh", (16, 4)),
            ("bias_ih", (16,)),
            ("bias_hh", (16,)),
        ]
    }
    assert {name: p.shape for name, p in layer.params.items()} == shapes
    assert list(layer.params) == list(layer.grads) == list(layer.state_dict()) == list(shapes)
    assert layer.flat_params.size == sum(p.size for p in layer.params.values())
    layer.weight_hh_l1_reverse = np.ones((16, 4))
    assert (layer.params["weight_hh_l1_reverse"] == 1).all()
    assert np.shares_memory(layer.weight_hh_l1_reverse, layer.flat_params)
    plain = rk.GRU(3, 4, bias=False)
    assert list(plain.params) == ["weight_ih_l0", "weight_hh_l0"]
    with pytest.raises(AttributeError, match="'GRU' object has no attribute 'bias_ih_l0'"):
        _ = plain.bias_ih_l0


SQUARE = {"weight_ih": (4, 0), "weight_hh": (4, 4), "bias_ih": (4,), "bias_hh": (4,)}
NORMS = {"norm_ih": (4,), "norm_hh": (4,)}
OF_C = {"norm_c": (4,), "norm_c_bias": (4,)}
# class, options, blocks of rows, P, and shapes for one block, where 0 stands for the inputs
PARAMETERS: list[tuple[Any, dict[str, Any], int, int, dict[str, tuple[int, ...]]]] = [
    (rk.RNN, {"layer_norm": True}, 1, 4, {**SQUARE, **NORMS}),
    (rk.LSTM, {"proj_size": 3}, 4, 3, {**SQUARE, "weight_hh": (4, 3), "weight_hr": (3, 4)}),
    (rk.LSTM, {"layer_norm": True}, 4, 4, {**SQUARE, **NORMS, **OF_C}),
    (rk.LSTM, {"peephole": True, "proj_size": 1, "layer_norm": True}, 4, 1,
     {**SQUARE, "weight_hh": (4, 1), "weight_hr": (1, 4), "weight_ch": (12,), **NORMS, **OF_C}),
    (rk.LSTM, {"peephole": True, "coupled": "input"}, 3, 4, {**SQUARE, "weight_ch": (8,)}),
    (rk.LSTM, {"coupled": "forget"}, 3, 4, SQUARE),
    (rk.GRU, {"layer_norm": True}, 3, 4, {**SQUARE, **NORMS}),
    (rk.MGU, {}, 2, 4, SQUARE),
    (rk.IndRNN, {}, 1, 4, {"weight_ih": (4, 0), "weight_hh": (4,), "bias_ih": (4,)}),
    (rk.SRU, {}, 4, 4, {"weight_ih": (4, 0), "bias_ih": (4,), "weight_ch": (8,)}),
    (rk.MinGRU, {}, 2, 4, {"weight_ih": (4, 0), "bias_ih": (4,)}),
]  # fmt: skip
OF_ALL_GATES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "norm_ih", "norm_hh")


@pytest.mark.parametrize(("cls", "options", "blocks", "width", "shapes"), PARAMETERS)
@pytest.mark.parametrize("bias", [True, False])
def test_parameters_that_options_bring(
    cls: Any, options: Any, blocks: int, width: int, shapes: Any, bias: bool
) -> None:
    more = {"bias": bias, "bidirectional": True, "learn_initial_state": True, "seed": 0}
    layer = cls(3, 4, 2, **options, **more)
    want = {}
    for k, suffix in [(k, suffix) for k in (0, 1) for suffix in ("", "_reverse")]:
        for kind, shape in shapes.items():
            if bias or not kind.startswith("bias"):
                rows = shape[0] * (blocks if kind in OF_ALL_GATES else 1)
                columns = tuple(n or (2 * width if k else 3) for n in shape[1:])
                want[f"{kind}_l{k}{suffix}"] = (rows, *columns)
    states = {"h": width, "c": 4}
    for state in {rk.LSTM: "hc", rk.SRU: "c"}.get(cls, "h"):
        places = ["l0", "l0_reverse", "l1", "l1_reverse"]
        want |= {f"initial_{state}_{place}": (states[state],) for place in places}
    assert {name: p.shape for name, p in layer.params.items()} == want
    assert list(layer.params) == list(layer.grads) == list(layer.state_dict()) == list(want)
    for name, p in layer.params.items():
        if name.startswith(("norm_c_bias", "initial")):
            assert (p == 0).all()
        elif name.startswith("norm"):
            assert (p == 1).all()
        else:
            assert 0.02 < np.abs(p).max() <= 0.5
            assert len(np.unique(p)) == p.size


def test_a_wrong_state_dict_names_every_fault_and_loads_nothing() -> None:
    layer = small(rk.GRU)
    state, before = layer.state_dict(), layer.flat_params.copy()
    del state["bias_ih_l0"]
    state |= {"weight_ih_l0": np.zeros((3, 12)), "weight_ih_l1": np.zeros((12, 4))}
    with pytest.raises(ValueError, match="load_state_dict") as caught:
        layer.load_state_dict(state)
    for part in ("missing 'bias_ih_l0'", "unexpected 'weight_ih_l1'", r"weight_ih_l0: .*\(12, 3\)"):
        caught.match(part)
    assert_bits(layer.flat_params, before)


@each_class
def test_a_step_down_the_gradient_lowers_the_loss(cls: type) -> None:
    """params and grads belong together, by name and in flat."""
    layer, x = small(cls, num_layers=2, bidirectional=True, dtype=np.float64), normal(5, 2, 3)
    x = x.astype(np.float64)
    y, _, tape = layer.record(x)
    tape.backward(y)  # of |y|^2 / 2
    norm = (layer.flat_grads**2).sum()
    layer.flat_params -= 1e-5 * layer.flat_grads
    fell = (y**2).sum() / 2 - (layer(x)[0] ** 2).sum() / 2
    assert fell == pytest.approx(1e-5 * norm, rel=1e-3)


# --- repr, copies, snapshots ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "RNN(3, 4)",
        "RNN(3, 4, num_layers=2, nonlinearity='relu')",
        "LSTM(40, 128, num_layers=2, bidirectional=True)",
        "LSTM(3, 4, bias=False, batch_first=True, dtype=float64)",
        "GRU(3, 4, num_layers=2, dropout=0.25, reset_after=False)",
        "RNNCell(3, 4, nonlinearity='relu')",
        "LSTMCell(3, 4, bias=False)",
        "GRUCell(3, 4, reset_after=False, dtype=float64)",
        "LSTM(3, 4, proj_size=2, peephole=True, coupled='input', clip=1.5, cell_clip=2.0, "
        "layer_norm=True, norm_eps=0.1, learn_initial_state=True)",
        "LSTM(3, 4, activations=('sigmoid', ('elu', 0.5), ('affine', 1.0, 2.0)))",
        "RNN(3, 4, nonlinearity=('leaky_relu', 0.3), layer_norm=True, "
        "regularization=Regularization(zoneout_h=0.5, variational=True))",
        "GRU(3, 4, reset_after=False, activations=('hard_sigmoid', 'tanh'), clip=1.0)",
        "MGU(3, 4, num_layers=2, regularization=Regularization())",
        "IndRNN(3, 4, bias=False, nonlinearity='tanh')",
        "SRU(3, 4, bidirectional=True, activations=('sigmoid', 'tanh'))",
        "MinGRU(3, 4, activations=('sigmoid', ('scaled_tanh', 2.0)), dtype=float64)",
    ],
)
def test_repr_shows_what_is_not_the_default(text: str) -> None:
    known = {"rk": rk, "float64": np.float64, "Regularization": rk.Regularization}
    layer = eval(f"rk.{text}", known)
    assert repr(layer) == text
    snapshot = "FrozenCell" if "Cell" in text else "Frozen"
    assert repr(layer.freeze()) == f"{snapshot}({text})"


def test_options_are_kept_in_their_shortest_form() -> None:
    """Where parameters are the default a name, else a tuple of floats."""
    layer = rk.LSTM(3, 4, activations=[("hard_sigmoid", 1 / 6), ["elu", 1], ("affine", 2, 0)],
                    clip=np.float32(2), norm_eps=1)  # fmt: skip
    assert layer.activations == ("hard_sigmoid", "elu", ("affine", 2.0))
    assert [type(layer.clip), type(layer.norm_eps), type(layer.activations[2][1])] == [float] * 3


@sequential
@pytest.mark.parametrize("name", VARIANTS)
def test_every_option_in_copies_and_files(name: str, tmp_path: Path) -> None:
    cls, options = VARIANTS[name]
    more = {"dropout": 0.2, "learn_initial_state": True, "batch_first": True, "seed": 0}
    more["regularization"] = regularization(cls, 0.3, variational=True)
    layer = shaken(cls(3, 18, 2, bidirectional=True, **options, **more))
    x = normal(2, 6, 3)
    layer.save(tmp_path / "layer")
    twins = [rk.load(tmp_path / "layer"), *(duplicate(layer) for duplicate in DUPLICATES)]
    for twin in twins:
        assert repr(twin) == repr(layer)
        for option in cls._defaults():
            assert getattr(twin, option) == getattr(layer, option), option
        assert list(twin.params) == list(layer.params)
        assert_same_bits(named(*twin(x)), named(*layer(x)))
        assert_same_bits(
            layer_results(twin, x, dropout_seed=3), layer_results(layer, x, dropout_seed=3)
        )
        assert_bits(twin.flat_grads, layer.flat_grads)
        layer.zero_grad()
    assert_same_bits(named(*layer.freeze()(x)), named(*layer(x)))


@sequential
@pytest.mark.parametrize("cls", [rk.RNN, rk.LSTM, rk.GRU])
def test_files_of_earlier_versions(cls: type, tmp_path: Path) -> None:
    """They lack the options that did not exist, which are then the default."""
    options = {"num_layers": 2, "bidirectional": True, "dropout": 0.5}
    layer = small(cls, **options)
    path, header, arrays = saved(layer, tmp_path)
    known = {"input_size", "hidden_size", "bias", "batch_first", "nonlinearity", "reset_after"}
    kept = {n: v for n, v in header["options"].items() if n in known | options.keys()}
    assert kept.keys() < header["options"].keys()
    rewrite(path, header | {"options": kept}, arrays)
    twin = rk.load(path)
    assert repr(twin) == repr(layer)
    assert_same_bits(named(*twin(X)), named(*layer(X)))
    assert_bits(twin.record(X)[0], layer.record(X)[0])


class Encoder(rk.LSTM):
    """As a user derives one, with arguments of its own."""

    def __init__(self) -> None:
        super().__init__(3, 4, bidirectional=True, seed=0)
        self.note = "mine"


DUPLICATES = [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))]


@full
@pytest.mark.parametrize("duplicate", DUPLICATES, ids=["deepcopy", "pickle"])
def test_copies(case: Case, duplicate: Any) -> None:
    data = make(case)
    layer = layer_of(data)
    want = outputs(layer, data)
    twin = duplicate(layer)
    assert type(twin) is type(layer)
    assert repr(twin) == repr(layer)
    assert_bits(twin.flat_grads, layer.flat_grads)
    assert_same_bits(outputs(twin, data), want)
    for flat, views in ((twin.flat_params, twin.params), (twin.flat_grads, twin.grads)):
        flat[:] = 5
        assert all((view == 5).all() for view in views.values())
    assert twin.weight_hh_l2_reverse is twin.params["weight_hh_l2_reverse"]
    assert_same_bits(outputs(layer, data), want)


def test_a_shallow_copy_shares_parameters() -> None:
    layer = small(rk.GRU)
    twin = copy.copy(layer)
    twin.bias_hh_l0[:] = 2
    assert (layer.bias_hh_l0 == 2).all()


@sequential
@pytest.mark.parametrize("duplicate", DUPLICATES, ids=["deepcopy", "pickle"])
def test_derived_classes(duplicate: Any, tmp_path: Path) -> None:
    layer = Encoder()
    twin = duplicate(layer)
    assert type(twin) is Encoder
    assert twin.note == "mine"
    assert repr(twin) == "Encoder(3, 4, bidirectional=True)"
    layer.save(tmp_path / "layer")
    assert repr(rk.load(tmp_path / "layer")) == "LSTM(3, 4, bidirectional=True)"


@full
def test_frozen(case: Case, dtype: Any) -> None:
    data = make(case, dtype)
    layer = layer_of(data)
    frozen = layer.freeze()
    want = named(*layer(data.x, **arguments(data)))
    layer.flat_params = np.zeros(layer.flat_params.size)
    layer.batch_first = not layer.batch_first
    assert_same_bits(named(*frozen(data.x, **arguments(data))), want)
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(lambda _: frozen(data.x, **arguments(data)), range(8)):
            assert_same_bits(named(*result), want)


@each_module
def test_frozen_is_immutable(cls: type) -> None:
    frozen = small(cls).freeze()
    assert copy.copy(frozen) is copy.deepcopy(frozen) is frozen
    for name in ("params", "grads", "record", "flat_params", "weight_ih_l0", "weight_ih"):
        assert not hasattr(frozen, name)
        with pytest.raises(AttributeError):
            setattr(frozen, name, 0)
    with pytest.raises(TypeError, match="pickle or save the layer"):
        pickle.dumps(frozen)


# --- memory --------------------------------------------------------------------------------------


@full
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_memory_estimate(case: Case, checkpoint: Any, dtype: Any) -> None:
    data = make(replace(case, dropout=0.0, restart="none"), dtype)
    layer = layer_of(data)
    y, hx_n, tape = layer.record(data.x, **arguments(data), checkpoint=checkpoint)
    estimate = layer.memory_estimate(case.T, case.B, data.lengths, checkpoint)
    assert estimate["tape"] == pytest.approx(tape.nbytes, rel=0.05)
    assert estimate["outputs"] == y.nbytes + sum(s.nbytes for s in as_tuple(hx_n))
    assert estimate["packed"] >= layer.flat_params.nbytes / 2
    assert estimate["workspace"] > 0
    inference = layer.memory_estimate(case.T, case.B, data.lengths, record=False)
    assert inference["tape"] == 0
    assert inference["packed"] == estimate["packed"]


def test_memory_estimate_follows_checkpoint_and_lengths() -> None:
    layer = rk.LSTM(16, 64)
    tapes = [layer.memory_estimate(400, 8, checkpoint=c)["tape"] for c in (None, "gates", "auto")]
    assert tapes == sorted(tapes, reverse=True)
    assert tapes[0] > 2 * tapes[1] > 4 * tapes[2]
    ragged = layer.memory_estimate(400, 8, [40] * 8)["tape"]
    assert ragged < tapes[0] / 5
    assert all(layer.memory_estimate(T, B)["outputs"] >= 0 for T, B in ((0, 1), (1, 0), (0, 0)))


@full
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_memory_estimate_is_what_the_kernels_ask_for(case: Case, checkpoint: Any) -> None:
    data = make(replace(case, dropout=0.0, restart="none"), np.float32)
    layer = layer_of(data)
    net = network(layer._options, layer.params).structure.net()
    for threads in (1, 4):
        call = new_call(case.T, case.B, data.lengths, checkpoint=checkpoint, record=True,
                        num_threads=threads)  # fmt: skip
        packed, tape, *workspaces = _core.sizes(net, call)
        got = layer.memory_estimate(case.T, case.B, data.lengths, checkpoint, num_threads=threads)
        want = {"tape": tape, "packed": packed, "workspace": max(workspaces)}
        assert {name: got[name] for name in want} == want
    one, four = (layer.memory_estimate(400, 100, num_threads=n)["workspace"] for n in (1, 4))
    assert one < four


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_memory_estimate_of_variants(name: str, p: float) -> None:
    """What the kernels ask for, from layers and from functions."""
    cls, options = VARIANTS[name]
    layer = cls(6, 20, 2, dropout=p, regularization=regularization(cls, p), **options)
    lengths = np.array([9, 0, 4, 7, 9])
    known = functional.memory_estimate
    for checkpoint in CHECKPOINTS:
        y, hx_n, tape = layer.record(normal(9, 5, 6), lengths=lengths, checkpoint=checkpoint)
        packed, size, *workspaces = _core.sizes(tape._packed.net, tape._call)
        got = layer.memory_estimate(9, 5, lengths, checkpoint)
        assert (got["tape"], got["packed"]) == (size, packed) == (tape.nbytes, packed)
        assert got["outputs"] == y.nbytes + sum(s.nbytes for s in as_tuple(hx_n))
        masked = sum(g.nbytes for n, g in layer.grads.items() if n.startswith("weight_hh"))
        masked *= bool(layer.regularization.weight_dropout)
        forward, backward = workspaces
        assert got["workspace"] == max(forward, backward + masked)
        assert got == known(
            layer.params, layer._cell, 9, 5, lengths=lengths, checkpoint=checkpoint, dropout=p,
            regularization=layer.regularization, **function_options(options),
        )  # fmt: skip
    inference = layer.memory_estimate(9, 5, lengths, record=False)
    assert inference["tape"] == 0
    assert inference["outputs"] == got["outputs"]


def test_auto_is_the_root_of_the_longest_length() -> None:
    """And a number of steps keeps less than all states do."""
    layer, full = rk.LSTM(16, 64), None
    for lengths, root in ((full, 20), ([100, 3, 0, 99], 10), ([0] * 4, 1)):
        auto, k, states = (
            layer.memory_estimate(400, 4, lengths, checkpoint)["tape"]
            for checkpoint in ("auto", root, "gates")
        )
        assert auto == k
        assert root == 1 or k < states / 4


def test_a_used_tape_lets_go_of_its_memory() -> None:
    layer = small(rk.LSTM)
    _, _, tape = layer.record(normal(5, 2, 3))
    before = tape.nbytes
    tape.backward(retain=True)
    assert tape.nbytes == before > 0
    tape.backward()
    assert tape.nbytes == 0


@pytest.mark.parametrize("value", [-1, 1.5, "2", None, True, 2**31, 2**70])
def test_memory_estimate_is_checked(value: Any) -> None:
    layer = small(rk.RNN)
    for estimate in (
        layer.memory_estimate,
        layer.plan,
        partial(functional.memory_estimate, layer.params, "rnn"),
    ):
        for name, sizes in (("T", (value, 2)), ("B", (2, value))):
            with pytest.raises((TypeError, ValueError), match=f"^{name}: expected an integer from"):
                estimate(*sizes)
        with pytest.raises(
            ValueError, match=r"^T, B: expected a call whose memory can be addressed"
        ):
            estimate(2**31 - 1, 2**31 - 1)
        with pytest.raises(TypeError, match=r"^record: expected True or False"):
            estimate(2, 2, record=1)
    with pytest.raises(ValueError, match="checkpoint"):
        layer.memory_estimate(2, 2, checkpoint="all")
    with pytest.raises(ValueError, match="lengths"):
        layer.memory_estimate(2, 2, lengths=[3, 1])


# --- files ---------------------------------------------------------------------------------------

IN_A_NEW_PROCESS = """
import sys, numpy as np, rnnkern as rk
layer = rk.load(sys.argv[1])
x = np.load(sys.argv[2])
y = layer(x)
y = y[0] if isinstance(y, tuple) else y
sys.stdout.write(repr(layer) + " " + y.tobytes().hex())
"""


@sequential
@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (rk.RNN, {"nonlinearity": "relu", "bidirectional": True}),
        (rk.LSTM, {"num_layers": 2, "dropout": 0.5, "batch_first": True, "dtype": np.float64}),
        (rk.GRU, {"reset_after": False, "bias": False}),
        (rk.RNNCell, {"nonlinearity": "relu"}),
        (rk.LSTMCell, {"bias": False}),
        (rk.GRUCell, {"reset_after": False, "dtype": np.float64}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_saved_layer_in_a_new_process(cls: type, options: Any, tmp_path: Path) -> None:
    layer = small(cls, **options)
    x = normal(*((2, 3) if cls in CELLS else (5, 2, 3)), dtype=layer.dtype)
    layer.save(tmp_path / "layer")
    np.save(tmp_path / "x.npy", x)
    program = [sys.executable, "-c", IN_A_NEW_PROCESS, tmp_path / "layer", tmp_path / "x.npy"]
    printed = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    y = layer(x)
    y = y[0] if isinstance(y, tuple) else y
    assert printed == f"{layer!r} {y.tobytes().hex()}"


@sequential
@each_module
def test_files(cls: type, tmp_path: Path) -> None:
    layer = small(cls)
    layer.flat_grads = np.ones(layer.flat_grads.size)
    for name in ("layer", "layer.npz", "layer.model"):
        layer.save(str(tmp_path / name))
        layer.save(tmp_path / name)  # again
        twin = rk.load(str(tmp_path / name))
        assert type(twin) is cls
        assert_bits(twin.flat_params, layer.flat_params)
        assert np.shares_memory(twin.flat_params, next(iter(twin.params.values())))
        assert not twin.flat_grads.any()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["layer", "layer.model", "layer.npz"]
    with np.load(tmp_path / "layer", allow_pickle=False) as archive:  # plain NumPy can read it
        assert set(archive) == {"header", *layer.params}
        header = json.loads(str(archive["header"]))
    assert header["class"] == cls.__name__
    assert header["dtype"] == "float32"


def saved(layer: Any, tmp_path: Path) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    path = tmp_path / "layer"
    layer.save(path)
    with np.load(path) as archive:
        arrays = dict(archive.items())
    return path, json.loads(str(arrays.pop("header"))), arrays


def rewrite(path: Path, header: Any, arrays: dict[str, Any]) -> None:
    with path.open("wb") as file:
        np.savez(file, header=np.array(json.dumps(header)), **arrays)


BAD_HEADERS: list[tuple[dict[str, Any], str]] = [
    ({"format": "other"}, "not a file that rnnkern saved"),
    ({"version": 2}, "format version 2, but this rnnkern reads 1"),
    ({"version": "1"}, "format version '1'"),
    ({"class": "Transformer"}, "unknown class 'Transformer'; this rnnkern has RNN, LSTM, GRU"),
    ({"class": ["GRU"]}, "unhashable"),
    ({"options": {}}, "options: expected input_size, hidden_size"),
    ({"options": [3, 4]}, "options: expected"),
    ({"options": {"hidden_size": 0}}, "hidden_size: expected a positive integer"),
    ({"options": {"hidden_size": 5}}, r"weight_hh_l0: expected shape \(15, 5\), got \(12, 4\)"),
    ({"options": {"hidden_size": 2**22}}, "too large"),
    ({"options": {"hidden_size": 2**40}}, "too large"),
    ({"options": {"num_layers": 2**40}}, "too large"),
    ({"options": {"bidirectional": True}}, "missing 'weight_ih_l0_reverse'"),
    ({"options": {"more": 1}}, "options: expected"),
    ({"dtype": "float16"}, "dtype: expected float32 or float64"),
    ({"dtype": None}, "dtype: expected float32 or float64"),
    ({"dropout_seed": -1}, "dropout_seed: expected an integer"),
]


@sequential
@pytest.mark.parametrize(("change", "message"), BAD_HEADERS)
def test_a_wrong_header(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path, header, arrays = saved(small(rk.GRU), tmp_path)
    if isinstance(change.get("options"), dict) and change["options"]:
        change = {"options": header["options"] | change["options"]}
    rewrite(path, header | change, arrays)
    with pytest.raises(ValueError, match=message) as caught:
        rk.load(path)
    assert str(path) in str(caught.value)


@sequential
@pytest.mark.parametrize("header", [None, 3, "text", [], {}, {"version": 1}])
def test_a_foreign_header(header: Any, tmp_path: Path) -> None:
    path, _, arrays = saved(small(rk.GRU), tmp_path)
    rewrite(path, header, arrays)
    with pytest.raises(ValueError, match="not a file that rnnkern saved"):
        rk.load(path)


@sequential
@pytest.mark.parametrize("key", ["version", "class", "options", "dtype", "dropout_seed"])
def test_an_incomplete_header(key: str, tmp_path: Path) -> None:
    path, header, arrays = saved(small(rk.GRU), tmp_path)
    del header[key]
    rewrite(path, header, arrays)
    with pytest.raises(ValueError, match=key):
        rk.load(path)


@sequential
def test_wrong_arrays(tmp_path: Path) -> None:
    path, header, arrays = saved(small(rk.GRU), tmp_path)
    rewrite(path, header, {**arrays, "bias_ih_l0": np.array(["a"] * 12), "extra": np.zeros(2)})
    with pytest.raises(ValueError, match=r"unexpected 'extra'.*bias_ih_l0: expected real numbers"):
        rk.load(path)
    del arrays["bias_hh_l0"]
    rewrite(path, header, arrays)
    with pytest.raises(ValueError, match="missing 'bias_hh_l0'"):
        rk.load(path)


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def archive(name: str, content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as z:
        z.writestr(name, content)
    return file.getvalue()


@sequential
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text",
        b"PK\x03\x04",
        bytes(1000),
        npy(np.zeros(3)),
        npz(),
        npz(weight=np.zeros(3)),
        npz(header=np.zeros(3)),
        npz(header=np.array({"format": "rnnkern"}, object)),
        archive("header", b"text"),
        archive("header.npy", b"text"),
        pickle.dumps({"format": "rnnkern"}),
    ],
    ids=range(12),
)
def test_other_files(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="file: not a file that rnnkern saved"):
        rk.load(path)


@sequential
def test_loading_runs_nothing(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "sprung",)

    path, header, arrays = saved(small(rk.GRU), tmp_path)
    for name in ("header", "bias_ih_l0"):
        given = {"header": np.array(json.dumps(header)), **arrays, name: np.array(Trap(), object)}
        path.write_bytes(npz(**given))
        with pytest.raises(ValueError, match="allow_pickle=False"):
            rk.load(path)
    assert not (tmp_path / "sprung").exists()


@sequential
def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        rk.load(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        rk.load(tmp_path)
    with pytest.raises(FileNotFoundError):
        small(rk.GRU).save(tmp_path / "none" / "layer")


@sequential
def test_damaged_files(tmp_path: Path) -> None:
    """A cut is always found; a changed byte is found or harmless."""
    path = tmp_path / "layer"
    layer = small(rk.GRU)
    layer.save(path)
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for end in (*range(0, len(content), 97), len(content) - 1):
        path.write_bytes(content[:end])
        with pytest.raises(ValueError, match="layer: "):
            rk.load(path)
    for at in rng.integers(0, len(content), 300):
        damaged = bytearray(content)
        damaged[at] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        try:
            twin = rk.load(path)
        except ValueError as error:
            assert "layer: " in str(error)
        else:
            assert_bits(twin.flat_params, layer.flat_params)


# --- the package ---------------------------------------------------------------------------------


def test_exports() -> None:
    for name in rk.__all__:
        assert getattr(rk, name) is not None
        assert name in dir(rk)
    assert {c.__name__ for c in LAYERS + CELLS} <= set(rk.__all__)
    assert rk.load is files.load
    with pytest.raises(AttributeError, match="module 'rnnkern' has no attribute 'Transformer'"):
        _ = rk.Transformer


def test_version_is_that_of_the_distribution() -> None:
    from importlib.metadata import version

    assert rk.__version__ == version("rnnkern")


def test_import_is_light() -> None:
    program = (
        "import sys, numpy; before = set(sys.modules); import rnnkern\n"
        "print(*sorted(set(sys.modules) - before))\n"
        "rnnkern.train.SGD; rnnkern.reference.lstm_forward"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    loaded = set(run.stdout.split())
    assert "rnnkern.layers" in loaded
    assert not loaded & {"rnnkern.train", "rnnkern.reference", "json", "dataclasses", "torch"}
    assert not any(name.startswith("numpy.random") for name in loaded)


def test_one_layer_serves_many_threads() -> None:
    """Inference, and training with gradients of one's own."""
    layer = small(rk.LSTM, num_layers=2, bidirectional=True)
    xs = [np.random.default_rng(i).standard_normal((20, 4, 3), np.float32) for i in range(8)]

    def run(x: Array) -> list[Array]:
        y, _, tape = layer.record(x)
        grads = layer.grads.zeros_like()
        dx, _ = tape.backward(y, grads=grads)
        return [layer(x)[0], y, dx, grads.flat]

    want = [run(x) for x in xs]
    barrier = threading.Barrier(8)

    def at_once(x: Array) -> list[Array]:
        barrier.wait()
        return run(x)

    with ThreadPoolExecutor(8) as pool:
        for got, expected in zip(pool.map(at_once, xs), want, strict=True):
            for a, b in zip(got, expected, strict=True):
                assert_bits(a, b)
    assert not layer.flat_grads.any()


@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize("all_layers", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_inference_in_pieces(
    monkeypatch: pytest.MonkeyPatch, num_layers: int, all_layers: bool, batch_first: bool
) -> None:
    rng = np.random.default_rng(0)
    layer = rk.LSTM(3, 5, num_layers=num_layers, batch_first=batch_first, seed=0)
    x = rng.standard_normal((6, 7, 3)).astype(np.float32)
    steps = x.shape[1 if batch_first else 0]
    lengths = rng.integers(0, steps + 1, x.shape[0 if batch_first else 1])
    options: Any = {"lengths": lengths, "resets": rng.random(x.shape[:2]) < 0.2}
    options["restart_state"] = tuple(rng.standard_normal((2, num_layers, 5)).astype(np.float32))
    want, state = layer(x, all_layers=all_layers, **options)
    for piece in (1, 3):
        monkeypatch.setattr(rk.functional, "_piece", lambda net, call, n=piece: n)
        y, again = layer(x, all_layers=all_layers, **options)
        np.testing.assert_array_equal(y, want)
        np.testing.assert_array_equal(again, state)
        _, again = layer(x, need_output=False, **options)
        np.testing.assert_array_equal(again, state)


def test_memory_of_inference_does_not_grow_with_the_steps() -> None:
    layer = rk.GRU(3, 64, num_layers=3, seed=0)
    few, many = (layer.memory_estimate(n, 2, record=False) for n in (10_000, 1_000_000))
    assert many["workspace"] == few["workspace"]
    x = np.zeros((50_000, 2, 3), np.float32)
    tracemalloc.start()
    layer(x, need_output=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.1 * (few["workspace"] + few["packed"]) + 100_000
