"""What company costs two threads: a busy process, and torch's threads in the same process.

    python bench/neighbours.py [--shapes T,B,I,H ...] [--seconds 2]

Prints training times as ratios to those of the same calls alone, measured in turn: beside as many
spinning processes as are asked for, and in processes that call torch before every call of ours,
whichever was imported first. torch's threads spin for some milliseconds after its calls.
"""

import argparse
import statistics
import subprocess
import sys
import time

from workloads import parse_shape

SHAPES = [(100, 16, 128, 128), (100, 32, 256, 256), (100, 1, 128, 256), (1000, 1, 80, 512)]
SPIN = "while True: pass"
THREADS = 2
ROUNDS = 5  # of calls alone and in company, in turn


def training(sizes):
    """A function that trains a layer of ours for a step."""
    import numpy as np

    import rnnkern as rk

    steps, rows, inputs, hidden = sizes
    layer = rk.LSTM(inputs, hidden, seed=0)
    x = np.random.default_rng(0).standard_normal((steps, rows, inputs), np.float32)
    dy = np.ones((steps, rows, hidden), np.float32)

    def train():
        layer.record(x, num_threads=THREADS)[2].backward(dy, num_threads=THREADS)

    return train


def median(function, seconds, before=None):
    """Median milliseconds of calls for so long, each after an untimed call of another function."""
    samples, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples) < ROUNDS:
        if before:
            before()
        start = time.perf_counter()
        function()
        samples.append(1e3 * (time.perf_counter() - start))
    return statistics.median(samples)


def beside_processes(sizes, count, seconds):
    """(alone, in company): medians over rounds."""
    train, found = training(sizes), []
    for _ in range(ROUNDS):
        alone = median(train, seconds / 2 / ROUNDS)
        busy = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]
        try:
            found.append((alone, median(train, seconds / 2 / ROUNDS)))
        finally:
            for process in busy:
                process.kill()
                process.wait()
    return [statistics.median(times) for times in zip(*found, strict=True)]


def beside_torch(sizes, first, seconds):
    """The same in this process, which imports `first`, "torch" or "rnnkern", before the other."""
    if first == "torch":
        import torch
    train = training(sizes)
    if first == "rnnkern":
        import torch
    torch.set_num_threads(THREADS)
    steps, rows, inputs, hidden = sizes
    module, x = torch.nn.LSTM(inputs, hidden), torch.randn(steps, rows, inputs)

    def theirs():
        module(x)[0].sum().backward()

    median(train, 0)
    alone = median(train, seconds / 2)
    return alone, median(train, seconds / 2, before=theirs)


def in_a_process(sizes, first, seconds):
    words = [__file__, "--child", first, "--shapes", ",".join(map(str, sizes))]
    command = [sys.executable, *words, "--seconds", str(seconds)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [float(word) for word in out.split()]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", type=parse_shape, nargs="+", default=SHAPES)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(*beside_torch(options.shapes[0], options.child, options.seconds))
        return
    companies = {
        "one busy process": lambda sizes: beside_processes(sizes, 1, options.seconds),
        "two busy processes": lambda sizes: beside_processes(sizes, 2, options.seconds),
        "torch, imported first": lambda sizes: in_a_process(sizes, "torch", options.seconds),
        "torch, imported second": lambda sizes: in_a_process(sizes, "rnnkern", options.seconds),
    }
    print("| T,B,I,H | beside | alone, ms | in company, ms | ratio |\n|---|---|---|---|---|")
    for sizes in options.shapes:
        for label, measure in companies.items():
            alone, beside = measure(sizes)
            words = (",".join(map(str, sizes)), label, f"{alone:.3g}", f"{beside:.3g}")
            print(f"| {' | '.join(words)} | {beside / alone:.2f} |", flush=True)


if __name__ == "__main__":
    main()
