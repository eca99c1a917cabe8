"""The C files of this folder, compiled when first used with the package's sources, by ctypes."""

import atexit
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from rnnkern import _core, isa

BENCH = Path(__file__).resolve().parent
CSRC = BENCH.parent / "csrc"
LEVEL_FLAGS = {
    "avx512": [f"-mavx512{x}" for x in ("f", "bw", "dq", "vl", "cd")] + ["-mfma"],
    "avx2": ["-mavx2", "-mfma"],
}
SIZE = ctypes.c_int64
POINTER = ctypes.c_void_p


@cache
def _folder():
    folder = tempfile.mkdtemp(prefix="rnnkern-bench-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def compile_library(name, *options):
    """bench/NAME.c as a shared library; raises CalledProcessError where it does not compile."""
    number = len(list(_folder().iterdir()))
    target = _folder() / f"{name}-{number}.so"
    source = BENCH / f"{name}.c"
    base = ["-shared", "-fPIC", "-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-w"]
    command = [os.environ.get("CC", "cc"), *base, str(source), *options, "-o", str(target)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return ctypes.CDLL(str(target))


@cache
def kernel_library(name, level, dtype="float32", *options):
    """bench/NAME.c compiled as variant.c is, for one level and dtype, with a thread team."""
    definitions = [f"-DRK_LEVEL_{level.upper()}", f"-DRK_DOUBLE={int(dtype == 'float64')}"]
    flags = [*LEVEL_FLAGS.get(level, []), *definitions, "-DRK_TABLE=rk_unused", f"-I{CSRC}"]
    return compile_library(name, str(CSRC / "parallel.c"), *flags, *options, "-lm", "-lpthread")


class Peak:
    """The machine's fused multiply-adds at a level: call it, and `gflop` were done."""

    ITERATIONS = 20_000

    def __init__(self, threads, level=None, dtype="float32"):
        self._run = kernel_library("peak", level or isa.active(), dtype).peak_run
        self._run.argtypes, self._run.restype = [ctypes.c_int, SIZE], ctypes.c_double
        self.threads = threads
        self.gflop = 1e-9 * self()

    def __call__(self):
        return self._run(self.threads, self.ITERATIONS)


class Handle:
    """A C object of a library: `NAME_open` makes it, `NAME_close` ends it with this object."""

    def __init__(self, library, name, *arguments):
        self._close = library[f"{name}_close"]
        self._close.argtypes = [POINTER]
        make = library[f"{name}_open"]
        make.restype = POINTER
        self.pointer = make(*arguments)

    def __del__(self):
        if getattr(self, "pointer", None):
            self._close(self.pointer)


def pointers(arrays):
    """C array of the addresses of NumPy arrays; None becomes NULL."""
    values = [None if a is None else a.ctypes.data for a in arrays]
    return (POINTER * len(values))(*values)


def cell_number(cell):
    """The cell's number in rnnkern.h."""
    return _core.CELLS.index(cell)


class Unfused:
    """Inference of one unidirectional float32 layer; packs its weights on each call."""

    def __init__(self, problem):
        library = kernel_library("unfused", isa.active())
        self._forward = library.unfused_forward
        sizes = [SIZE(n) for n in problem.shape]
        self._handle = Handle(library, "unfused", cell_number(problem.cell), *sizes)
        self._y = np.empty_like(problem.dy)
        self._arrays = [*problem.params.values(), problem.x, *problem.states, self._y]
        weights = pointers(problem.params.values())
        h, c = problem.states[0], problem.states[1] if len(problem.states) == 2 else None
        operands = pointers([problem.x, h, c, self._y])
        self._arguments = (POINTER(self._handle.pointer), weights, *map(POINTER, operands))

    def __call__(self):
        self._forward(*self._arguments)
        return self._y


class Phases:
    """A layer's kernels called from C with pieces left out, for the time of each piece."""

    def __init__(self, problem, training, pointwise=True, inputs=None):
        options = () if pointwise else ("-DWITHOUT_POINTWISE",)
        self._library = kernel_library("phases", isa.active(), "float32", *options)
        steps, rows, real_inputs, hidden = problem.shape
        sizes = [SIZE(n) for n in (steps, rows, inputs or real_inputs, hidden)]
        cell = cell_number(problem.cell)
        self._handle = Handle(self._library, "phases", cell, *sizes, problem.threads, int(training))
        self._layer = POINTER(self._handle.pointer)

    def pack(self):
        self._library.phases_pack(self._layer)

    def forward(self):
        self._library.phases_forward(self._layer)

    def train(self, need_dw=True, need_dx=True):
        """Forward and backward, without some of the gradients."""
        self._library.phases_forward(self._layer)
        self._library.phases_backward(self._layer, int(need_dw), int(need_dx))


class Team:
    """The thread team of parallel.c."""

    def __init__(self, threads):
        self._run, self.threads = kernel_library("team", "scalar").team_run, threads

    def __call__(self, calls, barriers):
        self._run(self.threads, calls, barriers)


@cache
def onednn_library():
    """oneDNN behind onednn.c: from the environment's own folders, else the compiler's. Or None."""
    prefix = Path(sys.prefix)
    folders = [f"-I{prefix / 'include'}", f"-L{prefix / 'lib'}", f"-Wl,-rpath,{prefix / 'lib'}"]
    try:
        return compile_library("onednn", *folders, "-fopenmp", "-ldnnl")
    except (OSError, subprocess.CalledProcessError):
        return None
