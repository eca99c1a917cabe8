"""``python -m rnnkern check``: is every SIMD level of this machine right, to the last bit?

Without options, each level computes the cases of ``data/digests.txt`` forward and backward, on
one to three threads and with all ways of keeping less for backward. The results must have the
digests that the file records, and their error against the reference in float64 must be at most
twice that of the reference in the kernels' own precision.

With ``--exhaustive``, sigmoid and tanh of every float32 are compared with float64, and the levels
with one another.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _core, functional, isa, reference, threads
from .regularization import Regularization
from .structure import CELLS, Structure, cell_options, check_structure, kind_of
from .validation import Shape

Array = NDArray[Any]
Results = dict[str, list[Array]]

GROUPS = ("y", "hx_n", "dx", "dhx", "drestart", "grads")
FLOOR = 8  # ulp of a result's largest element, allowed beside the reference's own error
ACTIVATIONS = ("sigmoid", "tanh")
ACTIVATION_ULP = 2  # what they may err by


# ---- the cases: the inputs are those of tests/c/problem.h

_X, _HX, _RESTART, _DY, _DHX_N, _LENGTHS, _RESETS, _MASKS = 0, 1, 3, 5, 6, 8, 9, 10
_WEIGHTS, _TOTALS = 16, 40
_STEP = np.uint64(0xD1342543DE82EF95)


def mix(x: Array) -> Array:
    """The output function of splitmix64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def digest(arrays: Sequence[Array]) -> str:
    """Of the bits and the order of all elements."""
    flat = np.concatenate([np.ascontiguousarray(a).reshape(-1) for a in arrays])
    bits = flat.view(f"u{flat.itemsize}").astype(np.uint64)
    terms = mix(bits + np.arange(flat.size, dtype=np.uint64) * _STEP)
    return f"{int(terms.sum(dtype=np.uint64)):016x}"


@dataclass(frozen=True)
class Case:
    """A line of the digest file."""

    seed: int
    dtype: str
    cell: str  # as the functions are called, or rnn_tanh, rnn_relu, gru_before
    L: int
    D: int
    I: int  # noqa: E741
    H: int
    B: int
    T: int
    bias: bool
    lengths: str
    resets: str
    restart: str
    hx: bool
    dropout: float
    options: str
    digests: tuple[str, ...]  # of GROUPS

    def __str__(self) -> str:
        sizes = f"L={self.L} D={self.D} I={self.I} H={self.H} B={self.B} T={self.T}"
        return f"{self.seed} {self.dtype} {self.cell} {sizes} {self.options}"

    @property
    def function(self) -> str:
        """The stem of the functions that run it."""
        return self.cell.partition("_")[0]

    @property
    def words(self) -> dict[str, str]:
        """Its options, and what is behind their ``=``."""
        words = [] if self.options == "-" else self.options.split(",")
        return {name: value for name, _, value in (word.partition("=") for word in words)}

    def structure(self, dtype: str) -> Structure:
        """What it is a network of; ValueError where it cannot be."""
        words = self.words
        structure = Structure(
            cell_options(self.function, **_cell_options(self)),
            np.dtype(dtype),
            self.I,
            self.H,
            self.L,
            self.D,
            self.bias,
            proj_size=int(words.get("proj", 0)),
            peephole="peephole" in words,
            layer_norm="norm" in words,
        )
        check_structure(structure)
        return structure


_PROBABILITIES = {
    "zh": "zoneout_h", "zc": "zoneout_c", "hidden": "hidden_dropout", "cand": "candidate_dropout",
    "in": "input_dropout", "xout": "output_dropout",
}  # fmt: skip


def _cell_options(case: Case) -> dict[str, Any]:
    """What the functions of its cell take."""
    words, name = case.words, case.function
    functions = dict(CELLS[name].functions)
    if case.cell in ("rnn_tanh", "rnn_relu"):
        functions["candidate"] = case.cell[4:]
    functions |= {part: _activation(words[part]) for part in functions if part in words}
    values = {
        "nonlinearity": next(iter(functions.values())),
        "activations": tuple(functions.values()),
        "reset_after": case.cell != "gru_before",
        "coupled": next((word for word in ("input", "forget") if word in words), None),
        "clip": float(words["clip"]) if "clip" in words else None,
        "cell_clip": float(words["cellclip"]) if "cellclip" in words else None,
    }
    known = CELLS[name].options
    return {n: value for n, value in values.items() if n in known or (value and n.endswith("clip"))}


def _activation(text: str) -> Any:
    name, *numbers = text.split(":")
    return (name, *map(float, numbers)) if numbers else name


def _regularization(case: Case) -> Regularization:
    words = case.words
    given = {name: float(words[word]) for word, name in _PROBABILITIES.items() if word in words}
    return Regularization(**given, variational="variational" in words)


_SIZE, _DIGEST = r"([1-9]\d*)", r"(?:[0-9a-f]{16}|-)"
_LINE = re.compile(
    rf"(\d+) (float32|float64) ([a-z_]+) "
    rf"{_SIZE} ([12]) {_SIZE} {_SIZE} (\d+) (\d+) "
    r"(bias|-) (none|full|ragged|zeros) (none|sparse|dense|all) (none|shared|rows) (hx|-) "
    rf"(0|0\.\d+|1) (\S+) : ({_DIGEST}(?: {_DIGEST}){{{len(GROUPS) - 1}}})"
)


def read_cases(path: Path | None = None) -> list[Case]:
    """The cases of a digest file, by default that of the package.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such file.
    """
    file = resources.files(__package__) / "data" / "digests.txt" if path is None else path
    cases = []
    try:
        for n, line in enumerate(file.read_text(encoding="ascii").splitlines(), 1):
            if line and not line.startswith("#"):
                cases.append(_parse(f"line {n}", line))
    except ValueError as error:  # the text is not ASCII, or a line is wrong
        raise ValueError(f"{file}: not a digest file; {error}") from None
    if not cases:
        raise ValueError(f"{file}: not a digest file; it has no cases")
    return cases


def _parse(where: str, line: str) -> Case:
    """The case of a line; ValueError, naming where it is, unless it is one."""
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(f"{where}: expected a case and its digests, got {line[:60]!r}")
    seed, dtype, cell, *sizes, bias, lengths, resets, restart, hx, p, options, digests = (
        match.groups()
    )
    L, D, I, H, B, T = map(int, sizes)  # noqa: E741
    case = Case(
        int(seed), dtype, cell, L, D, I, H, B, T, bias == "bias",
        lengths, resets, restart, hx == "hx", float(p), options,
        tuple(digests.split()),
    )  # fmt: skip
    try:
        case.structure(dtype)
        _regularization(case)
    except KeyError as error:
        raise ValueError(f"{where}: unknown cell {error}") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None
    return case


@dataclass(frozen=True)
class Inputs:
    """The arrays of a case, time first; None for those it has not got."""

    x: Array
    hx: Any
    params: dict[str, Array]
    dy: Array
    dhx_n: Any
    totals: dict[str, Array]  # what the gradients are added to
    options: dict[str, Any]


def make_inputs(case: Case, dtype: str) -> Inputs:
    structure = case.structure(dtype)
    T, B, LD = case.T, case.B, structure.sweeps

    def draw(array: int, count: int, start: int = 0) -> Array:
        first = ((case.seed * 64 + array) << 32) + start
        return mix(np.arange(count, dtype=np.uint64) + np.uint64(first))

    def numbers(array: int, shape: Shape, scale: float = 1.0, base: int = 0, start: int = 0) -> Any:
        drawn = draw(array, int(np.prod(shape)), start) >> np.uint64(43)
        integers = drawn.astype(np.int64) - 2**20
        return (base + integers * (2.0**-20 * scale)).astype(dtype).reshape(shape)

    def states(array: int, *axes: int) -> Any:
        parts = tuple(
            numbers(array + "hc".index(state), (*axes, width))
            for state, width in structure.states.items()
        )
        return parts if len(parts) > 1 else parts[0]

    def parameter(array: int, name: str, shape: Shape, scale: float = 1.0, base: int = 0) -> Any:
        sweep = names.index(name) // len(structure.kinds)
        k = _core.WEIGHTS.index(kind_of(name))
        return numbers(array + 4 * sweep + k % 4, shape, scale, base, (k // 4) << 24)

    def weight(name: str, shape: Shape) -> Any:
        """Of matrices about 2/sqrt(fan in): neither dead nor saturated gates."""
        kind = kind_of(name)
        if kind in ("norm_ih", "norm_hh", "norm_c"):
            return parameter(_WEIGHTS, name, shape, 0.25, 1)
        scale = 1.0 if kind in ("weight_ih", "weight_hh", "weight_hr") else 0.5
        while len(shape) > 1 and scale * scale * shape[1] > 4:
            scale /= 2
        return parameter(_WEIGHTS, name, shape, scale)

    shapes = structure.parameter_shapes
    names = list(shapes)
    sequence = {"x": numbers(_X, (T, B, case.I)), "dy": numbers(_DY, (T, B, structure.features))}
    lengths = None
    if case.lengths != "none":
        n = draw(_LENGTHS, B) >> np.uint64(32)
        lengths = {
            "full": np.full(B, T),
            "ragged": 1 + n % np.uint64(max(T, 1)),
            "zeros": np.where(np.arange(B) == B // 2, 0, n % np.uint64(T + 1)),
        }[case.lengths].astype(np.int64)
        for a in sequence.values():
            a[np.arange(T)[:, None] >= lengths] = np.nan
    resets = None
    if case.resets != "none":
        every = {"sparse": max(T, 1), "dense": 2, "all": 1}[case.resets]
        resets = ((draw(_RESETS, T * B) >> np.uint64(32)) % np.uint64(every) == 0).reshape(T, B)
    restart = None
    if case.restart != "none":
        restart = states(_RESTART, *((LD,) if case.restart == "shared" else (LD, B)))
    return Inputs(
        hx=states(_HX, LD, B) if case.hx else None,
        params={name: weight(name, shape) for name, shape in shapes.items()},
        dhx_n=states(_DHX_N, LD, B),
        totals={name: parameter(_TOTALS, name, shape) for name, shape in shapes.items()},
        options={
            **_cell_options(case),
            "lengths": lengths,
            "resets": resets,
            "restart_state": restart,
            "dropout": case.dropout,
            "regularization": _regularization(case),
            "seed": int(draw(_MASKS, 1)[0]),
            "first_step": int(case.words.get("first", 0)),
        },
        **sequence,
    )


# ---- the kernels, and what they must give


def _results(y: Array, hx_n: Any, tape: Any, dx: Array, dhx: Any, grads: list[Array]) -> Results:
    def parts(states: Any) -> list[Array]:
        if states is None:
            return []
        return list(states) if isinstance(states, tuple) else [states]

    groups = ([y], parts(hx_n), [dx], parts(dhx), parts(tape.restart_state_grad), grads)
    return dict(zip(GROUPS, groups, strict=True))


def run_kernels(case: Case) -> Results:
    """By the level in use."""
    a = make_inputs(case, case.dtype)
    n = case.seed
    forward = getattr(functional, f"{case.function}_forward")
    backward = getattr(functional, f"{case.function}_backward")
    keep = (None, "gates", "auto", 2)[n % 4]
    y, hx_n, tape = forward(
        a.x, a.params, a.hx, **a.options, record=True, checkpoint=keep, num_threads=1 + n % 3
    )
    dx, dhx, grads = backward(tape, a.dy, a.dhx_n, grads=a.totals, num_threads=1 + (n + 1) % 3)
    return _results(y, hx_n, tape, dx, dhx, [grads[name] for name in a.params])


def run_reference(case: Case, dtype: str) -> Results:
    a = make_inputs(case, dtype)
    y, hx_n, tape = getattr(reference, f"{case.function}_forward")(a.x, a.params, a.hx, **a.options)
    backward = getattr(reference, f"{case.function}_backward")
    dx, dhx, grads = backward(tape, a.dy, a.dhx_n)
    sums = [a.totals[name] + grads[name] for name in a.params]
    return _results(y, hx_n, tape, dx, dhx, sums)


@functools.lru_cache(maxsize=1)
def _specified(case: Case) -> tuple[Results, Array]:
    """The results in float64, and the error of the reference in float32: its worst in ulp.

    The worst of the case, since that of a single array is a matter of luck and of NumPy's BLAS.
    """
    want, plain = run_reference(case, "float64"), run_reference(case, "float32")
    errors = [
        _errors(p, w) / _ulp(w, "float32")
        for group in GROUPS
        for p, w in zip(plain[group], want[group], strict=True)
    ]
    return want, np.max(errors, axis=0)


def _ulp(want: Array, dtype: str) -> float:
    """The rounding unit of a result's largest element."""
    return float(np.finfo(dtype).eps * np.abs(want).max(initial=np.finfo(np.float32).tiny))


def _errors(got: Array, want: Array) -> Array:
    """The largest and the root mean square error."""
    error = np.abs(got - want)
    return np.array([error.max(initial=0), np.sqrt(np.mean(error**2)) if error.size else 0])


def share_of_allowed(case: Case, got: Results) -> float:
    """The largest error, as a share of the allowed one; the results must all be numbers."""
    want, reference_error = _specified(replace(case, dtype="", digests=()))  # both dtypes share it
    # In float64 the expected results have an error of the same size themselves.
    allowed = (3 if case.dtype == "float64" else 2) * reference_error + FLOOR
    worst = 0.0
    for group in GROUPS:
        for g, w in zip(got[group], want[group], strict=True):
            share = float((_errors(g, w) / _ulp(w, case.dtype) / allowed).max())
            worst = max(worst, share if share == share else np.inf)
    return worst


def differing(case: Case, got: Results) -> list[str]:
    """The groups whose digest is not the one that the file records."""
    found = (digest(got[group]) if got[group] else "-" for group in GROUPS)
    pairs = zip(GROUPS, found, case.digests, strict=True)
    return [group for group, here, recorded in pairs if here != recorded]


def check_levels(levels: Sequence[str], cases: Sequence[Case], progress: Progress) -> list[str]:
    """Prints a line for each level and returns what is wrong."""
    faults: list[str] = []
    worst = dict.fromkeys([(level, dtype) for level in levels for dtype in _DTYPES], 0.0)
    differ = dict.fromkeys(levels, 0)
    for n, case in enumerate(cases):
        progress(n, len(cases))
        for level in levels:
            with isa.using(level):
                got = run_kernels(case)
            share, groups = share_of_allowed(case, got), differing(case, got)
            worst[level, case.dtype] = max(worst[level, case.dtype], share)
            differ[level] += bool(groups)
            if groups:
                faults.append(f"{level}: digest of {', '.join(groups)} differs in case {case}")
            if share > 1:
                faults.append(f"{level}: error is {share:.2f} of what is allowed in case {case}")
    progress(len(cases), len(cases))
    print(f"{'level':8}{'cases':>7}{'digests':>15}    error / allowed in float32, float64")
    for level in levels:
        same = f"{differ[level]} differ" if differ[level] else "all the same"
        shares = "".join(f"{worst[level, dtype]:9.2f}" for dtype in _DTYPES)
        print(f"{level:8}{len(cases):7}{same:>15}{shares}")
    return faults


_DTYPES = ("float32", "float64")


# ---- every float32


def exact(activation: str, x: Array) -> Array:
    """Sigmoid or tanh in float64."""
    if activation == "tanh":
        return np.asarray(np.tanh(x))
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))


@dataclass
class Sweep:
    """What a range of arguments showed."""

    worst: float = 0.0  # ulp
    argument: float = 0.0
    faults: int = 0  # special values, signs, and results that should be tiny
    differ: int = 0  # arguments at which levels differ

    def __add__(self, other: Sweep) -> Sweep:
        first = max(self, other, key=lambda s: s.worst)
        return Sweep(
            first.worst, first.argument, self.faults + other.faults, self.differ + other.differ
        )


def sweep(activation: str, bits: Array, level: str, others: Sequence[str]) -> Sweep:
    """The float32 values with these bits, at one level; the others are compared with it."""
    x = bits.view(np.float32)
    y = _core.activate(isa.NAMES.index(level), activation, x)
    nan = np.isnan(x)
    same = y.view(np.uint32)
    result = Sweep(faults=int((np.isnan(y) != nan).sum()))
    for other in others:
        z = _core.activate(isa.NAMES.index(other), activation, x)
        result.differ += int(((z.view(np.uint32) != same) & ~(np.isnan(y) & np.isnan(z))).sum())
    with np.errstate(invalid="ignore"):  # signalling NaN
        want = exact(activation, x.astype(np.float64))
    tiny = float(np.finfo(np.float32).tiny)
    normal = np.abs(want) >= tiny * (1 + 2**-20)  # not within rounding of the smallest normal
    small = ~(normal | nan)
    wrong = small & (np.abs(y) > np.where(want == 0, 0, tiny * (1 + 2**-19)))
    wrong |= ~nan & (np.signbit(y) != np.signbit(want)) | (np.abs(y) > 1)
    result.faults += int(wrong.sum())
    power = (want.view(np.int64) & 0x7FF0000000000000).view(np.float64)  # 2^e <= |want|
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.where(normal, np.abs(y - want) / (power * 2.0**-23), 0)
    worst = int(np.argmax(error))
    result.worst, result.argument = float(error[worst]), float(x[worst])
    return result


def sweep_all(activation: str, step: int, level: str, progress: Progress) -> Sweep:
    """Every step-th float32."""
    span = step << 16  # of bit patterns in a chunk
    others = [name for name in isa.available() if name != level]
    starts = range(0, 2**32, span)

    def chunk(start: int) -> Sweep:
        bits = np.arange(start, min(start + span, 2**32), step, dtype=np.uint64)
        return sweep(activation, bits.astype(np.uint32), level, others)

    total = Sweep()
    with ThreadPoolExecutor(threads.get_num_threads()) as pool:
        for n, part in enumerate(_bounded(pool, chunk, starts)):
            total += part
            progress(n + 1, len(starts))
    return total


def _bounded(
    pool: ThreadPoolExecutor, function: Callable[[int], Sweep], arguments: range
) -> Iterator[Sweep]:
    """As pool.map, without thousands of tasks and results in memory."""
    for first in range(0, len(arguments), 64):
        yield from pool.map(function, arguments[first : first + 64])


def check_activations(step: int, progress: Progress) -> list[str]:
    """Prints a line for each activation and returns what is wrong."""
    faults: list[str] = []
    level = isa.active()
    print(f"{'float32':9}{'values':>12}{'max ulp':>10}  at{'':22}{'levels':>16}{'faults':>8}")
    for activation in ACTIVATIONS:
        s = sweep_all(activation, step, level, progress)
        differ = f"differ at {s.differ}" if s.differ else "all the same"
        values = -(-(2**32) // step)
        where = s.argument.hex()
        print(f"{activation:9}{values:12}{s.worst:10.4f}  {where:24}{differ:>16}{s.faults:8}")
        if s.worst > ACTIVATION_ULP:
            faults.append(f"{level}: {activation}({where}) is {s.worst:.3f} ulp from exact")
        if s.faults:
            faults.append(f"{level}: {activation} is wrong at {s.faults} special values")
        if s.differ:
            faults.append(f"{activation}: the levels differ at {s.differ} values")
    return faults


# ---- the command


class Progress:
    """A line that says how far it is, where someone watches."""

    def __init__(self) -> None:
        self.shown = -1
        self.watched = sys.stderr.isatty()

    def __call__(self, done: int, all_: int) -> None:
        percent = 100 * done // max(all_, 1)
        if self.watched and percent != self.shown:
            self.shown = percent
            text = f"checking {percent:3} %" if done < all_ else " " * 16
            print(f"\r{text}\r", end="", file=sys.stderr, flush=True)


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive integer, got {text!r}")
    return int(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; 0 if all is well, 1 if something differs, 2 without cases."""
    parser = argparse.ArgumentParser(
        prog="python -m rnnkern check",
        description="Compares every SIMD level of this machine with the reference and with the "
        "digests that the package records.",
    )
    parser.add_argument(
        "--exhaustive",
        action="store_true",
        help="compare sigmoid and tanh of every float32 with float64 instead (some minutes)",
    )
    parser.add_argument(
        "--sample", type=positive, default=1, metavar="N", help="take every N-th case or value only"
    )
    parser.add_argument("--digests", type=Path, metavar="FILE", help="another digest file")
    options = parser.parse_args(argv)
    progress = Progress()
    if options.exhaustive:
        faults = check_activations(options.sample, progress)
    else:
        try:
            cases = read_cases(options.digests)
        except (OSError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        faults = check_levels(isa.available(), cases[:: options.sample], progress)
    for fault in faults:
        print(fault, file=sys.stderr)
    print("all is well" if not faults else f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
