"""Memory for the kernels and for what they return, used again.

The system clears every page of memory that a process has not had before, which takes as long as a
tenth to a half of the calls that need it. So what is too large for the C library to keep waits here
for the next call.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from itertools import count

import numpy as np
from numpy.typing import DTypeLike

from . import _core
from .validation import Array, Shape

SMALL = 1 << 17  # bytes; the C library keeps smaller blocks
MOST = 1 << 30  # bytes that wait here
MOST_BLOCKS = 16

# In the order in which they came back. Threads share it without a lock: each statement on it is
# atomic, and blocks come back whenever garbage is collected.
_spare: dict[int, Array] = {}
_turn = count()


class _Loan:
    """Lends a block to arrays; it comes back when the last of them is gone."""

    def __init__(self, block: Array) -> None:
        self.block = block

    def __del__(self, finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not finalizing():
            _keep(self.block)


def empty_cache() -> None:
    """Give memory back to the system that waits for the next call; arrays in use keep theirs.

    Worth it after a call much larger than those to come: up to 1 GiB of what calls have used waits.

    Examples:
        >>> empty_cache()
    """
    _spare.clear()


def _keep(block: Array) -> None:
    _spare[next(_turn)] = block
    size = 0
    for n, (turn, spare) in enumerate(reversed(_spare.copy().items())):
        size += spare.nbytes
        if n >= MOST_BLOCKS or size > MOST:
            _spare.pop(turn, None)


def _spare_block(size: int) -> Array | None:
    """The latest that fits and wastes no more than a quarter."""
    for turn, spare in reversed(_spare.copy().items()):
        if size <= spare.nbytes <= size + size // 4:
            block = _spare.pop(turn, None)
            if block is not None:  # otherwise another thread was faster
                return block
    return None


def new_block(size: int) -> Array:
    """Aligned memory of so many bytes, at least one; not initialised."""
    size = max(size, 1)  # NumPy would not keep the alignment of an empty slice
    if size < SMALL:
        return _core.aligned(size)
    block = _spare_block(size)
    if block is None:
        block = _core.aligned(size)
    return _core.lent(block, size, _Loan(block))


def new_array(shape: Shape, dtype: DTypeLike) -> Array:
    """As np.empty."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if size < SMALL:
        return np.empty(shape, kind)
    array: Array = new_block(size).view(kind).reshape(shape)
    return array
