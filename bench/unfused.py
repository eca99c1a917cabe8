"""The unfused C baseline of unfused.c, compiled with the package's sources, called by ctypes."""

import ctypes
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from rnnkern import _core, isa

_ROOT = Path(__file__).resolve().parent.parent
_FLAGS = {
    "avx512": [f"-mavx512{x}" for x in ("f", "bw", "dq", "vl", "cd")] + ["-mfma"],
    "avx2": ["-mavx2", "-mfma"],
}


class _Net(ctypes.Structure):
    _fields_ = (
        [(name, ctypes.c_int) for name in ("cell", "dtype", "level", "bias")]
        + [(name, ctypes.c_int64) for name in ("input_size", "hidden_size")]
        + [(name, ctypes.c_int64) for name in ("num_layers", "num_directions")]
    )


@cache
def _library(level):
    target = Path(tempfile.mkdtemp(prefix="rnnkern-unfused-")) / "unfused.so"
    options = ["-shared", "-fPIC", "-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-w"]
    definitions = [f"-DRK_LEVEL_{level.upper()}", "-DRK_DOUBLE=0", "-DRK_TABLE=rk_unused"]
    sources = [str(_ROOT / "bench/unfused.c"), str(_ROOT / "csrc/parallel.c")]
    compiler = os.environ.get("CC", "cc")
    options += [*_FLAGS.get(level, []), *definitions, f"-I{_ROOT / 'csrc'}"]
    subprocess.run(
        [compiler, *options, *sources, "-lm", "-lpthread", "-o", str(target)], check=True
    )
    library = ctypes.CDLL(str(target))
    library.unfused_bytes.restype = ctypes.c_int64
    return library


class Unfused:
    """Inference of one unidirectional float32 layer; packs its weights on each call."""

    def __init__(self, cell, params):
        gates = {"rnn_tanh": 1, "lstm": 4, "gru": 3}[cell]
        w_ih, w_hh = params["weight_ih_l0"], params["weight_hh_l0"]
        self.library = _library(isa.active())
        self.hidden = w_hh.shape[1]
        assert w_ih.shape[0] == gates * self.hidden
        self.net = _Net(_core.CELLS.index(cell), 0, 0, 1, w_ih.shape[1], self.hidden, 1, 1)
        kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        self.weights = [params[f"{kind}_l0"] for kind in kinds]
        self.pointers = (ctypes.c_void_p * 4)(*(w.ctypes.data for w in self.weights))

    def __call__(self, x):
        """y (T, B, H) of a contiguous float32 x (T, B, I)."""
        steps, rows, _ = x.shape
        y = np.empty((steps, rows, self.hidden), np.float32)
        size = self.library.unfused_bytes(
            ctypes.byref(self.net), ctypes.c_int64(steps), ctypes.c_int64(rows)
        )
        memory = np.empty(size + 64, np.uint8)
        at = memory.ctypes.data
        self.library.unfused_forward(
            ctypes.byref(self.net),
            ctypes.c_int64(steps),
            ctypes.c_int64(rows),
            self.pointers,
            ctypes.c_void_p(x.ctypes.data),
            ctypes.c_void_p(y.ctypes.data),
            ctypes.c_void_p(at + -at % 64),
        )
        return y
