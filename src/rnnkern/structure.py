"""What networks are made of: for each cell and its options the parameters, states and kernels.

A ``Cell`` is what no option changes, ``Options`` are what a cell's functions take, and a
``Structure`` is a whole stack of layers, but for the values of its parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict

import numpy as np

from . import _core, isa
from .activations import Activation, Function, activation, function
from .validation import Array, Shape, boolean, described, limit, one_of, positive

if TYPE_CHECKING:
    from .regularization import Regularization


# ---- cells


class Cell(NamedTuple):
    """A cell of the kernels."""

    title: str
    gates: str  # blocks of H rows of the weights, by letter
    states: tuple[str, ...]
    functions: dict[str, Activation]  # in the order of ``activations``, and what they usually are
    weights: tuple[str, ...]  # what it may have, in the order of _core.WEIGHTS
    options: tuple[str, ...]  # keywords of its functions
    lacks: tuple[str, ...]  # fields of Regularization that mean nothing here


_PLAIN = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
_GATED: dict[str, Activation] = {"gate": "sigmoid", "candidate": "tanh"}

CELLS = {
    "rnn": Cell(
        "RNN", "h", ("h",), {"candidate": "tanh"}, (*_PLAIN, "norm_ih", "norm_hh"),
        ("nonlinearity", "clip", "norm_eps"),
        ("candidate_dropout", "zoneout_c"),
    ),
    "lstm": Cell(
        "LSTM", "ifgo", ("h", "c"), {**_GATED, "output": "tanh"}, _core.WEIGHTS,
        ("coupled", "activations", "clip", "cell_clip", "norm_eps"),
        (),
    ),
    "gru": Cell(
        "GRU", "rzn", ("h",), _GATED, (*_PLAIN, "norm_ih", "norm_hh"),
        ("reset_after", "activations", "clip", "norm_eps"),
        ("zoneout_c",),
    ),
    "gru_before": Cell(
        "GRU", "rzn", ("h",), _GATED, _PLAIN,
        ("reset_after", "activations", "clip", "norm_eps"),
        ("zoneout_c",),
    ),
    "mgu": Cell(
        "MGU", "fn", ("h",), _GATED, _PLAIN,
        ("activations",),
        ("zoneout_c",),
    ),
    "indrnn": Cell(
        "IndRNN", "h", ("h",), {"candidate": "relu"}, ("weight_ih", "weight_hh", "bias_ih"),
        ("nonlinearity",),
        ("candidate_dropout", "weight_dropout", "zoneout_c"),
    ),
    "sru": Cell(
        "SRU", "nfrx", ("c",), {"gate": "sigmoid", "output": "identity"},
        ("weight_ih", "bias_ih", "weight_ch"),
        ("activations",),
        ("hidden_dropout", "weight_dropout", "zoneout_h"),
    ),
    "mingru": Cell(
        "MinGRU", "zn", ("h",), {"gate": "sigmoid", "candidate": "identity"},
        ("weight_ih", "bias_ih"),
        ("activations",),
        ("hidden_dropout", "weight_dropout", "zoneout_c"),
    ),
}  # fmt: skip

NAMES = tuple(name for name in CELLS if name != "gru_before")
"""Of the functions that run cells; reset_after=False is an option there."""

FIRST_VALUES = {
    "norm_ih": 1.0, "norm_hh": 1.0, "norm_c": 1.0, "norm_c_bias": 0.0,
    "initial_h": 0.0, "initial_c": 0.0,
}  # fmt: skip
"""Of the parameters that do not start at random, by kind."""


def kind_of(parameter: str) -> str:
    """Which kind a parameter is of: "weight_ih" for "weight_ih_l0_reverse"."""
    return parameter.partition("_l")[0]


# ---- options

Coupling: TypeAlias = Literal["input", "forget"] | None


class CellOptions(TypedDict, total=False):
    """What the functions of a cell take beside ForwardOptions; which has what, they say."""

    nonlinearity: Activation
    activations: tuple[Activation, ...]
    reset_after: bool
    coupled: Coupling
    clip: float | None
    cell_clip: float | None
    norm_eps: float


class Options(NamedTuple):
    """A cell and what its functions take, as the kernels have it."""

    cell: str
    gate: Function | None = None
    candidate: Function | None = None
    output: Function | None = None
    coupled: Coupling = None
    clip: float | None = None
    cell_clip: float | None = None
    norm_eps: float = 1e-5

    @property
    def name(self) -> str:
        """Of the functions that run it."""
        return "gru" if self.cell == "gru_before" else self.cell


def _coupling(name: str, value: Any) -> str | None:
    return None if value is None else one_of(name, value, ("input", "forget"))


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "nonlinearity": activation,
    "reset_after": boolean,
    "coupled": _coupling,
    "clip": limit,
    "cell_clip": limit,
    "norm_eps": positive,
}


_COUPLED = {"input": "fgo", "forget": "igo"}  # i or f is 1 minus the one that is there


def gates_of(cell: str, coupled: Coupling = None) -> str:
    """The blocks of H rows of the weights, by letter; one that is not computed has none."""
    return CELLS[cell].gates if coupled is None else _COUPLED[coupled]


def check_option(cell: str, name: str, value: Any) -> Any:
    """The value of an option of a cell's functions in its usual form; TypeError or ValueError."""
    return _activations(cell, value) if name == "activations" else _CHECKS[name](name, value)


def _activations(cell: str, value: Any) -> tuple[Activation, ...]:
    title, functions = CELLS[cell].title, CELLS[cell].functions
    if not isinstance(value, tuple | list) or len(value) != len(functions):
        expected = f"expected {len(functions)} activations of the {title} ({', '.join(functions)})"
        raise ValueError(f"activations: {expected}, got {value!r}")
    pairs = zip(functions, value, strict=True)
    return tuple(activation(f"activations ({part})", given) for part, given in pairs)


def cell_options(cell: str, **given: Any) -> Options:
    """What the functions of a cell were given, checked; missing options are the usual ones."""
    title, _, _, functions, _, known, _ = CELLS[one_of("cell", cell, NAMES)]
    for name in given:
        if name not in known:
            raise TypeError(f"{name}: not an option of the {title}, which has {', '.join(known)}")
    values = {name: check_option(cell, name, value) for name, value in given.items()}
    chosen = values.pop("activations", tuple(functions.values()))
    if "nonlinearity" in values:
        chosen = (values.pop("nonlinearity"),)
    parts: dict[str, Any] = dict(zip(functions, map(function, chosen), strict=True))
    kernel = cell if values.pop("reset_after", True) else "gru_before"
    return Options(kernel, **parts, **values)


def check_regularization(cell: str, value: Any) -> Regularization | None:
    """``value`` itself; TypeError or ValueError unless a cell can have it."""
    if value is None:
        return None
    from .regularization import Regularization  # not for those who have none

    if not isinstance(value, Regularization):
        raise TypeError(
            f"regularization: expected a rnnkern.Regularization or None, got {described(value)}"
        )
    for name in CELLS[cell].lacks:
        if probability := getattr(value, name):
            raise ValueError(
                f"regularization: the {CELLS[cell].title} has no {name}, expected 0, "
                f"got {probability:g}"
            )
    return value


# ---- stacks of layers


class _Fields(NamedTuple):
    options: Options
    dtype: np.dtype[Any]
    input_size: int
    hidden_size: int
    num_layers: int = 1
    num_directions: int = 1
    bias: bool = True
    proj_size: int = 0
    peephole: bool = False
    layer_norm: bool = False
    learned: bool = False  # initial states
    zoneout_h: float = 0.0
    zoneout_c: float = 0.0


class Structure(_Fields):
    """A stack of layers, but for the values of its parameters. What follows from it is kept."""

    @cached_property
    def cell(self) -> Cell:
        return CELLS[self.options.cell]

    @cached_property
    def width(self) -> int:
        """P, the features of h."""
        return self.proj_size or self.hidden_size

    @cached_property
    def features(self) -> int:
        """Of y."""
        return self.num_directions * self.width

    @cached_property
    def sweeps(self) -> int:
        """Layers and directions, L*D."""
        return self.num_layers * self.num_directions

    @cached_property
    def states(self) -> dict[str, int]:
        """Names of the states, and their widths."""
        widths = {"h": self.width, "c": self.hidden_size}
        return {name: widths[name] for name in self.cell.states}

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Of the weights of each layer and direction, in order."""
        optional = {
            "bias_ih": self.bias,
            "bias_hh": self.bias,
            "weight_hr": self.proj_size > 0,
            "weight_ch": self.peephole or self.options.cell == "sru",
            **dict.fromkeys(("norm_ih", "norm_hh", "norm_c", "norm_c_bias"), self.layer_norm),
        }
        return tuple(kind for kind in self.cell.weights if optional.get(kind, True))

    @property
    def blocks(self) -> int:
        """G, of H rows of the weights."""
        return len(gates_of(self.options.cell, self.options.coupled))

    def weight_shapes(self, layer: int) -> dict[str, Shape]:
        """Those of one direction of a layer, by kind."""
        units, width = self.hidden_size, self.width
        rows = self.blocks * units
        peepholes = 3 if self.options.name == "lstm" and self.options.coupled is None else 2
        shapes: dict[str, Shape] = {
            "weight_ih": (rows, self.features if layer else self.input_size),
            "weight_hh": (units,) if self.options.cell == "indrnn" else (rows, width),
            "weight_hr": (width, units),
            "weight_ch": (peepholes * units,),
            "norm_c": (units,),
            "norm_c_bias": (units,),
        }
        return {kind: shapes.get(kind, (rows,)) for kind in self.kinds}

    def parameter_count(self) -> tuple[int, int]:
        """How many arrays the parameters are, and how many numbers those have."""
        first, other = (sum(map(prod, self.weight_shapes(k).values())) for k in (0, 1))
        numbers = self.num_directions * (first + (self.num_layers - 1) * other)
        arrays = self.sweeps * len(self.kinds)
        if self.learned:
            numbers += self.sweeps * sum(self.states.values())
            arrays += self.sweeps * len(self.states)
        return arrays, numbers

    @property
    def _suffixes(self) -> list[str]:
        directions = ("", "_reverse")[: self.num_directions]
        return [f"_l{layer}{suffix}" for layer in range(self.num_layers) for suffix in directions]

    @cached_property
    def parameter_shapes(self) -> Mapping[str, Shape]:
        """Names and shapes: weights in torch's order, then learned initial states."""
        layers = [self.weight_shapes(min(k, 1)) for k in range(self.num_layers)]
        named = {
            f"{kind}{suffix}": shape
            for sweep, suffix in enumerate(self._suffixes)
            for kind, shape in layers[sweep // self.num_directions].items()
        }
        if self.learned:
            named |= {
                f"initial_{state}{suffix}": (width,)
                for state, width in self.states.items()
                for suffix in self._suffixes
            }
        return MappingProxyType(named)

    def regularized(self, regularization: Regularization | None) -> Structure:
        """With its zoneout; None changes nothing."""
        if regularization is None:
            return self
        return self._replace(zoneout_h=regularization.zoneout_h, zoneout_c=regularization.zoneout_c)

    def places(self, kind: str) -> range:
        """Where weights of this kind are in the list of ``split``."""
        each = len(_core.WEIGHTS)
        return range(_core.WEIGHTS.index(kind), self.sweeps * each, each)

    @cached_property
    def _taken_places(self) -> list[int]:
        """Of the weights that there are, in the order of parameter_shapes."""
        kinds = [kind in self.kinds for kind in _core.WEIGHTS]
        return [place for place, there in enumerate(self.sweeps * kinds) if there]

    def split(
        self, arrays: Iterable[Array]
    ) -> tuple[list[Array | None], tuple[list[Array], ...] | None]:
        """Arrays in the order of parameter_shapes as the kernels take them.

        Weights as _core.WEIGHTS for each layer and direction, None where there is none; and for
        each state those of the learned initial ones, None if they are not learned.
        """
        weights: list[Array | None] = [None] * (self.sweeps * len(_core.WEIGHTS))
        at = iter(arrays)
        for place in self._taken_places:
            weights[place] = next(at)
        if not self.learned:
            return weights, None
        return weights, tuple([next(at) for _ in range(self.sweeps)] for _ in self.states)

    @cached_property
    def packed_bytes(self) -> int:
        """Of the weights as the kernels read them."""
        nothing = _core.Call(0, 0, None, None, _core.RESTART_ZERO, _core.KEEP_NONE, 1, 0.0, 0, 1)
        return _core.sizes(self.net(), nothing)[0]

    @cached_property
    def _nets(self) -> dict[int, _core.Net]:
        return {}

    def net(self) -> _core.Net:
        """As the kernels take it, at the level in use."""
        level = isa.level()
        if level not in self._nets:
            self._nets[level] = self._net(level)
        return self._nets[level]

    def _net(self, level: int) -> _core.Net:
        options = self.options
        return _core.Net(
            options.cell,
            self.dtype,
            level,
            self.bias,
            self.input_size,
            self.hidden_size,
            self.num_layers,
            self.num_directions,
            proj_size=self.proj_size,
            gate=options.gate,
            candidate=options.candidate,
            output=options.output,
            coupled=options.coupled,
            peephole=self.peephole,
            layer_norm=self.layer_norm,
            norm_eps=options.norm_eps,
            clip=options.clip or 0.0,
            cell_clip=options.cell_clip or 0.0,
            zoneout_h=self.zoneout_h,
            zoneout_c=self.zoneout_c,
        )

    def __getstate__(self) -> None:
        """Copies find out for themselves what follows."""


def check_structure(structure: Structure) -> None:
    """ValueError for sizes and options that do not go together."""
    units, width = structure.hidden_size, structure.proj_size
    for kind, given in (("weight_hr", width > 0), ("weight_ch", structure.peephole)):
        if given and kind not in structure.cell.weights:
            raise ValueError(f"{kind}: the {structure.cell.title} has none")
    if width and width >= units:
        raise ValueError(f"proj_size: expected less than hidden_size = {units}, got {width}")
    if structure.layer_norm and "norm_ih" not in structure.cell.weights:
        raise ValueError("layer_norm: expected False with reset_after=False, got True")
