"""The examples: published models as streams, against what their own packages compute.

The weights of g2p-en and all clips of silero-vad are not in the repository. RNNKERN_MODELS names a
folder with them, g2p_en.npz and silero_vad.npz; without it their tests are skipped.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import Array, assert_bits

import rnnkern as rk

EXAMPLES = Path(__file__).parent.parent / "examples"
MODELS = os.environ.get("RNNKERN_MODELS")
needs_models = pytest.mark.skipif(not MODELS, reason="RNNKERN_MODELS names no folder of models")


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "PYTHONUTF8": "1", **variables},
    )  # fmt: skip


voice_activity, grapheme_to_phoneme = example("voice_activity"), example("grapheme_to_phoneme")


# --- silero-vad ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def silero() -> dict[str, Array]:
    with np.load(voice_activity.DATA) as file:
        return dict(file)


def check_stream(lstm: rk.LSTM, x: Array, outputs: Array) -> None:
    """Step by step and in chunks of any size the bits of the whole, near the package's outputs."""
    want, after = lstm(x)
    stream = lstm.stream()
    assert_bits(np.stack([stream.step(frame) for frame in x]), want)
    for got, whole in zip(stream.state, after, strict=True):
        assert_bits(got[:, 0], whole)
    stream.reset()
    cuts = [0, 1, 1, 8, 30, len(x)]
    chunks = [stream.process(x[a:b]) for a, b in itertools.pairwise(cuts)]
    assert_bits(np.concatenate(chunks), want)
    np.testing.assert_allclose(want, outputs, rtol=0, atol=5e-5)


def test_silero_vad_step_by_step(silero: dict[str, Array], level: str) -> None:
    lstm = voice_activity.lstm_from_onnx(silero["W"], silero["R"], silero["B"])
    check_stream(lstm, silero["features"], silero["outputs"])
    detector = voice_activity.VoiceActivity(silero)
    probabilities = [detector.step(frame) for frame in silero["features"]]
    np.testing.assert_allclose(probabilities, silero["probabilities"], rtol=0, atol=1e-5)
    (speech,) = voice_activity.segments(probabilities)
    np.testing.assert_allclose(speech, [16 * 0.032, 70 * 0.032])


def calls(name: str) -> Iterator[tuple[Any, Any, dict[str, Array]]]:
    """The file's description, that of each call, and its arrays."""
    with np.load(Path(str(MODELS)) / f"{name}.npz", allow_pickle=False) as file:
        arrays = dict(file)
    meta = json.loads(str(arrays["meta"]))
    for call in meta["calls"]:
        yield meta, call, arrays


@needs_models
def test_all_clips_of_silero_vad() -> None:
    clips = list(calls("silero_vad"))
    assert len(clips) == 8
    for _, call, arrays in clips:
        W, R, B = (arrays[f"w/lstm/{name}"][0] for name in "WRB")
        lstm = voice_activity.lstm_from_onnx(W, R, B)
        check_stream(lstm, arrays[call["x"]][:, 0], arrays[call["y"]][:, 0])


def test_clips_in_one_batch(silero: dict[str, Array]) -> None:
    """Recordings of one server: each joins when it will and has the bits of the one alone."""
    lstm = voice_activity.lstm_from_onnx(silero["W"], silero["R"], silero["B"])
    x, starts = silero["features"], [0, 3, 40, 41, 86]
    want, _ = lstm(x)
    server = lstm.stream(2)
    rows: dict[int, int] = {}
    for t in range(max(starts) + len(x)):
        rows |= {start: server.attach(grow=True) for start in starts if start == t}
        y = server.step(x[[t - start for start in rows]], rows=list(rows.values()))
        for got, start in zip(y, rows, strict=True):
            assert_bits(got, want[t - start], (t, start))
        for start in [s for s in rows if t - s == len(x) - 1]:
            server.detach(rows.pop(start))
    assert server.attached.size == 0


def test_voice_activity_runs() -> None:
    result = run("voice_activity")
    assert result.returncode == 0, result.stderr
    assert "speech from 0.51 s to 2.24 s" in result.stdout
    assert "times as fast as real time" in result.stdout


# --- g2p-en --------------------------------------------------------------------------------------

WORDS = dict(
    line.split(maxsplit=1)
    for line in (EXAMPLES / "data" / "g2p_words.txt").read_text().splitlines()
)


def invented(hidden: int = 24) -> dict[str, Array]:
    """A model of g2p-en's shapes with random weights."""
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"enc_emb": (29, hidden), "dec_emb": (74, hidden)}
    for part in ("enc", "dec"):
        shapes |= {f"{part}_w_{k}": (3 * hidden, hidden) for k in ("ih", "hh")}
        shapes |= {f"{part}_b_{k}": (3 * hidden,) for k in ("ih", "hh")}
    shapes |= {"fc_w": (74, hidden), "fc_b": (74,)}
    return {name: rng.standard_normal(s).astype(np.float32) for name, s in shapes.items()}


def published() -> dict[str, Array]:
    """The weights of g2p-en under its own names."""
    _, _, arrays = next(calls("g2p_en"))
    model = {name: arrays[f"e2e/{name}"] for name in ("enc_emb", "dec_emb", "fc_w", "fc_b")}
    kinds = {"weight_ih_l0": "w_ih", "weight_hh_l0": "w_hh", "bias_ih_l0": "b_ih"}
    for long, short in {**kinds, "bias_hh_l0": "b_hh"}.items():
        model |= {f"{part}_{short}": arrays[f"w/{part}/{long}"] for part in ("enc", "dec")}
    return model


def gru(model: dict[str, Array], part: str) -> rk.GRU:
    weights = grapheme_to_phoneme.gru_weights(model, part)
    made = rk.GRU(weights["weight_ih"].shape[1], weights["weight_hh"].shape[1])
    made.load_state_dict({f"{name}_l0": a for name, a in weights.items()})
    return made


def check_hand_over(model: dict[str, Array], words: list[str]) -> None:
    """Encoder by steps, its state handed over; decoder as cell loop, as stream, as a sequence."""
    encoder, decoder = gru(model, "enc"), gru(model, "dec")
    pronounce = grapheme_to_phoneme.GraphemeToPhoneme(model)
    for word in words:
        marks = grapheme_to_phoneme.GRAPHEMES
        x = model["enc_emb"][[marks.index(c) if c in marks else 1 for c in [*word, "</s>"]]]
        y, h = encoder(x)
        steps = encoder.stream()
        assert_bits(np.stack([steps.step(letter) for letter in x]), y, word)
        assert_bits(pronounce.encode(word), h[0], word)

        found = [grapheme_to_phoneme.PHONEMES.index(p) for p in pronounce.decode(h[0])]
        inputs = model["dec_emb"][[grapheme_to_phoneme.START, *found]]
        want, _ = decoder(inputs, h)
        state, loop = h[0], []
        for phoneme in inputs:
            state = pronounce.decoder(phoneme, state)
            loop.append(state)
        assert_bits(np.stack(loop), want, word)
        stream = decoder.stream()
        stream.state = steps.state
        assert_bits(np.stack([stream.step(phoneme) for phoneme in inputs]), want, word)


def test_hand_over_with_invented_weights() -> None:
    check_hand_over(invented(), ["recurrent", "a", "o'neill"])


@needs_models
def test_g2p_has_the_phonemes_of_its_package(level: str) -> None:
    model = published()
    check_hand_over(model, list(WORDS)[:8])
    pronounce = grapheme_to_phoneme.GraphemeToPhoneme(model)
    assert {word: " ".join(pronounce(word)) for word in WORDS} == WORDS
    checked = 0
    for meta, call, arrays in calls("g2p_en"):
        x, h0 = arrays[call["x"]][0], arrays[call["h0"]][0]
        stream = gru(model, call["layer"]).stream()
        stream.state = h0[:, None]
        y = np.stack([stream.step(step) for step in x])
        np.testing.assert_allclose(y, arrays[call["y"]][0], rtol=0, atol=meta["tolerance"])
        checked += len(x)
    assert checked > 200


def test_grapheme_to_phoneme_runs(tmp_path: Path) -> None:
    """As a program, with a package of weights that it finds and does not import."""
    package = tmp_path / "g2p_en"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('must not be imported')")
    np.savez(package / "checkpoint20.npz", **invented())
    result = run("grapheme_to_phoneme", "kernel", PYTHONPATH=str(tmp_path))
    assert result.returncode == 0, result.stderr
    expected = grapheme_to_phoneme.GraphemeToPhoneme(invented())("kernel")
    assert result.stdout.split() == ["kernel", *expected]
