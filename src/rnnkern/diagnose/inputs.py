"""The arguments that the diagnostics share, checked and in one layout."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..layers import _Layer
from ..validation import Array, as_floats, as_integers, check_shape


def prepared(
    layer: Any, x: ArrayLike, hx: Any = None, *, gradients: bool = True
) -> tuple[Any, Array, Any]:
    """The layer as inference runs it, time-major, with the same parameters; x (T, B, I), and hx."""
    if not isinstance(layer, _Layer):
        raise TypeError(f"layer: expected a layer of rnnkern, got {type(layer).__name__}")
    zoneout = has_zoneout(layer)
    if gradients and zoneout:
        raise ValueError("layer: expected one without zoneout, which recording draws at random")
    sequence = as_floats("x", x, layer.dtype)
    if sequence.ndim not in (2, 3) or sequence.shape[-1] != layer.input_size:
        axes = "B, T" if layer.batch_first else "T, B"
        wanted = f"({axes}, {layer.input_size}) or (T, {layer.input_size})"
        raise ValueError(f"x: expected shape {wanted}, got {sequence.shape}")
    if 0 in sequence.shape:
        raise ValueError(f"x: expected at least one step and one row, got shape {sequence.shape}")
    if sequence.ndim == 2:
        sequence, hx = sequence[:, None], _batched(hx)
    elif layer.batch_first:
        sequence = sequence.swapaxes(0, 1)
    plain = copy(layer)  # shares the parameters
    plain.batch_first, plain.dropout = False, 0.0
    if not zoneout:
        plain.regularization = None
    return plain, sequence, hx


def has_zoneout(layer: Any) -> bool:
    """Whether steps keep states at random in training, and by expectation in inference."""
    regularization = layer.regularization
    return bool(regularization and (regularization.zoneout_h or regularization.zoneout_c))


def _batched(hx: Any) -> Any:
    """The state of one sequence as that of a batch of one."""
    if isinstance(hx, tuple | list):
        return tuple(_batched(part) for part in hx)
    return None if hx is None else np.asarray(hx)[..., None, :]


def check_causal(layer: Any, what: str) -> None:
    """ValueError for a layer that also reads from the end."""
    if layer.bidirectional:
        raise ValueError(
            f"layer: {what} expects a unidirectional one: in a bidirectional layer states depend "
            "on later steps too"
        )


def row_lengths(lengths: ArrayLike | None, x: Array) -> Array:
    """The real steps of each row of x (T, B, I), int64 (B,)."""
    T, B = x.shape[:2]
    if lengths is None:
        return np.full(B, T)
    found = as_integers("lengths", lengths, 0, T).reshape(-1)
    check_shape("lengths", found, (B,))
    return found


def dy_at(steps: Array, y: Array, dy: ArrayLike | None) -> Array:
    """A gradient of y (T, B, F) that is zero but at one step of each row, negative for none.

    dy: (B, F) there, or (F,) for all rows; by default every element is 1/sqrt(F), of norm 1.
    """
    F = y.shape[-1]
    value = np.full(F, F**-0.5, y.dtype) if dy is None else as_floats("dy", dy, y.dtype)
    check_shape("dy", value, (F,), (y.shape[1], F))
    whole = np.zeros_like(y)
    rows = np.flatnonzero(steps >= 0)
    whole[steps[rows], rows] = np.broadcast_to(value, y.shape[1:])[rows]
    return whole


def recorded(layer: Any, x: Array, hx: Any = None, **options: Any) -> Any:
    """y, hx_n and a tape that adds into no gradients but those that backward is given."""
    y, hx_n, tape = layer.record(x, hx, **options)
    tape.grads = None
    return y, hx_n, tape


def named(layer: Any, states: Any) -> dict[str, Array]:
    """States, or what there is one of for each of them, by name."""
    parts = states if isinstance(states, tuple) else (states,)
    return dict(zip(layer._structure.states, parts, strict=True))


def sweep_name(layer: Any, sweep: int) -> str:
    """Of a layer and direction, such as "l0" or "l1_reverse"."""
    index, direction = divmod(sweep, 2 if layer.bidirectional else 1)
    return f"l{index}" + ("_reverse" if direction else "")
