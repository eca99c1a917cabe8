"""How many threads the kernels use at most; results do not depend on it.

The default is ``RNNKERN_NUM_THREADS``, or else ``OMP_NUM_THREADS``, or else the number of CPUs that
this process may use: its affinity, capped by the quotas of its cgroup and of all cgroups around it
(v1 or v2). It is found once, at import: a process whose affinity or quota changes later, such as a
worker that gets pinned to one CPU, calls `set_num_threads`. The limits of ``threadpoolctl``, where
that is installed, are limits of this number.

Calls use fewer threads where their work is small, where another thread's call uses the team, and
for a while where it turned out that the machine's cores are busy with something else.
"""

import math
import os

from . import _threadpoolctl
from .validation import positive_int

_MOST = 1024  # a bound for C's int; the team has its own
_CGROUPS = "/sys/fs/cgroup"
_OWN_CGROUP = "/proc/self/cgroup"


def _read(*path: str | os.PathLike[str]) -> str:
    with open(os.path.join(*path)) as file:  # pathlib would be half of the package's import time
        return file.read()


def _quota_of(folder: str) -> float:
    """CPUs that the quota of one cgroup amounts to; infinity where there is none."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            quota, period = " ".join(_read(folder, name) for name in names).split()
            share = float(quota) / float(period)
        except (OSError, ValueError, ZeroDivisionError):  # ValueError: "max", no quota
            continue
        if share > 0:
            return share
    return math.inf


def _cgroup_quota(
    root: str | os.PathLike[str] = _CGROUPS, own: str | os.PathLike[str] = _OWN_CGROUP
) -> float:
    """The least quota of this process's cgroup and of those that it lies in.

    A container may see itself as the root and yet be told its path on the host: folders that are
    not there are passed over, and the root is always asked.
    """
    try:
        lines = _read(own).splitlines()
    except OSError:
        lines = ["0::/", "1:cpu:/"]
    least = math.inf
    for line in lines:  # number of the hierarchy, its controllers (none: v2), path
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        for mount in ("cpu", "cpu,cpuacct") if controllers else (".",):
            folders = [name for name in path.split("/") if name]
            for depth in range(len(folders) + 1):
                least = min(least, _quota_of(os.path.join(root, mount, *folders[:depth])))
    return least


def _environment() -> int | None:
    text = os.environ.get("RNNKERN_NUM_THREADS", "").strip()
    if text:
        if not text.isdecimal() or int(text) < 1:
            raise ValueError(f"RNNKERN_NUM_THREADS: expected a positive integer, got {text!r}")
        return min(int(text), _MOST)
    text = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # not ours to complain of
    return min(int(text), _MOST) if text.isdecimal() and int(text) > 0 else None


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
    return min(positive_int(name, n), _MOST)


_threadpoolctl.watch(get_num_threads, set_num_threads)
