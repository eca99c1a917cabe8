"""Named parameters in one flat array, and the small base class of every module that has them.

All parameters of a module lie one behind the other in one array, so that an optimiser's step, a
norm or a zeroing is a few vector operations however many names there are; the names are views into
that array.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .validation import Shape, as_array, boolean, check_mapping, check_shape, wrong_names

FloatArray: TypeAlias = NDArray[np.floating[Any]]

_ARRAY_SIZE = 1024  # about what Python takes for a name, its shape and its views


def float_dtype(dtype: DTypeLike) -> np.dtype[np.floating[Any]]:
    """Return `dtype` as a native np.dtype; TypeError unless it is float32 or float64."""
    for known in (np.dtype(np.float32), np.dtype(np.float64)):
        # np.dtype(None) is float64: a forgotten argument must not choose a precision.
        if dtype is not None and known == dtype:
            return known
    raise TypeError(f"dtype: expected float32 or float64, got {dtype!r}")


def check_fits(arrays: int, numbers: int, dtype: DTypeLike) -> None:
    """Raise ValueError if parameters of so many numbers, in so many arrays, do not fit into memory.

    Asks the system for the addresses and touches nothing, so it is to be called before anything of
    that size is built.
    """
    size = numbers * float_dtype(dtype).itemsize + arrays * _ARRAY_SIZE
    try:
        np.empty(size, np.uint8)
    except (MemoryError, ValueError):  # the latter beyond what an index can address
        raise ValueError(f"too large: {numbers} parameters do not fit into memory") from None


def converted(name: str, value: Any, shape: Shape, dtype: DTypeLike) -> FloatArray:
    """Return the real numbers of `value` as a new array of `dtype` and exactly `shape`.

    Any float or integer dtype is cast. TypeError for another kind, ValueError for another shape;
    both name the entry.
    """
    given = as_array(name, value, "real numbers")
    if given.dtype.kind not in "fiu":
        raise TypeError(f"{name}: expected real numbers, got dtype {given.dtype}")
    check_shape(name, given, shape)  # even where it would broadcast: that is more often a mistake
    return np.array(given, dtype=dtype, order="C")


def converted_all(
    what: str,
    given: Mapping[str, Any],
    expected: Mapping[str, FloatArray],
    strict: bool = True,
) -> dict[str, FloatArray]:
    """Return new arrays for every name of `expected` found in `given`, like the expected ones.

    One ValueError names everything that is wrong: missing and unexpected names (when `strict`), and
    entries of a wrong shape or kind (always). Nothing is written, so a caller that copies
    afterwards never loads a half.
    """
    check_mapping(what, given)
    problems = wrong_names(given, expected) if strict else []
    arrays = {}
    for name, own in expected.items():
        if name in given:
            try:
                arrays[name] = converted(name, given[name], own.shape, own.dtype)
            # RuntimeError is what a framework's tensor raises if it cannot become an array.
            except (TypeError, ValueError, RuntimeError) as error:
                problems.append(str(error))
    if problems:
        raise ValueError(f"{what}: " + "; ".join(problems))
    return arrays


class Parameters(Mapping[str, FloatArray]):
    """A mapping of fixed names to arrays that are views into one flat array.

    `shapes` gives the names, in order, and their shapes; `dtype` is float32 or float64. All entries
    start at zero. `p[name]` is the view itself (writing into it writes the parameter), assigning to
    `p[name]` copies in, assigning to `p.flat` copies in all of them at once. Names can be neither
    added nor removed (KeyError, or TypeError for `del`). Pickle and deepcopy keep the entries views
    of the (one) flat array; copy.copy shares it. Two of them are equal only if they are the same
    object.
    """

    __slots__ = ("_flat", "_views")

    _flat: FloatArray
    _views: dict[str, FloatArray]

    def __init__(self, shapes: Mapping[str, Shape], dtype: DTypeLike = np.float32) -> None:
        size = sum(map(prod, shapes.values()))
        check_fits(len(shapes), size, dtype)
        self._adopt(shapes, np.zeros(size, float_dtype(dtype)))

    def _adopt(self, shapes: Mapping[str, Shape], flat: FloatArray) -> None:
        self._flat, self._views = flat, {}
        start = 0
        for name, shape in shapes.items():
            self._views[name] = flat[start : start + prod(shape)].reshape(shape)
            start += prod(shape)

    @property
    def flat(self) -> FloatArray:
        """All entries, in order, as one array of shape (size,). Assignment copies in."""
        return self._flat

    @flat.setter
    def flat(self, value: Any) -> None:
        if value is not self._flat:  # p.flat -= a ends here with the array itself
            self._flat[...] = converted("flat", value, self._flat.shape, self._flat.dtype)

    @property
    def shapes(self) -> dict[str, Shape]:
        """Names, in order, and shapes."""
        return {name: view.shape for name, view in self._views.items()}

    def zeros_like(self) -> Parameters:
        """Return new parameters of the same names, shapes and dtype, all zero.

        For instance a second set of gradients: `tape.backward(dy, grads=layer.grads.zeros_like())`.
        """
        return Parameters(self.shapes, self._flat.dtype)

    def __getitem__(self, name: str) -> FloatArray:
        return self._views[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name not in self._views:
            raise KeyError(f"no parameter {name!r}; the names are {', '.join(self._views)}")
        view = self._views[name]
        if value is not view:  # p[name] += a ends here with the view itself
            view[...] = converted(name, value, view.shape, view.dtype)

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"cannot remove {name!r}: the names are fixed")

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    # Mapping compares contents, which is ambiguous for arrays.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        entries = ", ".join(f"{name}: {shape}" for name, shape in self.shapes.items())
        return f"Parameters({{{entries}}}, {self._flat.dtype})"

    # Without this, each view would be copied by itself and would no longer be a part of flat.
    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.shapes, self._flat)


def _restore(shapes: dict[str, Shape], flat: FloatArray) -> Parameters:
    parameters = Parameters.__new__(Parameters)
    # An unpickled array may be read-only (out-of-band buffers) or of another machine's byte order.
    parameters._adopt(shapes, np.require(flat, flat.dtype.newbyteorder("="), ["C", "W"]))
    return parameters


class Module:
    """What has parameters and their gradients: `params` and `grads`, of the same names.

    `shapes` gives names and shapes, `dtype` is float32 or float64; everything starts at zero.
    Reading the attribute of a parameter's name (`layer.weight`) gives the view
    `layer.params["weight"]`, assigning to it copies in. Pickle and deepcopy work, gradients
    included.
    """

    _params: Parameters
    _grads: Parameters

    def __init__(self, shapes: Mapping[str, Shape], dtype: DTypeLike = np.float32) -> None:
        self._params = Parameters(shapes, dtype)
        self._grads = Parameters(shapes, dtype)

    @property
    def params(self) -> Parameters:
        """The parameters by name."""
        return self._params

    @property
    def grads(self) -> Parameters:
        """The gradients by name; backward passes add into them."""
        return self._grads

    @property
    def flat_params(self) -> FloatArray:
        """All parameters as one array, of which `params` are views. Assignment copies in."""
        return self._params.flat

    @flat_params.setter
    def flat_params(self, value: Any) -> None:
        self._params.flat = value

    @property
    def flat_grads(self) -> FloatArray:
        """All gradients as one array, of which `grads` are views. Assignment copies in."""
        return self._grads.flat

    @flat_grads.setter
    def flat_grads(self, value: Any) -> None:
        self._grads.flat = value

    @property
    def dtype(self) -> np.dtype[np.floating[Any]]:
        """The dtype of parameters, gradients, inputs and outputs."""
        return self._params.flat.dtype

    def zero_grad(self) -> None:
        """Set all gradients to zero."""
        self._grads.flat.fill(0)

    def state_dict(self) -> dict[str, FloatArray]:
        """Return copies of the parameters by name."""
        return {name: view.copy() for name, view in self._params.items()}

    def load_state_dict(self, mapping: Mapping[str, Any], strict: bool = True) -> None:
        """Copy parameters in from a mapping of names to arrays.

        Other float and integer dtypes are cast. One ValueError names everything missing, unexpected
        or of a wrong shape or kind, and then nothing was loaded. With `strict=False` missing and
        unexpected names are ignored, wrong shapes are not.
        """
        boolean("strict", strict)
        for name, array in converted_all("load_state_dict", mapping, self._params, strict).items():
            self._params[name][...] = array

    # Only called for what is not an ordinary attribute. While unpickling there is no _params yet.
    def __getattr__(self, name: str) -> FloatArray:
        params = self.__dict__.get("_params", {})
        if name in params:
            return params[name]  # type: ignore[no-any-return]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        params = self.__dict__.get("_params", {})
        if name in params:
            params[name] = value
        else:
            super().__setattr__(name, value)
