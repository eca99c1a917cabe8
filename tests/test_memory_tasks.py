"""The memory tasks of examples/memory: data against independent checkers, and tiny runs."""

from __future__ import annotations

import csv
import importlib
import io
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

TASKS = Path(__file__).parent.parent / "examples" / "memory"
NAMES = ["experiment", "digit_sum", "copy_memory", "brackets", "depth"]


@pytest.fixture(scope="module")
def memory() -> Iterator[dict[str, Any]]:
    """The modules, imported as their scripts import each other."""
    sys.path.insert(0, str(TASKS))
    try:
        yield {name: importlib.import_module(name) for name in NAMES}
    finally:
        sys.path.remove(str(TASKS))
        for name in NAMES:
            sys.modules.pop(name, None)


TINY = {
    "digit_sum": "--seeds 2 --epochs 2 --rows 20 --lengths 4 6 --cells rnn lstm+1",
    "copy_memory": "--seeds 1 --epochs 2 --delays 1 --test-delays 3 --hidden 4 --cells gru lstm+3",
    "brackets": "--seeds 2 --epochs 2 --lengths 6 --test-lengths 8 --hidden 4 --cells lstm",
    "depth": "--seeds 1 --epochs 2 --length 6 --test-lengths 8 --layers 1 2 --hidden 4",
}


@pytest.fixture(autouse=True)
def small(memory: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("brackets", "copy_memory"):
        monkeypatch.setattr(memory[name], "BATCHES", 2)
        monkeypatch.setattr(memory[name], "TEST_ROWS", 20)


# --- data ----------------------------------------------------------------------------------------


def test_sums_of_digits(memory: dict[str, Any]) -> None:
    task = memory["digit_sum"].DigitSum(7, rows=50, batch=16)
    ((x, sums),) = task.tests(None).values()
    assert sorted(map(tuple, x[:2].T)) == list(itertools.product(range(10), range(10)))
    assert not x[2:].any()
    assert x.shape == (7, 100)
    assert [[a + b for a, b in x[:2].T]] == sums.tolist()
    epochs = itertools.islice(task.epochs(np.random.default_rng(0)), 2)
    first, second = ([row for x, s in e for row in zip(*x, *s, strict=True)] for e in epochs)
    assert len(first) == 50
    assert first != second
    assert sorted(first) == sorted(second)
    assert all(row[0] + row[1] == row[-1] and not any(row[2:-1]) for row in first)


def test_copies(memory: dict[str, Any]) -> None:
    """Laid out as in Arjovsky et al. 2016: symbols, T - 1 blanks, a mark, 10 blanks."""
    copy = memory["copy_memory"]
    x, targets = copy.sequences(np.random.default_rng(0), 5, 300)
    assert x.shape == targets.shape == (25, 300)
    for row, wanted in zip(x.T.tolist(), targets.T.tolist(), strict=True):
        assert row[10:] == [8] * 4 + [9] + [8] * 10
        assert wanted == [8] * 15 + row[:10]
    assert set(x[:10].ravel()) == set(range(8))


def matching(word: str) -> bool:
    """Whether brackets match, by striking out empty pairs."""
    while (shorter := word.replace("()", "").replace("[]", "")) != word:
        word = shorter
    return not word


@pytest.mark.parametrize("length", [6, 8, 16, 64])
def test_brackets_are_labelled_right(memory: dict[str, Any], length: int) -> None:
    brackets = memory["brackets"]
    words, labels = brackets.sequences(np.random.default_rng(length), length, 500)
    texts = ["".join(brackets.SYMBOLS[symbol] for symbol in word) for word in words.T]
    assert [[int(matching(text)) for text in texts]] == labels.tolist()
    assert 0.4 < labels.mean() < 0.6
    for text in texts:
        depths = list(itertools.accumulate(1 if symbol in "([" else -1 for symbol in text))
        assert len(text) == length
        assert min(depths) == depths[-1] == 0
        assert max(depths) <= 5
        assert text.count("(") == text.count(")")
        assert "(]" not in text
        assert "[)" not in text
    assert length < 16 or max(max(np.cumsum(np.where(w < 2, 1, -1))) for w in words.T) == 5


# --- model ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm", "lstm+2.5"])
@pytest.mark.parametrize("steps", [1, 3, 5])
def test_gradients_are_those_of_torch(memory: dict[str, Any], cell: str, steps: int) -> None:
    torch = pytest.importorskip("torch")
    experiment = memory["experiment"]
    setup = experiment.Setup(symbols=6, classes=4, hidden=5, layers=2, max_norm=0.1)
    rng = np.random.default_rng(0)
    model = experiment.Model(cell, setup, rng)
    ours, theirs = experiment.Trainer(model, setup), experiment.TorchTrainer(model, setup)
    x, targets = rng.integers(0, 6, (5, 7)), rng.integers(0, 4, (steps, 7))
    np.testing.assert_allclose(ours.logits(x, steps), theirs.logits(x, steps), atol=1e-6)
    before = [module.flat_params.copy() for module in model.modules]
    assert ours.step(x, targets) == theirs.step(x, targets)
    modules = theirs.embedding, theirs.layer, theirs.linear
    for module, old, other in zip(model.modules, before, modules, strict=True):
        flat = torch.cat([p.detach().flatten() for p in other.parameters()]).numpy()
        order = np.concatenate([module.params[name].ravel() for name in other.state_dict()])
        np.testing.assert_allclose(order, flat, atol=2e-5)
        assert (module.flat_params != old).any()


def test_forget_bias_and_orthogonal_weights(memory: dict[str, Any]) -> None:
    experiment = memory["experiment"]
    setup = experiment.Setup(symbols=3, classes=2, hidden=4, orthogonal=True)
    layer = experiment.Model("lstm+3", setup, np.random.default_rng(0)).layer
    assert (layer.bias_ih_l0[4:8] + layer.bias_hh_l0[4:8] == 3).all()
    for block in np.split(layer.weight_hh_l0, 4):
        np.testing.assert_allclose(block @ block.T, np.eye(4), atol=1e-6)


def test_training_stops_early(memory: dict[str, Any]) -> None:
    """After the third epoch running that was good enough, not after three in all."""
    experiment = memory["experiment"]
    shares = iter([1.0, 1.0, 0.9, 1.0, 1.0, 1.0, 1.0])

    class Stub:
        setup = experiment.Setup(symbols=1, classes=1)

        def step(self, x: Any, targets: Any) -> float:
            return next(shares)

    seen: list[int] = []
    endless = itertools.repeat([(None, None)])
    seconds = experiment.train(Stub(), endless, lambda epoch, share: seen.append(epoch))
    assert seen == [1, 2, 3, 4, 5, 6]
    assert len(seconds) == 6


# --- commands ------------------------------------------------------------------------------------


def untimed(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in result.items() if key not in ("seconds", "ms_per_epoch")}
        for result in results
    ]


@pytest.mark.parametrize("name", TINY)
def test_commands(
    memory: dict[str, Any], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    table, picture = tmp_path / "results.csv", tmp_path / "picture.png"
    arguments = TINY[name].split()
    results = memory[name].main([*arguments, "--csv", str(table), "--plot", str(picture)])
    out, err = capsys.readouterr()
    assert "| ---" in out
    assert "proves no general algorithm" in out
    assert err.count("\n") == len({tuple(r.values())[:4] for r in results})  # a line for each run
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [{key: str(value) for key, value in result.items()} for result in results]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 60_000
    assert untimed(memory[name].main(arguments)) == untimed(results)
    other = memory[name].main([*arguments, "--first-seed", "7"])
    assert {r["seed"] for r in other} == {7 + r["seed"] for r in results}
    assert [r["accuracy"] for r in other] != [r["accuracy"] for r in results]


def test_beside_torch(memory: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    arguments = [*TINY["digit_sum"].split(), "--torch"]
    ours, theirs = memory["experiment"].of, "torch"
    results = memory["digit_sum"].main(arguments)
    np.testing.assert_allclose(
        [r["accuracy"] for r in ours(results, "rnnkern")],
        [r["accuracy"] for r in ours(results, theirs)],
        atol=0.021,  # equal but for rounding: the same first values, rows and order
    )
    assert "An epoch takes torch" in capsys.readouterr().out


def test_bar_on_a_terminal(memory: dict[str, Any]) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    bar = memory["experiment"].Bar(2, 10, stream)
    what = {"library": "rnnkern", "cell": "gru", "length": 35, "seed": 2}
    bar.show(what, 5, 0.25)
    assert f"\r[{'#' * 7}{'.' * 23}] rnnkern gru, length 35, seed 2  epoch 5/10  right 0.250" in (
        stream.getvalue()
    )


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("digit_sum", "--seeds 0", "--seeds: expected an integer of at least 1, got '0'"),
        ("digit_sum", "--cells lsmt", "expected rnn, lstm, gru, or an LSTM with a forget bias"),
        ("digit_sum", "--cells gru+1", "got 'gru+1'"),
        ("digit_sum", "--lengths 1", "--lengths: expected an integer of at least 2, got '1'"),
        ("digit_sum", "--csv no/such/folder.csv", "cannot write 'no/such/folder.csv'"),
        ("digit_sum", "--plot picture.pdf", "expected a name that ends in .png"),
        ("brackets", "--lengths 7", "expected an even integer of at least 6, got '7'"),
        ("brackets", "--lr -1", "--lr: expected a positive number, got '-1'"),
        ("copy_memory", "--lr nan", "--lr: expected a positive number, got 'nan'"),
        ("copy_memory", "--delays x", "--delays: expected an integer of at least 1, got 'x'"),
        ("depth", "--layers 0", "--layers: expected an integer of at least 1, got '0'"),
        ("depth", "--depth 3", "unrecognized arguments: --depth 3"),
    ],
)
def test_wrong_arguments_take_one_line(
    memory: dict[str, Any], capsys: pytest.CaptureFixture[str], name: str, arguments: str, said: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        memory[name].main(arguments.split())
    out, err = capsys.readouterr()
    assert stopped.value.code == 2
    assert not out
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "package"), [("--plot=p.png", "matplotlib"), ("--torch", "torch")]
)
def test_missing_packages_are_named(
    memory: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    package: str,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        memory["digit_sum"].main([option])
    assert f"{package} is missing: pip install {package}" in capsys.readouterr().err


def test_a_script_runs_by_itself() -> None:
    command = [sys.executable, str(TASKS / "depth.py"), "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "--test-lengths" in result.stdout
