"""`layer.plan` says what a call will do."""

import numpy as np
import pytest

import rnnkern as rk
from rnnkern import _core, isa

BIG = rk.LSTM(40, 256, seed=0)
SMALL = rk.GRU(3, 16, seed=0)


@pytest.mark.parametrize(
    ("layer", "steps", "rows", "num_threads", "threads", "split", "word"),
    [
        (BIG, 100, 16, 1, 1, None, "num_threads"),
        (BIG, 100, 16, 2, 2, "rows", "rows enough"),
        (BIG, 100, 8, 2, 2, "rows", "rows enough"),
        (BIG, 100, 7, 2, 2, "units", "few rows"),
        (BIG, 100, 16, 5, 5, "units", "few rows"),
        (rk.LSTM(40, 64, seed=0), 1000, 4, 2, 2, "rows", "rows enough"),
        (BIG, 100, 1, 2, 2, "units", "few rows"),
        (rk.LSTM(40, 32, seed=0), 1000, 1, 2, 1, None, "recurrent matrix"),
        (SMALL, 2, 1, 2, 1, None, "only one"),
        (SMALL, 2, 9, 2, 1, None, "too short"),
        (rk.LSTM(128, 512, seed=0), 1, 1, 2, 2, "units", "few rows"),
        (SMALL, 0, 0, 2, 1, None, "only one"),
    ],
)
def test_threads_and_split(layer, steps, rows, num_threads, threads, split, word):
    plan = layer.plan(steps, rows, num_threads=num_threads)
    assert (plan.threads, plan.split) == (threads, split)
    assert word in plan.reason


def test_a_call_uses_the_threads_that_its_plan_says():
    before = _core.team_size()
    threads = before + 1
    assert BIG.plan(10, 4 * threads, num_threads=threads).threads == threads
    BIG(np.zeros((10, 4 * threads, 40), np.float32), num_threads=threads)
    assert _core.team_size() == threads


@pytest.mark.parametrize("level", isa.available())
def test_level_and_tiles(level):
    with isa.using(level):
        plan = BIG.plan(10, 4)
    rows, vectors, lanes = plan.tiles
    assert plan.level == level
    assert lanes == {"avx512": 16, "avx2": 8, "neon": 4, "scalar": 1}[level]
    assert (rows, vectors) == ({"avx512": 6, "avx2": 3, "neon": 6, "scalar": 2}[level], 4)


@pytest.mark.parametrize(
    ("checkpoint", "kept"),
    [
        (None, "gates of every step"),
        ("gates", "states of every step"),
        ("auto", "states of every 10 steps"),
        (7, "states of every 7 steps"),
    ],
)
def test_checkpoint_and_bytes(checkpoint, kept):
    plan = BIG.plan(100, 4, record=True, checkpoint=checkpoint, num_threads=1)
    assert plan.checkpoint == kept
    assert plan.bytes == BIG.memory_estimate(100, 4, checkpoint=checkpoint, num_threads=1)
    assert BIG.plan(100, 4).checkpoint == "nothing, inference"


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize(
    ("layer", "options", "fused"),
    [
        (BIG, [], True),
        (SMALL, [], True),
        (rk.GRU(3, 16, reset_after=False), [], True),
        (rk.RNN(3, 16, nonlinearity="relu"), ["candidate=relu"], True),
        (rk.RNN(3, 16, nonlinearity="softsign"), ["candidate=softsign"], False),
        (rk.LSTM(3, 16, activations=(("hard_sigmoid", 0.2), "tanh", ("elu", 1.0))),
         ["gate=hard_sigmoid(0.2, 0.5)", "output=elu(1, 0)"], False),
        (rk.LSTM(3, 16, proj_size=4, peephole=True, coupled="input", clip=2, cell_clip=3.5),
         ["proj_size=4", "peephole=True", "coupled=input", "clip=2.0", "cell_clip=3.5"], False),
        (rk.GRU(3, 16, layer_norm=True), ["layer_norm=True"], False),
        *((cls(3, 16), [], True) for cls in (rk.MGU, rk.IndRNN, rk.SRU, rk.MinGRU)),
        (rk.SRU(3, 16, activations=("sigmoid", "tanh")), ["output=tanh"], False),
        (rk.LSTM(3, 16, regularization=rk.Regularization(zoneout_h=0.6, zoneout_c=0.7)),
         ["zoneout_h=0.6", "zoneout_c=0.7"], False),
    ],
    ids=lambda value: repr(value) if not isinstance(value, list) else "",
)  # fmt: skip
def test_options(layer, options, fused, record):
    """What is not plain, and whether it takes the functions that look at options."""
    plan = layer.plan(10, 4, record=record)
    assert plan.options == tuple(options)
    assert plan.path == ("fused" if fused else "fused, with options")
    assert plan.bytes == layer.memory_estimate(10, 4, record=record)


@pytest.mark.parametrize(
    ("options", "fused"),
    [
        (rk.Regularization(input_dropout=0.1, output_dropout=0.2, weight_dropout=0.5), True),
        (rk.Regularization(hidden_dropout=0.3, variational=True), False),
        (rk.Regularization(candidate_dropout=0.4), False),
    ],
)
def test_dropout_acts_in_training(options, fused):
    layer = rk.LSTM(3, 16, regularization=options)
    used = tuple(f"{name}={value}" for name, value in vars(options).items() if value)
    recorded, inference = layer.plan(10, 4, record=True), layer.plan(10, 4)
    assert recorded.options == used
    assert recorded.path == ("fused" if fused else "fused, with options")
    assert (inference.options, inference.path) == ((), "fused")


def test_lengths_count():
    lengths = np.full(16, 1)
    assert SMALL.plan(1000, 16, num_threads=2).split == "rows"
    assert SMALL.plan(1000, 16, lengths, num_threads=2).split is None


@pytest.mark.parametrize("arguments", [(-1, 2), (2, 1.5), ("3", 1), (True, 1)])
def test_wrong_sizes(arguments):
    with pytest.raises((TypeError, ValueError), match=r"T|B"):
        BIG.plan(*arguments)
