"""The compiled module: the functions of rnnkern.h, one to one."""

from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from typing_extensions import disjoint_base

_Array = NDArray[Any]
_States = tuple[_Array, ...]
_Function = tuple[str, float, float]
_Coupling = Literal["input", "forget"] | None

ACTIVATIONS: Final[tuple[str, ...]]
ALIGNMENT: Final[int]
CELLS: Final[tuple[str, ...]]
COUPLINGS: Final[tuple[_Coupling, ...]]
DTYPES: Final[tuple[np.dtype[Any], ...]]
KEEP_NONE: Final[int]
KEEP_GATES: Final[int]
KEEP_STATES: Final[int]
KEEP_SEGMENTS: Final[int]
MASKS: Final[tuple[str, ...]]
RESTART_ZERO: Final[int]
RESTART_SHARED: Final[int]
RESTART_PER_ROW: Final[int]
REASONS: Final[tuple[str, ...]]
SPLITS: Final[tuple[str, ...]]
TRACED: Final[dict[str, tuple[str, ...]]]
TRACED_COUPLED: Final[tuple[str, ...]]
WEIGHTS: Final[tuple[str, ...]]

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
        *,
        proj_size: int = 0,
        gate: str | _Function | None = None,
        candidate: str | _Function | None = None,
        output: str | _Function | None = None,
        coupled: _Coupling = None,
        peephole: bool = False,
        layer_norm: bool = False,
        norm_eps: float = 1e-5,
        clip: float = 0.0,
        cell_clip: float = 0.0,
        zoneout_h: float = 0.0,
        zoneout_c: float = 0.0,
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
    @property
    def proj_size(self) -> int: ...
    @property
    def gate(self) -> _Function: ...
    @property
    def candidate(self) -> _Function: ...
    @property
    def output(self) -> _Function: ...
    @property
    def coupled(self) -> _Coupling: ...
    @property
    def peephole(self) -> bool: ...
    @property
    def layer_norm(self) -> bool: ...
    @property
    def norm_eps(self) -> float: ...
    @property
    def clip(self) -> float: ...
    @property
    def cell_clip(self) -> float: ...
    @property
    def zoneout_h(self) -> float: ...
    @property
    def zoneout_c(self) -> float: ...
    @property
    def traced(self) -> tuple[str, ...]: ...

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
        *,
        variational: bool = False,
        input_dropout: float = 0.0,
        output_dropout: float = 0.0,
        hidden_dropout: float = 0.0,
        candidate_dropout: float = 0.0,
        first_step: int = 0,
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

def aligned(size: int) -> _Array: ...
def lent(block: _Array, size: int, owner: object) -> _Array: ...
def level_names() -> tuple[str, ...]: ...
def level_supported(level: int) -> bool: ...
def team_size() -> int: ...
def sizes(net: Net, call: Call) -> tuple[int, int, int, int]: ...
def plan(net: Net, call: Call) -> tuple[bool, str, int, tuple[int, int, int], int]: ...
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
def activate(level: int, function: str | _Function, x: _Array) -> _Array: ...
def draw_masks(
    dtype: DTypeLike,
    level: int,
    kind: str,
    probability: float,
    seed: int,
    layer: int,
    direction: int,
    step: int,
    first_row: int,
    rows: int,
    n: int,
) -> _Array: ...
