"""The compiled module: the functions of rnnkern.h, one to one."""

from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from typing_extensions import disjoint_base

_Array = NDArray[Any]
_States = tuple[_Array, ...]

ACTIVATIONS: Final[tuple[str, ...]]
ALIGNMENT: Final[int]
CELLS: Final[tuple[str, ...]]
DTYPES: Final[tuple[np.dtype[Any], ...]]
KEEP_NONE: Final[int]
KEEP_GATES: Final[int]
KEEP_STATES: Final[int]
KEEP_SEGMENTS: Final[int]
RESTART_ZERO: Final[int]
RESTART_SHARED: Final[int]
RESTART_PER_ROW: Final[int]
REASONS: Final[tuple[str, ...]]
TRACED: Final[tuple[tuple[str, ...], ...]]
SPLITS: Final[tuple[str, ...]]

@disjoint_base
class Net:
    def __new__(
        cls,
        cell: str,
        dtype: DTypeLike,
        level: int,
        bias: bool,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        num_directions: int,
    ) -> Self: ...
    @property
    def cell(self) -> str: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def level(self) -> int: ...
    @property
    def bias(self) -> bool: ...
    @property
    def input_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_directions(self) -> int: ...

@disjoint_base
class Call:
    def __new__(
        cls,
        steps: int,
        rows: int,
        lengths: _Array | None,
        resets: _Array | None,
        restart_kind: int,
        keep: int,
        segment: int,
        dropout: float,
        seed: int,
        threads: int,
        split: str = "auto",
    ) -> Self: ...
    @property
    def lengths(self) -> _Array | None: ...
    @property
    def resets(self) -> _Array | None: ...
    @property
    def steps(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def keep(self) -> int: ...
    @property
    def traced(self) -> bool: ...
    @property
    def segment(self) -> int: ...
    @property
    def restart_kind(self) -> int: ...
    def trace_into(self, net: Net, trace: _Array) -> None: ...
    def part(self, start: int, stop: int) -> Call: ...
    def for_backward(
        self,
        net: Net,
        threads: int,
        split: str = "auto",
        clip: float = 0.0,
        state_norms: _Array | None = None,
        row_grads: bool = False,
    ) -> Call: ...

@disjoint_base
class Pointers:
    def __new__(cls, arrays: list[_Array | None], net: Net, copies: int = 1) -> Self: ...

@disjoint_base
class Stepper:
    @property
    def net(self) -> Net: ...
    def bind(
        self, net: Net, packed: _Array, workspace: _Array, rows: int, threads: int
    ) -> None: ...
    def enter(self) -> None: ...
    def leave(self) -> None: ...
    def cell(self, x: Any, hx: Any, threads: int) -> Any: ...

@disjoint_base
class StreamBase(Stepper):
    @property
    def _states(self) -> _States: ...
    def hold(
        self,
        net: Net,
        packed: _Array,
        workspace: _Array,
        threads: int,
        states: _States,
        some: _States,
    ) -> None: ...
    def step(
        self, x: ArrayLike, out: _Array | None = None, rows: ArrayLike | None = None
    ) -> _Array: ...
    def _advance(self, x: _Array, y: _Array, rows: _Array | None) -> None: ...

def level_names() -> tuple[str, ...]: ...
def level_supported(level: int) -> bool: ...
def team_size() -> int: ...
def sizes(net: Net, call: Call) -> tuple[int, int, int, int]: ...
def plan(net: Net, call: Call) -> tuple[str, int, tuple[int, int, int], int]: ...
def pack(net: Net, weights: list[_Array | None], packed: _Array | None) -> None: ...
def forward(
    net: Net,
    call: Call,
    packed: _Array | None,
    x: _Array,
    hx: _States | None,
    restart: _States | None,
    y: _Array | None,
    hx_n: _States | None,
    tape: _Array | None,
    workspace: _Array | None,
) -> None: ...
def backward(
    net: Net,
    call: Call,
    packed: _Array | None,
    x: _Array,
    tape: _Array | None,
    dy: _Array | None,
    dhx_n: _States | None,
    dx: _Array | None,
    dhx: _States | None,
    drestart: _States | None,
    grads: list[_Array | None] | None,
    workspace: _Array | None,
) -> None: ...
def activate(level: int, activation: str, x: _Array) -> _Array: ...
def dropout_mask(
    dtype: DTypeLike, dropout: float, seed: int, layer: int, step: int, row: int, n: int
) -> _Array: ...
