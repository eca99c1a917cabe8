"""One table of cases, which the tests of the reference, the kernels and the benchmarks share.

The rows were chosen so that nearly every pair of values of two columns meets in some row: cells,
sizes around the vector lengths of the kernels, batch sizes around their tile heights, and all
options. `make` draws the arrays of a case.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# cell       T  B   I   H L dir bias layout lengths resets restart hx dropout
TABLE = """
rnn_tanh    0  7  17  31 2 bi  bias time   zeros  sparse rows   hx 0.3
rnn_tanh    1  0   1   8 3 bi  -    time   ragged sparse none   -  0.3
rnn_tanh    1  1  33   7 2 bi  -    single zeros  dense  none   hx 0.3
rnn_tanh    1  7   1   1 3 uni -    batch  zeros  all    none   hx 0.3
rnn_tanh    1  7   1  16 3 uni bias time   none   dense  none   hx 0
rnn_tanh    1 17   3   8 3 uni -    time   none   dense  none   -  0
rnn_tanh    1 17  16  15 1 uni -    time   full   dense  none   -  0
rnn_tanh    1 33  33   9 3 uni bias time   full   sparse shared -  0.3
rnn_tanh    2  1   7  33 2 bi  -    batch  zeros  all    shared -  0.3
rnn_tanh    2  1  65  65 1 bi  bias single zeros  sparse shared hx 0
rnn_tanh    2  2 129  17 2 bi  bias time   none   dense  rows   -  0
rnn_tanh    2  3  65  17 2 bi  bias time   none   all    rows   hx 0.3
rnn_tanh    2  7   8 129 1 uni bias batch  none   sparse rows   hx 0
rnn_tanh    7  1   9   3 3 uni -    single full   sparse rows   hx 0
rnn_tanh    7 33  31  65 1 bi  -    time   full   none   none   hx 0
rnn_tanh   19  0  33  65 2 uni -    batch  none   dense  rows   -  0
rnn_tanh   19  3  15  31 2 uni bias time   zeros  none   none   hx 0.3
rnn_tanh   19  7  17   9 2 bi  -    batch  ragged dense  shared hx 0
rnn_relu    0  0  33  65 1 bi  -    time   zeros  dense  shared -  0
rnn_relu    1  2  65  33 3 uni -    time   full   sparse rows   hx 0.3
rnn_relu    1 33  31   3 3 uni bias batch  none   none   none   hx 0.3
rnn_relu    2  1   8   1 2 uni -    time   ragged dense  rows   hx 0
rnn_relu    2  2  65   7 3 uni -    time   none   all    none   hx 0.3
rnn_relu    2 33  17  16 2 uni -    batch  none   none   none   -  0.3
rnn_relu    7  1  15  15 2 bi  -    single zeros  dense  rows   -  0.3
rnn_relu    7  2  16   9 2 uni bias time   zeros  sparse shared -  0.3
rnn_relu    7  3   7   8 1 bi  -    batch  ragged none   none   hx 0
rnn_relu    7  7   1  17 1 uni bias time   ragged all    shared hx 0
rnn_relu    7  7  15  65 2 bi  bias batch  none   dense  none   hx 0.3
rnn_relu    7 17  33 129 2 bi  bias batch  ragged none   none   hx 0
rnn_relu   19  1 129   7 1 uni -    single none   none   none   -  0
rnn_relu   19 17   3   1 1 bi  bias time   none   all    shared -  0
rnn_relu   19 17   9  31 2 bi  bias time   full   dense  shared hx 0.3
lstm        0  1  15  16 2 bi  bias single none   sparse rows   hx 0.3
lstm        1  3  31   9 3 uni -    time   full   all    none   -  0
lstm        1  3  33  31 3 bi  bias time   none   sparse none   -  0.3
lstm        1  3   9 129 1 bi  -    time   zeros  dense  shared -  0
lstm        1  7   7   3 1 bi  bias time   zeros  all    rows   -  0
lstm        2  0  15  33 2 uni bias batch  ragged dense  shared -  0.3
lstm        2  3  17  15 3 bi  -    time   ragged sparse none   -  0
lstm        2 17   8   7 3 bi  -    batch  full   dense  none   hx 0.3
lstm        2 33  65  33 3 bi  -    batch  ragged sparse shared -  0
lstm        7  1  16  16 1 bi  bias single ragged dense  rows   -  0
lstm        7  2  15  15 1 uni bias batch  ragged all    none   hx 0
lstm        7  2  15  16 1 bi  -    batch  ragged all    none   hx 0
lstm        7  3  33   7 3 bi  bias batch  zeros  sparse shared -  0.3
lstm        7 33   1   1 2 bi  -    time   full   sparse rows   -  0.3
lstm       19  2  17   8 2 bi  -    time   full   dense  rows   -  0.3
lstm       19  2 129  17 3 uni -    batch  zeros  none   none   hx 0.3
lstm       19  3   3  65 2 uni -    batch  full   dense  rows   -  0.3
lstm       19 33  15 129 1 bi  bias batch  none   all    rows   hx 0
gru_after   0  0   3  17 3 bi  -    time   none   sparse rows   hx 0.3
gru_after   0  2   3   8 2 uni -    batch  full   dense  none   hx 0.3
gru_after   0  3  17   3 3 bi  -    time   full   all    rows   -  0
gru_after   1  1  17 129 3 uni -    single ragged all    rows   -  0.3
gru_after   1 17   7  65 3 bi  -    time   ragged all    none   hx 0.3
gru_after   2  1  31  17 3 uni -    single none   all    none   hx 0
gru_after   2  7  65   8 3 bi  bias batch  ragged all    shared hx 0
gru_after   2  7  15  15 3 bi  bias time   none   none   none   -  0
gru_after   2 33   1   8 2 uni bias time   zeros  all    rows   -  0.3
gru_after   2 33  33  31 1 uni -    batch  none   dense  shared hx 0
gru_after   7  0   7  16 1 bi  -    batch  none   sparse rows   -  0
gru_after   7 17   3   9 1 bi  bias time   zeros  sparse rows   -  0
gru_after   7 33  16   7 3 uni bias time   ragged sparse shared -  0.3
gru_after  19  1   3   1 1 bi  -    single ragged all    shared -  0
gru_after  19  2   8  33 3 bi  -    time   ragged none   none   -  0.3
gru_after  19  3   9  16 3 bi  bias time   full   all    none   hx 0
gru_after  19 17 129   3 2 uni -    batch  full   dense  rows   -  0.3
gru_before  0  0  33   7 2 uni -    batch  full   all    rows   -  0
gru_before  1  2  16  31 3 bi  -    batch  ragged dense  shared hx 0.3
gru_before  1  2 129  65 3 bi  -    batch  none   all    shared -  0.3
gru_before  1 17  65  16 2 uni -    batch  zeros  sparse shared -  0.3
gru_before  1 33   3  17 3 uni bias time   full   sparse shared hx 0.3
gru_before  2  1   7   9 3 uni bias single none   none   none   -  0.3
gru_before  2  3  15   1 2 uni -    batch  ragged none   none   hx 0
gru_before  2  3  16   3 2 uni -    batch  ragged sparse shared -  0.3
gru_before  2 17   1  33 1 bi  bias batch  none   dense  shared -  0
gru_before  7  1   1  31 2 bi  -    single ragged all    rows   hx 0.3
gru_before  7  3  17  33 1 bi  bias time   none   dense  none   -  0
gru_before  7  7   9   7 2 uni bias batch  full   all    rows   hx 0
gru_before  7  7  65  33 3 uni -    time   none   sparse none   hx 0.3
gru_before 19  1   8   8 1 bi  -    single full   sparse shared hx 0
gru_before 19  2  33 129 3 bi  bias time   full   none   none   -  0.3
gru_before 19 33  31  15 2 uni bias time   full   sparse shared -  0.3
"""


@dataclass(frozen=True)
class Case:
    cell: str  # rnn_tanh, rnn_relu, lstm, gru_after, gru_before
    T: int
    B: int
    I: int  # noqa: E741
    H: int
    L: int
    bidirectional: bool = False
    bias: bool = True
    layout: str = "time"  # (T, B, I); or batch: (B, T, I); or single: (T, I)
    lengths: str = "none"  # or full: all T; ragged: 1 to T; zeros: 0 to T, with a 0 among them
    resets: str = "none"  # or sparse: about one a row; dense: half of all; all
    restart: str = "none"  # or shared: (L*D, H); rows: (L*D, B, H)
    hx: bool = False
    dropout: float = 0.0

    def __str__(self) -> str:
        """A readable test id that says all."""
        words = [
            self.cell,
            f"T{self.T}.B{self.B}.I{self.I}.H{self.H}.L{self.L}",
            self.layout,
            "bi" if self.bidirectional else "",
            "" if self.bias else "nobias",
            "hx" if self.hx else "",
            f"len_{self.lengths}" if self.lengths != "none" else "",
            f"reset_{self.resets}" if self.resets != "none" else "",
            f"restart_{self.restart}" if self.restart != "none" else "",
            f"dropout{self.dropout}" if self.dropout else "",
        ]
        return "-".join(word for word in words if word)

    @property
    def D(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def batched(self) -> bool:
        return self.layout != "single"

    @property
    def function(self) -> str:
        """The stem of the functions that run it: rnn, lstm or gru."""
        return self.cell.partition("_")[0]

    @property
    def options(self) -> dict[str, Any]:
        """The keywords of the forward function that only this cell has."""
        kind = self.cell.partition("_")[2]
        if self.function == "rnn":
            return {"nonlinearity": kind}
        return {"reset_after": kind == "after"} if self.function == "gru" else {}


def parse(line: str) -> Case:
    cell, T, B, I, H, L, direction, bias, layout, lengths, resets, restart, hx, p = line.split()  # noqa: E741
    return Case(
        cell=cell,
        T=int(T),
        B=int(B),
        I=int(I),
        H=int(H),
        L=int(L),
        bidirectional=direction == "bi",
        bias=bias == "bias",
        layout=layout,
        lengths=lengths,
        resets=resets,
        restart=restart,
        hx=hx == "hx",
        dropout=float(p),
    )


CASES = [parse(line) for line in TABLE.strip().splitlines()]


def as_tuple(states: Any) -> tuple[Array, ...]:
    return states if isinstance(states, tuple) else (states,)


DROPOUT_SEED = 0x0123456789ABCDEF  # both words of it matter


@dataclass(frozen=True)
class Data:
    """The arrays of a case, in the caller's layout; those that a case does not use are None."""

    case: Case
    params: dict[str, Array]
    x: Array
    hx: Any
    lengths: Any
    resets: Array | None
    restart_state: Any
    dy: Any
    dhx_n: Any
    real: Array  # bool, the steps within the lengths: (T, B), or as x

    @property
    def keywords(self) -> dict[str, Any]:
        return {
            **self.case.options,
            "batch_first": self.case.layout == "batch",
            "lengths": self.lengths,
            "resets": self.resets,
            "restart_state": self.restart_state,
            "dropout": self.case.dropout,
            "seed": DROPOUT_SEED,
        }

    def forward(self, module: Any) -> Any:
        """y, hx_n and the tape, by a module with the functions of `rnnkern.reference`."""
        run = getattr(module, f"{self.case.function}_forward")
        return run(self.x, self.params, self.hx, **self.keywords)

    def backward(self, module: Any, tape: Any) -> Any:
        """dx, dhx and grads for the upstream gradients dy and dhx_n."""
        return getattr(module, f"{self.case.function}_backward")(tape, self.dy, self.dhx_n)

    def inputs(self) -> dict[str, Array]:
        """All arrays that have a gradient, by name; the arrays themselves, not copies."""
        named = {**self.params, "x": self.x}
        for name in ("hx", "restart_state"):
            value = getattr(self, name)
            if value is not None:
                named |= {f"{name}[{i}]": a for i, a in enumerate(as_tuple(value))}
        return named

    def outputs(self, module: Any) -> dict[str, Array]:
        """All that forward and backward return, by name; a gradient has its input's name."""
        y, hx_n, tape = self.forward(module)
        dx, dhx, grads = self.backward(module, tape)
        named = {"y": y, **grads, "x": dx}
        named |= {f"hx_n[{i}]": a for i, a in enumerate(as_tuple(hx_n))}
        named |= {f"hx[{i}]": a for i, a in enumerate(as_tuple(dhx))}
        if self.restart_state is not None:
            restart_grads = as_tuple(tape.restart_state_grad)
            named |= {f"restart_state[{i}]": a for i, a in enumerate(restart_grads)}
        return named

    def astype(self, dtype: npt.DTypeLike) -> Data:
        def cast(a: Any) -> Any:
            if a is None:
                return None
            return tuple(map(cast, a)) if isinstance(a, tuple) else a.astype(dtype)

        return replace(
            self,
            params={name: cast(p) for name, p in self.params.items()},
            x=cast(self.x),
            hx=cast(self.hx),
            restart_state=cast(self.restart_state),
            dy=cast(self.dy),
            dhx_n=cast(self.dhx_n),
        )


def make(
    case: Case, dtype: npt.DTypeLike = np.float64, seed: int = 0, behind: float = np.nan
) -> Data:
    """Draw the arrays of a case; x and dy hold `behind` where no step is real."""
    rng = np.random.default_rng(seed)
    T, B, H, D = case.T, case.B, case.H, case.D
    normal = rng.standard_normal

    params = {}
    for k in range(case.L * D):
        suffix = f"_l{k // D}" + ("_reverse" if k % D else "")
        inputs = case.I if k < D else D * H
        blocks = {"rnn": 1, "lstm": 4, "gru": 3}[case.function]
        # this scale keeps gates off saturation, where a wrong gate would hardly show
        params[f"weight_ih{suffix}"] = normal((blocks * H, inputs)) / np.sqrt(inputs)
        params[f"weight_hh{suffix}"] = normal((blocks * H, H)) / np.sqrt(H)
        if case.bias:
            params[f"bias_ih{suffix}"] = normal(blocks * H) / 2
            params[f"bias_hh{suffix}"] = normal(blocks * H) / 2

    rows = np.full(B, T)
    if case.lengths == "ragged":
        rows = rng.integers(1, T + 1, B)
    elif case.lengths == "zeros":
        rows = np.where(np.arange(B) == B // 2, 0, rng.integers(0, T + 1, B))
    real = np.arange(T)[:, None] < rows

    share = {"none": 0.0, "sparse": 1 / max(T, 1), "dense": 0.5, "all": 1.0}[case.resets]
    resets = rng.random((T, B)) < share

    def sequence(a: Array) -> Array:
        if not case.batched:
            return a[:, 0]
        return np.ascontiguousarray(a.swapaxes(0, 1)) if case.layout == "batch" else a

    def states(*shape: int) -> Any:
        two = case.function == "lstm"
        return (normal(shape), normal(shape)) if two else normal(shape)

    per_row = (case.L * D, B, H) if case.batched else (case.L * D, H)
    x = np.where(real[:, :, None], normal((T, B, case.I)), behind)
    dy = np.where(real[:, :, None], normal((T, B, D * H)), behind)
    hx = states(*per_row)
    restart_state = states(*(per_row if case.restart == "rows" else (case.L * D, H)))
    return Data(
        case=case,
        params=params,
        x=sequence(x),
        hx=hx if case.hx else None,
        lengths=None if case.lengths == "none" else rows if case.batched else int(rows[0]),
        resets=None if case.resets == "none" else sequence(resets),
        restart_state=None if case.restart == "none" else restart_state,
        dy=sequence(dy),
        dhx_n=states(*per_row),
        real=sequence(real),
    ).astype(dtype)
