"""Measures rnnkern, NumPy and whichever of torch, ONNX Runtime, OpenVINO and oneDNN are installed.

    python bench/compare.py [--threads 1 2] [--cells lstm gru] [--shapes T,B,I,H ...]
                            [--work inference training ...] [--json FILE]
    python bench/compare.py --diff OLD.json NEW.json
    python bench/compare.py --show FILE.json

All run the same weights, are first checked to agree, and take turns within each round together
with a loop of fused multiply-adds, the machine's peak: so a busy machine or another clock slows
all alike, and ratios stand where milliseconds do not. Prints markdown.

Peers that prepare their weights ahead (ONNX Runtime, OpenVINO, oneDNN) are compared with a frozen
layer, torch with a plain call, which packs the weights as torch does. The peers come from PyPI:
torch==2.13.0, onnx with onnxruntime and openvino, onednn-devel-cpu-gomp; NumPy needs threadpoolctl,
so that its BLAS takes no more threads than the others.
"""

import argparse
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import report
from measure import (
    check_agreement,
    description,
    import_milliseconds,
    installed_megabytes,
    interleaved,
)
from native import Peak, Phases
from peers import LIBRARIES, Rnnkern, contenders_for
from workloads import (
    GATES,
    ODD_SHAPES,
    RAGGED_SHAPE,
    RESET_SHAPE,
    SHAPES,
    STEP_SHAPES,
    VARIANT_SHAPES,
    Problem,
    parse_shape,
)

from rnnkern import isa


def new_row(work, problem, **more):
    return {
        "work": work,
        "cell": problem.cell,
        "shape": list(problem.shape),
        "threads": problem.threads,
        **more,
    }


def measured_row(work, problem, functions, peaks, options, gflop, unlike=()):
    """Checks (but for the `unlike`) and measures {label: function}, and beside them its peaks.

    peaks: {label: the Peak that it is held against}.
    """
    check_agreement({k: function() for k, function in functions.items() if k not in unlike})
    beside = {("peak", peak): peak for peak in peaks.values()}
    ms, quality = interleaved(functions | beside, options.seconds, options.rounds)
    rates = {peak: 1e3 * peak.gflop / ms.pop(("peak", peak)) for peak in beside.values()}
    found = {label: rates[peak] for label, peak in peaks.items()}
    return new_row(work, problem, ms=ms, peaks=found, gflop=gflop, **quality)


def against_peers(work, problem, options, kind=None):
    """One row: rnnkern and all peers at `kind` of work, by default the row's own."""
    kind = kind or work
    functions = contenders_for(kind, problem, ["rnnkern", *options.peers])
    peak = Peak(problem.threads)
    own = [label for label in functions if label == "frozen" or label.startswith("rnnkern")]
    gflop = problem.gflop * (3 if kind == "training" else 1)
    yield measured_row(work, problem, functions, dict.fromkeys(own, peak), options, gflop)


def phases_from(ms):
    """Milliseconds of the phases of inference and of training, as differences of calls.

    recur is what remains: the recurrent multiply, and all that is not multiply or activation.
    Noise can make a tiny phase negative; it counts as zero.
    """
    pack, forward, train = ms["pack"], ms["forward"], ms["train"]
    project = forward - ms["forward, one input"]
    inference = {
        "pack": pack,
        "project": project,
        "activate": forward - ms["forward, no activations"],
    }
    training = {
        "pack": pack,
        "project": project,
        "activate": train - ms["train, no activations"],
        "dW": train - ms["train, no dW"],
        "dx": train - ms["train, no dx"],
    }
    for found, whole in ((inference, forward), (training, train)):
        found["recur"] = whole + pack - sum(found.values())
    return {
        "inference": {phase: max(0.0, value) for phase, value in inference.items()},
        "training": {phase: max(0.0, value) for phase, value in training.items()},
    }


def phases(problem, options):
    """Two rows, of inference and of training: each phase by calls of the kernels without it."""
    layer, thin = Phases(problem, False), Phases(problem, False, inputs=1)
    bare = Phases(problem, False, pointwise=False)
    tape, bare_tape = Phases(problem, True), Phases(problem, True, pointwise=False)
    functions = {
        "pack": layer.pack,
        "forward": layer.forward,
        "forward, one input": thin.forward,
        "forward, no activations": bare.forward,
        "train": tape.train,
        "train, no dW": partial(tape.train, need_dw=False),
        "train, no dx": partial(tape.train, need_dx=False),
        "train, no activations": bare_tape.train,
    }
    ms, quality = interleaved(functions, options.seconds, options.rounds)
    for of, found in phases_from(ms).items():
        yield new_row("phases", problem, of=of, phases=found, ms=ms, peaks={}, **quality)


def at_level(level, function):
    with isa.using(level):
        return function()


def variants(problem, options):
    """Training in float64, at AVX2, and for the GRU in its other form, over float32 at its best."""
    training = Rnnkern(problem).training
    functions, peaks = {"rnnkern": training}, {"rnnkern": Peak(problem.threads)}
    functions["float64"] = Rnnkern(replace(problem, dtype="float64")).training
    peaks["float64"] = Peak(problem.threads, dtype="float64")
    if "avx2" in isa.available() and isa.active() != "avx2":
        functions["avx2"] = partial(at_level, "avx2", training)
        peaks["avx2"] = Peak(problem.threads, "avx2")
    if problem.cell == "gru":
        functions["reset-before"] = Rnnkern(replace(problem, cell="gru_before")).training
        peaks["reset-before"] = peaks["rnnkern"]
    gflop, unlike = 3 * problem.gflop, ("reset-before",)
    yield measured_row("variants", problem, functions, peaks, options, gflop, unlike)


def odd(problem, options):
    """Frozen inference at H and at H rounded up to whole vectors of 16."""
    hidden = problem.shape[3]
    rounded = replace(problem, shape=(*problem.shape[:3], -(-hidden // 16) * 16))
    functions = {
        label: Rnnkern(p).contenders("inference")["frozen"]
        for label, p in (("rnnkern", problem), ("rounded up", rounded))
    }
    ms, quality = interleaved(functions, options.seconds / 5, options.rounds)
    yield new_row("odd", problem, ms=ms, peaks={}, gflop=problem.gflop, **quality)


def import_row():
    problem = Problem("", ())
    found = {"rnnkern": import_milliseconds()}
    return new_row("import", problem, ms=found, peaks={}, megabytes=installed_megabytes())


WORK = {
    "inference": (partial(against_peers, "inference"), SHAPES),
    "training": (partial(against_peers, "training"), SHAPES),
    "step": (partial(against_peers, "step"), STEP_SHAPES),
    "ragged": (partial(against_peers, "ragged", kind="training"), [RAGGED_SHAPE]),
    "resets": (partial(against_peers, "resets", kind="training"), [RESET_SHAPE]),
    "phases": (phases, SHAPES),
    "variants": (variants, VARIANT_SHAPES),
    "odd": (odd, ODD_SHAPES),
}
PROBLEM_OPTIONS = {"ragged": {"ragged": True}, "resets": {"resets_rate": 0.05}}
TAKES_SHAPES = ("inference", "training", "phases")


def measure(options):
    """All rows that were asked for, one after the other."""
    for work in options.work:
        if work == "import":
            yield import_row()
            continue
        function, shapes = WORK[work]
        for threads in options.threads:
            for shape in (options.shapes or shapes) if work in TAKES_SHAPES else shapes:
                for cell in options.cells:
                    more = PROBLEM_OPTIONS.get(work, {})
                    yield from function(Problem(cell, shape, threads, **more), options=options)


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    works = [*WORK, "import"]
    add = parser.add_argument
    add("--threads", type=int, nargs="+", default=[1, 2])
    add("--cells", nargs="+", default=["lstm", "gru"], choices=GATES)
    add(
        "--shapes",
        type=parse_shape,
        nargs="+",
        metavar="T,B,I,H",
        help=f"of {', '.join(TAKES_SHAPES)}",
    )
    add("--work", nargs="+", default=works, choices=works)
    peers = ["unfused", "numpy", *LIBRARIES]
    add("--peers", nargs="*", default=peers, choices=peers)
    add("--seconds", type=float, default=2.0, help="for each row; slow rows take longer")
    add("--rounds", type=int, help="measure so often instead, whatever time it takes")
    add("--json", type=Path, metavar="FILE", help="also write what was measured")
    add("--show", type=Path, metavar="FILE", help="print the tables of a file")
    add("--diff", type=Path, nargs=2, metavar=("OLD", "NEW"), help="compare two files")
    return parser.parse_args()


def main():
    options = arguments()
    if options.diff:
        print(report.difference(*(json.loads(path.read_text()) for path in options.diff)))
        return
    if options.show:
        print(report.markdown(json.loads(options.show.read_text())))
        return
    run = description()
    options.peers = [peer for peer in options.peers if run["versions"].get(peer, True)]
    run["rows"] = []
    try:
        for row in measure(options):
            run["rows"].append(row)
            print(report.progress(row), file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("interrupted; what was measured until then follows", file=sys.stderr)
    finally:
        if options.json:
            options.json.write_text(json.dumps(run, indent=1) + "\n")
    print(report.markdown(run))


if __name__ == "__main__":
    main()
