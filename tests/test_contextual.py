"""The contextual example: no direction sees what it predicts; frozen stays frozen; the mix learns.

The models are tiny and, where it does not matter, untrained: what is tested holds for any weights.
"""

import os
import subprocess
import sys
from importlib import import_module
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from support import assert_bits

from rnnkern.train import softmax_cross_entropy

FOLDER = Path(__file__).parent.parent / "examples" / "contextual"
sys.path.insert(0, str(FOLDER))  # the examples import what is beside them
play, language_model, layer_mix, learn_roles, nearest, trainer = map(
    import_module,
    [
        "play", "language_model", "layer_mix", "learn_roles", "nearest", "train_language_model",
    ],
)  # fmt: skip

WORDS, SIZE = 30, 8
SCENE = """ACT {n}

SCENE I. A platform.

Enter GHOST and HAMLET
HAMLET
What is it, ghost? I will not go with thee {n} times, I say: speak now to me.
GHOST
Hamlet, mark me. [Aside] He is young and will not hear the ghost of his own father.
HORATIO
My lord Hamlet, do not go; it waves you to a more removed ground, and yet
It is but air.
Exit GHOST

"""


def tiny(seed=0, dropout=0.3):
    words = play.Vocabulary([f"w{k}" for k in range(WORDS)])
    return language_model.LanguageModel(words, SIZE, dropout, seed)


def sentences(*lengths, seed=0):
    """ids (T, B) of known words, and lengths."""
    lengths = np.array(lengths)
    ids = np.random.default_rng(seed).integers(2, WORDS + 2, (lengths.max(), len(lengths)))
    return ids, lengths


@pytest.fixture(scope="module")
def frozen():
    return tiny().freeze()


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """A small play, in a file."""
    path = tmp_path_factory.mktemp("play") / "play.txt"
    path.write_text("".join(SCENE.format(n=n) for n in range(40)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def saved(scenes, tmp_path_factory):
    """A model that has learnt a little of it, by the command line."""
    path = tmp_path_factory.mktemp("model") / "lm.npz"
    trainer.main([str(path), "--text", str(scenes), "--epochs", "3", "--size", "16"])
    return path


# ---- words, roles, passages


def test_roles():
    words = list(play.read(SCENE.format(n=1)))
    of = {role: [w.text for w in words if w.role == role] for role in play.ROLES}
    assert of[play.SPEAKER] == ["hamlet", "ghost", "horatio"]
    start = "act 1 scene i . a platform . enter ghost and hamlet aside exit ghost"
    assert of[play.DIRECTION] == start.split()
    assert {"hamlet", "ghost"} <= set(of[play.SPOKEN])


def test_hamlet_is_whole_and_its_roles_are_those_of_the_file():
    words = list(play.read(play.HAMLET.read_text(encoding="utf-8")))
    assert [w.text for w in words] == play.words_of(play.HAMLET.read_text(encoding="utf-8"))
    speakers = [w.text for w in words if w.role == play.SPEAKER]
    lines = play.HAMLET.read_text(encoding="utf-8").splitlines()
    assert speakers.count("horatio") == sum("HORATIO" in x and x == x.upper() for x in lines)
    assert {w.text for w in words if w.role == play.SPOKEN} >= {"hamlet", "ghost", "queen"}


def test_passages_are_the_text_and_no_longer_than_said():
    words = list(play.read(play.HAMLET.read_text(encoding="utf-8")))
    found = list(play.passages(words))
    assert list(chain.from_iterable(found)) == words
    assert max(map(len, found)) <= play.LONGEST
    assert min(map(len, found[:-1])) >= play.SHORTEST
    parts = play.split(found)
    assert sorted(map(len, parts)) == sorted(round(len(found) * s) for s in (0.7, 0.1, 0.2))


def test_vocabulary_knows_what_it_learnt_from():
    part = [[play.Word(text, play.SPOKEN) for text in play.words_of("To be or not to be, é")]]
    vocabulary = play.Vocabulary.of(part)
    assert vocabulary.words == ["<edge>", "<unknown>", "to", "be"]
    assert vocabulary.ids(["be", "or", "to"]).tolist() == [3, 1, 2]


def test_words_of_other_alphabets():
    found = ["o\u2019er", "ærø", ",", "tis", "café", "--", "ok"]
    assert play.words_of("O\u2019er Ærø, 'tis café--ok") == found


# ---- each direction predicts its own next word, and sees nothing of it


def test_turned_is_its_own_inverse_within_lengths():
    ids, lengths = sentences(5, 3, 1)
    back = language_model.turned(ids, lengths)
    for row, n in enumerate(lengths):
        assert back[:n, row].tolist() == ids[:n, row][::-1].tolist()
    assert_bits(language_model.turned(back, lengths), ids)


def test_targets_are_the_next_words_of_each_direction():
    ids, lengths = np.array([[5, 7], [6, 0]]), np.array([2, 1])
    forward, backward = language_model.readings(ids, lengths)
    assert forward.read[:, 0].tolist() == [0, 5, 6]
    assert forward.target[:, 0].tolist() == [5, 6, 0]
    assert backward.read[:, 0].tolist() == [0, 6, 5]
    assert backward.target[:, 0].tolist() == [6, 5, 0]
    assert [way.target[:2, 1].tolist() for way in (forward, backward)] == [[7, 0], [7, 0]]


@pytest.mark.parametrize("way", [0, 1], ids=["forward", "backward"])
def test_no_prediction_sees_its_target(way):
    """Another word in its place, for every place: the logits that predict it keep their bits."""
    model, (ids, lengths) = tiny(), sentences(7)
    logits, _ = list(model.predictions(ids, lengths))[way]
    for place in range(7):
        other = ids.copy()
        other[place] = 2 + (ids[place] + 5) % WORDS
        changed, target = list(model.predictions(other, lengths))[way]
        step = place if way == 0 else 6 - place
        assert target[step, 0] == other[place, 0]
        assert_bits(changed[: step + 1], logits[: step + 1])
        assert (changed[step + 1 :] != logits[step + 1 :]).any(axis=-1).all()


def test_two_bidirectional_layers_would_leak():
    """Why there are two stacks: the forward half of layer 2 is changed by a word to come."""
    both = language_model.rk.LSTM(SIZE, SIZE, num_layers=2, bidirectional=True, seed=0)
    x = np.random.default_rng(0).standard_normal((7, SIZE), dtype=np.float32)
    other = x.copy()
    other[5] += 1
    first, second = (both(a, all_layers=True)[0][:, :5, :SIZE] for a in (x, other))
    assert_bits(first[0], second[0])
    assert (first[1] != second[1]).any()


@pytest.mark.parametrize("part", ["table", "forward", "backward", "softmax"])
def test_training_gradients_by_differences(part):
    """Of each part along its own gradient, of the sum of both directions' losses."""
    model, (ids, lengths) = tiny(dropout=0.0), sentences(4, 2)
    model.train(ids, lengths)
    module = model.parts[part]
    start, norm = module.flat_params.copy(), np.linalg.norm(module.flat_grads)
    along, losses = 0.02 * module.flat_grads / norm, []
    for sign in (1, -1):
        module.flat_params = start + sign * along
        losses.append(sum(model.train(ids, lengths)))
    assert (losses[0] - losses[1]) / 0.04 == pytest.approx(norm, rel=0.01)


def test_perplexity_is_that_of_all_predictions_together():
    model, (ids, lengths) = tiny(), sentences(6, 3, 1)
    found = model.perplexities([(ids, lengths)])
    rows = [(ids[:n, k : k + 1], np.array([n])) for k, n in enumerate(lengths)]
    np.testing.assert_allclose(model.perplexities(rows), found, rtol=1e-5)
    logits, target = next(iter(model.predictions(*rows[0])))
    loss, _ = softmax_cross_entropy(logits[:, 0], target[:, 0])
    np.testing.assert_allclose(model.perplexities(rows[:1])[0], np.exp(loss), rtol=1e-6)


# ---- features


def halves(h):
    """Forward and backward features of the LSTM layers."""
    return h[1:, ..., :SIZE], h[1:, ..., SIZE:]


def test_one_word_has_one_vector_and_many_contexts(frozen):
    ids = np.array([[2, 9], [3, 3], [4, 8]])  # word 3 in the middle of two sentences
    h = frozen.features(ids, np.array([3, 3]))
    assert_bits(h[0, 1, 0], h[0, 1, 1])
    for half in halves(h):
        assert (half[:, 1, 0] != half[:, 1, 1]).any(axis=-1).all()


def test_a_word_to_come_changes_the_backward_features_alone(frozen):
    ids, lengths = sentences(9)
    other = ids.copy()
    other[5] = 2 + (ids[5] + 1) % WORDS
    (forward, backward), (forward2, backward2) = (
        halves(frozen.features(a, lengths)) for a in (ids, other)
    )
    assert_bits(forward[:, :5], forward2[:, :5])
    assert (forward[:, 5:] != forward2[:, 5:]).any(axis=-1).all()
    assert_bits(backward[:, 6:], backward2[:, 6:])
    assert (backward[:, :6] != backward2[:, :6]).any(axis=-1).all()


def test_features_are_mirrored_by_equal_stacks():
    model, (ids, lengths) = tiny(), sentences(6, 4)
    model.backward.flat_params = model.forward.flat_params
    forward, backward = halves(model.freeze().features(ids, lengths))
    turned = language_model.turned(ids, lengths)
    of_turned, _ = halves(model.freeze().features(turned, lengths))
    for layer, mirrored in zip(backward, of_turned, strict=True):
        assert_bits(layer, language_model.turned(mirrored, lengths))
    assert (forward != backward).any()


def test_padding_does_not_matter(frozen):
    ids, lengths = sentences(8, 3, 0, 1)
    h = frozen.features(ids, lengths)
    noise = np.where(np.arange(8)[:, None] < lengths, ids, 7)
    assert_bits(frozen.features(noise, lengths), h)
    for row, n in enumerate(lengths):
        assert_bits(frozen.features(ids[:n, row : row + 1], lengths[row : row + 1])[:, :, 0],
                    h[:, :n, row])  # fmt: skip
        assert not h[:, n:, row].any()


def test_frozen_features_outlive_further_training():
    model, (ids, lengths) = tiny(), sentences(5)
    frozen = model.freeze()
    before = frozen.features(ids, lengths)
    for module in model.modules:
        module.flat_params += 1
    assert_bits(frozen.features(ids, lengths), before)
    with pytest.raises(ValueError, match="read-only"):
        frozen._table += 1


# ---- the mix


def test_mix_is_the_formula():
    rng = np.random.default_rng(0)
    mix, h = layer_mix.LayerMix(3, np.float64), rng.standard_normal((3, 4, 5))
    np.testing.assert_allclose(mix(h), h.mean(axis=0), rtol=1e-12)  # at first, of equal weights
    mix.params["scores"][:], mix.params["gamma"][:] = [0, np.log(2), np.log(5)], 3
    np.testing.assert_allclose(mix(h), 3 * (h[0] + 2 * h[1] + 5 * h[2]) / 8, rtol=1e-12)
    mix.params["scores"] += 1000
    np.testing.assert_allclose(mix.weights, [1 / 8, 2 / 8, 5 / 8], rtol=1e-9)


@pytest.mark.parametrize("layers", [1, 3])
def test_gradients_of_the_mix_by_differences(layers):
    rng = np.random.default_rng(1)
    mix, h = layer_mix.LayerMix(layers, np.float64), rng.standard_normal((layers, 4, 5))
    mix.params["scores"][:], mix.params["gamma"][:] = rng.standard_normal(layers), 1.7
    dy = rng.standard_normal((4, 5))
    mix.record(h)[1].backward(dy)
    for name, param in mix.params.items():
        for k in range(param.size):
            value, ends = param[k], []
            for step in (1e-6, -1e-6):
                param[k] = value + step
                ends.append(float((mix(h) * dy).sum()))
            param[k] = value
            slope = (ends[0] - ends[1]) / 2e-6
            np.testing.assert_allclose(mix.grads[name][k], slope, rtol=1e-7, atol=1e-8)


def test_mix_finds_the_layer_that_tells():
    rng = np.random.default_rng(2)
    h, labels = rng.standard_normal((3, 600, 4), dtype=np.float32), rng.integers(0, 2, 600)
    h[1, :, 0] += 4 * labels
    tagger = layer_mix.Tagger(3, 4, 2).fit(h, labels, epochs=30, lr=0.01)
    assert tagger.mix.weights[1] > 0.7
    assert tagger.mix.weights.sum() == pytest.approx(1, abs=1e-6)
    assert (tagger(h) == labels).mean() > 0.95


# ---- the task


def test_the_model_stays_as_it_is_while_the_task_learns(scenes, saved):
    model = language_model.LanguageModel.load(saved)
    before = [module.flat_params.copy() for module in model.modules]
    learn, _, test = play.load(scenes)
    task = learn_roles.Task(learn, test)
    task.compare(model, report=lambda row: None)
    for module, params in zip(model.modules, before, strict=True):
        assert_bits(module.flat_params, params)
        assert not module.flat_grads.any()


def test_context_tells_what_the_word_alone_cannot(scenes, saved):
    learn, _, test = play.load(scenes)
    task = learn_roles.Task(learn, test)
    rows, mixes, norms = task.compare(
        language_model.LanguageModel.load(saved), report=lambda row: None
    )
    hard = {name: scores[0][1] for name, scores in rows}
    assert hard["word vectors"] < 0.8
    assert hard["learnt mix"] > hard["word vectors"] + 0.1
    assert len(mixes[0].weights) == len(norms) == 3


def test_contested_words_are_those_without_one_clear_role():
    words = [play.Word("all", role) for role in ["spoken"] * 8 + ["speaker"] * 2]
    words += [play.Word("ham", role) for role in ["spoken"] * 9 + ["speaker"]]
    words += [play.Word("egg", role) for role in ["spoken", "speaker"]]
    counts = learn_roles.role_counts(words)
    assert learn_roles.contested(counts) == {"all"}
    assert learn_roles.commonest(counts, [*words[8:9], play.Word("new", "x")]).tolist() == [0, 0]


def test_features_are_in_the_order_of_the_words(scenes, saved):
    frozen = language_model.LanguageModel.load(saved).freeze()
    part = play.load(scenes)[0][:20]
    words = learn_roles.words_in(part)
    h = learn_roles.features_of(frozen, part)
    ids = frozen.vocabulary.ids(word.text for word in words)
    assert_bits(h[0, :, :16], frozen._table[ids])
    assert len(list(nearest.contexts(part))) == len(words)


# ---- training and files


def test_training_learns_and_keeps_the_best_epoch(scenes, monkeypatch):
    part, choosing, _ = play.load(scenes)
    model = language_model.LanguageModel(play.Vocabulary.of(part), 16)
    monkeypatch.setattr(trainer, "learning_rate", lambda done: 0.003 if done < 0.9 else 0.3)
    history = trainer.train(model, part, choosing, 30, report=lambda row: None)
    assert history.shape == (30, 4)
    held_out = np.log(history[:, 2:]).sum(axis=1)
    best = held_out.argmin()
    assert best < 29  # the last steps were too long
    assert (history[best] < history[0] / 2).all()
    again = model.perplexities(play.batches(choosing, model.vocabulary))
    np.testing.assert_allclose(again, history[best, 2:], rtol=1e-5)


def test_learning_rate_falls_to_nothing():
    rates = [trainer.learning_rate(done, first=0.5) for done in (0, 0.5, 1)]
    np.testing.assert_allclose(rates, [0.5, 0.25, 0], atol=1e-15)


def test_frequencies_alone():
    """Each word counts once more than it occurs."""
    part = [[play.Word(text, play.SPOKEN) for text in "aab"]]
    vocabulary = play.Vocabulary(["a", "b"])  # counts: edge 2, unknown 1, a 3, b 2
    found = trainer.by_frequency(part, [part[0][:1]], vocabulary)
    assert found == pytest.approx(1 / np.sqrt(3 / 8 * 2 / 8))


def test_saved_and_loaded_are_the_same(tmp_path):
    model, (ids, lengths) = tiny(seed=3), sentences(6, 2)
    model.save(tmp_path / "lm")
    again = language_model.LanguageModel.load(tmp_path / "lm")
    assert again.vocabulary.words == model.vocabulary.words
    for part, module in model.parts.items():
        assert_bits(again.parts[part].flat_params, module.flat_params)
    features = [m.freeze().features(ids, lengths) for m in (model, again)]
    assert_bits(*features)


# ---- command lines


def refused(main, capsys, *arguments):
    """What a command line says when it stops with code 2."""
    with pytest.raises(SystemExit) as stop:
        main([str(a) for a in arguments])
    assert stop.value.code == 2
    return capsys.readouterr().err


def test_files_that_do_not_serve(tmp_path, scenes, saved, capsys):
    empty, bytes_, prose = (tmp_path / name for name in ("empty", "bytes", "prose"))
    empty.write_text("")
    bytes_.write_bytes(b"\xff\xfe\xff" * 99)
    prose.write_text("There is no play here, and nobody speaks. " * 60)
    model, missing = tmp_path / "new.npz", tmp_path / "missing"
    assert "No such file" in refused(trainer.main, capsys, model, "--text", missing)
    assert "too few words" in refused(trainer.main, capsys, model, "--text", empty)
    assert "not a text in UTF-8" in refused(trainer.main, capsys, model, "--text", bytes_)
    assert not model.exists()
    where = tmp_path / "no" / "folder.npz"
    assert "No such file" in refused(trainer.main, capsys, where, "--text", scenes)
    for main, rest in ((learn_roles.main, []), (nearest.main, ["a", "a"])):
        assert "No such file" in refused(main, capsys, missing, *rest)
        assert "not a saved language model" in refused(main, capsys, scenes, *rest)
        assert "not a saved language model" in refused(main, capsys, empty, *rest)
        assert "too few words" in refused(main, capsys, saved, *rest, "--text", empty)
    assert "no speakers" in refused(learn_roles.main, capsys, saved, "--text", prose)


def test_sentences_from_the_command_line(scenes, saved, capsys):
    text = ["--text", str(scenes)]
    assert "expected words" in refused(learn_roles.main, capsys, saved, *text, "--say", " . []")
    assert "has no word 'king'" in refused(nearest.main, capsys, saved, "king", "A ghost", *text)
    learn_roles.main([str(saved), *text, "--say", "Enter Hamlet, ünknown"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["enter", "hamlet", "ünknown"]
    assert "(an unknown word)" in lines[-1]
    nearest.main([str(saved), "ghost", "the zounds ghost " * 100, *text])
    out = capsys.readouterr().out
    assert "unknown words" in out
    assert out.count("[ghost]") >= 5
    nearest.main([str(saved), "ghost", "Ghost", *text])
    assert " 1.00 " in capsys.readouterr().out


def test_the_commands_run_as_documented(scenes, saved):
    command = [sys.executable, str(FOLDER / "learn_roles.py"), str(saved), "--text", str(scenes)]
    environment = {**os.environ, "PYTHONUTF8": "1"}
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env=environment
    )
    assert result.returncode == 0, result.stderr
    assert "learnt mix" in result.stdout
    assert "gamma" in result.stdout


def test_the_picture(scenes, saved, tmp_path):
    pytest.importorskip("matplotlib")
    history, picture = tmp_path / "history.csv", tmp_path / "picture.png"
    header = "forward_learnt,backward_learnt,forward_held_out,backward_held_out"
    history.write_text(header + "\n9,9,8,8\n7,7,6,6\n")
    arguments = [str(p) for p in (saved, history, picture)]
    import_module("draw_layers").main([*arguments, "--text", str(scenes)])
    assert picture.read_bytes().startswith(b"\x89PNG")
