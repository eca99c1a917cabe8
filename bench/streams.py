"""Measures streams: thousands in one batch, the latency of single ones, and steps from Python.

    python bench/streams.py [--work servers latency step] [--seconds 2] [--peers onnxruntime ...]

Prints markdown. Peers take part where they are installed: ONNX Runtime (with onnx) everywhere,
torch, oneDNN, OpenVINO and a loop compiled by Numba for single steps. All run the same weights, are
first checked to agree, and take turns. A peer gets its state as it needs it: ONNX Runtime is handed
the h and c that it gave back, as any program that streams with it does.
"""

import argparse
import gc
import resource
import statistics
import sys
import time

import numpy as np
from measure import check_agreement, description, interleaved
from peers import LIBRARIES, PEERS, OnnxRuntime, Rnnkern, contenders_for
from report import table
from workloads import STEP_SHAPES, Problem

FRAME = 32.0  # ms of audio, 512 samples at 16 kHz
SIZES = [(40, 64), (128, 256)]
CROWDS = [1_000, 10_000]
STEPS = 100_000
WORK = ("servers", "latency", "step")


# --- thousands of streams ------------------------------------------------------------------------


def batch_of_streams(problem):
    """All rows of one stream, one frame further."""
    stream = Rnnkern(problem).layer.stream(problem.shape[1])
    out = np.empty((problem.shape[1], problem.shape[3]), np.float32)
    x = problem.x[0]
    return lambda: (stream.step(x, out),)


def loop_of_streams(problem):
    """As many streams of one row, one after the other; they share the packed weights."""
    frozen = Rnnkern(problem).layer.freeze()
    out = np.empty((problem.shape[1], problem.shape[3]), np.float32)
    work = [(frozen.stream().step, x, y) for x, y in zip(problem.x[0], out, strict=True)]

    def run():
        for step, x, y in work:
            step(x, y)
        return (out,)

    return run


def onnx_streams(problem):
    """All rows in one call of ONNX Runtime, which gives back the state for the next."""
    session = OnnxRuntime(problem).session
    names = ["y", *("h_n", "c_n")[: len(problem.states)]]
    fed = {"x": problem.x, **dict(zip("hc", problem.states, strict=False))}

    def run():
        y, *states = session.run(names, fed)
        fed.update(zip("hc", states, strict=False))
        return (y[0, 0],)

    return run


def cpu_milliseconds(functions, seconds):
    """Median CPU time of the calling thread in each function, all taking turns.

    What runs in one thread and waits for nothing takes just that on a core of its own, and other
    processes cannot be avoided by steps of many milliseconds.
    """
    samples = {name: [] for name in functions}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or min(map(len, samples.values())) < 11:
        for name, function in functions.items():
            function()  # warms the caches, which the one before it has filled
            start = time.thread_time()
            function()
            samples[name].append(1e3 * (time.thread_time() - start))
    return {name: statistics.median(found) for name, found in samples.items()}


def servers(options):
    lines = []
    for inputs, hidden in SIZES:
        for rows in CROWDS:
            problem = Problem("lstm", (1, rows, inputs, hidden))
            functions = {"batch": batch_of_streams(problem), "loop": loop_of_streams(problem)}
            if "onnxruntime" in options.peers:
                functions["ORT"] = onnx_streams(problem)
            check_agreement({name: function() for name, function in functions.items()})
            ms = cpu_milliseconds(functions, options.seconds)
            note_progress(f"{rows} streams of ({inputs}, {hidden})", ms)
            own = ms["batch"]
            others = [
                f"{ms[name]:.3g} ({ms[name] / own:.2f}x)" if name in ms else ""
                for name in ("loop", "ORT")
            ]
            lines.append(
                [
                    f"{inputs}, {hidden}",
                    f"{rows:,}",
                    f"{own:.3g}",
                    *others,
                    f"{1e3 * own / rows:.2f}",
                    f"{own / rows / FRAME:.1e}",
                    f"{rows * FRAME / own:,.0f}",
                ]
            )
    header = ["I, H", "streams", "one batch", "loop of single streams", "ONNX Runtime"]
    header += ["µs a stream", "real-time factor", "a core holds"]
    return [
        "### Servers: all LSTM streams one frame further, in ms of one thread",
        table(header, lines),
        "In brackets the time divided by that of our batch. The real-time factor is that of one "
        f"stream on one core, at a frame every {FRAME:.0f} ms (512 samples at 16 kHz); a core "
        "holds as many streams as it steps in that time.",
    ]


# --- latency -------------------------------------------------------------------------------------


def latencies(step, x, steps):
    """Microseconds of each step, of frames that come one after the other."""
    now, found = time.perf_counter_ns, np.empty(steps, np.int64)
    frames = [x[i] for i in range(len(x))]
    count = len(frames)
    for i in range(steps):
        frame = frames[i % count]
        start = now()
        step(frame)
        found[i] = now() - start
    return found / 1e3


def latency(options):
    lines = []
    for inputs, hidden in SIZES:
        one = Problem("lstm", (1, 1, inputs, hidden))
        x = np.random.default_rng(2).standard_normal((1000, inputs), np.float32)
        out = np.empty(hidden, np.float32)
        stream = Rnnkern(one).layer.stream()
        steps = {"stream": stream.step, "stream, out=": lambda x, s=stream, y=out: s.step(x, y)}
        if "onnxruntime" in options.peers:
            steps["ONNX Runtime"] = onnx_step(one)
        for name, step in steps.items():
            latencies(step, x, STEPS // 20)
            for collects in (True, False):
                (gc.enable if collects else gc.disable)()
                before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
                found = latencies(step, x, STEPS)
                preempted = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - before
                gc.enable()
                note_progress(
                    f"latency of {name} ({inputs}, {hidden})", {"median": np.median(found) / 1e3}
                )
                lines.append(
                    [
                        f"{inputs}, {hidden}",
                        name,
                        "on" if collects else "off",
                        *(f"{np.percentile(found, p):.2f}" for p in (50, 99, 99.9)),
                        f"{found.max():.0f}",
                        str(preempted),
                    ]
                )
    header = ["I, H", "", "GC", "median", "p99", "p99.9", "max", "preempted"]
    return [
        f"### Latency of {STEPS:,} steps of one LSTM stream from Python, in µs",
        table(header, lines),
        "Including the clock, some 0.05 µs. Preempted: how often another process took the CPU "
        "meanwhile, which is what the maximum shows.",
    ]


def onnx_step(problem):
    session = OnnxRuntime(problem).session
    fed = {"h": problem.states[0], "c": problem.states[1]}

    def step(x):
        fed["x"] = x[None, None]
        _, fed["h"], fed["c"] = session.run(["y", "h_n", "c_n"], fed)

    return step


# --- single steps --------------------------------------------------------------------------------


def numba_step(problem):
    """A plain loop for one row of an LSTM, compiled; {} without Numba."""
    try:
        import numba
    except ImportError:
        return {}
    params, hidden = problem.params, problem.shape[3]
    # Transposed, so that the inner loop runs over gates side by side and becomes SIMD code.
    weights = np.hstack([params["weight_ih_l0"], params["weight_hh_l0"]]).T.copy()
    bias = params["bias_ih_l0"] + params["bias_hh_l0"]

    @numba.njit(fastmath=True)
    def step(x, h, c, weights, bias, z, y):
        z[:] = bias
        for k in range(x.size):
            for j in range(z.size):
                z[j] += x[k] * weights[k, j]
        for k in range(h.size):
            for j in range(z.size):
                z[j] += h[k] * weights[x.size + k, j]
        n, one = h.size, np.float32(1)
        for j in range(n):
            i, f = one / (one + np.exp(-z[j])), one / (one + np.exp(-z[n + j]))
            g, o = np.tanh(z[2 * n + j]), one / (one + np.exp(-z[3 * n + j]))
            c[j] = f * c[j] + i * g
            h[j] = o * np.tanh(c[j])
            y[j] = h[j]

    x, z = problem.x[0, 0], np.empty(4 * hidden, np.float32)
    h, c, y = (np.zeros(hidden, np.float32) for _ in range(3))

    def run():
        step(x, h, c, weights, bias, z, y)
        return (y[None],)

    return {"numba": run}


def single_steps(options):
    rows = []
    for shape in STEP_SHAPES:
        problem = Problem("lstm", shape)
        functions = contenders_for("step", problem, ["rnnkern", *options.peers])
        functions |= numba_step(problem)
        check_agreement({name: function() for name, function in functions.items()})
        ms, quality = interleaved(functions, options.seconds)
        note_progress(f"step {shape}, {quality['disturbed']:.0%} disturbed", ms)
        rows.append((shape, ms))
    labels = list(dict.fromkeys(label for _, ms in rows for label in ms))
    own, lines = "rnnkern stream", []
    for (_, _, inputs, hidden), ms in rows:
        cells = [
            f"{1e3 * ms[label]:.2f}" + (f" ({ms[label] / ms[own]:.1f}x)" if label != own else "")
            if label in ms
            else ""
            for label in labels
        ]
        lines.append([f"{inputs}, {hidden}", *cells])
    return [
        "### One step of an LSTM from Python, one thread, in µs",
        table(["I, H", *labels], lines),
        "In brackets the time divided by that of a stream.",
    ]


# --- the run -------------------------------------------------------------------------------------


def note_progress(what, ms):
    times = ", ".join(f"{name} {value:.3g} ms" for name, value in ms.items())
    print(f"{what}: {times}", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", nargs="+", default=WORK, choices=WORK)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row")
    parser.add_argument("--peers", nargs="*", default=LIBRARIES, choices=LIBRARIES)
    options = parser.parse_args()
    options.peers = [peer for peer in options.peers if PEERS[peer].version()]
    run = description()
    versions = ", ".join(f"{k} {v}" for k, v in run["versions"].items() if v)
    print(f"{run['cpu']}, {run['cpus']} CPUs, {run['level']}; commit {run['commit']}; {versions}.")
    parts = {"servers": servers, "latency": latency, "step": single_steps}
    for name in options.work:
        print("", *parts[name](options), sep="\n\n", flush=True)  # as soon as it is there


if __name__ == "__main__":
    main()
