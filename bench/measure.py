"""Times functions in turn, and describes the machine."""

import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from native import BENCH
from peers import PEERS

import rnnkern
from rnnkern import _core, isa

SAMPLE = 2.0  # ms that a sample takes, unless a call takes longer
LEAST_ROUNDS = 5
MORE = 3
VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "RNNKERN_ISA", "RNNKERN_NUM_THREADS")


def _timed(function, calls):
    """Milliseconds of a call, and how often the system took a CPU from us meanwhile."""
    switches = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    start = time.perf_counter()
    for _ in range(calls):
        function()
    seconds = time.perf_counter() - start
    return 1e3 * seconds / calls, resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - switches


def _calls_of_a_sample(function):
    fastest = _timed(function, 1)[0]
    for _ in range(3 if fastest < 10 * SAMPLE else 0):  # the first may be slow, any disturbed
        fastest = min(fastest, _timed(function, 1)[0])
    return max(1, round(SAMPLE / max(1e-6, fastest)))


def _calm(samples):
    return sum(not switches for _, switches in samples)


def _median(samples):
    """Of the undisturbed samples, or of the least disturbed LEAST_ROUNDS."""
    by_calm = sorted(samples, key=lambda sample: sample[1])
    return statistics.median(ms for ms, _ in by_calm[: max(LEAST_ROUNDS, _calm(samples))])


def interleaved(functions, seconds, rounds=None):
    """Median milliseconds of each function, all taking turns, and what to know about them.

    Every round has an order of its own: some libraries' threads spin for tens of milliseconds after
    a call, at the cost of whoever comes next, and no one should always be that.
    The run ends after `rounds`, else when `seconds` have passed and every function was measured
    LEAST_ROUNDS times; on a busy machine it goes on for up to MORE times as long, until so many
    samples of each were undisturbed. Before each sample a function runs untimed for as long,
    unless it is slow: that warms the caches, and lets the threads of the library before it go to
    sleep. Returns {name: median}, and the number of rounds and the share of disturbed samples.
    """
    calls = {name: _calls_of_a_sample(function) for name, function in functions.items()}
    samples = {name: [] for name in functions}
    start, done = time.perf_counter(), 0

    def more():
        if rounds or done < LEAST_ROUNDS:
            return done < (rounds or LEAST_ROUNDS)
        passed = time.perf_counter() - start
        enough = min(map(_calm, samples.values())) >= LEAST_ROUNDS
        return passed < (seconds if enough else MORE * seconds)

    names, order = list(functions), random.Random(0)
    while more():
        order.shuffle(names)
        for name in names:
            if calls[name] > 1:
                _timed(functions[name], calls[name])
            samples[name].append(_timed(functions[name], calls[name]))
        done += 1
    calm = statistics.fmean(_calm(taken) for taken in samples.values())
    medians = {name: _median(taken) for name, taken in samples.items()}
    return medians, {"rounds": done, "disturbed": 1 - calm / done}


def check_agreement(results, tolerance=1e-4):
    """All results (tuples of arrays by label) are near the first one, relative to its largest."""
    (first, expected), *others = results.items()
    for label, found in others:
        for a, b in zip(expected, found, strict=True):
            error = np.abs(a - b).max() / max(1, np.abs(a).max())
            if not error < tolerance:
                raise AssertionError(f"{label} differs from {first} by {error:.1e}")


def import_milliseconds(repeats=11):
    """What importing rnnkern takes beyond NumPy: median over pairs of new interpreters."""
    program = "import time; t = time.perf_counter(); {}; print(time.perf_counter() - t)"
    differences = []
    for _ in range(repeats):
        seconds = [
            float(subprocess.check_output([sys.executable, "-c", program.format(text)]))
            for text in ("import numpy", "import numpy, rnnkern")
        ]
        differences.append(1e3 * (seconds[1] - seconds[0]))
    return statistics.median(differences)


def installed_megabytes():
    """The package's folder without bytecode, and the compiled module where it lies elsewhere."""
    folder = Path(rnnkern.__file__).parent
    files = {f for f in folder.rglob("*") if f.is_file() and f.suffix != ".pyc"}
    return sum(f.stat().st_size for f in files | {Path(_core.__file__)}) / 1e6


def _cpu():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "unknown")


def _commit():
    """The commit of these sources, with a mark where they were changed since."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    found = subprocess.run(command, cwd=BENCH, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


def description():
    """Machine, level, versions, commit."""
    return {
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "system": platform.platform(),
        "level": isa.active(),
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "versions": {name: peer.version() for name, peer in PEERS.items() if name != "unfused"}
        | {"python": platform.python_version()},
        "commit": _commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
