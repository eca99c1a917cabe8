"""How many threads the kernels use.

The default is ``RNNKERN_NUM_THREADS``, or else ``OMP_NUM_THREADS``, or else the number of CPUs that
this process may use: its affinity, capped by the quota of its cgroup (v1 or v2). Results do not
depend on it.
"""

import math
import os

_CGROUP = "/sys/fs/cgroup"


def _words(*path: str | os.PathLike[str]) -> list[str]:
    with open(os.path.join(*path)) as file:  # pathlib would be half of the package's import time
        return file.read().split()


def _cgroup_quota(root: str | os.PathLike[str] = _CGROUP) -> float:
    """CPUs that the cgroup's quota amounts to; infinity where there is none."""
    try:
        quota, period = _words(root, "cpu.max")[:2]
    except (OSError, ValueError):
        try:
            (quota,) = _words(root, "cpu", "cpu.cfs_quota_us")
            (period,) = _words(root, "cpu", "cpu.cfs_period_us")
        except (OSError, ValueError):
            return math.inf
    try:
        share = float(quota) / float(period)
    except (ValueError, ZeroDivisionError):  # "max": no quota
        return math.inf
    return share if share > 0 else math.inf


def _environment() -> int | None:
    for name in ("RNNKERN_NUM_THREADS", "OMP_NUM_THREADS"):
        text = os.environ.get(name, "").split(",")[0].strip()
        if text.isdecimal() and int(text) > 0:
            return int(text)
    return None


def _default() -> int:
    wanted = _environment()
    if wanted is not None:
        return wanted
    affinity = getattr(os, "sched_getaffinity", None)
    cpus = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, math.ceil(min(cpus, _cgroup_quota())))


_num_threads = _default()


def get_num_threads() -> int:
    """The number of threads that calls use unless they say ``num_threads=``."""
    return _num_threads


def set_num_threads(n: int) -> None:
    """Sets the number of threads that calls use unless they say ``num_threads=``.

    Raises:
        TypeError, ValueError: n is not a positive integer.
    """
    global _num_threads
    _num_threads = checked(n, "n")


def chosen(num_threads: object) -> int:
    """A call's ``num_threads=``, where None stands for the default."""
    return _num_threads if num_threads is None else checked(num_threads)


def checked(n: object, name: str = "num_threads") -> int:
    """``n`` as a positive int, or an error that names it."""
    try:
        value = n.__index__()  # type: ignore[attr-defined]
    except AttributeError:
        raise TypeError(f"{name} must be an integer, got {type(n).__name__}") from None
    if isinstance(n, bool) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {n!r}")
    return int(min(value, 1024))
