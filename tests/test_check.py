"""`python -m rnnkern check`: that it passes here, and that it fails where something is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rnnkern import check, isa, structure

pytestmark = pytest.mark.thread_unsafe  # changes the level of the whole process

SAMPLE = ["--sample", "7"]


def altered(line: str) -> str:
    """Another last digit of the last digest."""
    return line[:-1] + ("0" if line[-1] != "0" else "1")


def test_levels(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(SAMPLE) == 0
    captured = capsys.readouterr()
    for level in isa.available():
        (line,) = (line for line in captured.out.splitlines() if line.startswith(level))
        assert "all the same" in line
    assert captured.err == ""


def test_an_altered_digest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (resources.files("rnnkern") / "data" / "digests.txt").read_text(encoding="ascii")
    lines = [line for line in text.splitlines() if not line.startswith("#")][:4]
    file = tmp_path / "digests.txt"
    file.write_text("\n".join(lines), encoding="ascii")
    assert check.main(["--digests", str(file)]) == 0
    capsys.readouterr()

    file.write_text("\n".join([*lines[:3], altered(lines[3])]), encoding="ascii")
    assert check.main(["--digests", str(file)]) == 1
    captured = capsys.readouterr()
    for level in isa.available():
        assert f"{level}: digest of grads differs in case 1 float64" in captured.err
    assert "1 differ" in captured.out


FIRST = "0 float32 gru 1 1 3 4 2 5 bias none none none hx 0 - : " + " ".join(["0" * 16] * 6)


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "# nothing\n",
        "text",
        FIRST[:-1],
        FIRST.replace("gru", "tcn"),
        FIRST.replace("float32", "float16"),
        FIRST.replace(" 3 4 ", " 3 0 "),
        FIRST.replace("none hx", "some hx"),
        FIRST.replace(" - :", " :"),
        FIRST.replace(" - :", " proj=2 :"),
        FIRST.replace(" - :", " peephole,zh=2 :"),
        f"{FIRST}\n{FIRST} more",
        "\u00e9",
    ],
)
def test_files_without_digests(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that names the file, and the code of wrong arguments."""
    file = tmp_path / "digests.txt"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    assert check.main(["--digests", str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("error: ")
    assert str(file) in line


def test_the_format_of_a_digest_file(tmp_path: Path) -> None:
    file = tmp_path / "digests.txt"
    file.write_text(f"# a comment\n\n{FIRST}\n", encoding="ascii")
    (case,) = check.read_cases(file)
    assert (case.seed, case.cell, case.H, case.T, case.bias) == (0, "gru", 4, 5, True)
    with pytest.raises(ValueError, match="line 4: expected a case"):
        file.write_text(f"# a comment\n\n{FIRST}\ntext", encoding="ascii")
        check.read_cases(file)


@pytest.mark.parametrize("group", check.GROUPS)
def test_a_fault_in_the_kernels(
    group: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One element of one result in one case is off by a thousandth."""
    right = check.run_kernels

    def wrong(case: check.Case) -> check.Results:
        results = right(case)
        if case.seed == 0 and case.dtype == "float32":
            array = results[group][0].copy()
            at = np.unravel_index(np.argmax(np.abs(array)), array.shape)
            array[at] *= 1.001
            results[group][0] = array
        return results

    monkeypatch.setattr(check, "run_kernels", wrong)
    assert check.main(["--sample", "50"]) == 1
    errors = capsys.readouterr().err
    for level in isa.available():
        assert f"{level}: digest of {group} differs in case 0 float32" in errors
        assert f"{level}: error is" in errors


def test_nan_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    right = check.run_kernels

    def wrong(case: check.Case) -> check.Results:
        results = right(case)
        results["dx"][0].flat[0] = np.nan
        return results

    case = check.read_cases()[0]
    assert check.share_of_allowed(case, right(case)) <= 1
    assert check.share_of_allowed(case, wrong(case)) == np.inf


def test_the_file_has_each_case_in_both_dtypes() -> None:
    cases = check.read_cases()
    assert [(c.seed, c.dtype) for c in cases] == [
        (n // 2, ("float32", "float64")[n % 2]) for n in range(len(cases))
    ]
    cells = {*structure.CELLS, "rnn_tanh", "rnn_relu"}
    assert {c.cell for c in cases} == cells
    words = {word for c in cases for word in c.words}
    assert words >= {"proj", "peephole", "norm", "input", "forget", "clip", "cellclip", "zh", "zc"}


def test_digests_see_order_and_sign() -> None:
    a = np.array([1.0, 2.0, 0.0], np.float32)
    changed = [
        a[[1, 0, 2]],
        -a,
        a.astype(np.float64),
        a[:2],
        np.array([1.0, 2.0, -0.0], np.float32),
    ]
    digests = {check.digest([a]), *(check.digest([b]) for b in changed)}
    assert len(digests) == 1 + len(changed)
    assert check.digest([a]) == check.digest([a[:1], a[1:]])


# Activations


def test_activations(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--exhaustive", "--sample", "9973"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in ("sigmoid", "tanh"):
        (line,) = (line for line in lines if line.startswith(name))
        assert 1 < float(line.split()[2]) <= 2
        assert "all the same" in line


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_inexact_activations(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = check.exact

    def wrong(activation: str, x: Any) -> Any:
        return right(activation, x) * (1 + (activation == name) * 2.0**-22)

    monkeypatch.setattr(check, "exact", wrong)
    assert check.main(["--exhaustive", "--sample", "99991"]) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert name in error
    assert "ulp" in error


# The variable that forces a level


def active(level: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from rnnkern import isa; print(isa.active())"],
        env={**os.environ, "RNNKERN_ISA": level},
        capture_output=True,
        text=True,
        check=False,
    )


def test_forced_level() -> None:
    for level in isa.available():
        result = active(level)
        assert (result.returncode, result.stdout.strip()) == (0, level), result.stderr
    result = active("")  # as if it were not set
    assert (result.returncode, result.stdout.strip()) == (0, isa.available()[0]), result.stderr


@pytest.mark.parametrize("name", ["avx", "AVX2", "avx2 ", "0"])
def test_misspelt_level(name: str) -> None:
    result = active(name)
    assert result.returncode != 0
    last = result.stderr.splitlines()[-1]
    assert last.startswith("ValueError: RNNKERN_ISA: ")
    assert repr(name) in last
    assert all(level in last for level in isa.NAMES)


def test_unsupported_level(monkeypatch: pytest.MonkeyPatch) -> None:
    for level in set(isa.NAMES) - set(isa.available()):
        result = active(level)
        assert result.returncode != 0
        last = result.stderr.splitlines()[-1]
        assert last.startswith(f"ValueError: RNNKERN_ISA: this machine lacks SIMD level {level!r}")
    monkeypatch.setattr(isa, "available", lambda: ("scalar",))
    with pytest.raises(ValueError, match=f"RNNKERN_ISA: .*lacks.*{isa.NAMES[0]!r}.*has scalar"):
        isa._index(isa.NAMES[0], "RNNKERN_ISA")
