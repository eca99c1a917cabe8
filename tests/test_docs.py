"""What the documentation shows runs: blocks of pages, code in docstrings, output of examples.

`mkdocs build --strict` checks more of links; here they are checked without it.
"""

import doctest
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

import rnnkern as rk
from rnnkern.train import Adam, Linear

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def blocks(page: str, language: str = "python") -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


# ---- pages


# streaming.md has a test of its own: its server is run as a process.
@pytest.mark.thread_unsafe(reason="writes files")
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p) and p != "streaming.md"])
def test_blocks_run(page: str, tmp_path: Path) -> None:
    """The ```python blocks of a page, one after the other; those of other languages are shown."""
    names: dict[str, Any] = {}
    for block in blocks(page):
        exec(block.replace("/tmp/", f"{tmp_path}/"), names)


def test_every_page_is_in_the_navigation() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = settings[settings.index("\nnav:") : settings.index("\ntheme:")]
    assert sorted(re.findall(r"^ +- (?:.*: )?(\S+\.md)$", nav, re.MULTILINE)) == PAGES


@pytest.mark.parametrize("page", ["../README.md", *PAGES])
def test_links_resolve(page: str) -> None:
    path = DOCS / page
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", re.sub("`[^`]*`", "", text)):
        assert re.match("https?:", target) or (path.parent / target).exists(), target


# ---- docstrings


def modules() -> list[str]:
    found = pkgutil.walk_packages(rk.__path__, "rnnkern.")
    return [module.name for module in found if not module.name.endswith(("_core", "__main__"))]


@pytest.mark.thread_unsafe(reason="doctest replaces sys.stdout")
@pytest.mark.parametrize("name", modules())
def test_doctests(name: str) -> None:
    assert doctest.testmod(import_module(name)).failed == 0


def test_there_are_doctests() -> None:
    finder = doctest.DocTestFinder()
    for name in ("layers", "functional", "train", "stream"):
        module = import_module(f"rnnkern.{name}")
        assert any(test.examples for test in finder.find(module)), name


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def targets_of(y: np.ndarray, target: np.ndarray) -> tuple[float, np.ndarray]:
    return 0.0, y - target


def docstring_names() -> dict[str, dict[str, Any]]:
    """What the code in the docstring of a module takes for given, beside the module's own names."""
    small = rk.LSTM(3, 4, seed=0)
    linear = Linear(4, 2, seed=0)
    return {
        "layers": {"x": zeros(2, 5, 40), "lengths": [5, 2], "dy": zeros(2, 5, 256)},
        "cells": {"x": zeros(2, 40), "h": zeros(2, 128), "dh": zeros(2, 128)},
        "stream": {"LSTM": rk.LSTM, "x_t": zeros(40), "x": zeros(1, 40), "lstm": rk.LSTM(40, 128)},
        "train": {"linear": linear, "lstm": small, "x": zeros(3, 4), "targets": [0, 1, 1]}
        | {"optimiser": Adam([small, linear])},
        "truncated": {"lstm": small, "x": zeros(50, 2, 3), "target": zeros(50, 2, 4)}
        | {"loss_of": targets_of, "optimiser": Adam([small])},
        "initializers": {"lstm": small, "layer": small},
    }


@pytest.mark.parametrize("name", docstring_names())
def test_code_in_a_module_docstring_runs(name: str) -> None:
    module = import_module(f"rnnkern.{name}")
    paragraphs = re.findall(r"(?:^    .*\n|^\n)+", str(module.__doc__), re.MULTILINE)
    code = [text for text in map(dedent, paragraphs) if re.search(r"\w\(", text)]
    assert code
    names = {**vars(module), **docstring_names()[name]}
    for text in code:
        exec(text, names)


# ---- worked examples


def shown_output(script: str) -> list[str]:
    text = (DOCS / "worked.md").read_text(encoding="utf-8")
    found = re.search(rf"<!-- output of {script} -->\n```text\n(.*?)```", text, re.DOTALL)
    assert found, script
    return found[1].splitlines()


SCRIPTS = sorted(p.name for p in (ROOT / "examples" / "worked").glob("*.py"))


@pytest.mark.parametrize("script", [name for name in SCRIPTS if name != "handmade.py"])
def test_worked_page_shows_the_output(script: str) -> None:
    command = [sys.executable, str(ROOT / "examples" / "worked" / script)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    printed, shown = (
        [line.rstrip() for line in output.strip("\n").splitlines()],
        shown_output(script),
    )
    if script == "lstm_against_gru.py":  # bytes and times are the machine's
        printed, shown = (counts(lines) for lines in (printed, shown))
        assert len(shown) == 2 * 6
    assert printed == shown


def counts(lines: list[str]) -> list[list[str]]:
    """Layers, units, parameters and multiply-adds at equal width and at equal parameters."""
    rows = [line.split() for line in lines[: lines.index("at equal time")]]
    return [row[:4] for row in rows if row and row[0].isalnum() and row[1].isdecimal()]
