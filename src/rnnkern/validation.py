"""Checks of single arguments, for the whole package, in one wording.

Every error reads ``name: expected this, got that``: a TypeError for a value of the wrong kind or
dtype, a ValueError for one of the wrong shape or out of range.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Shape = tuple[int, ...]

MAX_AXIS = 2**31 - 1
"""Steps and rows of a call: the kernels count them in 32 bits."""


def described(value: Any) -> str:
    """What was given, where its contents would say too much."""
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else type(value).__name__


# --- options -------------------------------------------------------------------------------------


def boolean(name: str, value: Any) -> bool:
    """``value`` as a bool; TypeError unless it is one of Python's or NumPy's."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name}: expected True or False, got {value!r}")
    return bool(value)


def one_of(name: str, value: Any, choices: Sequence[str]) -> str:
    """``value`` itself; ValueError unless it is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        *others, last = map(repr, choices)
        raise ValueError(f"{name}: expected {', '.join(others)} or {last}, got {value!r}")
    return value


def integer(name: str, value: Any, expected: str, low: int, high: int | None = None) -> int:
    """``value`` as an int from low to high; TypeError for what is no integer, bools included."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name}: expected {expected}, got {value!r}")
    if value < low or (high is not None and value > high):
        raise ValueError(f"{name}: expected {expected}, got {value}")
    return int(value)


def positive_int(name: str, value: Any) -> int:
    """``value`` as an int of at least 1."""
    return integer(name, value, "a positive integer", 1)


def axis_length(name: str, value: Any) -> int:
    """``value`` as an int that can be the number of steps or rows of a call."""
    return integer(name, value, "an integer from 0 to 2**31-1", 0, MAX_AXIS)


def dropout_key(name: str, value: Any) -> int:
    """``value`` as an int of 64 bits, the seed of dropout masks."""
    return integer(name, value, "an integer from 0 to 2**64-1", 0, 2**64 - 1)


def probability(name: str, value: Any) -> float:
    """``value`` as a float from 0 to 1; TypeError for what is no number, bools included."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name}: expected a probability from 0 to 1, got {value!r}")
    if not 0 <= value <= 1:
        raise ValueError(f"{name}: expected a probability from 0 to 1, got {value!r}")
    return float(value)


def _as_float(name: str, value: Any) -> float:
    """Whatever float() takes is a number, but for text."""
    try:
        if isinstance(value, str):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: expected a number, got {value!r}") from None


def number(name: str, value: Any, below: float = math.inf, *, infinite: bool = False) -> float:
    """``value`` as a finite float from 0 to ``below``, excluded; infinity where that is allowed."""
    found = _as_float(name, value)
    if not (0 <= found < below or (infinite and found == math.inf)):
        limit = f" and below {below:g}" if below < math.inf else ", finite"
        limit = " (inf is accepted)" if infinite else limit
        raise ValueError(f"{name}: expected a number of at least 0{limit}, got {value!r}")
    return found


def finite(name: str, value: Any) -> float:
    """``value`` as a finite float."""
    found = _as_float(name, value)
    if not math.isfinite(found):
        raise ValueError(f"{name}: expected a finite number, got {value!r}")
    return found


def positive(name: str, value: Any) -> float:
    """``value`` as a finite float above 0."""
    found = _as_float(name, value)
    if not 0 < found < math.inf:
        kind = "finite number" if found == math.inf else "number"
        raise ValueError(f"{name}: expected a {kind} above 0, got {value!r}")
    return found


def limit(name: str, value: Any) -> float | None:
    """``value`` as the finite float above 0 at which something is cut, or None: it is not."""
    return None if value is None else positive(name, value)


# --- arrays --------------------------------------------------------------------------------------


def _variable(name: str) -> str:
    """How a hint calls an argument: "c" for "c of hx"."""
    return name.partition(" ")[0]


def refuse_mask(name: str, value: Any) -> None:
    """TypeError for a masked array: NumPy would drop the mask in silence and read what it hides."""
    # The second look is for subclasses alone, since it loads numpy.ma.
    if (
        isinstance(value, np.ndarray)
        and type(value) is not np.ndarray
        and isinstance(value, np.ma.MaskedArray)
    ):
        hint = f"fill it first: {_variable(name)}.filled(0)"
        raise TypeError(f"{name}: expected an array without a mask, got a MaskedArray; {hint}")


def as_array(name: str, value: Any, expected: str = "numbers") -> Array:
    """``value`` as a plain array of numbers or booleans of any dtype; itself where it is one.

    TypeError for masked arrays, tensors that require grad, and whatever holds no numbers.
    ValueError for nested lists of uneven lengths.
    """
    refuse_mask(name, value)
    if getattr(value, "requires_grad", False) is True:
        hint = f"pass {_variable(name)}.detach().numpy()"
        raise TypeError(
            f"{name}: expected {expected}, got a {type(value).__name__} that requires grad; {hint}"
        )
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name}: expected {expected}, got {described(value)}; {error}") from None
    if array.dtype.kind not in "biufc":
        got = "None" if value is None else f"dtype {array.dtype}"
        raise TypeError(f"{name}: expected {expected}, got {got}")
    return array


def as_floats(name: str, value: Any, *accepted: np.dtype[Any]) -> Array:
    """``value`` as an array of exactly one of these dtypes, in native byte order."""
    if type(value) is np.ndarray and value.dtype in accepted:  # nearly every call
        return value
    expected = " or ".join(map(str, accepted))
    array = as_array(name, value, expected)
    native = array.dtype.newbyteorder("=")
    if native not in accepted:
        hint = f"; convert it with np.asarray({_variable(name)}, np.{accepted[0]})"
        real = array.dtype.kind != "c"
        raise TypeError(f"{name}: expected {expected}, got {array.dtype}{hint if real else ''}")
    return array.astype(native, copy=False)


def as_integers(name: str, value: Any, low: int, high: int) -> NDArray[np.int64]:
    """``value`` as a new int64 array of integers from low to high, both included."""
    given = as_array(name, value, "integers")
    if given.size == 0 and not isinstance(value, np.ndarray):
        given = given.astype(np.int64)  # an empty list says nothing of its dtype
    if given.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integers, got dtype {given.dtype}")
    wrong = (given < low) | (given > high)
    if wrong.any():
        first = np.unravel_index(int(wrong.argmax()), given.shape)
        where = f" at index {tuple(map(int, first))}" if first else ""
        raise ValueError(
            f"{name}: expected integers from {low} to {high}, got {given[first]}{where}"
        )
    return given.astype(np.int64, order="C")


def check_shape(name: str, array: Array, *accepted: Shape) -> None:
    """ValueError unless the array has one of these shapes."""
    if array.shape not in accepted:
        expected = " or ".join(map(str, accepted))
        raise ValueError(f"{name}: expected shape {expected}, got {array.shape}")


def as_target(name: str, value: Any, shape: Shape, dtype: np.dtype[Any]) -> Array:
    """``value`` itself, an array of that shape and dtype that can be written into."""
    if not isinstance(value, np.ndarray):
        raise TypeError(f"{name}: expected a NumPy array, got {described(value)}")
    refuse_mask(name, value)
    if value.dtype != dtype:
        raise TypeError(f"{name}: expected {dtype}, got {value.dtype}")
    check_shape(name, value, shape)
    if not value.flags.writeable:
        raise ValueError(f"{name}: expected a writeable array, got a read-only one")
    return value


# --- mappings of names to arrays -----------------------------------------------------------------


def check_mapping(name: str, value: Any, expected: str = "a mapping of names to arrays") -> None:
    """TypeError unless ``value`` is a mapping."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}: expected {expected}, got {described(value)}")


def wrong_names(given: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """What to say of names that are missing, and of those that are unexpected."""
    missing = [f"missing {name!r}" for name in expected if name not in given]
    if not missing and len(given) == len(expected):
        return []
    return missing + [f"unexpected {name!r}" for name in given if name not in expected]


def check_names(name: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raises one ValueError for all names that are missing or unexpected."""
    if wrong := wrong_names(given, expected):
        raise ValueError(f"{name}: {', '.join(wrong)}")


def as_targets(grads: Any, shapes: Mapping[str, Shape], dtype: np.dtype[Any]) -> dict[str, Array]:
    """The arrays of ``grads``, in the order of ``shapes``, where gradients can be added into each.

    They must have exactly these names, shapes and dtype, be contiguous and writeable.
    """
    check_mapping("grads", grads)
    check_names("grads", grads, shapes)
    targets = {key: grads[key] for key in shapes}
    for key, a in targets.items():
        if type(a) is np.ndarray and a.shape == shapes[key] and a.dtype == dtype and a.flags.carray:
            continue  # nearly every one
        name = f"grads[{key!r}]"
        as_target(name, a, shapes[key], dtype)
        if not (a.flags.c_contiguous and a.flags.aligned):
            raise ValueError(f"{name}: expected a C-contiguous, aligned array, got another")
    return targets
