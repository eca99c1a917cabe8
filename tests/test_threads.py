"""Threads: how many, calls from many at once, and what a forked child may do."""

from __future__ import annotations

import math
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import Case, Data, make
from support import Recording, assert_same_bits, backward, inference, named

import rnnkern
from rnnkern import _core, functional, isa, threads

TIMEOUT = 120  # seconds; a hang, not a slow machine

# work enough for a team, split by rows and split by units
BY_ROWS = Case("lstm", 12, 24, 40, 48, 2, bidirectional=True, lengths="ragged", hx=True)
BY_UNITS = Case("gru_before", 50, 1, 40, 250, 1, resets="sparse", hx=True)


@pytest.fixture
def restored() -> Iterator[None]:
    before = rnnkern.get_num_threads()
    yield
    rnnkern.set_num_threads(before)


# The default


def quota(folder: Path, own: str | None, files: dict[str, str]) -> float:
    """What is found where /proc/self/cgroup reads `own`, and these are the files of cgroups."""
    for name, text in files.items():
        path = folder / "cgroups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if own is not None:
        (folder / "own").write_text(own)
    return threads._cgroup_quota(root=folder / "cgroups", own=folder / "own")


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("200000 100000\n", 2),
        ("150000 100000\n", 1.5),
        ("50000 100000", 0.5),
        ("max 100000\n", math.inf),
        ("100000 0\n", math.inf),
        ("\n", math.inf),
        ("nonsense\n", math.inf),
        ("a b\n", math.inf),
        ("1 2 3\n", math.inf),
    ],
)
@pytest.mark.parametrize("own", ["0::/\n", None])
def test_quota_of_cgroup_2(tmp_path: Path, own: str | None, text: str, cpus: float) -> None:
    assert quota(tmp_path, own, {"cpu.max": text}) == cpus


@pytest.mark.parametrize(
    ("micros", "period", "cpus"),
    [
        ("300000\n", "100000\n", 3),
        ("25000\n", "100000\n", 0.25),
        ("-1\n", "100000\n", math.inf),
        ("0\n", "100000\n", math.inf),
        ("100000\n", "0\n", math.inf),
        ("x", "100000", math.inf),
        ("100000\n", None, math.inf),
        (None, "100000\n", math.inf),
    ],
)
@pytest.mark.parametrize("own", ["4:cpu:/\n3:cpuset:/\n", None])
def test_quota_of_cgroup_1(
    tmp_path: Path, own: str | None, micros: Any, period: Any, cpus: float
) -> None:
    files = {"cpu/cpu.cfs_quota_us": micros, "cpu/cpu.cfs_period_us": period}
    files = {name: text for name, text in files.items() if text is not None}
    assert quota(tmp_path, own, files) == cpus


UNLIMITED = {"user.slice/cpu.max": "max 100000", "user.slice/job/cpu.max": "max 100000"}
TWO = {"cpu.cfs_quota_us": "200000", "cpu.cfs_period_us": "100000"}
V1 = "5:cpuset:/elsewhere\n4:{}:{}\n1:name=systemd:/elsewhere\n0::/\n"


@pytest.mark.parametrize(
    ("own", "files", "cpus"),
    [
        # its own, those around it, and none of its neighbours or children
        ("0::/user.slice/job\n", UNLIMITED, math.inf),
        ("0::/user.slice/job\n", {**UNLIMITED, "user.slice/job/cpu.max": "300000 100000"}, 3),
        ("0::/user.slice/job\n", {**UNLIMITED, "user.slice/cpu.max": "300000 100000"}, 3),
        ("0::/a/b\n", {"a/cpu.max": "100000 100000", "a/b/cpu.max": "300000 100000"}, 1),
        ("0::/a/b\n", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "100000 100000"}, 1),
        ("0::/a\n", {"a/b/cpu.max": "100000 100000", "b/cpu.max": "100000 100000"}, math.inf),
        ("0::/a:b\n", {"a:b/cpu.max": "100000 100000"}, 1),
        # a container that sees its own cgroup as the root, and its path on the host
        ("0::/docker/0123\n", {"cpu.max": "200000 100000"}, 2),
        ("0::/../pod\n", {"cpu.max": "200000 100000"}, 2),
        (V1.format("cpu,cpuacct", "/docker/0123"), {f"cpu/{k}": v for k, v in TWO.items()}, 2),
        # v1: one or two controllers, under one or two names
        (V1.format("cpu", "/a/b"), {f"cpu/a/b/{k}": v for k, v in TWO.items()}, 2),
        (V1.format("cpu", "/a/b"), {f"cpu/a/{k}": v for k, v in TWO.items()}, 2),
        (V1.format("cpuacct,cpu", "/a"), {f"cpu,cpuacct/a/{k}": v for k, v in TWO.items()}, 2),
        (V1.format("cpu", "/a"), {f"cpu/elsewhere/{k}": v for k, v in TWO.items()}, math.inf),
        (V1.format("cpuacct", "/a"), {f"cpu/a/{k}": v for k, v in TWO.items()}, math.inf),
        # no such file, and ones that nobody writes
        ("", {"cpu.max": "100000 100000"}, math.inf),
        ("0\n:\n\n", {}, math.inf),
        (None, {}, math.inf),
    ],
)
def test_quota_of_nested_cgroups(
    tmp_path: Path, own: str | None, files: dict[str, str], cpus: float
) -> None:
    assert quota(tmp_path, own, files) == cpus


def new_cgroup() -> Path | None:
    """A cgroup in this process's own whose quota we may set; None without the right to."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            root = Path("/sys/fs/cgroup", "cpu" if controllers else "")
            folder = root / path.strip("/") / f"rnnkern-test-{os.getpid()}"
            try:
                folder.mkdir()
            except OSError:
                continue
            if (folder / "cpu.max").exists() or (folder / "cpu.cfs_quota_us").exists():
                return folder
            folder.rmdir()
    return None


@pytest.mark.skipif(not os.path.exists("/proc/self/cgroup"), reason="no cgroups here")
@pytest.mark.thread_unsafe(reason="makes a cgroup of one name")
def test_a_real_cgroup() -> None:
    """A process in a cgroup without a quota, in one with the quota of one CPU."""
    outer = new_cgroup()
    if outer is None:
        pytest.skip("no right to make a cgroup")
    inner = outer / "inner"
    try:
        inner.mkdir()
        if (outer / "cpu.max").exists():
            (outer / "cpu.max").write_text("100000 100000")
        else:
            (outer / "cpu.cfs_quota_us").write_text("100000")
        enter = f"import os; open({str(inner / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
        assert python(f"{enter}; {NUMBER}").strip() == "1"
    finally:
        for folder in (inner, outer):
            if folder.exists():
                folder.rmdir()


@pytest.mark.thread_unsafe(reason="patches the module")
@pytest.mark.parametrize(
    ("cpus", "quota", "number"),
    [(8, math.inf, 8), (8, 3, 3), (8, 2.5, 3), (8, 0.2, 1), (2, 6, 2), (1, 1, 1)],
)
def test_default_is_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch, cpus: int, quota: float, number: int
) -> None:
    for name in ("RNNKERN_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cpus)), raising=False)
    monkeypatch.setattr(threads, "_cgroup_quota", lambda: quota)
    assert threads._default() == number


def python(program: str | Path, **environment: str) -> str:
    """What a new process prints that runs this code or file."""
    ours = {"RNNKERN_NUM_THREADS", "OMP_NUM_THREADS", "RNNKERN_ISA"}
    env = {name: value for name, value in os.environ.items() if name not in ours}
    arguments = ["-c", program] if isinstance(program, str) else [program]
    run = subprocess.run(
        [sys.executable, *arguments], env={**env, **environment}, capture_output=True, text=True,
        timeout=TIMEOUT,
    )  # fmt: skip
    return run.stdout + run.stderr


NUMBER = "import rnnkern; print(rnnkern.get_num_threads())"


@pytest.mark.parametrize(
    ("environment", "number"),
    [
        ({"RNNKERN_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "5"}, 5),
        ({"OMP_NUM_THREADS": "4,2"}, 4),
        ({"RNNKERN_NUM_THREADS": "3", "OMP_NUM_THREADS": "5"}, 3),
        ({"RNNKERN_NUM_THREADS": "", "OMP_NUM_THREADS": "5"}, 5),
        ({"RNNKERN_NUM_THREADS": " 6 "}, 6),
        ({"RNNKERN_NUM_THREADS": "3", "OMP_NUM_THREADS": "many"}, 3),
        ({"RNNKERN_NUM_THREADS": "9" * 30}, 1024),
    ],
)
def test_environment(environment: dict[str, str], number: int) -> None:
    assert int(python(NUMBER, **environment)) == number


@pytest.mark.parametrize("text", ["abc", "-3", "0", "1.5", "4,2", "2 3"])
def test_environment_that_is_wrong(text: str) -> None:
    printed = python(NUMBER, RNNKERN_NUM_THREADS=text, OMP_NUM_THREADS="7")
    assert f"ValueError: RNNKERN_NUM_THREADS: expected a positive integer, got {text!r}" in printed


@pytest.mark.parametrize("text", ["many", "0", "-1", "1.5", ",2"])
def test_environment_of_openmp_that_is_wrong(text: str) -> None:
    """It is for others to complain of."""
    assert python(NUMBER, OMP_NUM_THREADS=text) == python(NUMBER)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_affinity() -> None:
    one = min(os.sched_getaffinity(0))
    assert int(python(f"import os; os.sched_setaffinity(0, {{{one}}}); {NUMBER}")) == 1
    assert 1 <= int(python(NUMBER)) <= len(os.sched_getaffinity(0))
    later = f"import os, rnnkern; n = rnnkern.get_num_threads(); os.sched_setaffinity(0, {{{one}}})"
    assert python(f"{later}; print(rnnkern.get_num_threads() - n)").strip() == "0"


def test_the_level_that_the_environment_names() -> None:
    code = "import rnnkern.isa; print(rnnkern.isa.active())"
    assert python(code, RNNKERN_ISA="scalar").strip() == "scalar"
    assert "RNNKERN_ISA: unknown SIMD level 'avx1024'" in python(code, RNNKERN_ISA="avx1024")


@pytest.mark.thread_unsafe(reason="changes the level of the whole process")
def test_the_level_is_restored_after_an_error() -> None:
    before = isa.active()
    with pytest.raises(KeyError), isa.using("scalar"):
        assert isa.active() == "scalar"
        raise KeyError
    assert isa.active() == before
    with pytest.raises(ValueError, match="avx1024"), isa.using("avx1024"):
        pass
    assert isa.active() == before


# Setting it


@pytest.mark.thread_unsafe(reason="sets the number of threads")
@pytest.mark.usefixtures("restored")
def test_set_and_get() -> None:
    for n in (1, 3, np.int64(2)):
        rnnkern.set_num_threads(n)
        assert rnnkern.get_num_threads() == n
        assert type(rnnkern.get_num_threads()) is int
    for bad in (0, -1, True, 1.5, "2", None):
        with pytest.raises((TypeError, ValueError), match=r"^n: expected a positive integer"):
            rnnkern.set_num_threads(bad)  # type: ignore[arg-type]
        assert rnnkern.get_num_threads() == 2


@pytest.mark.thread_unsafe(reason="sets the number of threads")
@pytest.mark.usefixtures("restored")
def test_the_set_number_is_used() -> None:
    """In a new process: threads start when a call first needs them, and stay."""
    code = (
        "import numpy as np, rnnkern; from rnnkern import _core, functional as f\n"
        "x, w = np.ones((99, 64, 64)), np.ones((64, 64))\n"
        "p = {'weight_ih_l0': w, 'weight_hh_l0': w}\n"
        "sizes = [_core.team_size()]\n"
        "for n in (1, 3, 2):\n"
        "    rnnkern.set_num_threads(n); f.rnn_forward(x, p); sizes.append(_core.team_size())\n"
        "f.rnn_forward(x, p, num_threads=4); sizes.append(_core.team_size())\n"
        "f.rnn_forward(x[:1, :1], p, num_threads=9); sizes.append(_core.team_size())\n"
        "print(sizes)"
    )
    assert python(code).strip() == "[1, 1, 3, 3, 4, 4]"


def test_every_call_passes_the_number_on() -> None:
    """Of layers, cells, their snapshots and tapes: each call asks for one thread more."""
    code = (
        "import numpy as np, rnnkern as rk; from rnnkern import _core\n"
        "layer, cell = rk.GRU(64, 64), rk.LSTMCell(64, 64)\n"
        "x, rows, sizes = np.ones((9, 99, 64), np.float32), np.ones((99, 64), np.float32), []\n"
        "def size(result):\n"
        "    sizes.append(_core.team_size()); return result[-1]\n"
        "size(layer(x, num_threads=2))\n"
        "size(layer.freeze()(x, num_threads=3))\n"
        "tape = size(layer.record(x, num_threads=4))\n"
        "size(tape.backward(num_threads=5))\n"
        "size(cell(rows, num_threads=6))\n"
        "size(cell.freeze()(rows, num_threads=7))\n"
        "tape = size(cell.record(rows, num_threads=8))\n"
        "size(tape.backward(num_threads=9))\n"
        "rk.set_num_threads(10)\n"
        "size(layer.record(x, num_threads=2)[2].backward())\n"
        "print(sizes)"
    )
    assert python(code, RNNKERN_NUM_THREADS="1").strip() == "[2, 3, 4, 5, 6, 7, 8, 9, 10]"


def test_more_threads_than_there_is_work_for() -> None:
    for case in (BY_ROWS, BY_UNITS):
        data = make(case, np.float32)
        want = named(*inference(data, num_threads=1))
        for n in (10**6, 2**40):
            assert_same_bits(named(*inference(data, num_threads=n)), want)


def test_a_team_has_a_largest_size() -> None:
    """256 members, whatever is asked for: in a new process, since they stay."""
    code = (
        "import numpy as np; from rnnkern import _core, functional as f\n"
        "x, w = np.ones((2, 600, 64), np.float32), np.ones((64, 64), np.float32) / 64\n"
        "p = {'weight_ih_l0': w, 'weight_hh_l0': w}\n"
        "y = [f.rnn_forward(x, p, num_threads=n)[0] for n in (1, 300, 300)]\n"
        "print(_core.team_size(), (y[0] == y[1]).all(), (y[0] == y[2]).all())"
    )
    assert python(code).strip() == "256 True True"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no /proc here")
def test_workers_take_no_signals() -> None:
    """These belong to the program's threads; the caller's own mask is as before."""
    code = (
        "import os, signal, numpy as np; from rnnkern import functional as f\n"
        "x, w = np.ones((99, 64, 64)), np.ones((64, 64))\n"
        "p = {'weight_ih_l0': w, 'weight_hh_l0': w}\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})\n"
        "before = set(os.listdir('/proc/self/task'))\n"
        "f.rnn_forward(x, p, num_threads=3)\n"
        "workers = set(os.listdir('/proc/self/task')) - before\n"
        "def blocked(task):\n"
        "    lines = open(f'/proc/self/task/{task}/status').read().splitlines()\n"
        "    mask = int(next(s for s in lines if s.startswith('SigBlk')).split()[1], 16)\n"
        "    return [s.name for s in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)\n"
        "            if mask >> (s - 1) & 1]\n"
        "print([blocked(t) for t in workers], signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    )
    three = ["SIGINT", "SIGTERM", "SIGALRM"]
    assert python(code).strip() == f"{[three, three]} {{<Signals.SIGUSR2: 12>}}"


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="one core here"
)
@pytest.mark.parametrize("split", ["rows", "units"])
def test_workers_stay_off_their_callers_core(split: str) -> None:
    """They may run wherever else the caller may, whose own affinity is as before."""
    two = sorted(os.sched_getaffinity(0))[:2]
    sizes = "(100, 64, 64), 64" if split == "rows" else "(100, 1, 256), 256"
    code = (
        "import os, numpy as np; from rnnkern import functional as f\n"
        f"os.sched_setaffinity(0, {two})\n"
        f"shape, H = {sizes}\n"
        "x, w = np.ones(shape, 'f'), np.ones((H, H), 'f')\n"
        "p = {'weight_ih_l0': w, 'weight_hh_l0': w}\n"
        "before = set(os.listdir('/proc/self/task'))\n"
        "f.rnn_forward(x, p, num_threads=2)\n"
        "(worker,) = set(os.listdir('/proc/self/task')) - before\n"
        "print(*os.sched_getaffinity(int(worker)), *sorted(os.sched_getaffinity(0)))"
    )
    other, *own = map(int, python(code).split())
    assert other in two and own == two


# threadpoolctl

USE_THREADPOOLCTL = """
def ours():
    found = [i for i in threadpoolctl.threadpool_info() if i["user_api"] == "rnnkern"]
    assert len(found) == 1, found
    assert found[0]["internal_api"] == "rnnkern"
    assert found[0]["version"] == rnnkern.__version__
    assert found[0]["filepath"] == os.path.realpath(rnnkern._core.__file__)
    return found[0]["num_threads"]

rnnkern.set_num_threads(3)
numbers = [ours()]
with threadpoolctl.threadpool_limits(limits=1):
    numbers += [ours(), rnnkern.get_num_threads()]
numbers.append(rnnkern.get_num_threads())
with threadpoolctl.threadpool_limits(limits=1, user_api="blas"):
    numbers.append(ours())
with threadpoolctl.threadpool_limits(limits=2, user_api="rnnkern"):
    numbers.append(ours())
with threadpoolctl.threadpool_limits(limits={"rnnkern": 5}):
    numbers.append(ours())
print(numbers, ours())
"""


def installed(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(module) is None, reason=f"no {module} here")


@installed("threadpoolctl")
@pytest.mark.parametrize(
    "imports",
    [
        "import threadpoolctl, rnnkern",
        "import rnnkern, threadpoolctl",
        "import rnnkern, threadpoolctl, importlib; importlib.reload(threadpoolctl)",
    ],
)
def test_threadpoolctl(imports: str) -> None:
    assert python(f"import os; {imports}\n{USE_THREADPOOLCTL}").strip() == "[3, 1, 1, 3, 3, 2, 5] 3"


def test_without_threadpoolctl() -> None:
    """We do not import it, and who does finds what he would have found without us."""
    assert python("import sys, rnnkern; print('threadpoolctl' in sys.modules)").strip() == "False"
    code = (
        "import sys, rnnkern\n"
        "sys.path[:] = []\n"
        "try: import threadpoolctl\n"
        "except ModuleNotFoundError as error: print(error.name)"
    )
    assert python(code).strip() == "threadpoolctl"


def test_an_old_threadpoolctl(tmp_path: Path) -> None:
    """One that cannot be told of other libraries."""
    (tmp_path / "threadpoolctl.py").write_text("def threadpool_info(): return []\n")
    code = (
        f"import inspect, sys, rnnkern; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import threadpoolctl\n"
        "print(threadpoolctl.threadpool_info(), inspect.getsource(threadpoolctl).count('return'))"
    )
    assert python(code).strip() == "[] 1"


# Many callers at once


def train(data: Data, **options: Any) -> dict[str, Any]:
    y, hx_n, tape = data.forward(Recording(**options))
    grads = tape.zero_grads()
    dx, _, _ = backward(data, tape, grads=grads, **options)
    return {**named(y, hx_n), **grads, "x": dx}


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """Results of calls that start together."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        start.wait(TIMEOUT)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [f.result(TIMEOUT) for f in [pool.submit(run, call) for call in calls]]


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("case", [BY_ROWS, BY_UNITS], ids=str)
def test_inference_from_many_threads(case: Case, num_threads: int) -> None:
    data = make(case, np.float32)
    packed = functional.pack(case.function, data.params, **case.options)
    want = named(*inference(data, num_threads=1))
    forward = getattr(functional, f"{case.function}_forward")

    def call() -> list[Any]:
        options = {**data.keywords, "num_threads": num_threads}
        return [named(*forward(data.x, packed, data.hx, **options)) for _ in range(5)]

    for results in at_once([call] * 6):
        for got in results:
            assert_same_bits(got, want)


@pytest.mark.parametrize("checkpoint", [None, "auto"])
@pytest.mark.parametrize("case", [BY_ROWS, BY_UNITS], ids=str)
def test_training_from_many_threads(case: Case, checkpoint: Any) -> None:
    """One set of weights and inputs, gradients of each thread's own."""
    data = make(case, np.float32)
    want = train(data, num_threads=1)

    def call() -> Any:
        y, hx_n, tape = data.forward(Recording(checkpoint=checkpoint))
        grads = tape.zero_grads()
        dx, _, _ = backward(data, tape, grads=grads, num_threads=2)
        return {**named(y, hx_n), **grads, "x": dx}

    for _ in range(3):
        for got in at_once([call] * 5):
            assert_same_bits(got, want)


@pytest.mark.thread_unsafe(reason="measures time")
@pytest.mark.parametrize("pass_", ["forward", "backward"])
def test_other_threads_go_on_during_a_call(pass_: str) -> None:
    """The kernels do not hold the interpreter: no other thread stands still as long as they run."""
    data = make(Case("lstm", 200, 64, 256, 256, 1), np.float32)
    _, _, tape = data.forward(Recording())
    calls = {
        "forward": lambda: data.forward(Recording(num_threads=1)),  # in one piece
        "backward": lambda: backward(data, tape, num_threads=1),
    }
    took = []

    def run() -> None:
        start = time.perf_counter()
        calls[pass_]()
        took.append(time.perf_counter() - start)

    caller = threading.Thread(target=run)
    longest, last = 0.0, time.perf_counter()
    caller.start()
    while caller.is_alive():
        time.sleep(0.001)
        longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
    assert longest < took[0] / 2


def test_one_retained_tape_from_many_threads() -> None:
    data = make(BY_ROWS, np.float32)
    want = train(data, num_threads=1)
    _, _, tape = data.forward(Recording())

    def call() -> Any:
        dx, _, grads = backward(data, tape, grads=tape.zero_grads(), retain=True)
        return {**grads, "x": dx}

    for got in at_once([call] * 4):
        assert_same_bits(got, {name: want[name] for name in got})


def test_different_calls_at_once() -> None:
    """Some by rows, some by units, with teams of different sizes."""
    data = [make(case, np.float32) for case in (BY_ROWS, BY_UNITS)]
    want = [train(d, num_threads=1) for d in data]
    calls = [lambda d=d, n=n: train(d, num_threads=n) for n in (1, 2, 3, 4) for d in data]
    for _ in range(3):
        for i, got in enumerate(at_once(calls)):
            assert_same_bits(got, want[i % 2])


def test_a_team_that_changes_its_size() -> None:
    data = make(BY_UNITS, np.float32)
    want = train(data, num_threads=1)
    for n in (2, 5, 3, 1, 4, 2, 6) * 3:
        assert_same_bits(train(data, num_threads=n), want, n)


# Processes


def child_work(pipe: Any, case: Case) -> None:
    """Runs in a child: the same work, and the sizes of its team before and after."""
    before = _core.team_size()
    got = train(make(case, np.float32), num_threads=2)
    pipe.send((before, got, _core.team_size()))
    pipe.close()


def check_child(method: str, case: Case, want: dict[str, Any]) -> None:
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    child = context.Process(target=child_work, args=(there, case))
    child.start()
    there.close()
    try:
        assert here.poll(TIMEOUT), f"a child by {method} hangs"
        before, got, after = here.recv()
        child.join(TIMEOUT)
        assert child.exitcode == 0
    finally:
        child.kill()
        child.join()
    assert (before, after) == (1, 2)
    assert_same_bits(got, want)


def has(method: str) -> pytest.MarkDecorator:
    absent = method not in multiprocessing.get_all_start_methods()
    return pytest.mark.skipif(absent, reason=f"no {method} here")


forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@forks
@pytest.mark.thread_unsafe(reason="forks")
@pytest.mark.parametrize(
    "method", [pytest.param(m, marks=has(m)) for m in ("fork", "forkserver", "spawn")]
)
@pytest.mark.parametrize("case", [BY_ROWS, BY_UNITS], ids=str)
def test_a_child_process(method: str, case: Case) -> None:
    data = make(case, np.float32)
    want = train(data, num_threads=2)
    assert _core.team_size() >= 2
    check_child(method, case, want)
    assert_same_bits(train(data, num_threads=2), want, "the parent, afterwards")


@forks
@has("fork")
@pytest.mark.thread_unsafe(reason="forks")
def test_fork_while_the_team_is_busy() -> None:
    """From one thread, while another one calls; the child must not wait for workers it has not."""
    data = make(BY_UNITS, np.float32)
    want = train(data, num_threads=2)
    stop, failures, calls = threading.Event(), [], 0

    def keep_busy() -> None:
        nonlocal calls
        while not stop.is_set():
            assert_same_bits(train(data, num_threads=2), want)
            calls += 1

    def fork() -> None:
        for _ in range(5):
            check_child("fork", BY_UNITS, want)

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as failure:
            failures.append(failure)

    # plain threads: a pool's threads wait for one another at the exit of a child, which has one
    busy, forking = (threading.Thread(target=run, args=(work,)) for work in (keep_busy, fork))
    busy.start()
    forking.start()
    forking.join(6 * TIMEOUT)
    stop.set()
    busy.join(TIMEOUT)
    assert not failures
    assert calls > 0


@has("fork")
def test_many_forks_amid_a_call() -> None:
    """They meet the team at every stage, members that wait at a barrier among them."""
    code = (
        "import os, signal, threading, numpy as np; from rnnkern import functional as f\n"
        "rng = np.random.default_rng(0)\n"
        "x, w = rng.normal(size=(300, 1, 250)), rng.normal(size=(250, 250)) / 16\n"
        "p = {'weight_ih_l0': w, 'weight_hh_l0': w}\n"
        "run = lambda: f.rnn_forward(x, p, num_threads=2)[0].tobytes()\n"
        "want, stop = run(), threading.Event()\n"
        "def keep_busy():\n"
        "    while not stop.is_set(): run()\n"
        "busy = threading.Thread(target=keep_busy); busy.start()\n"
        "def fork():\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        signal.alarm(20); os._exit(run() != want)\n"
        "    return os.waitpid(child, 0)[1]\n"
        "failed = next((s for s in (fork() for _ in range(100)) if s), None)\n"
        "stop.set(); busy.join(); print(failed)"
    )
    assert python(code, PYTHONWARNINGS="ignore").strip() == "None"


@forks
@has("fork")
@pytest.mark.thread_unsafe(reason="forks")
def test_a_child_of_a_child() -> None:
    """Each generation has used threads before it forks."""
    code = (
        "import os, numpy as np; from rnnkern import _core, functional as f\n"
        "x, w = np.ones((99, 64, 64)), np.ones((64, 64))\n"
        "p = {'weight_ih_l0': w, 'weight_hh_l0': w}\n"
        "def run():\n"
        "    f.rnn_forward(x, p, num_threads=2); return _core.team_size()\n"
        "for generation in range(4):\n"
        "    assert run() == 2\n"
        "    child = os.fork()\n"
        "    if child:\n"
        "        status = os.waitpid(child, 0)[1]\n"
        "        assert run() == 2\n"
        "        os._exit(os.waitstatus_to_exitcode(status))\n"
        "    assert _core.team_size() == 1\n"
        "print('ok', flush=True)"
    )
    assert python(code, PYTHONWARNINGS="ignore").strip() == "ok"


BESIDE_TORCH = """
if __name__ == "__main__":
    import {first}
    import {second}
import multiprocessing as mp, warnings
import numpy as np
from rnnkern import _core, functional as f

x, w = np.ones((99, 64, 64), "f"), np.ones((64, 64), "f")
p = {{"weight_ih_l0": w, "weight_hh_l0": w}}

def run():
    return f.rnn_forward(x, p, num_threads=2)[0].sum()

def child(want):
    assert _core.team_size() == 1
    assert run() == want
    assert _core.team_size() == 2

if __name__ == "__main__":
    warnings.simplefilter("ignore")  # forks from a process of several threads
    torch.set_num_threads(2)
    a = torch.ones(500, 500)
    for method in ("fork", "forkserver", "spawn"):
        for _ in range(3):
            want = run()
            torch.tanh(a @ a)
        process = mp.get_context(method).Process(target=child, args=(want,))
        process.start()
        process.join({timeout})
        print(method, "hangs" if process.is_alive() else process.exitcode)
        process.kill()
        assert run() == want
    torch.tanh(a @ a)
"""


@installed("torch")
@has("fork")
@pytest.mark.thread_unsafe(reason="forks")
@pytest.mark.parametrize(("first", "second"), [("torch", "rnnkern"), ("rnnkern", "torch")])
def test_children_beside_torch(tmp_path: Path, first: str, second: str) -> None:
    """The parent has used both packages' threads; its children use ours."""
    file = tmp_path / "beside_torch.py"
    file.write_text(BESIDE_TORCH.format(first=first, second=second, timeout=TIMEOUT / 4))
    assert python(file).split() == ["fork", "0", "forkserver", "0", "spawn", "0"]


def test_exit_while_another_thread_calls() -> None:
    """The interpreter ends although a daemon thread is in the kernels."""
    code = (
        "import threading, time, numpy as np; from rnnkern import functional as f\n"
        "x, w = np.ones((99, 64, 64)), np.ones((64, 64))\n"
        "p = {'weight_ih_l0': w, 'weight_hh_l0': w}\n"
        "def run():\n"
        "    while True: f.rnn_forward(x, p, num_threads=2)\n"
        "threading.Thread(target=run, daemon=True).start()\n"
        "time.sleep(0.2); print('ok', flush=True)"
    )
    assert python(code).strip() == "ok"


def test_idle_workers_sleep() -> None:
    """Between calls the team soon costs nothing."""
    code = (
        "import time, numpy as np; from rnnkern import functional as f\n"
        "x, w = np.ones((99, 64, 64)), np.ones((64, 64))\n"
        "p = {'weight_ih_l0': w, 'weight_hh_l0': w}\n"
        "f.rnn_forward(x, p, num_threads=4); time.sleep(0.1)\n"
        "start = time.process_time(); time.sleep(0.5); print(time.process_time() - start)"
    )
    assert float(python(code)) < 0.1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_fewer_cores_than_threads() -> None:
    """A team that has to share one core soon leaves the work to its caller."""
    code = (
        "import os, time, numpy as np; from rnnkern import functional as f\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "x, w = np.ones((100, 1, 256), 'f'), np.ones((256, 256), 'f')\n"
        "p = {'weight_ih_l0': w, 'weight_hh_l0': w}\n"
        "spent = {1: 0.0, 2: 0.0}\n"
        "for i in range(400):\n"
        "    n, start = 1 + i // 20 % 2, time.perf_counter()\n"
        "    f.rnn_forward(x, p, num_threads=n); spent[n] += time.perf_counter() - start\n"
        "print(spent[2] / spent[1])"
    )
    assert float(python(code)) < 4
