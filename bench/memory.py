"""Prints what the ways of keeping less for backward cost in time, and save in memory.

    python bench/memory.py [--threads N] [--rounds N]

Times are medians of rounds in which the ways take turns; the peak of a training step is measured
from outside, in a process of its own.
"""

import argparse
import statistics
import subprocess
import sys
import time

import numpy as np

import rnnkern as rk

SHAPE = (4096, 8, 256, 256)
LONG = (100_000, 1, 128, 128)
WAYS = (None, "gates", "auto", 16, 256)

PEAK = """
import sys
import numpy as np, rnnkern as rk
T, B, I, H = map(int, sys.argv[1:5])
way = None if sys.argv[5] == "None" else sys.argv[5]
layer, x = rk.LSTM(I, H, seed=0), np.ones((T, B, I), np.float32)
y, _, tape = layer.record(x, checkpoint=way)
tape.backward(y)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(1024 * int(status["VmHWM"].split()[0]))  # getrusage would count the parent's peak too
"""


def training(layer, x, dy, way):
    """Seconds of a training step, and the bytes of its tape."""
    start = time.perf_counter()
    _, _, tape = layer.record(x, checkpoint=way)
    kept = tape.nbytes
    tape.backward(dy)
    return time.perf_counter() - start, kept


def ways_table(rounds):
    steps, rows, inputs, hidden = SHAPE
    rng = np.random.default_rng(0)
    x = rng.standard_normal((steps, rows, inputs), np.float32)
    dy = rng.standard_normal((steps, rows, hidden), np.float32)
    layers = {way: rk.LSTM(inputs, hidden, seed=0) for way in WAYS}
    found = {way: [] for way in WAYS}
    for n in range(rounds + 1):
        for way, layer in layers.items():
            measured = training(layer, x, dy, way)
            if n:  # the first warms the caches
                found[way].append(measured)
    whole = statistics.median(seconds for seconds, _ in found[None])
    print(f"LSTM, T, B, I, H = {', '.join(map(str, SHAPE))}\n")
    print("| checkpoint | time / None | tape, MB | tape / None |\n|---|---|---|---|")
    for way, samples in found.items():
        seconds, kept = statistics.median(s for s, _ in samples), samples[0][1]
        share = kept / found[None][0][1]
        print(f"| {way!r} | {seconds / whole:.2f} | {kept / 1e6:.1f} | {share:.3f} |")


def peaks_table():
    print(f"\nPeak memory of a training step, T, B, I, H = {', '.join(map(str, LONG))}\n")
    print("| checkpoint | MB | before the call |\n|---|---|---|")
    base = baseline()
    for way in ("None", "gates", "auto"):
        arguments = [sys.executable, "-c", PEAK, *map(str, LONG), way]
        peak = int(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)
        print(f"| {way} | {peak / 1e6:.0f} | {base / 1e6:.0f} |", flush=True)


def baseline():
    """Peak of a process that makes x and a layer, and no call."""
    program = PEAK.replace("y, _, tape = layer.record(x, checkpoint=way)\ntape.backward(y)\n", "")
    arguments = [sys.executable, "-c", program, *map(str, LONG), "None"]
    return int(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    rk.set_num_threads(options.threads)
    ways_table(options.rounds)
    peaks_table()


if __name__ == "__main__":
    main()
