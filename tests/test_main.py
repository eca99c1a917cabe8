"""The command line: `python -m rnnkern`, `demo`, and how errors end."""

import os
import subprocess
import sys

import pytest

import rnnkern
from rnnkern import __main__, check, demo, isa


def run(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "rnnkern", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=120,
    )


def test_prints_version_levels_threads(tmp_path):
    result = run(cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert rnnkern.__version__ in result.stdout
    assert all(name in result.stdout for name in isa.available())
    assert "threads" in result.stdout


def test_prints_in_process(capsys):
    assert __main__.main([]) == 0
    words = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert words["rnnkern"] == rnnkern.__version__
    assert words["threads"] == str(rnnkern.get_num_threads())
    assert words["SIMD"].endswith(f"(active: {isa.active()})")


@pytest.mark.parametrize(
    "arguments", [["--help"], ["demo", "--help"], ["check", "--help"], ["diagnose", "--help"]]
)
def test_help(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        __main__.main(arguments)
    assert exit_.value.code == 0
    printed = capsys.readouterr().out
    assert "usage: python -m rnnkern" in printed
    assert len(arguments) > 1 or all(name in printed for name in __main__._COMMANDS)


@pytest.mark.parametrize("module", [demo, check])
def test_a_command_gets_its_arguments_and_gives_its_code(module, monkeypatch):
    given = []
    monkeypatch.setattr(module, "main", lambda argv: given.append(argv) or 3)
    assert __main__.main([module.__name__.split(".")[-1], "--some", "x"]) == 3
    assert given == [["--some", "x"]]


def test_interrupted(monkeypatch, capsys):
    def interrupt(argv):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "main", interrupt)
    assert __main__.main(["demo"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_unknown_command(tmp_path):
    result = run("dance", cwd=tmp_path)
    assert result.returncode == 2
    assert "dance" in result.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model of three epochs, saved by the command; what the command printed."""
    folder = tmp_path_factory.mktemp("demo")
    result = run("demo", "--seeds", 3, "--epochs", 3, "--no-torch", "--output", "m.npz", cwd=folder)
    assert result.returncode == 0, result.stderr
    return folder, result.stdout


def digest_of(text):
    return next(line for line in text.splitlines() if "digest" in line).split()[-1]


def test_demo_learns(trained):
    _, printed = trained
    line = next(line for line in printed.splitlines() if line.startswith("seed 3"))
    assert float(line.split("test accuracy ")[1].split()[0]) > 0.7


def test_prediction_in_a_new_process_gives_the_same_bits(trained):
    folder, printed = trained
    result = run("demo", "--predict", "m.npz", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert digest_of(result.stdout) == digest_of(printed)


def test_the_closing_hint_works_as_printed(trained):
    folder, printed = trained
    command = printed.splitlines()[-1].strip()
    nothing = {**os.environ, "PATH": ""}  # no other python
    result = subprocess.run(
        command, shell=True, capture_output=True, text=True, cwd=folder, env=nothing, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert digest_of(result.stdout) == digest_of(printed)


def test_demo_is_deterministic(trained, tmp_path, capsys):
    _, printed = trained
    target = tmp_path / "again.npz"
    assert demo.main(["--seeds", "3", "--epochs", "3", "--no-torch", "--output", str(target)]) == 0
    assert digest_of(capsys.readouterr().out) == digest_of(printed)


@pytest.mark.parametrize("content", [None, b"", b"not a model"])
def test_missing_or_broken_model(tmp_path, content):
    if content is not None:
        (tmp_path / "m.npz").write_bytes(content)
    result = run("demo", "--predict", "m.npz", cwd=tmp_path)
    assert result.returncode == 1
    assert "error" in result.stderr and "m.npz" in result.stderr
    assert "Traceback" not in result.stderr
