"""What layers and cells have in common: parameters and options, copies, files, snapshots."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from . import functional
from .arguments import stacked
from .packed import Packed
from .parameters import Module, check_fits, float_dtype
from .structure import (
    CELLS,
    FIRST_VALUES,
    Options,
    Structure,
    cell_options,
    check_option,
    check_regularization,
    check_structure,
    kind_of,
)
from .validation import Array, Shape, boolean, integer, positive_int, probability

S = TypeVar("S")
"""States: one array, or for the LSTM the tuple (h, c)."""

Pair = tuple[Array, Array]
Seed: TypeAlias = "int | np.random.Generator | None"  # quoted: numpy.random is slow to import


def _proj_size(name: str, value: Any) -> int:
    return integer(name, value, "an integer of at least 0", 0)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "input_size": positive_int,
    "hidden_size": positive_int,
    "num_layers": positive_int,
    "bias": boolean,
    "batch_first": boolean,
    "dropout": probability,
    "bidirectional": boolean,
    "proj_size": _proj_size,
    "peephole": boolean,
    "layer_norm": boolean,
    "learn_initial_state": boolean,
}
_OF_STRUCTURE = (
    "input_size",
    "hidden_size",
    "num_layers",
    "bias",
    "proj_size",
    "peephole",
    "layer_norm",
)
_ASSIGNABLE = ("batch_first", "dropout", "regularization")


class Recurrent(Module):
    """Parameters and options of a layer or a cell; files, copies, repr."""

    _cell: ClassVar[str]  # stem of the functions that run it

    input_size: int
    hidden_size: int
    bias: bool
    _options: Options
    _unregularized: Structure

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        """``arguments`` are those of a constructor of this package, as its locals() are."""
        options = {name: arguments[name] for name in self._known_class()._defaults()}
        self._build(arguments["dtype"], options)
        try:
            rng = np.random.default_rng(arguments["seed"])
        except (TypeError, ValueError) as error:
            raise type(error)(f"seed: {error}") from None
        bound = 1 / math.sqrt(self.hidden_size)
        self.flat_params = rng.uniform(-bound, bound, self.flat_params.size)
        for name, values in self.params.items():
            if (first := FIRST_VALUES.get(kind_of(name))) is not None:
                values.fill(first)
        self._dropout_seed = int(rng.integers(2**64, dtype=np.uint64))

    def _build(self, dtype: DTypeLike, options: Mapping[str, Any]) -> None:
        """Everything but values for the parameters."""
        for name, value in options.items():
            setattr(self, name, self._checked(name, value))
        known = CELLS[self._cell].options
        own = {name: getattr(self, name) for name in options if name in known}
        self._options = cell_options(self._cell, **own)
        self._unregularized = self._structure_of(float_dtype(dtype))
        check_structure(self._unregularized)
        check_fits(*self._unregularized.parameter_count(), dtype)  # before there are names
        super().__init__(self._shapes(self._unregularized.parameter_shapes), dtype)

    def _checked(self, name: str, value: Any) -> Any:
        """The value of an option in its usual form."""
        if name == "regularization":
            return check_regularization(self._cell, value)
        if name in _CHECKS:
            return _CHECKS[name](name, value)
        return check_option(self._cell, name, value)

    @staticmethod
    def _shapes(shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """Those of the parameters, from those of a stack of layers."""
        return shapes

    def _structure_of(self, dtype: np.dtype[Any]) -> Structure:
        own = vars(self)
        return Structure(
            self._options,
            dtype,
            num_directions=2 if own.get("bidirectional") else 1,
            learned=own.get("learn_initial_state", False),
            **{name: own[name] for name in _OF_STRUCTURE if name in own},
        )

    @property
    def _structure(self) -> Structure:
        """What the kernels compute."""
        return self._unregularized.regularized(vars(self).get("regularization"))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self) and name in self._known_class()._defaults():
            if name not in _ASSIGNABLE:
                raise AttributeError(f"{name} is fixed once a {type(self).__name__} is built")
            value = self._checked(name, value)
        super().__setattr__(name, value)

    @classmethod
    @cache
    def _known_class(cls) -> type[Recurrent]:
        """The class of this package that cls is or derives from."""
        return next(c for c in cls.__mro__ if "_cell" in vars(c))

    @classmethod
    @cache
    def _defaults(cls) -> dict[str, Any]:
        """The options in the order of the constructor's arguments, and their defaults."""
        arguments = inspect.signature(cls).parameters.items()
        others = ("dtype", "seed")
        return {name: argument.default for name, argument in arguments if name not in others}

    def _bind(self, params: Packed | Mapping[str, Array]) -> Callable[..., Any]:
        """`functional`'s forward with weights and options filled in."""
        return partial(functional._forward, self._options, params=params)

    @property
    def _forward(self) -> Callable[..., Any]:
        return self._bind(self._pack())

    def _pack(self) -> Packed:
        structure = self._structure
        weights, initial = structure.split(self.params.values())
        return Packed(structure, weights, stacked(initial))

    @property
    def _sizes(self) -> tuple[int, int]:
        return self.input_size, self.hidden_size

    def initialize(self, **options: Any) -> None:
        """Give the parameters new first values: `rnnkern.initializers.initialize`."""
        from .initializers import initialize

        initialize(self, **options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write parameters and options into one file, an .npz archive that `load` reads.

        The file has exactly the given name. Gradients are not saved.
        """
        from .files import save

        save(self, path)

    def __repr__(self) -> str:
        defaults = self._known_class()._defaults()
        words = [str(self.input_size), str(self.hidden_size)]
        for name, default in list(defaults.items())[2:]:
            if (value := getattr(self, name)) != default:
                words.append(f"{name}={value!r}")
        if self.dtype != np.float32:
            words.append(f"dtype={self.dtype.name}")
        return f"{type(self).__name__}({', '.join(words)})"


class Snapshot:
    """Packed weights and options: nothing in it can be changed."""

    __slots__ = ("_forward", "_packed", "_repr", "_sizes")

    def __init__(self, layer: Recurrent) -> None:
        self._packed = layer._pack()
        self._forward, self._sizes = layer._bind(self._packed), layer._sizes
        self._repr = repr(layer)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._repr})"

    def __copy__(self) -> Snapshot:
        return self

    def __deepcopy__(self, memo: Any) -> Snapshot:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(
            f"cannot pickle a {type(self).__name__}: pickle or save the layer, and freeze it there"
        )
