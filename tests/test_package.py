"""The package as it is installed: metadata, contents, size, and what it needs to be imported."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import rnnkern
from rnnkern import _core

FOLDER = Path(rnnkern.__file__).parent
FILES = metadata.files("rnnkern") or []
INSTALLED = any(file.as_posix() == "rnnkern/__init__.py" for file in FILES)  # not editable


def python(program: str) -> str:
    """What a new interpreter prints, without the environment's options and tests' path."""
    result = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def contents() -> list[Path]:
    """Every file of the package that comes with it, the compiled module included."""
    found = {path for path in FOLDER.rglob("*") if path.is_file()}
    found.add(Path(_core.__file__))
    return sorted(path for path in found if "__pycache__" not in path.parts)


def test_metadata() -> None:
    about = metadata.metadata("rnnkern")
    assert about["Version"] == rnnkern.__version__
    assert about["Requires-Python"] == ">=3.11"
    assert about["License-Expression"] == "MIT"
    needs = [r for r in metadata.requires("rnnkern") or [] if "extra ==" not in r]
    assert [r.split(">")[0] for r in needs] == ["numpy"]
    assert about["Description-Content-Type"] == "text/markdown"


def test_typed() -> None:
    assert (FOLDER / "py.typed").is_file()
    assert (FOLDER / "_core.pyi").is_file()


def test_size() -> None:
    """At most 5 MB, without the bytecode that the interpreter writes."""
    assert sum(path.stat().st_size for path in contents()) <= 5e6


@pytest.mark.skipif(not INSTALLED, reason="an editable install shows the source folder")
def test_no_sources_and_tests_in_it() -> None:
    suffixes = {path.suffix for path in contents()}
    assert not suffixes & {".pyx", ".pxd", ".c", ".h"}
    outside = {file.parts[0] for file in FILES} - {"rnnkern"}
    assert {part for part in outside if not part.endswith(".dist-info")} <= {"..", "rnnkern.libs"}
    licences = [file.name for file in FILES if "licenses" in file.parts]
    assert "LICENSE" in licences


# Every import that is neither ours, NumPy's nor the standard library's fails.
BLOCK = """
import sys, pkgutil
allowed = sys.stdlib_module_names | {"numpy", "rnnkern", "_rnnkern_editable"}

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocked())
"""
IMPORT_ALL = """
import rnnkern
for module in pkgutil.walk_packages(rnnkern.__path__, "rnnkern."):
    if not module.name.endswith("__main__"):
        __import__(module.name)
"""
USE = """
import numpy
lstm = rnnkern.LSTM(3, 4)
y, _, tape = lstm.record(numpy.ones((2, 1, 3), "f"))
tape.backward(y)
print("used")
"""


def test_needs_numpy_alone() -> None:
    assert python(BLOCK + IMPORT_ALL + USE) == "used\n"


def test_import_loads_nothing_but_numpy() -> None:
    """Where more is installed too, such as torch, no import of ours loads it."""
    program = """
import sys, pkgutil
before = set(sys.modules)
%s
new = {name: sys.modules[name] for name in set(sys.modules) - before if "." not in name}
files = {name for name, module in new.items() if getattr(module, "__file__", None)}
print(*sorted(files - sys.stdlib_module_names))
"""
    assert python(program % IMPORT_ALL).split() == ["numpy", "rnnkern"]


def test_import_leaves_the_rest_for_later() -> None:
    """What a plain import loads: none of the modules that only some callers need."""
    program = "import sys, rnnkern; print([m for m in sys.modules if m.startswith('rnnkern.')])"
    loaded = python(program)
    for module in ("reference", "train", "demo", "check"):
        assert f"'rnnkern.{module}" not in loaded


def test_public_names_exist() -> None:
    assert set(rnnkern.__all__) <= set(dir(rnnkern))
    for name in rnnkern.__all__:
        assert getattr(rnnkern, name) is not None
    with pytest.raises(AttributeError, match="'rnnkern' has no attribute 'missing'"):
        rnnkern.missing  # noqa: B018


def test_runs_without_a_writable_home(tmp_path: Path) -> None:
    """Importing writes no file and needs no home, as in a locked-down container."""
    result = subprocess.run(
        [sys.executable, "-B", "-c", "import rnnkern; print(rnnkern.__version__)"],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env={"PATH": "", "HOME": "/nonexistent"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == rnnkern.__version__
    assert list(tmp_path.iterdir()) == []
