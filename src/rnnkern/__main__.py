"""`python -m rnnkern`: what this installation is, and its commands."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

import numpy as np

from . import __version__, get_num_threads, isa

_COMMANDS = {
    "demo": "train an LSTM on real data and report accuracy and time",
    "check": "compare every SIMD level of this machine with the reference",
    "diagnose": "say what a saved layer remembers of a saved sequence",
}


def _parser() -> argparse.ArgumentParser:
    commands = "\n".join(f"  {name:<10}{text}" for name, text in _COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="python -m rnnkern",
        usage="%(prog)s [-h] [{" + ",".join(_COMMANDS) + "} ...]",
        description="Without a command: print versions, SIMD levels and threads.",
        epilog=f"commands (each has its own --help):\n{commands}\n\n"
        "environment:\n"
        "  RNNKERN_ISA           force a SIMD level\n"
        "  RNNKERN_NUM_THREADS   threads that calls use by default",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", nargs="?", choices=_COMMANDS, help=argparse.SUPPRESS)
    return parser


def _describe() -> str:
    levels = f"{', '.join(isa.available())} (active: {isa.active()})"
    facts = {
        "rnnkern": __version__,
        "NumPy": np.__version__,
        "Python": sys.version.split()[0],
        "SIMD levels": levels,
        "threads": str(get_num_threads()),
    }
    return "\n".join(f"{name:<12} {value}" for name, value in facts.items())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` (default: the process's arguments) names; return its exit code.

    0: done; 1: it failed, or found a difference; 2: wrong arguments; 130: interrupted.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    if not given or given[0] not in _COMMANDS:
        _parser().parse_args(given)  # exits for --help and for what it does not know
        print(_describe())
        return 0
    try:
        return int(import_module(f".{given[0]}", __package__).main(given[1:]))
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
