"""The demo's parts: data, model, training, files, printing. test_main.py has the command line."""

from __future__ import annotations

import io
import itertools
import sys

import numpy as np
import pytest

import rnnkern
from rnnkern import demo, isa

TRAIN, TEST = demo.load_data()


def new_model(seed=0, hidden=demo.HIDDEN):
    model = demo.Classifier(12, 9, hidden, seed=seed)
    model.standardise_by(TRAIN)
    return model


def subset(n, part=TRAIN):
    """About n utterances, of all speakers alike."""
    chosen = range(0, len(part), len(part) // n)
    return demo.Part(tuple(part.utterances[i] for i in chosen), part.speakers[list(chosen)])


def trained(part, epochs, seed=0, hidden=16):
    model = new_model(seed, hidden)
    standardised = part.standardised(model.mean, model.scale)
    demo.train([demo.Trainer(model)], standardised, np.random.default_rng(seed), epochs)
    return model


def weights(model):
    return b"".join(module.flat_params.tobytes() for module in model.modules)


# --- data ----------------------------------------------------------------------------------------


def test_data():
    assert (len(TRAIN), len(TEST)) == (270, 370)
    lengths = [len(u) for u in TRAIN.utterances + TEST.utterances]
    assert (sum(lengths), min(lengths), max(lengths)) == (9961, 7, 29)
    assert np.bincount(TRAIN.speakers).tolist() == [30] * 9
    assert np.bincount(TEST.speakers).tolist() == [31, 35, 88, 44, 29, 24, 40, 50, 29]
    for u in TRAIN.utterances + TEST.utterances:
        assert u.shape[1:] == (12,) and u.dtype == np.float32 and np.isfinite(u).all()


def test_standardised_by_the_training_frames():
    model = new_model()
    frames = np.concatenate(TRAIN.standardised(model.mean, model.scale).utterances)
    assert frames.dtype == np.float32
    np.testing.assert_allclose(frames.mean(axis=0, dtype=np.float64), 0, atol=1e-6)
    np.testing.assert_allclose(frames.std(axis=0, dtype=np.float64), 1, rtol=1e-6)


def test_batches_hold_each_utterance_once_padded_to_the_longest():
    order = np.random.default_rng(0).permutation(len(TEST))
    seen = 0
    for x, lengths, speakers in TEST.batches(order):
        chosen = order[seen : seen + demo.BATCH]
        assert x.shape == (lengths.max(), len(chosen), 12)
        assert speakers.tolist() == TEST.speakers[chosen].tolist()
        for b, i in enumerate(chosen):
            assert lengths[b] == len(TEST.utterances[i])
            np.testing.assert_array_equal(x[: lengths[b], b], TEST.utterances[i])
            assert not x[lengths[b] :, b].any()
        seen += len(chosen)
    assert seen == len(TEST)


# --- model ---------------------------------------------------------------------------------------


def one_batch(model):
    part = TRAIN.standardised(model.mean, model.scale)
    return next(part.batches(np.arange(0, 270, 9)))


def test_first_weights_are_within_torch_s_bounds():
    model = new_model()
    for module, bound in ((model.lstm, 64**-0.5), (model.linear, 128**-0.5)):
        assert 0.99 * bound < np.abs(module.flat_params).max() <= bound


def test_padding_is_not_read():
    model = new_model()
    x, lengths, speakers = one_batch(model)
    logits, loss = model(x, lengths), model.loss_and_gradients(x, lengths, speakers)
    before = model.lstm.flat_grads.tobytes()
    model.lstm.zero_grad()
    for b, length in enumerate(lengths):
        x[length:, b] = np.nan
    np.testing.assert_array_equal(model(x, lengths), logits)
    assert model.loss_and_gradients(x, lengths, speakers) == loss
    assert model.lstm.flat_grads.tobytes() == before


def test_gradients_are_the_loss_s_slopes():
    model = new_model(hidden=8)
    batch = one_batch(model)
    model.loss_and_gradients(*batch)
    slopes = [(m, n, m.grads[n].copy()) for m in model.modules for n in m.params]
    for module, name, slope in slopes:
        at, norm = module.params[name].copy(), np.linalg.norm(slope)
        losses = []
        for shift in (0.02, -0.02):
            module.params[name] = at + np.float32(shift / norm) * slope
            losses.append(model.loss_and_gradients(*batch))
        module.params[name] = at
        assert (losses[0] - losses[1]) / 0.04 == pytest.approx(norm, rel=0.01), name


def test_each_step_sees_one_batch_s_gradient_clipped_to_norm_1():
    model, part = new_model(hidden=8), subset(90)
    part = part.standardised(model.mean, model.scale)
    model.linear.flat_params *= 30  # badly wrong at first: a steep loss
    trainer, order = demo.Trainer(model), np.arange(len(part))
    batches, step, norms = part.batches(order), trainer.optimiser.step, []

    def checked_step():
        twin = demo.Classifier(12, 9, 8, seed=0)
        for own, other in zip(model.modules, twin.modules, strict=True):
            other.flat_params = own.flat_params
        twin.loss_and_gradients(*next(batches))
        own, fresh = (np.concatenate([m.flat_grads for m in x.modules]) for x in (model, twin))
        norms.append(float(np.linalg.norm(fresh)))
        np.testing.assert_allclose(own, fresh / max(1.0, norms[-1]), rtol=1e-5, atol=1e-8)
        before = model.linear.flat_params.copy()
        step()
        if len(norms) == 1:  # Adam's first step moves each entry by the learning rate
            moved = np.abs(model.linear.flat_params - before)
            assert np.median(moved) == pytest.approx(0.003, rel=0.01)

    trainer.optimiser.step = checked_step
    trainer.epoch(part, order)
    assert len(norms) == 3 and min(norms) > 1


def test_learns():
    part = subset(135)
    found = []
    for epochs in (0, 10):
        model = trained(part, epochs, hidden=32)
        found.append(demo.accuracy(demo.predict(model, TEST), TEST))
    assert found[0] < 0.4 and found[1] > 0.8  # of eight seeds: at most 0.18, at least 0.85


def test_accuracy_counts_the_largest_logit():
    part = demo.Part((np.zeros((1, 12), np.float32),) * 4, np.array([2, 0, 1, 1]))
    logits = np.array([[0, 1, 2], [3, 1, 2], [0, 1, 0], [9, 8, 7]], np.float32)
    assert demo.accuracy(logits, part) == 0.75


@pytest.mark.thread_unsafe(reason="sets level and threads of the process")
def test_trained_bits_depend_on_the_seed_alone():
    part, found = subset(90), {}
    before = rnnkern.get_num_threads()
    try:
        for level, n in itertools.product(isa.available(), (1, 2, 3)):
            rnnkern.set_num_threads(n)
            with isa.using(level):
                model = trained(part, epochs=2)
                found[level, n] = weights(model), demo.digest(demo.predict(model, TEST))
    finally:
        rnnkern.set_num_threads(before)
    assert len(set(found.values())) == 1
    assert weights(trained(part, epochs=2, seed=1)) != next(iter(found.values()))[0]


def test_digest_sees_one_bit():
    logits = demo.predict(new_model(hidden=8), subset(30, TEST))
    other = logits.copy()
    other[7, 3] = np.nextafter(other[7, 3], np.float32(np.inf))
    assert demo.digest(logits) == demo.digest(logits.copy()) != demo.digest(other)


# --- torch ---------------------------------------------------------------------------------------


@pytest.fixture
def torch():
    """torch on one thread: beside busy processes its pool is slow by orders of magnitude."""
    found = pytest.importorskip("torch")
    before = found.get_num_threads()
    found.set_num_threads(1)
    yield found
    found.set_num_threads(before)


@pytest.mark.thread_unsafe(reason="sets torch's threads")
def test_torch_learns_the_same_where_nothing_is_padded(torch):
    part = subset(90)
    part = demo.Part(tuple(u[:7] for u in part.utterances), part.speakers)
    model = new_model(hidden=16)
    ours, theirs = demo.Trainer(model), demo.TorchTrainer(torch, model)
    part_now = part.standardised(model.mean, model.scale)
    for epoch in range(2):
        order = np.random.default_rng(epoch).permutation(len(part))
        assert ours.epoch(part_now, order) == pytest.approx(theirs.epoch(part_now, order), rel=1e-4)
    np.testing.assert_allclose(ours.logits(part), theirs.logits(part), rtol=1e-3, atol=1e-3)


@pytest.mark.thread_unsafe(reason="sets torch's threads")
def test_padded_batches_give_what_torch_gives_packed(torch):
    model = new_model(seed=5)
    x, lengths, speakers = one_batch(model)
    loss = model.loss_and_gradients(x, lengths, speakers)

    rival = demo.TorchTrainer(torch, model)
    utils = torch.nn.utils.rnn
    packed = utils.pack_padded_sequence(
        torch.from_numpy(x), torch.from_numpy(lengths), enforce_sorted=False
    )
    y, _ = utils.pad_packed_sequence(rival.lstm(packed)[0])
    logits = rival.linear(y.sum(dim=0) / torch.from_numpy(lengths)[:, None])
    their_loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(speakers))
    their_loss.backward()

    assert loss == pytest.approx(their_loss.item(), rel=1e-5)
    np.testing.assert_allclose(model(x, lengths), logits.detach().numpy(), rtol=1e-4, atol=1e-5)
    for ours, theirs in ((model.lstm, rival.lstm), (model.linear, rival.linear)):
        for name, parameter in theirs.named_parameters():
            difference = np.linalg.norm(ours.grads[name] - parameter.grad.numpy())
            assert difference < 2e-5 * np.linalg.norm(parameter.grad.numpy()), name


def test_protocol():
    """The published accuracies are of these numbers."""
    assert (demo.HIDDEN, demo.BATCH, demo.EPOCHS) == (64, 30, 40)
    assert (demo.LEARNING_RATE, demo.MAX_NORM) == (0.003, 1.0)


# --- files ---------------------------------------------------------------------------------------


def test_saved_and_loaded(tmp_path):
    model = trained(subset(30), epochs=1)
    model.save(tmp_path / "model")  # exactly this name
    loaded = demo.Classifier.load(tmp_path / "model")
    assert weights(loaded) == weights(model)
    np.testing.assert_array_equal(loaded.mean, model.mean)
    np.testing.assert_array_equal(loaded.scale, model.scale)
    np.testing.assert_array_equal(demo.predict(loaded, TEST), demo.predict(model, TEST))


def changed(arrays, **changes):
    return {name: value for name, value in (arrays | changes).items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"header": None}, "header"),
        ({"header": np.array('{"format": "rnnkern-demo", "version": 99}')}, "99"),
        ({"header": np.array('{"format": "rnnkern", "version": 1}')}, "rnnkern-demo"),
        ({"mean": np.zeros(12)}, "float64"),
        ({"scale": np.ones(11, np.float32)}, "standardisation"),
        ({"lstm.bias_ih_l0": None}, "missing 'bias_ih_l0'"),
        ({"linear.extra": np.zeros(3)}, "unexpected 'extra'"),
        ({"lstm.weight_hh_l0": np.zeros((3, 3), np.float32)}, "weight_hh_l0"),
        ({"linear.weight": np.zeros(3, np.float32)}, "not enough values"),
        ({"linear.bias": np.array([None] * 9)}, "Object arrays"),
    ],
)
def test_a_wrong_model_is_named(tmp_path, changes, word):
    path = tmp_path / "m.npz"
    new_model(hidden=8).save(path)
    with np.load(path) as archive:
        arrays = dict(archive.items())
    np.savez(path, **changed(arrays, **changes))
    with pytest.raises(demo.ModelError, match=word) as error:
        demo.Classifier.load(path)
    assert "m.npz" in str(error.value)


def test_a_damaged_model(tmp_path):
    path = tmp_path / "m.npz"
    new_model(hidden=8).save(path)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for content in (b"", b"text", whole[: len(whole) // 2], bytes(flipped)):
        path.write_bytes(content)
        with pytest.raises(demo.ModelError, match="not a model"):
            demo.Classifier.load(path)
    with pytest.raises(FileNotFoundError):
        demo.Classifier.load(tmp_path / "none.npz")


# --- printing, options ---------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(stream, total=40):
    progress = demo.Progress("seed 1", total, stream)
    for done in range(1, total + 1):
        progress.show(done, 1 / done)
    return stream.getvalue()


def test_progress_is_a_bar_on_a_terminal_and_few_lines_elsewhere():
    bar = shown(Terminal())
    assert bar.count("\r") == 40 and bar.count("\n") == 1 and bar.endswith("\n")
    assert "[###############...............] epoch 20/40" in bar
    lines = shown(io.StringIO()).splitlines()
    assert [line.split()[3] for line in lines] == ["10/40", "20/40", "30/40", "40/40"]
    assert shown(io.StringIO(), total=1).splitlines() == ["seed 1  epoch 1/1  loss 1.0000"]


def test_trainers_take_turns_on_the_same_batches():
    calls = []

    class Probe:
        def __init__(self, name):
            self.name = name

        def epoch(self, part, order):
            calls.append((self.name, order.tolist()))
            return 0.0

    seconds = demo.train([Probe("a"), Probe("b")], subset(30), np.random.default_rng(0), 4)
    assert "".join(name for name, _ in calls) == "abbaabba"
    orders = [order for _, order in calls]
    assert orders[::2] == orders[1::2]
    assert orders[0] != orders[2] and sorted(orders[0]) == sorted(orders[2])
    assert [len(each) for each in seconds] == [4, 4]


def test_times_name_the_faster_one():
    class Torch:
        __version__ = "9.9"

    assert "rnnkern is 3.00 times as fast" in demo._times([[0.01, 0.02, 0.9], [0.06] * 3], Torch)
    assert "torch is 2.00 times as fast" in demo._times([[0.02], [0.01]], Torch)
    assert demo._times([[0.02]], None) == "time per epoch (median of 1): rnnkern 20.0 ms"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--seeds", "-1"],
        ["--seeds", "x"],
        ["--seeds"],
        ["--epochs", "0"],
        ["--num-threads", "0"],
        ["--predict", "m.npz", "--epochs", "3"],
        ["--predict", "m.npz", "--no-torch"],
        ["more"],
    ],
)
def test_wrong_arguments(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        demo.main(arguments)
    assert exit_.value.code == 2
    assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize("output", ["", "none/m.npz", "."])
def test_an_impossible_output_fails_before_the_training(output, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "_train_seed", None)
    assert demo.main(["--output", output]) == 1
    assert "error: " in capsys.readouterr().err


def test_a_model_of_other_channels_is_refused(tmp_path, capsys):
    demo.Classifier(5, 9, 8, seed=0).save(tmp_path / "m.npz")
    assert demo.main(["--predict", str(tmp_path / "m.npz")]) == 1
    assert "expected a model of 12 channels, got 5" in capsys.readouterr().err


def test_seeds_summary_and_saved_model(tmp_path, capsys):
    target = tmp_path / "m.npz"
    before = rnnkern.get_num_threads()
    arguments = ["--seeds", "4", "2", "--epochs", "1", "--num-threads", "1", "--no-torch"]
    assert demo.main([*arguments, "--output", str(target)]) == 0
    assert rnnkern.get_num_threads() == before
    lines = capsys.readouterr().out.splitlines()
    seeds = [line.split() for line in lines if line.startswith("seed ")]
    assert [words[1] for words in seeds] == ["4:", "2:"]
    values = [float(words[4]) for words in seeds]
    summary = next(line for line in lines if line.startswith("test accuracy: mean"))
    assert float(summary.split()[3].rstrip(",")) == pytest.approx(np.mean(values), abs=2e-4)
    assert "of 2 seed(s)" in summary
    logits = demo.predict(demo.Classifier.load(target), TEST)
    assert demo.digest(logits) == seeds[0][-1]  # the first seed's


def test_the_printed_command_works(tmp_path, monkeypatch):
    """Relative where the interpreter lies under the folder, and quoted."""
    folder = tmp_path / "a folder"
    python = folder / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.chdir(folder)
    assert demo._command("demo") == "venv/bin/python -m rnnkern demo"
    monkeypatch.chdir(python.parent)  # a bare name would be another program
    assert demo._command("demo", "a b") == f"'{python}' -m rnnkern demo 'a b'"
    monkeypatch.chdir(tmp_path / "a folder" / "venv" / "bin" / "..")
    assert demo._command().startswith("bin/python")
    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
    assert demo._command() == "/usr/bin/python3 -m rnnkern"
