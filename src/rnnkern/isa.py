"""SIMD levels: which are compiled in, which this machine has, which one is used.

The best level that the CPU and the operating system support is chosen at import. The environment
variable ``RNNKERN_ISA`` (``avx512``, ``avx2``, ``neon`` or ``scalar``) forces one. All levels give
the same bits.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from . import _core

NAMES: tuple[str, ...] = _core.level_names()


def available() -> tuple[str, ...]:
    """Names of the levels that this machine has, best first."""
    return tuple(name for i, name in enumerate(NAMES) if _core.level_supported(i))


def _index(name: str, origin: str) -> int:
    if name not in NAMES:
        known = ", ".join(NAMES)
        raise ValueError(f"{origin}: unknown SIMD level {name!r}; expected one of {known}")
    if name not in available():
        has = ", ".join(available())
        raise ValueError(f"{origin}: this machine lacks SIMD level {name!r}; it has {has}")
    return NAMES.index(name)


_forced = os.environ.get("RNNKERN_ISA")
_level = _index(_forced, "RNNKERN_ISA") if _forced else NAMES.index(available()[0])


def level() -> int:
    """Index of the level in use, as ``_core`` counts them."""
    return _level


def active() -> str:
    """Name of the level in use."""
    return NAMES[_level]


@contextmanager
def using(name: str) -> Iterator[None]:
    """Uses another level within a ``with`` block, in the whole process; for tests and checks."""
    global _level
    before, _level = _level, _index(name, "using")
    try:
        yield
    finally:
        _level = before
