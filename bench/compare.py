"""Prints a markdown table: rnnkern fused, the unfused C path, NumPy, torch where installed.

    python bench/compare.py [--threads N] [--rounds N] [--cells lstm gru] [--shapes T,B,I,H ...]

All of them run the same weights, are first checked to agree, and take turns within each round, so
that a busy machine slows all alike. Times are medians in ms; ratios are of medians. Training is
forward and backward to weights and input.
"""

import argparse
import statistics
import time

import numpy as np
from workloads import SHAPES, Workload, torch

from rnnkern import __version__, isa


def measure(functions, rounds):
    """Median time in ms of each function, taken in turn; a first call warms the caches."""
    times = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            function()
            start = time.perf_counter()
            function()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(samples) for name, samples in times.items()}


def row(cell, shape, threads, rounds):
    """One line of the table."""
    work = Workload(cell, shape, threads)
    functions = {"fused": work.fused, "training": work.fused_training}
    if threads == 1:
        functions["unfused"] = work.unfused
        np.testing.assert_allclose(work.unfused(), work.fused(), atol=1e-4)
    if shape[1] * shape[3] <= 32 * 256:
        functions["numpy"] = work.numpy
    if torch is not None:
        functions |= {"torch": work.torch, "torch_training": work.torch_training}
        np.testing.assert_allclose(work.torch(), work.fused(), atol=1e-4)
        np.testing.assert_allclose(work.torch_training(), work.fused_training(), atol=1e-3)
    t = measure(functions, rounds)

    def cells(names, base):
        return [f"{t[n]:.2f} ({t[n] / t[base]:.2f}x)" if n in t else "-" for n in names]

    inference = [f"{t['fused']:.2f}", *cells(("unfused", "numpy", "torch"), "fused")]
    training = [f"{t['training']:.2f}", *cells(("torch_training",), "training")]
    rate = [f"{work.gflop / t['fused'] * 1e3:.0f}", f"{3 * work.gflop / t['training'] * 1e3:.0f}"]
    return " | ".join([cell.upper(), ", ".join(map(str, shape)), *inference, *training, *rate])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    cells = ["rnn", "lstm", "gru"]
    parser.add_argument("--cells", nargs="+", default=cells[1:], choices=cells)
    default = [",".join(map(str, shape)) for shape in SHAPES[:4]]
    parser.add_argument("--shapes", nargs="+", default=default)
    args = parser.parse_args()
    peer = "not installed"
    if torch is not None:
        torch.set_num_threads(args.threads)
        peer = torch.__version__
    print(f"rnnkern {__version__} ({isa.active()}), {args.threads} thread(s), torch {peer}\n")
    print(
        "| cell | T, B, I, H | fused | unfused | NumPy | torch "
        "| training | torch training | GFLOP/s | training |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for shape in args.shapes:
        for cell in args.cells:
            size = tuple(int(n) for n in shape.split(","))
            print(f"| {row(cell, size, args.threads, args.rounds)} |", flush=True)


if __name__ == "__main__":
    main()
