"""What the arguments of a call mean: arrays as the kernels want them.

Parameters come as a mapping of torch's names; sequences, states, lengths and resets in the caller's
layout. The checks of single values are in `validation`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from . import _core, threads
from .memory import new_array
from .structure import CELLS, Options, Structure, check_structure
from .validation import (
    MAX_AXIS,
    Array,
    Shape,
    as_array,
    as_floats,
    as_integers,
    as_target,
    boolean,
    check_mapping,
    check_names,
    check_shape,
    described,
)

if TYPE_CHECKING:
    from .regularization import Regularization

States = Array | tuple[Array, Array]
Checkpoint = Literal["gates", "auto"] | int | None


# ---- parameters


class Network(NamedTuple):
    """A stack as the kernels take it."""

    structure: Structure
    weights: list[Array | None]  # as Structure.split has them
    initial: tuple[Array, ...] | None  # learned initial states (L*D, P), (L*D, H)


def network(options: Options, params: Mapping[str, Array]) -> Network:
    """What a mapping of parameters describes."""
    check_mapping("params", params, "a mapping of names to arrays, or what pack returns")
    for kind in ("weight_ih", "weight_hh"):
        if kind in CELLS[options.cell].weights and f"{kind}_l0" not in params:
            has = ", ".join(map(str, params)) or "nothing"
            raise ValueError(f"params: expected '{kind}_l0' among its names, got {has}")
    arrays = {name: as_array(name, a) for name, a in params.items()}
    structure = _structure(options, arrays)
    shapes, dtype = structure.parameter_shapes, structure.dtype
    stack = f"{structure.num_layers} layer(s) and {structure.num_directions} direction(s)"
    check_names(f"params of {stack}", arrays, shapes)
    for name, expected in shapes.items():
        check_shape(name, arrays[name], expected)
        if (found := arrays[name].dtype.newbyteorder("=")) != dtype:
            raise TypeError(f"{name}: expected {dtype} as weight_ih_l0 is, got {found}")
    check_structure(structure)
    weights, initial = structure.split(_dense(arrays[name], dtype) for name in shapes)
    return Network(structure, weights, stacked(initial))


def _structure(options: Options, arrays: Mapping[str, Array]) -> Structure:
    """What the names say, and the shapes of the first layer."""
    cell = CELLS[options.cell]
    dtype = arrays["weight_ih_l0"].dtype.newbyteorder("=")
    if dtype not in _core.DTYPES:
        raise TypeError(f"weight_ih_l0: expected float32 or float64, got {dtype}")
    layers = 1
    while f"weight_ih_l{layers}" in arrays:
        layers += 1

    def has(kind: str) -> bool:
        return kind in cell.weights and f"{kind}_l0" in arrays

    structure = Structure(
        options,
        dtype,
        input_size=_matrix(arrays, "weight_ih_l0")[1],
        hidden_size=1,
        num_layers=layers,
        num_directions=2 if "weight_ih_l0_reverse" in arrays else 1,
        bias=has("bias_ih"),
        peephole=options.cell == "lstm" and has("weight_ch"),
        layer_norm=has("norm_ih"),
        learned=f"initial_{cell.states[0]}_l0" in arrays,
    )
    if has("weight_hr"):
        width, units = _matrix(arrays, "weight_hr_l0")
        return structure._replace(hidden_size=units, proj_size=width)
    if options.cell == "indrnn":
        units = arrays["weight_hh_l0"].size
    elif has("weight_hh"):
        units = _matrix(arrays, "weight_hh_l0")[1]
    else:
        units = arrays["weight_ih_l0"].shape[0] // structure.blocks
    return structure._replace(hidden_size=max(1, units))


def _matrix(arrays: Mapping[str, Array], name: str) -> tuple[int, int]:
    """The shape of a matrix."""
    shape = arrays[name].shape
    if len(shape) != 2 or 0 in shape:
        raise ValueError(f"{name}: expected a non-empty matrix, got shape {shape}")
    return shape


def stacked(initial: tuple[list[Array], ...] | None) -> tuple[Array, ...] | None:
    """Learned initial states, as Structure.split has them, in one array (L*D, ...) for each."""
    return None if initial is None else tuple(np.array(of_sweeps) for of_sweeps in initial)


def _dense(a: Array, dtype: np.dtype[Any]) -> Array:
    """A C-contiguous, aligned, native array; ``a`` itself where it is one."""
    return np.require(a, dtype, ["C", "A"])


# ---- sequences and states


def strided_rows(a: Array) -> Array:
    """A view that the kernels can stride over (dense last axis, whole elements), or a copy."""
    item = a.itemsize
    dense = a.shape[-1] <= 1 or a.strides[-1] == item
    whole = a.strides[0] % item == 0 and a.strides[1] % item == 0 and a.strides[-2] % item == 0
    if dense and whole and a.flags.aligned:
        return a
    return np.array(a, order="C")  # np.ascontiguousarray would return some arrays as they are


class Layout:
    """How the caller's arrays map to (T, B, F) and (L*D, B, P or H)."""

    def __init__(self, structure: Structure, shape: Shape, batch_first: bool) -> None:
        """``shape`` is that of x."""
        if len(shape) not in (2, 3):
            raise ValueError(f"x: expected 2 (unbatched) or 3 dimensions, got shape {shape}")
        if shape[-1] != structure.input_size:
            expected = f"expected input_size = {structure.input_size} on the last axis"
            raise ValueError(f"x: {expected}, got shape {shape}")
        self.structure, self.dtype, self.batched = structure, structure.dtype, len(shape) == 3
        self.batch_first = boolean("batch_first", batch_first)
        self.steps, self.rows = shape[0], shape[1] if self.batched else 1
        if self.batched and self.batch_first:
            self.steps, self.rows = self.rows, self.steps
        if self.steps > MAX_AXIS or self.rows > MAX_AXIS:
            raise ValueError(f"x: expected at most 2**31-1 steps and rows, got shape {shape}")

    def time_major(self, a: Array, stacked: bool = False) -> Array:
        """(T, B, ...) view of an array laid out as the caller's x, or (n, T, B, ...) of a stack."""
        if not self.batched:
            return a[:, :, None] if stacked else a[:, None]
        return a.swapaxes(stacked, stacked + 1) if self.batch_first else a

    def empty(self, *shape: int) -> tuple[Array, Array]:
        """A new sequence (or stack) as the caller sees it, and its view as time_major gives it.

        shape: features, or (n, features).
        """
        full = new_array(self.shape(*shape), self.dtype)
        return full, self.time_major(full, len(shape) > 1)

    def sequence(self, name: str, a: ArrayLike, *shape: int) -> Array:
        """The view as time_major gives it of a sequence argument."""
        array = as_floats(name, a, self.dtype)
        check_shape(name, array, self.shape(*shape))
        return strided_rows(self.time_major(array, len(shape) > 1))

    def shape(self, *shape: int) -> Shape:
        """That of a sequence with so many features, or of a stack (n, ...) of sequences."""
        *stack, features = shape
        if not self.batched:
            return (*stack, self.steps, features)
        steps = (self.rows, self.steps) if self.batch_first else (self.steps, self.rows)
        return (*stack, *steps, features)

    def as_caller(self, stack: Array) -> Array:
        """A stack (n, T, B, ...) laid out as the caller's x."""
        if not self.batched:
            return stack[:, :, 0]
        return stack.swapaxes(1, 2) if self.batch_first else stack

    @property
    def state_axes(self) -> Shape:
        """The shape of states, but for their features."""
        sweeps = self.structure.sweeps
        return (sweeps, self.rows) if self.batched else (sweeps,)

    def states(self, name: str, s: Any, *axes: Shape) -> tuple[Array, ...] | None:
        """States as a tuple of dense arrays, of one of these axes (default: state_axes)."""
        if s is None:
            return None
        widths, dtype = self.structure.states, self.dtype
        if len(widths) > 1:
            if not isinstance(s, tuple | list) or len(s) != 2:
                raise TypeError(f"{name}: expected a tuple (h, c), got {described(s)}")
            parts = {f"{part} of {name}": a for part, a in zip(widths, s, strict=True)}
        elif isinstance(s, tuple | list):
            raise TypeError(f"{name}: expected one array, got {described(s)}")
        else:
            parts = {name: s}
        dense = tuple(_dense(as_floats(part, a, dtype), dtype) for part, a in parts.items())
        for part, a, width in zip(parts, dense, widths.values(), strict=True):
            check_shape(part, a, *((*some, width) for some in axes or (self.state_axes,)))
        if dense[0].ndim != dense[-1].ndim:
            got = f"{dense[0].shape} and {dense[-1].shape}"
            raise ValueError(f"{name}: expected h and c of the same shape, got {got}")
        return dense

    def learned(
        self,
        initial: tuple[Array, ...],
        hx: tuple[Array, ...] | None,
        restart: tuple[Array, ...] | None,
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """hx and restart_state, where None stands for the learned states."""
        if hx is None:
            starts = (part[:, None] if self.batched else part for part in initial)
            shapes = ((*self.state_axes, part.shape[-1]) for part in initial)
            hx = tuple(
                np.array(np.broadcast_to(start, shape), order="C")
                for start, shape in zip(starts, shapes, strict=True)
            )
        return hx, initial if restart is None else restart

    def new_states(self) -> tuple[Array, ...]:
        axes, widths = self.state_axes, self.structure.states.values()
        return tuple([np.empty((*axes, width), self.dtype) for width in widths])


def as_states(parts: tuple[Array, ...]) -> States:
    """One array, or for the LSTM the tuple of two."""
    return parts[0] if len(parts) == 1 else (parts[0], parts[1])


def as_lengths(lengths: ArrayLike | None, layout: Layout) -> Array | None:
    """int64 (B,), a copy."""
    if lengths is None:
        return None
    array = as_integers("lengths", lengths, 0, layout.steps)
    if layout.batched:
        check_shape("lengths", array, (layout.rows,))
    elif array.shape not in ((), (1,)):
        got = f"shape {array.shape}"
        raise ValueError(f"lengths: expected one integer for an unbatched x, got {got}")
    return array.reshape(-1)


def as_resets(resets: ArrayLike | None, layout: Layout) -> Array | None:
    """uint8 (T, B), a copy."""
    if resets is None:
        return None
    array = as_array("resets", resets, "booleans or integers")
    if array.dtype.kind not in "biu" and array.size:
        raise TypeError(f"resets: expected booleans or integers, got dtype {array.dtype}")
    check_shape("resets", array, layout.shape(1)[:-1])
    return np.array(layout.time_major(array) != 0, np.uint8, order="C")


def as_output(out: Array | None, layout: Layout, *shape: int) -> tuple[Array, Array]:
    """Where the outputs go: as the caller sees it, and its view as layout.time_major gives it."""
    if out is None:
        return layout.empty(*shape)
    as_target("out", out, layout.shape(*shape), layout.dtype)
    if out.size == 0:
        return out, layout.empty(*shape)[1]  # its own strides may be anything
    view = layout.time_major(out, len(shape) > 1)
    if strided_rows(view) is not view or _overlaps_itself(view):
        raise ValueError(
            "out: expected an aligned array with a dense last axis and no overlapping elements, "
            f"got strides {out.strides}"
        )
    return out, view


def _overlaps_itself(a: Array) -> bool:
    """Whether elements may share memory: by stride, each axis must step over those before it."""
    extent = a.itemsize
    for stride, n in sorted((abs(s), n) for s, n in zip(a.strides, a.shape, strict=True) if n > 1):
        if stride < extent:
            return True
        extent = stride * n
    return False


# ---- options


_MASKS = (
    "input_dropout",
    "output_dropout",
    "hidden_dropout",
    "candidate_dropout",
    "variational",
)  # what a call has of a Regularization


def new_call(
    steps: int,
    rows: int,
    lengths: Array | None = None,
    resets: Array | None = None,
    restart_kind: int = _core.RESTART_ZERO,
    checkpoint: Checkpoint = None,
    record: bool = False,
    dropout: float = 0.0,
    seed: int = 0,
    num_threads: int | None = None,
    regularization: Regularization | None = None,
    first_step: int = 0,
) -> _core.Call:
    keep, segment = _core.KEEP_NONE, 1
    if record:
        longest = steps if lengths is None else int(lengths.max(initial=0))
        keep, segment = _checkpoint(checkpoint, longest)
    masks = {} if regularization is None else {n: getattr(regularization, n) for n in _MASKS}
    return _core.Call(
        steps,
        rows,
        lengths,
        resets,
        restart_kind,
        keep,
        segment,
        dropout,
        seed,
        threads.chosen(num_threads),
        first_step=first_step,
        **masks,
    )


def _checkpoint(checkpoint: Checkpoint, steps: int) -> tuple[int, int]:
    """What to keep, and the steps of a segment."""
    if checkpoint is None:
        return _core.KEEP_GATES, 1
    if isinstance(checkpoint, str):
        if checkpoint == "gates":
            return _core.KEEP_STATES, 1
        if checkpoint == "auto":
            return _core.KEEP_SEGMENTS, max(1, math.isqrt(steps))
    elif (
        isinstance(checkpoint, int | np.integer)
        and not isinstance(checkpoint, bool)
        and checkpoint > 0
    ):
        return _core.KEEP_SEGMENTS, int(min(checkpoint, max(1, steps)))
    raise ValueError(
        f"checkpoint: expected None, 'gates', 'auto' or a positive integer, got {checkpoint!r}"
    )
