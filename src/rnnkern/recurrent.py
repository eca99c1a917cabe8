"""What layers and cells have in common: parameters and options, copies, files, snapshots."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from . import _core, functional, isa
from .arguments import (
    GATES,
    by_kind,
    initial_shapes,
    kernel_cell,
    nonlinearity_of,
    parameter_count,
    parameter_shapes,
    stacked_initial,
)
from .packed import Packed
from .parameters import Module, check_fits
from .validation import Array, Shape, boolean, positive_int, probability

S = TypeVar("S")
"""States: one array h, or for the LSTM the tuple (h, c)."""

Pair = tuple[Array, Array]
Seed: TypeAlias = "int | np.random.Generator | None"  # quoted: numpy.random is slow to import


def _no_projection(name: str, value: Any) -> int:
    if value != 0:
        raise ValueError(f"{name}: projections are not available yet; expected 0, got {value!r}")
    return 0


CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "input_size": positive_int,
    "hidden_size": positive_int,
    "num_layers": positive_int,
    "nonlinearity": nonlinearity_of,
    "bias": boolean,
    "batch_first": boolean,
    "dropout": probability,
    "bidirectional": boolean,
    "proj_size": _no_projection,
    "reset_after": boolean,
    "learn_initial_state": boolean,
}
_ASSIGNABLE = ("batch_first", "dropout")


class Recurrent(Module):
    """Parameters and options of a layer or a cell; files, copies, repr."""

    _cell: ClassVar[str]  # stem of the functions that run it
    _own: ClassVar[tuple[str, ...]] = ()  # options that only those functions have

    input_size: int
    hidden_size: int
    bias: bool

    def __init__(self, dtype: DTypeLike, seed: Seed, **options: Any) -> None:
        self._build(dtype, options)
        try:
            rng = np.random.default_rng(seed)
        except (TypeError, ValueError) as error:
            raise type(error)(f"seed: {error}") from None
        bound = 1 / math.sqrt(self.hidden_size)
        self.flat_params = rng.uniform(-bound, bound, self.flat_params.size)
        for name in self.params:
            if name.startswith("initial"):
                self.params[name].fill(0)
        self._dropout_seed = int(rng.integers(2**64, dtype=np.uint64))

    def _build(self, dtype: DTypeLike, options: Mapping[str, Any]) -> None:
        """Everything but values for the parameters."""
        for name, value in options.items():
            setattr(self, name, CHECKS[name](name, value))
        gates, stack = GATES[self._kernel_cell], (*self._sizes, *self._stack)
        check_fits(*parameter_count(gates, *stack, self.bias), dtype)  # before there are names
        shapes = parameter_shapes(gates, *stack, self.bias)
        if options.get("learn_initial_state"):
            shapes |= initial_shapes(self._cell, self.hidden_size, *self._stack)
        super().__init__(self._shapes(shapes), dtype)
        self._spare: list[Array] = []  # the memory of the last tape, for the next

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_spare": []}

    @staticmethod
    def _shapes(shapes: dict[str, Shape]) -> dict[str, Shape]:
        """Those of the parameters, from those of a stack of layers."""
        return shapes

    @property
    def _stack(self) -> tuple[int, int]:
        """Layers and directions."""
        return 1, 1

    @property
    def _net(self) -> _core.Net:
        """What the kernels compute."""
        stack = (*self._sizes, *self._stack)
        return _core.Net(self._kernel_cell, self.dtype, isa.level(), self.bias, *stack)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in CHECKS and name in vars(self):
            if name not in _ASSIGNABLE:
                raise AttributeError(f"{name} is fixed once a {type(self).__name__} is built")
            value = CHECKS[name](name, value)
        super().__setattr__(name, value)

    @classmethod
    def _known_class(cls) -> type[Recurrent]:
        """The class of this package that cls is or derives from."""
        return next(c for c in cls.__mro__ if "_cell" in vars(c))

    @classmethod
    def _defaults(cls) -> dict[str, Any]:
        """The options in the order of the constructor's arguments, and their defaults."""
        arguments = inspect.signature(cls).parameters.items()
        return {name: argument.default for name, argument in arguments if name in CHECKS}

    def _cell_options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._own}

    @property
    def _kernel_cell(self) -> str:
        return kernel_cell(self._cell, **self._cell_options())

    def _bind(self, packed: Packed) -> Callable[..., Any]:
        """`functional`'s forward with weights and options filled in."""
        forward = getattr(functional, f"{self._cell}_forward")
        return partial(forward, params=packed, **self._cell_options())

    @property
    def _forward(self) -> Callable[..., Any]:
        return self._bind(self._pack())

    def _pack(self) -> Packed:
        arrays = list(self.params.values())
        weights = self._stack[0] * self._stack[1] * (4 if self.bias else 2)
        initial = stacked_initial(self._cell, arrays[weights:])
        return Packed(self._net, by_kind(arrays[:weights], self.bias), initial)

    @property
    def _sizes(self) -> tuple[int, int]:
        return self.input_size, self.hidden_size

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
