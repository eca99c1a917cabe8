"""Dropout between layers, its masks drawn by a counter instead of a state.

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3"
(SC 2011), is a keyed bijection of 128-bit counters. The counter here is the place of an element:
whether it is kept depends on the seed and on that place, and on nothing that was drawn before,
so threads, chunks and recomputation cannot change a mask.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
WORD = 0xFFFFFFFF

BETWEEN_LAYERS = 0  # the only kind of mask so far; the counter has room for others


def philox4x32(counter: tuple[npt.ArrayLike, ...], key: tuple[int, int]) -> Array:
    """Encrypt counters of four 32-bit words each, given as four arrays that broadcast.

    Returns an array of the broadcast shape with one more axis, the four words of the result,
    as uint64 that hold 32 bits each.
    """
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(c, np.uint64) for c in counter))
    k0, k1 = key
    m0, m1 = (np.uint64(m) for m in MULTIPLIERS)
    word, half = np.uint64(WORD), np.uint64(32)
    for _ in range(ROUNDS):
        p0, p1 = m0 * c0, m1 * c2  # the full 64-bit products
        c0, c1, c2, c3 = (
            (p1 >> half) ^ c1 ^ np.uint64(k0),
            p1 & word,
            (p0 >> half) ^ c3 ^ np.uint64(k1),
            p0 & word,
        )
        k0, k1 = (k0 + KEY_STEPS[0]) & WORD, (k1 + KEY_STEPS[1]) & WORD
    return np.stack([c0, c1, c2, c3], axis=-1)


def kept(p: float, seed: int, layer: int, shape: tuple[int, int, int]) -> Array:
    """The elements (T, B, D*H) of a layer's output that dropout with probability p keeps.

    Key: the low and the high word of seed. Counter: unit // 4, row, step, layer | kind << 16;
    unit counts over the concatenated directions, and word unit % 4 of the result decides.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: expected a probability from 0 to 1, got {p}")
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed: expected 0 <= seed < 2**64, got {seed}")
    seed = int(seed)
    T, B, units = shape
    steps, rows, quads = np.ogrid[:T, :B, : -(-units // 4)]
    words = philox4x32(
        (quads, rows, steps, layer | BETWEEN_LAYERS << 16), (seed & WORD, seed >> 32)
    ).reshape(T, B, quads.size * 4)[:, :, :units]
    return words >= np.uint64(int(p * 2**32))  # p * 2**32 is exact, int() its floor


def scale(p: float, dtype: npt.DTypeLike) -> Any:
    """What kept values are multiplied by, so that the mean stays: 1 / (1 - p) as a dtype scalar."""
    return np.asarray(1 / (1 - p) if p < 1 else 0, dtype)[()]
