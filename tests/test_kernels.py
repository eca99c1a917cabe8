"""The kernels against the reference, and against torch: right numbers, at every level."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cases import CASES, DROPOUT_SEED, Case, Data, as_tuple, make
from support import (
    CELLS,
    CHECKPOINTS,
    Array,
    Recording,
    assert_bits,
    assert_same_bits,
    backward,
    core_outputs,
    inference,
    named,
)

from rnnkern import _core, functional, isa, reference
from rnnkern.activations import Function
from rnnkern.reference import dropout

try:
    import torch
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    HAVE_TORCH = True
except ImportError:
    HAVE_TORCH = False

FLOOR = 6  # ulp of an array's largest element


def each(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=str)


def errors(got: Array, want: Array) -> Array:
    """The largest and the root mean square error."""
    error = np.abs(got - want)
    return np.array([error.max(initial=0), np.sqrt(np.mean(error**2)) if error.size else 0])


@functools.cache
def specified(case: Case) -> tuple[Data, dict[str, Array], dict[str, Array]]:
    """Data that float32 holds exactly, the results in float64, and what float32 may err by."""
    data = make(case, np.float32)
    want = data.astype(np.float64).outputs(reference)
    plain = data.outputs(reference)
    ulp = {
        name: np.finfo(np.float32).eps * np.abs(a).max(initial=np.finfo(np.float32).tiny)
        for name, a in want.items()
    }
    # The worst of the case: that of a single array is a matter of luck, and of NumPy's BLAS.
    worst = np.max([errors(plain[name], want[name]) / ulp[name] for name in want], axis=0)
    bound = {name: (2 * worst + FLOOR) * ulp[name] for name in want}
    return data, want, bound


def assert_close(got: dict[str, Array], case: Case, dtype: Any) -> None:
    """Within twice the reference's error in that dtype. In float64 its error, which is about as
    large in ulp as in float32, is part of `want` too."""
    _, want, bound = specified(case)
    ulps = 1 if dtype == np.float32 else 1.5 * np.finfo(dtype).eps / np.finfo(np.float32).eps
    assert got.keys() == want.keys()
    for name in want:
        assert got[name].dtype == dtype, name
        assert got[name].shape == want[name].shape, name
        error = errors(got[name], want[name])
        assert (error <= bound[name] * ulps).all(), (name, error, bound[name] * ulps)


# The table


@each(CASES)
def test_reference(case: Case, level: str, dtype: Any) -> None:
    """Forward and backward of the whole table; what the tape keeps makes no difference."""
    data = specified(case)[0].astype(dtype)
    got = data.outputs(Recording())
    assert_close(got, case, dtype)
    for checkpoint in CHECKPOINTS[1:] if level != "scalar" else CHECKPOINTS[2:3]:
        assert_same_bits(data.outputs(Recording(checkpoint=checkpoint)), got, checkpoint)
    for name in ("y", "x"):
        assert not got[name][~data.real].any(), f"{name} behind a length"


CHUNKS = [  # more rows than a projection chunk holds; more than 256 rows a step; several panels
    Case("rnn_tanh", 61, 33, 5, 17, 2, bidirectional=True, lengths="ragged", resets="sparse",
         restart="shared", hx=True, dropout=0.2),
    Case("rnn_relu", 7, 300, 3, 9, 1, lengths="zeros", resets="sparse", restart="shared", hx=True),
    Case("lstm", 47, 33, 9, 33, 2, lengths="zeros", resets="sparse", restart="rows", hx=True),
    Case("lstm", 3, 1100, 3, 5, 1, bidirectional=True, lengths="ragged", hx=True),
    Case("gru_after", 150, 9, 4, 20, 2, bidirectional=True, lengths="ragged", hx=True),
    Case("gru_before", 83, 17, 18, 31, 1, bidirectional=True, lengths="zeros", resets="sparse",
         restart="shared", hx=True),
    Case("lstm", 5, 60, 20, 100, 1, bidirectional=True, lengths="ragged", hx=True),
]  # fmt: skip


@each(CHUNKS)
def test_reference_in_chunks(case: Case, level: str, dtype: Any) -> None:
    data = specified(case)[0].astype(dtype)
    got = data.outputs(Recording())
    assert_close(got, case, dtype)
    for checkpoint in ("gates", "auto", 1, 10) if level != "scalar" else ("gates", 10):
        assert_same_bits(data.outputs(Recording(checkpoint=checkpoint)), got, checkpoint)
    if not case.dropout:
        assert_same_bits(named(*inference(data)), {k: got[k] for k in named(*inference(data))})


@pytest.mark.parametrize("cell", ["rnn_tanh", "lstm", "gru_after", "gru_before"])
def test_a_long_weight_gradient(cell: str, level: str) -> None:
    """1e5 real rows; gradients that do not cancel, so that the sums grow long."""
    case = Case(cell, T=500, B=200, I=2, H=3, L=1, hx=True)
    data = make(case, np.float32)
    data = replace(data, dy=np.abs(data.dy), x=np.abs(data.x))
    want = data.astype(np.float64).outputs(reference)
    plain = data.outputs(reference)
    got = data.outputs(Recording())
    for name in data.params:
        floor = FLOOR * np.finfo(np.float32).eps * np.abs(want[name]).max()
        error = errors(got[name], want[name])
        assert (error <= 2 * errors(plain[name], want[name]) + floor).all(), name


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_segments_of_any_length(cell: str, checkpoint: Any) -> None:
    """Also those longer than the sequence, and those that do not divide it."""
    case = Case(cell, T=23, B=20, I=5, H=18, L=2, bidirectional=True, lengths="ragged",
                resets="sparse", restart="shared", hx=True, dropout=0.2)  # fmt: skip
    data = make(case, np.float32)
    want = data.outputs(Recording(checkpoint=checkpoint))
    for k in (1, 2, 7, 13, 22, 23, 24, np.int64(10**9)):
        assert_same_bits(data.outputs(Recording(checkpoint=k)), want, k)


# Torch


def torch_outputs(data: Data) -> dict[str, Array]:
    """As `Data.outputs`, by torch."""
    case = data.case
    kind = {"rnn": torch.nn.RNN, "lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[case.function]
    layer = kind(
        case.I, case.H, case.L, bias=case.bias, batch_first=case.layout == "batch",
        bidirectional=case.bidirectional, dtype=torch.float64,
        **({"nonlinearity": case.cell[4:]} if case.function == "rnn" else {}),
    )  # fmt: skip
    layer.load_state_dict({name: torch.from_numpy(p) for name, p in data.params.items()})
    x, dy = (torch.from_numpy(np.nan_to_num(a)) for a in (data.x, data.dy))
    x.requires_grad_()
    hx = tuple(torch.from_numpy(s).requires_grad_() for s in as_tuple(data.hx))
    given = hx if case.function == "lstm" else hx[0]
    if data.lengths is None:
        y, hx_n = layer(x, given)
    else:
        first = case.layout == "batch"
        packed = pack_padded_sequence(x, torch.from_numpy(data.lengths), first, False)
        y, hx_n = layer(packed, given)
        y, _ = pad_packed_sequence(y, first, total_length=case.T)
    leaves = {**dict(layer.named_parameters()), "x": x}
    leaves |= {f"hx[{i}]": s for i, s in enumerate(hx)}
    out = named(y, hx_n)
    dhx_n = [torch.from_numpy(d) for d in as_tuple(data.dhx_n)]
    grads = torch.autograd.grad([*out.values()], [*leaves.values()], [dy, *dhx_n])
    out |= dict(zip(leaves, grads, strict=True))
    return {name: a.detach().numpy() for name, a in out.items()}


def for_torch(case: Case) -> Case:
    """The same case without what torch has not got."""
    lengths = "ragged" if case.lengths == "zeros" else case.lengths
    return replace(case, resets="none", restart="none", dropout=0.0, hx=True,
                   lengths=lengths if case.batched else "none")  # fmt: skip


@pytest.mark.skipif(not HAVE_TORCH, reason="torch is not installed")
@each([for_torch(c) for c in CASES if c.T and c.B and c.cell != "gru_before"])
def test_torch(case: Case) -> None:
    data = make(case)
    want = torch_outputs(data)
    for checkpoint in (None, "auto"):
        got = data.outputs(Recording(checkpoint=checkpoint))
        assert got.keys() == want.keys()
        for name, a in want.items():
            assert errors(got[name], a)[0] <= 1e-13 * max(1, np.abs(a).max()), name


# Lengths, resets and restart states


def small(cell: str, **changes: Any) -> Case:
    sizes = {"T": 6, "B": 5, "I": 3, "H": 19, "L": 2, "bidirectional": True, "hx": True}
    return Case(cell, **{**sizes, **changes})


PLACES = {
    "none": lambda t, n: t < 0,
    "at 0": lambda t, n: t == 0,
    "at 1": lambda t, n: t == 1,
    "last": lambda t, n: t == n - 1,
    "at the length": lambda t, n: t == n,
    "behind": lambda t, n: t > n,
    "everywhere": lambda t, n: t >= 0,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("restart", ["none", "shared", "rows"])
@pytest.mark.parametrize("checkpoint", [None, 2])
def test_resets(cell: str, place: str, restart: str, checkpoint: Any) -> None:
    data = make(small(cell, lengths="zeros", restart=restart))
    steps = np.arange(data.case.T)[:, None] + np.zeros_like(data.lengths)
    data = replace(data, resets=PLACES[place](steps, data.lengths))
    want, got = data.outputs(reference), data.outputs(Recording(checkpoint=checkpoint))
    assert got.keys() == want.keys()
    for name, a in want.items():
        assert errors(got[name], a)[0] <= 1e-14 * max(1, np.abs(a).max(initial=0)) * 10, name
    if place in ("none", "at the length", "behind"):
        assert_same_bits(replace(data, resets=None).outputs(Recording()), got)


@each([
    Case(cell, T=T, B=B, I=2, H=19, L=2, bidirectional=True, layout=layout, lengths=lengths,
         resets="all", restart="rows", hx=True, dropout=0.3)
    for cell in CELLS
    for T, B, layout, lengths in [
        (0, 3, "time", "none"), (3, 0, "batch", "full"), (0, 0, "time", "full"),
        (0, 1, "single", "full"), (4, 1, "single", "zeros"), (4, 1, "time", "zeros"),
    ]
])  # fmt: skip
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_nothing_to_do(case: Case, checkpoint: Any) -> None:
    """Without a real step the states pass through, and nothing else moves."""
    data = make(case, np.float32)
    got = data.outputs(Recording(checkpoint=checkpoint))
    assert_same_bits(named(*inference(data)), {k: got[k] for k in named(*inference(data))})
    for i, (s, d) in enumerate(zip(as_tuple(data.hx), as_tuple(data.dhx_n), strict=True)):
        assert_bits(got.pop(f"hx_n[{i}]"), s)
        assert_bits(got.pop(f"hx[{i}]"), d)
    assert got.pop("y").shape == data.dy.shape
    assert got.keys() == {name for name in data.inputs() if "hx" not in name}
    for name, a in got.items():
        assert a.shape == data.inputs()[name].shape
        assert not a.any(), name


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_empty_arrays_of_any_strides(shape: tuple[int, int]) -> None:
    data = make(Case("lstm", T=1, B=1, I=4, H=3, L=1))
    for x in (np.zeros((*shape, 4)), np.zeros((*shape, 8))[:, :, ::2], np.zeros((4, *shape)).T):
        x = x if x.shape[:2] == shape else x.swapaxes(0, 1)
        y, (h, c) = functional.lstm_forward(x, data.params)
        assert y.shape == (*shape, 3)
        assert h.shape == c.shape == (1, shape[1], 3)


# Dropout


def drawn(kind: str, p: float, seed: int, layer: int, direction: int, *place: int) -> Array:
    """Of a step, the first row, rows and units."""
    level = isa.level()
    return _core.draw_masks(np.float32, level, kind, p, seed, layer, direction, *place)


def factors(kept: Array, kind: str, p: float, dtype: Any) -> Array:
    """What the kernels multiply by, or of zoneout where a state keeps its value."""
    if kind.startswith("zoneout"):
        return (~kept).astype(dtype)
    return np.where(kept, dropout.scale(p, dtype), dtype(0))


@pytest.mark.parametrize("kind", _core.MASKS)
@pytest.mark.parametrize("p", [0.0, 0.25, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("seed", [0, DROPOUT_SEED, 2**64 - 1])
def test_masks_are_those_of_the_reference(
    kind: str, p: float, seed: int, dtype: Any, level: str
) -> None:
    T, B, units = 3, 5, 37
    number = _core.MASKS.index(kind)
    for layer, direction, first in ((0, 0, 0), (1, 1, 7), (5, 0, 2**31 - 5)):
        kept = dropout.kept(
            p, seed, layer, (T, B, units), kind=number, direction=direction, first_step=first
        )
        want = factors(kept, kind, p, dtype)
        for t, b, n in ((0, 0, B), (1, 2, 3), (2, 4, 1), (2, 5, 0)):
            got = _core.draw_masks(
                dtype, isa.level(), kind, p, seed, layer, direction, first + t, b, n, units
            )
            assert_bits(got, want[t, b : b + n], (layer, t, b))


def test_kinds_of_masks_have_the_numbers_of_the_reference() -> None:
    names = [{"dropout": "layers", "weight_dropout": "weights"}.get(n, n) for n in dropout.KINDS]
    assert tuple(name.removesuffix("_dropout") for name in names) == _core.MASKS
    assert [*dropout.KINDS.values()] == [*range(len(_core.MASKS))]


def test_all_of_the_place_counts() -> None:
    """Masks of another kind, seed, layer, direction, step or row have nothing in common."""
    place = {"seed": 3, "layer": 1, "direction": 0, "step": 5, "row": 6}
    places = [place, *({**place, name: place[name] + 1} for name in place)]
    places += [{**place, "seed": 3 + 2**32}, {**place, "layer": 6, "row": 1}]
    masks = [drawn("input", 0.5, *p.values(), 1, 1000) for p in places]
    masks += [drawn(k, 0.5, *place.values(), 1, 1000) for k in _core.MASKS if k != "input"]
    for i, mask in enumerate(masks):
        for other in masks[:i]:
            assert 0.4 < ((mask > 0) == (other > 0)).mean() < 0.6


@pytest.mark.parametrize("shape", [(70_000, 1, 4), (1, 70_000, 4), (1, 1, 300_000)], ids=str)
def test_masks_of_many_steps_rows_and_units(shape: tuple[int, int, int]) -> None:
    """Each counts further than 16 bits hold."""
    T, B, units = shape
    want = dropout.kept(0.5, DROPOUT_SEED, 300, shape, direction=1)
    for t, b in {(0, 0), (T // 2, B // 2), (T - 1, B - 1)}:
        got = drawn("layers", 0.5, DROPOUT_SEED, 300, 1, t, b, 1, units)
        assert_bits(got[0], np.where(want[t, b], np.float32(2), np.float32(0)), (t, b))


def test_dropout_is_the_mask(cell: str, dtype: Any) -> None:
    """The second layer's input is the first one's output times the mask, and so is its gradient."""
    case = Case(cell, T=5, B=3, I=4, H=21, L=1, bidirectional=True, lengths="ragged")
    first = make(case, dtype)
    second = make(replace(case, I=42), dtype, seed=1)
    both = dict(first.params)
    both |= {name.replace("_l0", "_l1"): p for name, p in second.params.items()}
    data = replace(make(replace(case, L=2, dropout=0.3), dtype), params=both, x=first.x,
                   lengths=first.lengths, dhx_n=None, dy=second.dy, real=first.real)  # fmt: skip
    got = data.outputs(Recording())

    middle = named(*inference(first))["y"]
    shape = (5, 3, 21)
    halves = [dropout.kept(0.3, DROPOUT_SEED, 0, shape, direction=d) for d in (0, 1)]
    mask = np.concatenate(halves, axis=2)
    factor = np.where(mask, dropout.scale(0.3, dtype), dtype(0))
    x = np.where(mask, middle * factor, dtype(0))
    top = replace(second, x=x, lengths=first.lengths, dhx_n=None).outputs(Recording())
    assert_bits(got["y"], top["y"])
    dy = np.where(mask, top["x"] * factor, dtype(0))
    bottom = replace(first, dy=dy, dhx_n=None).outputs(Recording())
    np.testing.assert_allclose(got["x"], bottom["x"], 0, 4 * np.finfo(dtype).eps)
    for name in second.params:
        assert_bits(got[name.replace("_l0", "_l1")], top[name], name)


def test_inference_has_no_dropout(cell: str) -> None:
    data = make(small(cell, dropout=0.5), np.float32)
    assert_same_bits(named(*inference(data)), named(*inference(data, dropout=0.0)))


# What a call may leave out, and what it adds


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_what_is_not_needed(cell: str, checkpoint: Any) -> None:
    data = make(small(cell, lengths="zeros", resets="sparse", restart="shared"), np.float32)
    want = data.outputs(Recording())
    forward = getattr(Recording(checkpoint=checkpoint), f"{data.case.function}_forward")
    y, hx_n, tape = forward(data.x, data.params, data.hx, need_output=False, **data.keywords)
    assert y is None
    assert_same_bits(named(want["y"], hx_n), named(want["y"], inference(data)[1]))
    assert inference(data, need_output=False)[0] is None
    dx, dhx, grads = backward(data, tape, need_dx=False)
    assert dx is None
    states = {f"hx[{i}]": a for i, a in enumerate(as_tuple(dhx))}
    states |= {f"restart_state[{i}]": a for i, a in enumerate(as_tuple(tape.restart_state_grad))}
    assert_same_bits({**states, **grads}, {name: want[name] for name in [*states, *grads]})


def test_none_means_zeros(cell: str) -> None:
    data = make(small(cell, lengths="zeros", resets="dense", hx=False), np.float32)
    zero = np.zeros((4, 5, 19), np.float32)
    states = (zero, zero) if cell == "lstm" else zero
    full = replace(data, hx=states, restart_state=states)
    wanted = {k: v for k, v in full.outputs(Recording()).items() if "restart" not in k}
    assert_same_bits(data.outputs(Recording()), wanted)
    no_loss = replace(data, dy=None, dhx_n=None)
    zero_loss = replace(data, dy=np.zeros_like(data.dy), dhx_n=states)
    assert_same_bits(no_loss.outputs(Recording()), zero_loss.outputs(Recording()))
    _, _, tape = data.forward(Recording())
    backward(data, tape)
    assert tape.restart_state_grad is None


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_a_retained_tape_can_be_used_again(cell: str, checkpoint: Any) -> None:
    data = make(small(cell, lengths="zeros", resets="sparse", restart="rows"), np.float32)
    _, _, tape = data.forward(Recording(checkpoint=checkpoint))
    results = []
    for retain in (True, True, False):
        dx, dhx, grads = backward(data, tape, retain=retain)
        states = [*as_tuple(dhx), *as_tuple(tape.restart_state_grad)]
        results.append({**grads, "x": dx, **{str(i): s for i, s in enumerate(states)}})
    assert_same_bits(results[1], results[0])
    assert_same_bits(results[2], results[0])
    with pytest.raises(RuntimeError, match="retain"):
        backward(data, tape)


def test_grads_are_added_to(cell: str, dtype: Any) -> None:
    """One addition to what is there."""
    data = make(small(cell, lengths="zeros", resets="sparse"), dtype)
    want = data.outputs(Recording())
    rng = np.random.default_rng(3)
    start = {name: rng.standard_normal(a.shape).astype(dtype) for name, a in data.params.items()}
    grads = {name: a.copy() for name, a in start.items()}
    _, _, tape = data.forward(Recording())
    assert backward(data, tape, grads=grads)[2] is grads
    assert_same_bits(grads, {name: start[name] + want[name] for name in start})


def test_a_tape_without_grads_gives_states_alone(cell: str) -> None:
    data = make(small(cell), np.float32)
    want = data.outputs(Recording())
    _, _, tape = data.forward(Recording())
    dx, dhx = tape.backward(data.dy, data.dhx_n)
    assert_bits(dx, want["x"])
    assert_bits(as_tuple(dhx)[0], want["hx[0]"])
    _, _, tape = data.forward(Recording())
    tape.grads = tape.zero_grads()
    tape.backward(data.dy, data.dhx_n)
    assert_same_bits(tape.grads, {name: want[name] for name in data.params})


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_a_tape_is_its_own(cell: str, checkpoint: Any) -> None:
    """Nothing that the caller may change before backward, but x, is read by it."""
    data = make(small(cell, lengths="zeros", resets="sparse", restart="rows"), np.float32)
    want = data.outputs(Recording())
    data = replace(data, lengths=data.lengths.copy(), resets=data.resets.copy())
    y, hx_n, tape = data.forward(Recording(checkpoint=checkpoint))
    states = [*as_tuple(hx_n), *as_tuple(data.hx), *as_tuple(data.restart_state)]
    for array in (y, *states, *data.params.values()):
        array[...] = np.nan
    data.lengths[:] = 1
    data.resets[:] = True
    dx, dhx, grads = backward(data, tape)
    got = {**grads, "x": dx, "hx[0]": as_tuple(dhx)[0]}
    assert_same_bits(got, {name: want[name] for name in got})


def test_packed_params_are_the_params(cell: str, dtype: Any, level: str) -> None:
    data = make(small(cell), dtype)
    packed = functional.pack(data.case.function, data.params, **data.case.options)
    forward = getattr(functional, f"{data.case.function}_forward")
    got = named(*forward(data.x, packed, data.hx, **data.case.options))
    assert_same_bits(got, named(*inference(data)))


def test_memory_estimate(cell: str) -> None:
    data = make(small(cell, T=40, B=9, lengths="ragged"), np.float32)
    function = data.case.function
    packed = functional.pack(function, data.params, **data.case.options)
    for checkpoint in CHECKPOINTS:
        _, _, tape = data.forward(Recording(checkpoint=checkpoint))
        got = functional.memory_estimate(packed, function, 40, 9, lengths=data.lengths,
                                         checkpoint=checkpoint)  # fmt: skip
        assert got["tape"] == tape.nbytes
        assert got["packed"] == packed.block.nbytes
        outputs = named(*inference(data))
        assert got["outputs"] == sum(a.nbytes for a in outputs.values())


# Memory


@each([
    replace(c, layout="time") for c in CASES if c.T and c.B and c.T * c.B < 300
] + CHUNKS[:4])  # fmt: skip
def test_no_write_outside_and_no_read_of_garbage(case: Case) -> None:
    """All memory that the kernels get starts as NaN and has guarded margins."""
    data = make(case, np.float32)
    for array in data.inputs().values():
        array.flags.writeable = False
    want = data.outputs(Recording())
    for keep, segment in [(_core.KEEP_GATES, 1), (_core.KEEP_STATES, 1), (_core.KEEP_SEGMENTS, 2)]:
        assert_same_bits(core_outputs(data, keep=keep, segment=segment), want, keep)
    core_outputs(data, keep=_core.KEEP_NONE)
    core_outputs(data, level="scalar", threads=3, split="units")
    core_outputs(data, threads=3, split="rows")


# Activations


def exact(name: str, x: Array) -> Array:
    x = x.astype(np.longdouble)
    with np.errstate(over="ignore"):
        return np.tanh(x) if name == "tanh" else 1 / (1 + np.exp(-x))


def ulps(got: Array, want: Array) -> float:
    """The largest error in units of the last place of the exact value."""
    dtype = got.dtype
    _, exponent = np.frexp(want)
    unit = np.ldexp(np.longdouble(np.finfo(dtype).eps), exponent - 1)
    normal = np.abs(want) >= np.finfo(dtype).tiny
    return float((np.abs(got - want) / unit)[normal].max())


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_activations_are_within_two_ulp(name: str, level: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    exponents = np.exp2(rng.uniform(-30, 10, 100_000)) * rng.choice([-1, 1], 100_000)
    x = np.concatenate([exponents, rng.uniform(-30, 30, 100_000)]).astype(dtype)
    got = _core.activate(isa.level(), name, x)
    assert ulps(got, exact(name, x)) <= 2


FUNCTIONS = [
    *(Function(kind) for kind in ("sigmoid", "tanh", "relu", "softsign", "softplus")),
    Function("hard_sigmoid", 0.2, 0.5), Function("hard_sigmoid", -0.5, 0.1),
    Function("affine", 1.0), Function("affine", -2.0, 0.5), Function("leaky_relu", 0.01),
    Function("thresholded_relu", 1.0), Function("thresholded_relu"), Function("elu", 0.5),
    Function("scaled_tanh", 1.7, 0.6), Function("scaled_tanh", -1.0, 2.0),
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS, ids=str)
def test_activations_are_those_of_the_reference(function: Function, level: str, dtype: Any) -> None:
    """Within some ulp, infinities and NaN too."""
    rng = np.random.default_rng(0)
    big = np.finfo(dtype).max / 4
    special = [0.0, 1.0, -1.0, 0.5, -2.5, np.inf, -np.inf, np.nan, big, -big, 88.0, -88.0]
    x = np.concatenate([special, 3 * rng.standard_normal(5000), rng.uniform(-100, 100, 1000)])
    x = x.astype(dtype)
    kind, *parameters = function
    known = reference.act.KINDS[kind]
    with np.errstate(all="ignore"):
        want = known.forward(x.astype(float), *parameters[: len(known.defaults)])
        want = np.where(np.isinf(x) & (kind == "softsign"), np.sign(x), want)
    got = _core.activate(isa.level(), tuple(function), x)
    eps = 4 * np.finfo(dtype).eps
    np.testing.assert_allclose(got, want, rtol=eps, atol=eps)


def test_activations_at_special_values(level: str, dtype: Any) -> None:
    big = np.finfo(dtype).max
    x = np.array([0.0, -0.0, np.inf, -np.inf, big, -big, np.nan], dtype)
    with np.errstate(invalid="ignore"):
        tanh = _core.activate(isa.level(), "tanh", x)
        sigmoid = _core.activate(isa.level(), "sigmoid", x)
    assert_bits(tanh, np.array([0.0, -0.0, 1, -1, 1, -1, np.nan], dtype))
    assert_bits(sigmoid, np.array([0.5, 0.5, 1, 0, 1, 0, np.nan], dtype))
    assert math.isnan(tanh[-1])
