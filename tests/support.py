"""What the kernel tests share: calls in every mode, and comparison to the last bit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt
from cases import DROPOUT_SEED, Data, as_tuple

import rnnkern as rk
from rnnkern import _core, functional, isa, structure

Array = npt.NDArray[Any]

CELLS = ["rnn_tanh", "rnn_relu", "lstm", "gru_after", "gru_before"]
DTYPES = [np.float32, np.float64]
CHECKPOINTS = [None, "gates", "auto", 3]


VARIANTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "rnn": (rk.RNN, {"nonlinearity": ("elu", 0.5), "clip": 0.8, "layer_norm": True}),
    "lstm": (rk.LSTM, {
        "activations": (("hard_sigmoid", 0.2), "tanh", "softsign"), "proj_size": 5,
        "peephole": True, "clip": 1.5, "cell_clip": 0.9, "layer_norm": True, "norm_eps": 0.1,
    }),
    "lstm_input": (rk.LSTM, {"proj_size": 17, "peephole": True, "coupled": "input"}),
    "lstm_forget": (rk.LSTM, {"coupled": "forget"}),
    "gru": (rk.GRU, {"activations": ("sigmoid", "softsign"), "clip": 1.2, "layer_norm": True}),
    "gru_before": (rk.GRU, {
        "reset_after": False, "activations": ("hard_sigmoid", "tanh"), "clip": 0.7,
    }),
    "mgu": (rk.MGU, {"activations": ("sigmoid", ("scaled_tanh", 1.2, 0.7))}),
    "indrnn": (rk.IndRNN, {"nonlinearity": ("leaky_relu", 0.3)}),
    "sru": (rk.SRU, {"activations": ("sigmoid", "tanh")}),
    "mingru": (rk.MinGRU, {"activations": ("hard_sigmoid", "identity")}),
}  # fmt: skip
"""Each cell and each option, for hidden sizes above 17."""


def shaken(layer: Any) -> Any:
    """The layer with parameters of which none is as at first: no gain is 1, no bias 0."""
    rng = np.random.default_rng(2)
    for p in layer.params.values():
        noise = rng.standard_normal(p.shape).astype(p.dtype)
        p[...] = p * 1.5 if p.ndim == 2 else p * 0.7 + noise * 0.3
    return layer


def regularization(cls: Any, p: float, **changes: Any) -> rk.Regularization:
    """All kinds that the cell has, each with this probability."""
    lacks = structure.CELLS[cls._cell].lacks
    kinds = (field.name for field in fields(rk.Regularization) if field.name != "variational")
    return rk.Regularization(**{kind: p for kind in kinds if kind not in lacks} | changes)


def function_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """What functions take of a layer's options: the names of parameters tell them the rest."""
    return {k: v for k, v in options.items() if k not in ("proj_size", "peephole", "layer_norm")}


class Recording:
    """`rnnkern.functional` with the signatures of `rnnkern.reference`: forward always records."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def __getattr__(self, name: str) -> Any:
        function = getattr(functional, name)
        if name.endswith("_forward"):
            return functools.partial(function, record=True, **self.options)
        return function


def inference(data: Data, **options: Any) -> Any:
    """y and hx_n; options go over the keywords of the data."""
    run = getattr(functional, f"{data.case.function}_forward")
    return run(data.x, data.params, data.hx, **{**data.keywords, **options})


def backward(data: Data, tape: functional.Tape, **options: Any) -> Any:
    """dx, dhx and grads."""
    run = getattr(functional, f"{data.case.function}_backward")
    return run(tape, data.dy, data.dhx_n, **options)


def named(y: Any, hx_n: Any) -> dict[str, Array]:
    """Results of a forward call under the names of `Data.outputs`."""
    return {"y": y, **{f"hx_n[{i}]": a for i, a in enumerate(as_tuple(hx_n))}}


def assert_bits(got: Array, want: Array, what: Any = "") -> None:
    """Equal as integers; where one is NaN so is the other, whatever its sign and payload."""
    assert got.shape == want.shape, what
    assert got.dtype == want.dtype, what
    integers = f"i{want.itemsize}"
    differ = np.ascontiguousarray(got).view(integers) != np.ascontiguousarray(want).view(integers)
    differ &= ~(np.isnan(got) & np.isnan(want))
    if differ.any():
        at = tuple(int(i) for i in np.argwhere(differ)[0])
        pair = f"{got[at]!r} is not {want[at]!r}"
        share = f"{differ.sum()} of {differ.size} differ"
        raise AssertionError(f"{what}: {share}, first at {at}: {pair}")


def assert_same_bits(got: Mapping[str, Array], want: Mapping[str, Array], what: Any = "") -> None:
    assert got.keys() == want.keys()
    for name in want:
        assert_bits(got[name], want[name], f"{what} {name}".strip())


class Guards:
    """Arrays that start as NaN, with a margin on both sides that nobody may write to."""

    MARGIN = 4096
    SIGN = 0xA5

    def __init__(self) -> None:
        self.margins: list[Array] = []

    def bytes(self, size: int) -> Array | None:
        """An aligned block for the kernels."""
        if size == 0:
            return None
        memory = np.full(size + 2 * self.MARGIN + _core.ALIGNMENT, self.SIGN, np.uint8)
        start = self.MARGIN + (-memory.ctypes.data - self.MARGIN) % _core.ALIGNMENT
        self.margins += [memory[:start], memory[start + size :]]
        block = memory[start : start + size]
        block[:] = 0xFF  # NaN in any float, -1 in any integer
        return block

    def array(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
        count = int(np.prod(shape))
        block = self.bytes(count * np.dtype(dtype).itemsize)
        return np.zeros(shape, dtype) if block is None else block.view(dtype).reshape(shape)

    def check(self) -> None:
        assert all((margin == self.SIGN).all() for margin in self.margins), "written outside"


@contextmanager
def guards() -> Iterator[Guards]:
    guarded = Guards()
    yield guarded
    guarded.check()


def core_outputs(
    data: Data,
    *,
    level: str | None = None,
    threads: int = 1,
    split: str = "auto",
    keep: int = _core.KEEP_GATES,
    segment: int = 1,
    backward_threads: int | None = None,
) -> dict[str, Array]:
    """As `Data.outputs`, of time-major data by `_core` alone: levels and splits can be forced."""
    case = data.case
    assert case.layout == "time"
    dtype, count = data.x.dtype, case.L * case.D
    net = _core.Net(
        "gru_before" if case.cell == "gru_before" else case.function, dtype,
        isa.level() if level is None else isa.NAMES.index(level),
        case.bias, case.I, case.H, case.L, case.D,
        candidate=case.options.get("nonlinearity"),
    )  # fmt: skip
    restart, kind = None, _core.RESTART_ZERO
    if data.restart_state is not None:
        restart = as_tuple(data.restart_state)
        kind = _core.RESTART_PER_ROW if restart[0].ndim == 3 else _core.RESTART_SHARED
    call = _core.Call(
        case.T, case.B,
        None if data.lengths is None else np.asarray(data.lengths, np.int64),
        None if data.resets is None else np.ascontiguousarray(data.resets, np.uint8),
        kind, keep, segment, case.dropout, DROPOUT_SEED, threads, split,
    )  # fmt: skip
    names = [
        f"{kind}_l{layer}{suffix}"
        for layer in range(case.L)
        for suffix in ("", "_reverse")[: case.D]
        for kind in _core.WEIGHTS
    ]
    with guards() as g:

        def states() -> tuple[Array, ...]:
            return tuple(g.array((count, case.B, case.H), dtype) for _ in as_tuple(data.dhx_n))

        packed_size, tape_size, workspace_size, _ = _core.sizes(net, call)
        packed, tape = g.bytes(packed_size), g.bytes(tape_size)
        _core.pack(net, [data.params.get(name) for name in names], packed)
        y, hx_n = g.array((case.T, case.B, case.D * case.H), dtype), states()
        hx = None if data.hx is None else as_tuple(data.hx)
        workspace = g.bytes(workspace_size)
        _core.forward(net, call, packed, data.x, hx, restart, y, hx_n, tape, workspace)
        out = named(y, hx_n)
        if keep == _core.KEEP_NONE:
            return out
        call = call.for_backward(net, backward_threads or threads, split)
        workspace = g.bytes(_core.sizes(net, call)[3])
        dx, dhx = g.array(data.x.shape, dtype), states()
        grads = {name: g.array(a.shape, dtype) for name, a in data.params.items()}
        for a in grads.values():
            a[:] = 0
        drestart = None if restart is None else tuple(g.array(r.shape, dtype) for r in restart)
        _core.backward(
            net, call, packed, data.x, tape, data.dy, as_tuple(data.dhx_n), dx, dhx, drestart,
            [grads.get(name) for name in names], workspace,
        )  # fmt: skip
    out |= {**grads, "x": dx} | {f"hx[{i}]": a for i, a in enumerate(dhx)}
    if drestart is not None:
        out |= {f"restart_state[{i}]": a for i, a in enumerate(drestart)}
    return out


def numeric_derivative(
    loss: Callable[[], float], values: Array, index: Any, step: float = 1e-3
) -> float:
    """That of the loss by values[index], from four points; values are as they were."""
    old, found = values[index], []
    for k in (-2, -1, 1, 2):
        values[index] = old + k * step
        found.append(loss())
    values[index] = old
    return (found[0] - 8 * found[1] + 8 * found[2] - found[3]) / (12 * step)
