"""Arguments: what is refused and how it is said, and what arrays of any kind mean."""

from __future__ import annotations

import copy
import math
import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import Case, Data, as_tuple, make
from hypothesis import given, settings
from hypothesis import strategies as st
from support import CELLS, Array, Recording, assert_bits, assert_same_bits, inference, named

import rnnkern
from rnnkern import _core, functional, isa
from rnnkern.structure import NAMES, Structure, cell_options

CASE = Case("lstm", T=4, B=3, I=5, H=6, L=2, bidirectional=True, lengths="zeros",
            resets="sparse", restart="rows", hx=True)  # fmt: skip
DATA = make(CASE, np.float32, behind=0.0)
RNN = make(Case("rnn_tanh", T=4, B=3, I=5, H=6, L=1, hx=True), np.float32)
LSTM = make(Case("lstm", T=4, B=3, I=5, H=6, L=1, hx=True), np.float32)
ONE = make(Case("gru_after", T=4, B=1, I=5, H=6, L=1, layout="single", hx=True), np.float32)


def zeros(*shape: int, dtype: Any = np.float32) -> Array:
    return np.zeros(shape, dtype)


def without(name: str) -> dict[str, Array]:
    return {n: a for n, a in DATA.params.items() if n != name}


def changed(name: str, value: Any) -> dict[str, Array]:
    return {**DATA.params, name: value}


# Forward: each line is what is wrong, the error, and what its message must say


def forward(data: Data, **options: Any) -> Any:
    """By the data's function; x, params and hx too can be given as options."""
    positional = [options.pop(name, getattr(data, name)) for name in ("x", "params", "hx")]
    function = getattr(functional, f"{data.case.function}_forward")
    return function(*positional, **{**data.keywords, **options})


BAD_FORWARD = [
    # x
    (DATA, {"x": zeros(4)}, ValueError, r"x: .*\(4,\)"),
    (DATA, {"x": zeros(4, 3, 2, 5)}, ValueError, r"x: .*\(4, 3, 2, 5\)"),
    (DATA, {"x": np.float32(1)}, ValueError, r"x: .*\(\)"),
    (DATA, {"x": zeros(4, 3, 6)}, ValueError, r"x: .*input_size = 5.*\(4, 3, 6\)"),
    (DATA, {"x": zeros(4, 3, 0)}, ValueError, r"x: .*input_size = 5.*\(4, 3, 0\)"),
    (DATA, {"x": zeros(4, 3, 5, dtype=np.float64)}, TypeError, r"x: .*float32.*float64.*asarray"),
    (DATA, {"x": zeros(4, 3, 5, dtype=np.float16)}, TypeError, r"x: .*float32.*float16"),
    (DATA, {"x": zeros(4, 3, 5, dtype=np.int32)}, TypeError, r"x: .*float32.*int32"),
    (DATA, {"x": zeros(4, 3, 5, dtype=np.complex64)}, TypeError, r"x: .*complex64"),
    (DATA, {"x": zeros(4, 3, 5, dtype=object)}, TypeError, r"x: .*object"),
    (DATA, {"x": None}, TypeError, "^x: expected float32, got None$"),
    (DATA, {"x": "abc"}, TypeError, "^x: expected float32, got dtype <U3$"),
    (DATA, {"x": [[1.0], [1.0, 2.0]]}, ValueError, "^x: expected float32, got a list of 2; "),
    (DATA, {"x": zeros(4, 3, 5).tolist()}, TypeError, r"float64; .*np\.asarray\(x, np\.float32"),
    (DATA, {"x": np.broadcast_to(np.float32(0), (2**31, 1, 5))}, ValueError, r"x: .*2\*\*31-1"),
    (DATA, {"x": np.broadcast_to(np.float32(0), (1, 2**31, 5))}, ValueError, r"x: .*2\*\*31-1"),
    # params
    (DATA, {"params": None}, TypeError, "params"),
    (DATA, {"params": list(DATA.params.values())}, TypeError, "params.*list"),
    (DATA, {"params": {}}, ValueError, "params.*weight_ih_l0"),
    (DATA, {"params": without("weight_hh_l0")}, ValueError, "weight_hh_l0"),
    (DATA, {"params": without("bias_hh_l1_reverse")}, ValueError, "missing.*bias_hh_l1_reverse"),
    (DATA, {"params": without("weight_ih_l0_reverse")}, ValueError, "weight_hh_l0_reverse"),
    (DATA, {"params": changed("weight_ih_l3", zeros(24, 12))}, ValueError, "weight_ih_l3"),
    (DATA, {"params": changed("weight_hr_l0", zeros(3, 6))}, ValueError, "miss.*weight_hr_l1"),
    (RNN, {"params": {**RNN.params, "weight_hr_l0": zeros(3, 6)}}, ValueError,
     "unexp.*weight_hr_l0"),
    (DATA, {"params": changed("weight_ch_l0", zeros(18))}, ValueError, "miss.*weight_ch_l1"),
    (DATA, {"params": changed("norm_hh_l0", zeros(24))}, ValueError, "unexp.*norm_hh_l0"),
    (DATA, {"params": changed("norm_ih_l0", zeros(24))}, ValueError, "miss.*norm_c_bias_l0"),
    (LSTM, {"params": {**LSTM.params, "weight_hr_l0": zeros(6, 6)}}, ValueError,
     "^proj_size: expected less than hidden_size = 6, got 6$"),
    (LSTM, {"params": {**LSTM.params, "weight_hr_l0": zeros(3, 6)}}, ValueError,
     r"^weight_hh_l0: expected shape \(24, 3\), got \(24, 6\)$"),
    (LSTM, {"params": {**LSTM.params, "weight_hr_l0": zeros(6)}}, ValueError,
     "^weight_hr_l0: expected a non-empty matrix"),
    (LSTM, {"params": {**LSTM.params, "weight_ch_l0": zeros(12)}}, ValueError,
     r"^weight_ch_l0: expected shape \(18,\), got \(12,\)$"),
    (LSTM, {"coupled": "input"}, ValueError, r"^weight_ih_l0: expected shape \(18, 5\), got"),
    (ONE, {"reset_after": False, "params": {**ONE.params, "norm_ih_l0": zeros(18),
            "norm_hh_l0": zeros(18)}}, ValueError, "unexp.*norm_ih_l0.*norm_hh_l0"),
    (DATA, {"params": changed("weight_ih_l0", zeros(25, 5))}, ValueError, r"weight_ih_l0.*\(24, 5"),
    (DATA, {"params": changed("weight_ih_l0", zeros(5, 24))}, ValueError, "weight_ih_l0"),
    (DATA, {"params": changed("weight_ih_l0", zeros(24))}, ValueError, "weight_ih_l0"),
    (DATA, {"params": changed("weight_ih_l0", zeros(0, 5))}, ValueError, "weight_ih_l0"),
    (DATA, {"params": changed("weight_hh_l1", zeros(24, 7))}, ValueError, r"weight_hh_l1.*\(24, 6"),
    (DATA, {"params": changed("bias_ih_l0", zeros(24, 1))}, ValueError, r"bias_ih_l0.*\(24,\)"),
    (DATA, {"params": changed("bias_hh_l1", zeros(24, dtype=np.float64))}, TypeError,
     "bias_hh_l1.*float32.*float64"),
    (DATA, {"params": changed("weight_ih_l0", zeros(24, 5, dtype=int))}, TypeError, "weight_ih_l0"),
    (DATA, {"params": changed("bias_hh_l1", [[0.0], []])}, ValueError, "^bias_hh_l1: .* list of 2"),
    (RNN, {"params": DATA.params}, ValueError, "weight_ih_l0"),
    (RNN, {"params": functional.pack("lstm", DATA.params)}, ValueError, "lstm"),
    # hx
    (DATA, {"hx": DATA.hx[0]}, TypeError, "hx.*tuple"),
    (DATA, {"hx": DATA.hx[:1]}, TypeError, "hx.*tuple"),
    (DATA, {"hx": (*DATA.hx, DATA.hx[0])}, TypeError, "hx.*tuple"),
    (DATA, {"hx": (DATA.hx[0], None)}, TypeError, "^c of hx: expected float32, got None$"),
    (DATA, {"hx": (DATA.hx[0], [[0.0], []])}, ValueError, "^c of hx: .* a list of 2"),
    (DATA, {"hx": (zeros(4, 3, 6), zeros(4, 3, 7))}, ValueError, r"c of hx.*\(4, 3, 6\)"),
    (DATA, {"hx": (zeros(3, 4, 6), zeros(4, 3, 6))}, ValueError, r"h of hx.*\(3, 4, 6\)"),
    (DATA, {"hx": (zeros(4, 6), zeros(4, 6))}, ValueError, "h of hx"),
    (DATA, {"hx": (DATA.hx[0], zeros(4, 3, 6, dtype=np.float64))}, TypeError, "c of hx.*float64"),
    (RNN, {"hx": (RNN.hx,)}, TypeError, "hx.*one array"),
    (RNN, {"hx": (RNN.hx, RNN.hx)}, TypeError, "hx.*one array"),
    (RNN, {"hx": zeros(3, 6)}, ValueError, r"hx.*\(1, 3, 6\)"),
    (ONE, {"hx": zeros(1, 1, 6)}, ValueError, r"hx.*\(1, 6\)"),
    # lengths
    (DATA, {"lengths": [1, 2]}, ValueError, r"lengths.*\(3,\).*\(2,\)"),
    (DATA, {"lengths": [1, 2, 3, 4]}, ValueError, "lengths"),
    (DATA, {"lengths": [[1, 2, 3]]}, ValueError, "lengths"),
    (DATA, {"lengths": 4}, ValueError, "lengths"),
    (DATA, {"lengths": [1, 5, 3]}, ValueError, "lengths.*0 to 4.*5"),
    (DATA, {"lengths": [1, -1, 3]}, ValueError, "lengths.*0 to 4.*-1"),
    (DATA, {"lengths": np.array([1, 2**63, 3], np.uint64)}, ValueError, "lengths"),
    (DATA, {"lengths": np.array([1, -(2**63), 3])}, ValueError, "lengths"),
    (DATA, {"lengths": [1, 2.5, 3]}, TypeError, "lengths.*float64"),
    (DATA, {"lengths": [1.0, 2.0, 3.0]}, TypeError, "lengths.*float64"),
    (DATA, {"lengths": [True, True, False]}, TypeError, "lengths.*bool"),
    (DATA, {"lengths": ["1", "2", "3"]}, TypeError, "lengths"),
    (DATA, {"lengths": [1, None, 3]}, TypeError, "lengths"),
    (DATA, {"lengths": [[1], [2, 3]]}, ValueError, "^lengths: expected integers, got a list of 2"),
    (ONE, {"lengths": [1, 2]}, ValueError, "lengths"),
    (ONE, {"lengths": 5}, ValueError, "lengths"),
    (ONE, {"lengths": 2.0}, TypeError, "lengths"),
    # resets
    (DATA, {"resets": np.zeros((3, 4), bool)}, ValueError, r"resets.*\(4, 3\).*\(3, 4\)"),
    (DATA, {"resets": np.zeros(4, bool)}, ValueError, "resets"),
    (DATA, {"resets": np.zeros((4, 3, 1), bool)}, ValueError, "resets"),
    (DATA, {"resets": zeros(4, 3)}, TypeError, "resets.*float32"),
    (DATA, {"resets": True}, ValueError, "resets"),
    (DATA, {"resets": [[True], []]}, ValueError, "^resets: .* got a list of 2"),
    (DATA, {"resets": np.zeros((4, 3), bool), "batch_first": True, "x": zeros(3, 4, 5),
            "lengths": None}, ValueError, r"resets.*\(3, 4\)"),
    (ONE, {"resets": np.zeros((4, 1), bool)}, ValueError, r"resets.*\(4,\)"),
    # restart_state
    (DATA, {"restart_state": DATA.hx[0]}, TypeError, "restart_state.*tuple"),
    (DATA, {"restart_state": (zeros(4, 6), zeros(4, 3, 6))}, ValueError,
     r"restart_state: expected h and c of the same shape, got \(4, 6\) and \(4, 3, 6\)"),
    (DATA, {"restart_state": (zeros(2, 6), zeros(2, 6))}, ValueError, "h of restart_state"),
    (DATA, {"restart_state": (zeros(4, 3, 6), zeros(4, 3, 6, dtype=np.float64))}, TypeError,
     "c of restart_state"),
    (RNN, {"restart_state": zeros(6)}, ValueError, r"restart_state.*\(1, 3, 6\) or \(1, 6\)"),
    (RNN, {"restart_state": zeros(1, 2, 6)}, ValueError, "restart_state"),
    # options
    (DATA, {"checkpoint": 2}, ValueError, "checkpoint.*record"),
    *[(DATA, {"record": True, "checkpoint": k}, (TypeError, ValueError), "checkpoint")
      for k in (0, -1, "all", "", 1.5, True, [1])],
    *[(DATA, {"dropout": p}, (TypeError, ValueError), "dropout")
      for p in (-0.1, 1.1, np.nan, "0.5", None, True)],
    *[(DATA, {"seed": s}, (TypeError, ValueError), "seed") for s in (-1, 2**64, 1.5, True, "1")],
    *[(DATA, {"num_threads": n}, (TypeError, ValueError), "num_threads")
      for n in (0, -1, 1.5, True, "2", [2], np.array([1, 2]))],
    *[(DATA, {"first_step": n}, (TypeError, ValueError), "^first_step: expected an integer from 0")
      for n in (-1, 2**31, 1.5, True, "1", None)],
    *[(DATA, {"regularization": r}, TypeError, f"^regularization: expected a .* got {got}$")
      for r, got in ((0.5, "float"), ({}, "dict"), (rnnkern.Regularization, "type"))],
    (RNN, {"regularization": rnnkern.Regularization(zoneout_c=0.5)}, ValueError,
     r"^regularization: the RNN has no zoneout_c, expected 0, got 0\.5$"),
    (RNN, {"nonlinearity": "sigmoidal"}, ValueError, "nonlinearity.*sigmoid.*'sigmoidal'"),
    (RNN, {"nonlinearity": None}, ValueError, "nonlinearity"),
    (DATA, {"lenghts": [1, 2, 3]}, TypeError, "lenghts"),
    (RNN, {"lenghts": [1, 2, 3]}, TypeError, r"^rnn_forward\(\) .* 'lenghts'$"),
    (ONE, {"reset_after": False, "foo": 1}, TypeError, r"^gru_forward\(\) .* 'foo'$"),
    *[(DATA, {name: value}, TypeError, f"^{name}: expected True or False, got ")
      for name in ("batch_first", "record", "need_output")
      for value in (1, 0, None, "no", np.zeros(2, bool))],
    (ONE, {"reset_after": "no"}, TypeError, "^reset_after: expected True or False"),
    # out
    (DATA, {"out": [0]}, TypeError, "out.*list"),
    (DATA, {"out": zeros(4, 3, 12, dtype=np.float64)}, TypeError, "out.*float32.*float64"),
    (DATA, {"out": zeros(4, 3, 12, dtype=">f4")}, TypeError, "out"),
    (DATA, {"out": zeros(4, 3, 11)}, ValueError, r"out.*\(4, 3, 12\).*\(4, 3, 11\)"),
    (DATA, {"out": zeros(3, 4, 12)}, ValueError, "out"),
    (DATA, {"out": zeros(4, 36)}, ValueError, "out"),
    (DATA, {"out": zeros(4, 3, 24)[:, :, ::2]}, ValueError, "out.*dense"),
    (DATA, {"out": zeros(4, 3, 12)[:, :, ::-1]}, ValueError, "out.*dense"),
    (DATA, {"out": zeros(12, 3, 4).T}, ValueError, "out.*dense"),
    (DATA, {"out": np.broadcast_to(zeros(12), (4, 3, 12))}, ValueError, "out"),
    (DATA, {"out": np.lib.stride_tricks.as_strided(zeros(99), (4, 3, 12), (24, 48, 4))},
     ValueError, "out.*overlap"),
    (DATA, {"out": np.zeros(4 * 3 * 12 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(4, 3, 12)},
     ValueError, "out.*aligned"),
    (DATA, {"out": zeros(4, 3, 12), "need_output": False}, ValueError, "out.*need_output"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "options", "error", "says"), BAD_FORWARD)
def test_bad_forward(data: Data, options: dict[str, Any], error: Any, says: str) -> None:
    out = options.get("out")
    before = out.copy() if isinstance(out, np.ndarray) else None
    with pytest.raises(error, match=says):
        forward(data, **options)
    if before is not None:
        assert_bits(out.astype(np.float64), before.astype(np.float64))


def test_a_read_only_out() -> None:
    out = zeros(4, 3, 12)
    out.flags.writeable = False
    with pytest.raises(ValueError, match=r"out.*read-only"):
        forward(DATA, out=out)


@pytest.mark.parametrize("options", [{"lengths": [9, 9, 9]}, {"resets": [1]}, {"seed": -1}])
def test_nothing_is_written_before_an_error(options: dict[str, Any]) -> None:
    out = np.full((4, 3, 12), 7, np.float32)
    with pytest.raises((TypeError, ValueError)):
        forward(DATA, out=out, **options)
    assert (out == 7).all()


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        ("foo", "^cell: expected 'rnn', 'lstm', .* 'sru' or 'mingru', got 'foo'$"),
        ("gru_before", "^cell: "),
        (["gru"], r"^cell: .* got \['gru'\]$"),
        (None, "^cell: .* got None$"),
    ],
)
def test_bad_pack(cell: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        functional.pack(cell, DATA.params)


# Backward


BAD_BACKWARD = [
    ({"dy": zeros(4, 3, 11)}, ValueError, r"dy.*\(4, 3, 12\).*\(4, 3, 11\)"),
    ({"dy": zeros(3, 4, 12)}, ValueError, "dy"),
    ({"dy": zeros(4, 12)}, ValueError, "dy"),
    ({"dy": zeros(4, 3, 12, dtype=np.float64)}, TypeError, "dy.*float32.*float64"),
    ({"dy": 1}, (TypeError, ValueError), "dy"),
    ({"dhx_n": DATA.hx[0]}, TypeError, "dhx_n.*tuple"),
    ({"dhx_n": (zeros(4, 3, 6), zeros(4, 2, 6))}, ValueError, "c of dhx_n"),
    ({"dhx_n": (zeros(4, 3, 6, dtype=np.float64), zeros(4, 3, 6))}, TypeError, "h of dhx_n"),
    ({"grads": without("bias_ih_l0")}, ValueError, "grads.*missing.*bias_ih_l0"),
    ({"grads": changed("extra", zeros(1))}, ValueError, "grads.*unexpected.*extra"),
    ({"grads": changed("weight_hh_l1", zeros(24, 7))}, ValueError, r"weight_hh_l1.*\(24, 6\)"),
    ({"grads": changed("weight_hh_l1", zeros(6, 24).T)}, ValueError, "weight_hh_l1.*contiguous"),
    ({"grads": changed("weight_hh_l1", zeros(24, 6, dtype=np.float64))}, (TypeError, ValueError),
     "weight_hh_l1"),
    ({"grads": changed("weight_hh_l1", zeros(24, 6, dtype=">f4"))}, (TypeError, ValueError),
     "weight_hh_l1"),
    ({"grads": changed("weight_hh_l1", [0.0])}, (TypeError, ValueError), "weight_hh_l1"),
    ({"grads": changed("bias_ih_l0", np.broadcast_to(zeros(1), 24))}, ValueError, "bias_ih_l0"),
    *[({"grads": g}, TypeError, "^grads: expected a mapping") for g in ([], [1], 3, "text")],
    ({"grads": {**DATA.params, 3: zeros(1)}}, ValueError, "^grads: unexpected 3$"),
    *[({name: value}, TypeError, f"^{name}: expected True or False")
      for name in ("need_dx", "retain") for value in (1, None, "no")],
    *[({"num_threads": n}, (TypeError, ValueError), "num_threads") for n in (0, 1.5, "2")],
    ({"retian": True}, TypeError, "retian"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "error", "says"), BAD_BACKWARD)
def test_bad_backward(options: dict[str, Any], error: Any, says: str) -> None:
    """An error leaves gradients as they were, and the tape as good as before."""
    want = DATA.outputs(Recording())
    _, _, tape = DATA.forward(Recording())
    given = {"dy": DATA.dy, "dhx_n": DATA.dhx_n, **options}
    grads = options.get("grads")
    grads = grads if isinstance(grads, dict) else {}
    copies = {n: np.array(a) for n, a in grads.items()}
    with pytest.raises(error, match=says):
        functional.lstm_backward(tape, given.pop("dy"), given.pop("dhx_n"), **given)
    for name, a in copies.items():
        np.testing.assert_array_equal(np.asarray(grads[name]), a)
    dx, _, grads = functional.lstm_backward(tape, DATA.dy, DATA.dhx_n)
    assert_same_bits({**grads, "x": dx}, {n: want[n] for n in [*grads, "x"]})


def test_read_only_grads() -> None:
    _, _, tape = DATA.forward(Recording())
    grads = tape.zero_grads()
    grads["bias_hh_l1"].flags.writeable = False
    with pytest.raises(ValueError, match=r"bias_hh_l1.*writeable"):
        functional.lstm_backward(tape, DATA.dy, grads=grads)
    assert not any(a.any() for a in grads.values())


def test_a_tape_of_another_cell() -> None:
    _, _, tape = DATA.forward(Recording())
    for backward in (functional.gru_backward, functional.rnn_backward):
        with pytest.raises(ValueError, match=r"tape.*lstm"):
            backward(tape)
    with pytest.raises(TypeError, match="tape: expected a Tape, got None"):
        functional.lstm_backward(None)  # type: ignore[arg-type]


def test_a_tape_is_neither_copied_nor_pickled() -> None:
    _, _, tape = DATA.forward(Recording())
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"^cannot copy or pickle a Tape.*retain=True"):
            duplicate(tape)


@pytest.mark.parametrize("shape", [(60,), (3, 4, 5), (12, 5)])
def test_a_new_shape_for_x_changes_no_gradient(shape: tuple[int, ...]) -> None:
    want = DATA.outputs(Recording())
    x = DATA.x.copy()
    _, _, tape = replace(DATA, x=x).forward(Recording())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of NumPy 2.5
        x.shape = shape
    dx, _, grads = functional.lstm_backward(tape, DATA.dy, DATA.dhx_n)
    assert_same_bits({**grads, "x": dx}, {n: want[n] for n in [*grads, "x"]})


OPTIONS_OF_STRUCTURES: list[dict[str, Any]] = [
    {},
    {"proj_size": 4, "peephole": True, "layer_norm": True, "learned": True},
    *({"options": cell_options(cell), "learned": True} for cell in NAMES),
    {"options": cell_options("lstm", coupled="input"), "peephole": True},
]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("stack", [(1, 1), (1, 2), (3, 1), (4, 2)])
def test_the_count_of_parameters(stack: tuple[int, int], bias: bool) -> None:
    structure = Structure(cell_options("lstm"), np.dtype(np.float32), 5, 6, *stack, bias)
    for options in OPTIONS_OF_STRUCTURES:
        shapes = structure._replace(**options).parameter_shapes
        want = len(shapes), sum(map(math.prod, shapes.values()))
        assert structure._replace(**options).parameter_count() == want


# Masked arrays, whose mask NumPy would drop


def masked(a: Any) -> Any:
    return np.ma.masked_array(a, np.arange(np.size(a)).reshape(np.shape(a)) == 1)


MASKED = {
    "x": masked(DATA.x),
    "c of hx": (DATA.hx[0], masked(DATA.hx[1])),
    "h of restart_state": (masked(DATA.hx[0]), DATA.hx[1]),
    "lengths": masked(DATA.lengths),
    "resets": masked(DATA.resets),
    "out": masked(zeros(4, 3, 12)),
    "weight_hh_l1": {**DATA.params, "weight_hh_l1": masked(DATA.params["weight_hh_l1"])},
}


@pytest.mark.parametrize("name", MASKED)
def test_masked_arrays_are_refused(name: str) -> None:
    argument = "params" if name in DATA.params else name.split()[-1]
    with pytest.raises(TypeError, match=f"^{name}: expected an array without a mask, got a Masked"):
        forward(DATA, **{argument: MASKED[name]})


def test_masked_gradients_are_refused() -> None:
    _, _, tape = DATA.forward(Recording())
    with pytest.raises(TypeError, match=r"^dy: expected an array without a mask.*dy\.filled\(0\)"):
        tape.backward(masked(DATA.dy))
    grads = tape.zero_grads()
    grads["bias_hh_l1"] = masked(grads["bias_hh_l1"])
    with pytest.raises(
        TypeError, match=r"^grads\['bias_hh_l1'\]: expected an array without a mask"
    ):
        tape.backward(DATA.dy, grads=grads)


# Tensors of torch that require grad


def test_tensors_that_require_grad() -> None:
    torch = pytest.importorskip("torch")

    def tensor(a: Array) -> Any:
        return torch.from_numpy(np.array(a)).requires_grad_()

    forward(DATA, x=tensor(DATA.x).detach())
    for name, options in {
        "x": {"x": tensor(DATA.x)},
        "c of hx": {"hx": (DATA.hx[0], tensor(DATA.hx[1]))},
        "weight_hh_l1": {"params": changed("weight_hh_l1", tensor(DATA.params["weight_hh_l1"]))},
    }.items():
        hint = rf"pass {name.split()[0]}\.detach\(\)\.numpy\(\)$"
        with pytest.raises(TypeError, match=f"^{name}: .* a Tensor that requires grad; {hint}"):
            forward(DATA, **options)


# Sizes too large


@pytest.mark.parametrize("shape", [(2**33, 1, 1), (1, 2**33, 1), (2**31, 2**28, 1), (2**40, 1, 1)])
@pytest.mark.parametrize("need_output", [True, False])
def test_too_many_steps_or_rows(shape: tuple[int, ...], need_output: bool) -> None:
    params = {"weight_ih_l0": zeros(1, 1), "weight_hh_l0": zeros(1, 1)}
    x = np.broadcast_to(np.float32(0), shape)
    with pytest.raises((ValueError, MemoryError)):
        functional.rnn_forward(x, params, need_output=need_output)


@pytest.mark.parametrize("net", [(2**40, 2**40, 1, 1), (1, 2**31, 2**20, 2), (2**62, 1, 1, 1)])
def test_too_large_nets(net: tuple[int, ...]) -> None:
    net_ = _core.Net("lstm", np.float32, isa.level(), True, *net)
    call = _core.Call(1, 1, None, None, 0, _core.KEEP_NONE, 1, 0.0, 0, 1)
    with pytest.raises(ValueError, match="too large"):
        _core.sizes(net_, call)


@pytest.mark.parametrize(
    "net", [(0, 1, 1, 1), (1, 0, 1, 1), (1, 1, 0, 1), (1, 1, 1, 0), (1, 1, 1, 3), (-1, 1, 1, 1)]
)
def test_senseless_nets(net: tuple[int, ...]) -> None:
    net_ = _core.Net("lstm", np.float32, isa.level(), True, *net)
    call = _core.Call(1, 1, None, None, 0, _core.KEEP_NONE, 1, 0.0, 0, 1)
    with pytest.raises(ValueError, match="refused"):
        _core.sizes(net_, call)


WEIGHTS = [zeros(24, 5), zeros(24, 6), zeros(24), zeros(24), *[None] * 6]  # of I = 5, H = 6


def test_core_checks_memory() -> None:
    """What the functions never pass: blocks too small, misaligned or of the wrong kind."""
    net = _core.Net("lstm", np.float32, isa.level(), True, 5, 6, 1, 1)
    call = _core.Call(4, 3, None, None, 0, _core.KEEP_NONE, 1, 0.0, 0, 1)
    x, y = zeros(4, 3, 5), zeros(4, 3, 6)
    states = (zeros(1, 3, 6), zeros(1, 3, 6))
    packed, _, workspace, _ = (np.empty(n + 128, np.uint8) for n in _core.sizes(net, call))
    packed, workspace = (b[-b.ctypes.data % 64 :] for b in (packed, workspace))
    _core.pack(net, WEIGHTS, packed)

    def run(**changes: Any) -> None:
        arguments = {"x": x, "hx": None, "restart": None, "y": y, "hx_n": states, "tape": None,
                     "workspace": workspace, **changes}  # fmt: skip
        _core.forward(net, call, arguments.pop("packed", packed), *arguments.values())

    run()
    for changes in (
        {"packed": packed[:64]},
        {"packed": packed[1:]},
        {"packed": None},
        {"workspace": workspace[:64]},
        {"workspace": None},
        {"x": None},
        {"x": x[:3]},
        {"x": x.astype(np.float64)},
        {"x": zeros(4, 3, 10)[:, :, ::2]},
        {"x": misaligned(x)},
        {"x": x.astype(x.dtype.newbyteorder())},
        {"y": misaligned(y)},
        {"y": zeros(4, 3, 5)},
        {"hx_n": (zeros(1, 2, 6), zeros(1, 3, 6))},
        {"hx": (zeros(1, 3, 6)[:, ::-1], zeros(1, 3, 6))},
    ):
        with pytest.raises((TypeError, ValueError)):
            run(**changes)
    for wrong in (
        WEIGHTS[:3], WEIGHTS[:-1], [*WEIGHTS, None], [None, *WEIGHTS[1:]],
        [*WEIGHTS[:3], zeros(23), *WEIGHTS[4:]],
    ):  # fmt: skip
        with pytest.raises((TypeError, ValueError)):
            _core.pack(net, wrong, packed)


def core_call(steps: int = 4, rows: int = 3, **changes: Any) -> _core.Call:
    given = {"lengths": None, "resets": None, "restart_kind": 0, "keep": _core.KEEP_NONE,
             "segment": 1, "dropout": 0.0, "seed": 0, "threads": 1, **changes}  # fmt: skip
    if given["lengths"] is not None:
        given["lengths"] = np.array(given["lengths"], np.int64)
    return _core.Call(steps, rows, *given.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"lengths": [1, 5, 2]},
        {"lengths": [1, -1, 2]},
        {"lengths": [4, 4, 2**40]},
        {"steps": -1},
        {"rows": -1},
        {"restart_kind": 3},
        {"keep": 4},
        {"keep": _core.KEEP_SEGMENTS, "segment": 0},
        {"dropout": -0.1},
        {"dropout": 1.1},
        {"dropout": np.nan},
        {"threads": 0},
    ],
    ids=str,
)
def test_senseless_calls(changes: dict[str, Any]) -> None:
    """What the functions never pass."""
    net = _core.Net("lstm", np.float32, isa.level(), True, 5, 6, 1, 1)
    _core.sizes(net, core_call())
    with pytest.raises(ValueError, match="refused"):
        _core.sizes(net, core_call(**changes))


@pytest.mark.parametrize("sizes", [{"steps": 2**31, "rows": 0}, {"steps": 0, "rows": 2**31}])
def test_more_steps_or_rows_than_32_bits_count(sizes: dict[str, int]) -> None:
    net = _core.Net("lstm", np.float32, isa.level(), True, 5, 6, 1, 1)
    with pytest.raises(ValueError, match="too large"):
        _core.sizes(net, core_call(**sizes))


def test_core_wants_a_tape_exactly_when_it_records() -> None:
    net = _core.Net("lstm", np.float32, isa.level(), True, 5, 6, 1, 1)
    record, infer = core_call(keep=_core.KEEP_GATES), core_call()

    def block(size: int) -> Array:
        memory = np.zeros(size + 64, np.uint8)
        start = -memory.ctypes.data % 64
        return memory[start : start + size]

    packed, tape, forward, backward = map(
        block, np.maximum(_core.sizes(net, record), _core.sizes(net, infer)).tolist()
    )
    _core.pack(net, WEIGHTS, packed)
    x, y, states = zeros(4, 3, 5), zeros(4, 3, 6), (zeros(1, 3, 6), zeros(1, 3, 6))
    for call, wrong, right in ((record, None, tape), (infer, tape, None)):
        with pytest.raises(ValueError, match="refused"):
            _core.forward(net, call, packed, x, None, None, y, states, wrong, forward)
        _core.forward(net, call, packed, x, None, None, y, states, right, forward)
    for call, wrong in ((record, None), (infer, tape), (infer, None)):
        with pytest.raises(ValueError, match="refused"):
            _core.backward(net, call, packed, x, wrong, y, None, x, states, None, None, backward)


# Arrays of any kind


def misaligned(a: Array) -> Array:
    raw = np.zeros(a.nbytes + 1, np.uint8)[1:]
    out = raw.view(a.dtype).reshape(a.shape)
    out[...] = a
    return out


def spread(a: Array) -> Array:
    """Every other element of a larger array, on every axis."""
    out = np.full([2 * n + 1 for n in a.shape], 77, a.dtype)[
        tuple(slice(1, None, 2) for _ in a.shape)
    ]
    out[...] = a
    return out


def padded_rows(a: Array) -> Array:
    """Dense last axis, but gaps between rows."""
    out = np.full((*a.shape[:-1], a.shape[-1] + 3), 77, a.dtype)[..., 2:-1]
    out[...] = a
    return out


def odd_strides(a: Array) -> Array:
    """Rows that start at no multiple of the item size."""
    row = a.shape[-1] * a.itemsize + 2
    raw = np.zeros((*a.shape[:-1], row), np.uint8)[..., : row - 2]
    raw[...] = np.ascontiguousarray(a).view(np.uint8)
    return np.lib.stride_tricks.as_strided(raw.view(a.dtype), a.shape)


def read_only(a: Array) -> Array:
    a = a.copy()
    a.flags.writeable = False
    return a


KINDS: dict[str, Callable[[Array], Array]] = {
    "fortran": np.asfortranarray,
    "reversed": lambda a: np.flip(np.flip(a).copy()),
    "reversed rows": lambda a: a[::-1].copy()[::-1],
    "swapped": lambda a: a.astype(a.dtype.newbyteorder()),
    "misaligned": misaligned,
    "spread": spread,
    "padded rows": padded_rows,
    "odd strides": odd_strides,
    "read-only": read_only,
    "subclass": lambda a: a.view(np.recarray),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["time", "batch", "single"])
def test_any_array_will_do(cell: str, kind: str, layout: str) -> None:
    """The same bits from arrays of any strides, order and alignment; no argument is written to."""
    case = Case(cell, T=4, B=1 if layout == "single" else 3, I=5, H=6, L=2, bidirectional=True,
                layout=layout, restart="rows", resets="dense", hx=True)  # fmt: skip
    data = make(case, np.float64)
    want = data.outputs(Recording())

    def convert(a: Any) -> Any:
        if isinstance(a, tuple):
            return tuple(map(convert, a))
        return KINDS[kind](a)

    fields = ["x", "hx", "restart_state", "dy", "dhx_n"]
    changes = {name: convert(getattr(data, name)) for name in fields}
    changes["params"] = {name: convert(p) for name, p in data.params.items()}
    if kind not in ("swapped", "misaligned", "odd strides"):
        changes["resets"] = convert(data.resets)
    assert_same_bits(replace(data, **changes).outputs(Recording()), want)
    assert_same_bits(replace(data, **changes).outputs(Recording(checkpoint=2)), want)
    assert_same_bits(data.outputs(Recording()), want)


def test_lists_will_do(cell: str) -> None:
    """Of Python floats, which are float64; but a state is an array or a tuple of two."""
    data = make(Case(cell, T=4, B=3, I=5, H=6, L=1, resets="dense"), np.float64)
    lists = replace(
        data, x=data.x.tolist(), dy=data.dy.tolist(), resets=data.resets.tolist(),
        params={name: p.tolist() for name, p in data.params.items()},
    )  # fmt: skip
    assert_same_bits(lists.outputs(Recording()), data.outputs(Recording()))


@pytest.mark.parametrize("axis", [0, 1, 2, (0, 1), (0, 1, 2)])
def test_broadcast_x(cell: str, axis: Any) -> None:
    """An axis of stride zero."""
    case = Case(cell, T=4, B=3, I=5, H=6, L=2)
    data = make(case, np.float32)
    one = np.mean(data.x, axis, keepdims=True)
    x = np.broadcast_to(one, data.x.shape)
    got = replace(data, x=x, dy=np.broadcast_to(data.dy[:1], data.dy.shape)).outputs(Recording())
    assert_same_bits(got, replace(data, x=x.copy(), dy=data.dy[[0, 0, 0, 0]]).outputs(Recording()))


@pytest.mark.parametrize("code", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", ">u8"])
def test_lengths_of_any_integer_dtype(code: str) -> None:
    want = named(*inference(DATA))
    assert_same_bits(named(*forward(DATA, lengths=DATA.lengths.astype(code))), want)
    for n in (0, 2, 4):
        one = forward(ONE, lengths=np.array(n, code))
        assert_same_bits(named(*one), named(*forward(ONE, lengths=n)))


def test_lengths_in_any_container() -> None:
    want = named(*inference(DATA))
    numbers = DATA.lengths.tolist()
    for lengths in (numbers, tuple(numbers), np.repeat(DATA.lengths, 2)[::2], spread(DATA.lengths)):
        assert_same_bits(named(*forward(DATA, lengths=lengths)), want)
    assert_same_bits(named(*forward(ONE, lengths=[2])), named(*forward(ONE, lengths=2)))
    assert_same_bits(named(*forward(ONE, lengths=np.int8(2))), named(*forward(ONE, lengths=2)))
    x = zeros(4, 0, 5)
    none = {"hx": None, "restart_state": None, "resets": None}
    assert forward(DATA, x=x, lengths=[], **none)[0].shape == (4, 0, 12)


@pytest.mark.parametrize("code", ["?", "i1", "u1", "i8", ">i2"])
def test_resets_of_any_integer_dtype(code: str) -> None:
    want = named(*inference(DATA))
    assert_same_bits(named(*forward(DATA, resets=DATA.resets.astype(code) * 4)), want)
    assert_same_bits(named(*forward(DATA, resets=DATA.resets.tolist())), want)
    assert_same_bits(named(*forward(DATA, resets=np.asfortranarray(DATA.resets))), want)


def test_numpy_scalars_as_options() -> None:
    want = named(*inference(DATA))
    got = forward(DATA, dropout=np.float32(0.5), seed=np.uint64(2**64 - 1), num_threads=np.int8(2))
    assert_same_bits(named(*got), want)
    _, _, tape = forward(DATA, record=True, checkpoint=np.int64(3))
    assert tape.nbytes > 0


# out


def places(shape: tuple[int, ...]) -> dict[str, Array]:
    """Writeable views of that shape with a dense last axis, in the middle of larger arrays."""
    a, b, f = shape
    room = np.full((2 * a + 4, 2 * b + 4, f + 8), 77, np.float32)
    transposed = np.full((b + 2, a + 2, f + 8), 77, np.float32).swapaxes(0, 1)
    return {
        "inner": room.copy()[2 : 2 + a, 1 : 1 + b, 3 : 3 + f],
        "strided": room.copy()[1 : 1 + 2 * a : 2, 2 : 2 + 2 * b : 2, 5 : 5 + f],
        "reversed": room.copy()[a:0:-1, 2 * b : 0 : -2, :f],
        "transposed": transposed[1 : 1 + a, 1 : 1 + b, 1 : 1 + f],
    }


@pytest.mark.parametrize("place", places((1, 1, 1)))
@pytest.mark.parametrize("layout", ["time", "batch"])
def test_out_is_written_and_nothing_else(place: str, layout: str) -> None:
    case = replace(CASE, layout=layout)
    data = make(case, np.float32)
    want = inference(data)[0]
    out = places(want.shape)[place]
    base = out.base if out.base.base is None else out.base.base
    for record in (False, True):
        out[...] = np.nan
        y = forward(data, out=out, record=record)[0]
        assert y is out
        assert_bits(out, want)
        out[...] = 77
        assert (base == 77).all()


def test_out_of_an_unbatched_row() -> None:
    want = inference(ONE)[0]
    room = np.full((9, 20), 77, np.float32)
    out = room[1:9:2, 3:9]
    assert forward(ONE, out=out)[0] is out
    assert_bits(out, want)
    out[...] = 77
    assert (room == 77).all()


@pytest.mark.parametrize("shift", [-7, -1, 0, 1, 7])
def test_out_over_x(cell: str, shift: int) -> None:
    case = Case(cell, T=6, B=3, I=6, H=6, L=1, lengths="ragged")
    data = make(case, np.float32, behind=0.0)
    want = data.outputs(Recording())
    room = np.zeros(6 * 3 * 6 + 20, np.float32)
    x, out = (room[k : k + 108].reshape(6, 3, 6) for k in (10, 10 + shift))
    for record in (False, True):
        x[...] = data.x
        y, _, *tapes = forward(data, x=x, out=out, record=record)
        assert_bits(y, want["y"])
        for tape in tapes:
            backward = getattr(functional, f"{case.function}_backward")
            dx, _, grads = backward(tape, data.dy, data.dhx_n)
            assert_same_bits({**grads, "x": dx}, {n: want[n] for n in [*grads, "x"]})


@pytest.mark.parametrize("what", ["hx", "restart_state", "params"])
def test_out_over_another_argument(what: str) -> None:
    case = Case("gru_after", T=8, B=3, I=6, H=6, L=2, bidirectional=True, lengths="ragged",
                resets="sparse", restart="rows", hx=True)  # fmt: skip
    data = make(case, np.float32)
    want = named(*inference(data))
    out = np.zeros_like(want["y"])
    if what == "params":
        name = "weight_ih_l0"
        over = out.ravel()[: data.params[name].size].reshape(data.params[name].shape)
        over[...] = data.params[name]
        options = {"params": {**data.params, name: over}}
    else:
        state = getattr(data, what)
        over = out.ravel()[-state.size :].reshape(state.shape)
        over[...] = state
        options = {what: over}
    assert_same_bits(named(*forward(data, out=out, **options)), want)


# Anything at all


def arrays_like(a: Array, draw: Any) -> Array:
    """The same numbers behind drawn strides."""
    kind = draw(st.sampled_from(sorted(KINDS.keys() - {"subclass"})))
    order = draw(st.permutations(range(a.ndim)))
    return KINDS[kind](np.ascontiguousarray(a.transpose(order))).transpose(np.argsort(order))


@given(st.data(), st.sampled_from(CELLS), st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_random_lengths_resets_and_strides(draws: st.DataObject, cell: str, seed: int) -> None:
    """Against each row alone, plain, without lengths."""
    draw = draws.draw
    T, B = draw(st.integers(0, 7)), draw(st.integers(0, 5))
    case = Case(cell, T, B, I=draw(st.integers(1, 5)), H=draw(st.integers(1, 20)), L=2,
                bidirectional=draw(st.booleans()), hx=True)  # fmt: skip
    data = make(case, np.float32, seed)
    lengths = draw(st.lists(st.integers(0, T), min_size=B, max_size=B))
    resets = np.array(draw(st.lists(st.booleans(), min_size=T * B, max_size=T * B)), bool)
    resets = resets.reshape(T, B)
    behind = np.arange(T)[:, None] >= np.array(lengths, int)
    data.x[behind] = data.dy[behind] = np.nan
    hx = tuple(arrays_like(s, draw) for s in as_tuple(data.hx))
    got = replace(
        data,
        x=arrays_like(data.x, draw),
        dy=arrays_like(data.dy, draw),
        hx=hx if cell == "lstm" else hx[0],
        lengths=lengths,
        resets=resets.astype(draw(st.sampled_from(["?", "i1", "u8"]))),
    ).outputs(Recording(checkpoint=draw(st.sampled_from([None, "gates", "auto", 2]))))
    for name in ("y", "x"):
        assert not got[name][behind].any()
    for b, n in enumerate(lengths):
        hx = tuple(s[:, b : b + 1] for s in as_tuple(data.hx))
        dhx_n = tuple(s[:, b : b + 1] for s in as_tuple(data.dhx_n))
        row = replace(
            data,
            case=replace(case, T=n, B=1),
            x=data.x[:n, b : b + 1],
            dy=data.dy[:n, b : b + 1],
            hx=hx if cell == "lstm" else hx[0],
            dhx_n=dhx_n if cell == "lstm" else dhx_n[0],
            resets=resets[:n, b : b + 1],
        ).outputs(Recording())
        for name, a in row.items():
            if name in ("y", "x"):
                assert_bits(got[name][:n, b], a[:, 0], name)
            elif name.startswith("hx"):
                assert_bits(got[name][:, b], a[:, 0], name)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_random_shapes_are_errors_or_right(draws: st.DataObject) -> None:
    """Whatever the shapes, the outcome is a clear error, or outputs of the right shape."""
    draw = draws.draw
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=4)))
    hx = zeros(*draw(st.sampled_from([(1, 3), (1, 2, 3), (2, 1, 3), shape])))
    lengths = draw(st.sampled_from([None, 0, 2, [1], [0, 1], [3, 1, 2], [], [[1]]]))
    resets = draw(st.sampled_from([None, np.ones(shape[:2], bool), np.ones(shape[:1], bool)]))
    params = {"weight_ih_l0": zeros(9, 2), "weight_hh_l0": zeros(9, 3)}
    batch_first = draw(st.booleans())
    options = {"lengths": lengths, "resets": resets, "batch_first": batch_first}
    try:
        y, h = functional.gru_forward(
            zeros(*shape), params, draw(st.sampled_from([None, hx])), **options
        )
    except (TypeError, ValueError) as error:
        assert any(name in str(error) for name in ("x", "lengths", "resets"))
        return
    assert y.shape == (*shape[:-1], 3)
    rows = () if len(shape) == 2 else (shape[0 if batch_first else 1],)
    assert h.shape == (1, *rows, 3)
