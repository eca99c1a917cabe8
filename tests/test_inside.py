"""What a call shows and changes inside the recurrence: outputs of all layers, gates, gradients of
states, and their clipping."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from support import VARIANTS, function_options, regularization, shaken

import rnnkern as rk
from rnnkern import functional, isa, reference

T, B, I, H, L = 7, 5, 3, 18, 3  # noqa: E741
KINDS: list[tuple[Any, dict[str, Any]]] = [
    (rk.RNN, {}),
    (rk.RNN, {"nonlinearity": "relu"}),
    (rk.LSTM, {}),
    (rk.GRU, {}),
    (rk.GRU, {"reset_after": False}),
    *VARIANTS.values(),
]
IDS = ["rnn_tanh", "rnn_relu", "lstm", "gru", "gru_before", *(f"{name}+" for name in VARIANTS)]
kinds = pytest.mark.parametrize(("cls", "options"), KINDS, ids=IDS)


def layer_of(cls: Any, options: Any, **more: Any) -> Any:
    options = {"num_layers": L, "bidirectional": True, "dtype": np.float64, **options, **more}
    return shaken(cls(I, H, dropout=0.3, seed=0, **options))


def arguments(batch_first: bool = False) -> tuple[Any, dict[str, Any]]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((T, B, I))
    resets, lengths = rng.random((T, B)) < 0.2, np.array([7, 0, 3, 7, 1])
    if batch_first:
        x, resets = x.swapaxes(0, 1), resets.swapaxes(0, 1)
    return x, {"lengths": lengths, "resets": resets}


def reference_of(layer: Any, options: Any) -> tuple[Any, Any]:
    name = type(layer).__name__.lower()
    forward = getattr(reference, f"{name}_forward")
    options = function_options(options) | {"regularization": layer.regularization}
    return lambda x, **more: forward(x, layer.params, **options, **more), getattr(
        reference, f"{name}_backward"
    )


def parts(states: Any) -> tuple[Any, ...]:
    return states if isinstance(states, tuple) else (states,)


@kinds
@pytest.mark.parametrize(("batch_first", "p"), [(False, 0.0), (True, 0.0), (False, 0.2)])
def test_all_layers_clip_and_norms(cls: Any, options: Any, batch_first: bool, p: float) -> None:
    layer = layer_of(cls, options, batch_first=batch_first)
    layer.regularization = regularization(cls, p)
    forward, backward = reference_of(layer, options)
    x, more = arguments(batch_first)
    want, _, want_tape = forward(
        x, batch_first=batch_first, all_layers=True, dropout=0.3, seed=9, **more
    )
    y, _, tape = layer.record(x, all_layers=True, dropout_seed=9, **more)
    np.testing.assert_allclose(y, want, atol=1e-12)
    dy = np.random.default_rng(2).standard_normal(y.shape)
    want_dx, want_dh, want_grads = backward(want_tape, dy, clip_state_grad=0.2)
    dx, dh = tape.backward(dy, clip_state_grad=0.2, state_grads=True)
    np.testing.assert_allclose(dx, want_dx, atol=1e-12)
    for got, expected in zip(parts(dh), parts(want_dh), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-12)
        assert np.abs(got).max() <= 0.2
    for name, grad in layer.grads.items():
        np.testing.assert_allclose(grad, want_grads[name], atol=1e-12)
    for got, expected in zip(parts(tape.state_grad_norms), want_tape.state_grad_norms, strict=True):
        time_major = got.swapaxes(1, 2) if batch_first else got
        np.testing.assert_allclose(time_major, expected, atol=1e-12)
    assert np.array_equal(layer(x, **more)[0], layer(x, all_layers=True, **more)[0][-1])


@kinds
def test_the_same_bits_on_every_level_and_thread_count(cls: Any, options: Any) -> None:
    results = []
    x, more = arguments()
    for level, num_threads in product(isa.available(), (1, 2, 3)):
        with isa.using(level):
            layer = layer_of(cls, options)
            for checkpoint in (None, "gates", 3):
                layer.zero_grad()
                y, _, tape = layer.record(
                    x,
                    all_layers=True,
                    dropout_seed=4,
                    checkpoint=checkpoint,
                    num_threads=num_threads,
                    **more,
                )
                dy = np.random.default_rng(3).standard_normal(y.shape)
                dx, _ = tape.backward(
                    dy, clip_state_grad=0.5, state_grads=True, num_threads=num_threads
                )
                norms = np.concatenate(parts(tape.state_grad_norms))
                results.append((y, dx, norms, layer.flat_grads.copy()))
    for result in results[1:]:
        for got, want in zip(result, results[0], strict=True):
            np.testing.assert_array_equal(got, want)


def before(h: Any, resets: Any, k: int) -> Any:
    """The state before each step of sweep k of two directions."""
    shifted = np.zeros_like(h)
    cut = resets[..., None]
    if k % 2 == 0:
        shifted[1:] = np.where(cut[1:], 0, h[:-1])
    else:
        shifted[:-1] = np.where(cut[1:], 0, h[1:])
    return shifted


def products(layer: Any, w: Any, of: str, v: Any) -> list[Any]:
    """W x + b_ih or U h + b_hh, in blocks; without such a matrix zeros."""
    eps = getattr(layer, "norm_eps", 0.0)
    if f"weight_{of}" not in w:
        a = np.zeros(())
    elif w[f"weight_{of}"].ndim == 1:
        a = w[f"weight_{of}"] * v
    else:
        a = reference.product.product(w, of, v, eps)[0] + w.get(f"bias_{of}", 0)
    blocks = layer._structure.blocks
    return np.split(a, blocks, axis=-1) if a.ndim else [a] * blocks


def functions(layer: Any) -> Any:
    given = [layer.nonlinearity] if hasattr(layer, "nonlinearity") else layer.activations
    return reference.act.resolve_all(given, len(given), getattr(layer, "clip", None))


def step_rnn(layer: Any, w: Any, x: Any, h: Any) -> dict[str, Any]:
    (g,), (a,), (b,) = functions(layer), products(layer, w, "ih", x), products(layer, w, "hh", h)
    return {"a": a + b, "h": g(a + b)}


def step_lstm(layer: Any, w: Any, x: Any, h: Any, c: Any) -> dict[str, Any]:
    s, t, q = functions(layer)
    both = zip(products(layer, w, "ih", x), products(layer, w, "hh", h), strict=True)
    *a, a_g, a_o = (of_x + of_h for of_x, of_h in both)
    *p, p_o = np.split(w["weight_ch"], len(a) + 1) if layer.peephole else [0.0] * (len(a) + 1)
    gates = [s(each + peephole * c) for each, peephole in zip(a, p, strict=True)]
    found = {"e": gates[0]} if layer.coupled else dict(zip("if", gates, strict=True))
    i, f = gates if not layer.coupled else (1 - gates[0], gates[0])
    i, f = (f, i) if layer.coupled == "forget" else (i, f)
    new = reference.act.clamp(f * c + i * t(a_g), layer.cell_clip)
    o, normal = s(a_o + p_o * new), new
    if layer.layer_norm:
        normal, _ = reference.product.layer_norm(new, w["norm_c"], layer.norm_eps)
        normal = normal + w["norm_c_bias"]
    y = o * q(normal)
    y = y @ w["weight_hr"].T if layer.proj_size else y
    return found | {"g": t(a_g), "o": o, "c": new, "h": y}


def step_gru(layer: Any, w: Any, x: Any, h: Any) -> dict[str, Any]:
    s, t = functions(layer)
    of_x, of_h = products(layer, w, "ih", x), products(layer, w, "hh", h)
    r, z = s(of_x[0] + of_h[0]), s(of_x[1] + of_h[1])
    found = {"r": r, "z": z, "u": of_h[2]}
    if layer.reset_after:
        n = t(of_x[2] + r * of_h[2])
    else:
        n = t(of_x[2] + products(layer, w, "hh", r * h)[2])
        del found["u"]
    return found | {"n": n, "h": (1 - z) * n + z * h}


def step_mgu(layer: Any, w: Any, x: Any, h: Any) -> dict[str, Any]:
    s, t = functions(layer)
    of_x = products(layer, w, "ih", x)
    f = s(of_x[0] + products(layer, w, "hh", h)[0])
    n = t(of_x[1] + products(layer, w, "hh", f * h)[1])
    return {"f": f, "n": n, "h": (1 - f) * h + f * n}


def step_indrnn(layer: Any, w: Any, x: Any, h: Any) -> dict[str, Any]:
    a = x @ w["weight_ih"].T + w["bias_ih"] + w["weight_hh"] * h
    return {"a": a, "h": functions(layer)[0](a)}


def step_sru(layer: Any, w: Any, x: Any, c: Any) -> dict[str, Any]:
    s, q = functions(layer)
    n, f, r, highway = products(layer, w, "ih", x)
    v_f, v_r = np.split(w["weight_ch"], 2)
    f, r = s(f + v_f * c), s(r + v_r * c)
    new = f * c + (1 - f) * n
    y = r * q(new) + (1 - r) * highway
    return {"n": n, "f": f, "r": r, "x": highway, "c": new, "h": y}


def step_mingru(layer: Any, w: Any, x: Any, h: Any) -> dict[str, Any]:
    s, t = functions(layer)
    z, n = products(layer, w, "ih", x)
    return {"z": s(z), "n": t(n), "h": (1 - s(z)) * h + s(z) * t(n)}


STEPS: dict[Any, Any] = {
    rk.RNN: step_rnn, rk.LSTM: step_lstm, rk.GRU: step_gru, rk.MGU: step_mgu,
    rk.IndRNN: step_indrnn, rk.SRU: step_sru, rk.MinGRU: step_mingru,
}  # fmt: skip
"""What is inside a step of some rows, from x and the states before it."""


@kinds
@pytest.mark.parametrize("record", [False, None, "gates", 2])
def test_the_trace_satisfies_the_equations(cls: Any, options: Any, record: Any) -> None:
    layer = layer_of(cls, options)
    layer.dropout = 0.0
    x, more = arguments()
    if record is not False:
        y, _, tape = layer.record(x, trace=True, checkpoint=record, **more)
        trace = tape.trace
    else:
        y, _, trace = layer(x, trace=True, **more)
    np.testing.assert_array_equal(y, layer(x, **more)[0])
    np.testing.assert_array_equal(y, np.concatenate([*trace["h"][-2:]], axis=-1))
    real = np.arange(T)[:, None] < more["lengths"]
    inputs = x
    for k in range(2 * L):
        if k % 2 == 0 and k:
            inputs = np.concatenate([trace["h"][k - 2], trace["h"][k - 1]], axis=-1)
        suffix = f"_l{k // 2}" + "_reverse" * (k % 2)
        w = {n.removesuffix(suffix): p for n, p in layer.params.items() if n.endswith(suffix)}
        now = {key: a[k] for key, a in trace.items()}
        for a in now.values():
            assert not a[~real].any()
        names = layer._structure.states
        states = {key: before(now[key], more["resets"], k)[real] for key in names}
        expected = STEPS[cls](layer, w, inputs[real], **states)
        assert expected.keys() == now.keys()
        for key, value in expected.items():
            np.testing.assert_allclose(now[key][real], value, atol=1e-12, err_msg=key)


@pytest.mark.parametrize("name", VARIANTS)
def test_all_layers_and_the_trace_are_before_output_dropout(name: str) -> None:
    cls, options = VARIANTS[name]
    layer = layer_of(cls, options, dtype=np.float32)
    layer.regularization = regularization(cls, 0.3, output_dropout=0.5)
    x, more = arguments()
    x = x.astype(np.float32)
    y, state, _ = layer.record(x, dropout_seed=5, **more)
    of_layers, same, tape = layer.record(x, dropout_seed=5, all_layers=True, trace=True, **more)
    np.testing.assert_array_equal(np.concatenate([*tape.trace["h"][-2:]], axis=-1), of_layers[-1])
    for got, want in zip(parts(state), parts(same), strict=True):
        np.testing.assert_array_equal(got, want)
    width = layer._structure.width
    kept = [
        reference.dropout.kept(0.5, 5, L - 1, (1, B, width), kind=2, direction=d) for d in (0, 1)
    ]
    masked = np.where(np.concatenate(kept, axis=-1), 2 * of_layers[-1], 0)
    np.testing.assert_array_equal(y, masked)


@pytest.mark.parametrize("shape", [(T, I), (T, B, I)])
def test_layouts(shape: Any) -> None:
    layer = rk.LSTM(I, H, num_layers=2, batch_first=True, seed=0)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    y, _, trace = layer(x, trace=True, all_layers=True)
    assert y.shape == (2, *shape[:-1], H)
    assert {a.shape for a in trace.values()} == {y.shape}
    np.testing.assert_array_equal(trace["h"], y)
    out = np.empty_like(y)
    assert layer(x, all_layers=True, out=out)[0] is out
    np.testing.assert_array_equal(out, y)
    _, _, frozen = layer.freeze()(x, trace=True)
    np.testing.assert_array_equal(frozen["c"], trace["c"])
    tape = layer.record(x, all_layers=True)[2]
    with pytest.raises(ValueError, match="dy"):
        tape.backward(y[0])
    tape.backward(y, state_grads=True)
    assert tape.state_grad_norms[0].shape == y.shape[:-1]


def test_nothing_changes_without_them() -> None:
    layer = rk.GRU(I, H, seed=0)
    x = np.ones((T, B, I), np.float32)
    tape = layer.record(x)[2]
    dx, _ = tape.backward(np.ones((T, B, H), np.float32), retain=True)
    assert tape.state_grad_norms is None and tape.trace is None
    clipped, _ = tape.backward(np.ones((T, B, H), np.float32), clip_state_grad=1e30)
    np.testing.assert_array_equal(clipped, dx)


def test_a_nan_stays_in_its_row() -> None:
    layer = rk.LSTM(I, H, seed=0)
    x = np.random.default_rng(0).standard_normal((T, B, I)).astype(np.float32)
    x[2, 1, 0] = np.nan
    tape = layer.record(x)[2]
    tape.backward(np.ones((T, B, H), np.float32), clip_state_grad=1, state_grads=True)
    bad = np.isnan(np.stack(tape.state_grad_norms)).any(axis=(0, 1, 2))
    assert bad.tolist() == [False, True, False, False, False]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"clip_state_grad": 0}, "clip_state_grad"),
        ({"clip_state_grad": -1.0}, "clip_state_grad"),
        ({"clip_state_grad": "x"}, "clip_state_grad"),
        ({"clip_state_grad": np.nan}, "clip_state_grad"),
        ({"state_grads": 1}, "state_grads"),
    ],
)
def test_wrong_backward_options(options: Any, word: str) -> None:
    tape = rk.GRU(I, H, seed=0).record(np.ones((T, B, I), np.float32))[2]
    with pytest.raises((TypeError, ValueError), match=word):
        tape.backward(**options)


@kinds
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bias", [False, True])
def test_row_gradients_have_the_bits_of_rows_alone(
    cls: Any, options: Any, dtype: Any, bias: bool
) -> None:
    layer = layer_of(cls, options, num_layers=2, bias=bias, dtype=dtype)
    layer.dropout = 0.0
    rng = np.random.default_rng(4)
    steps = 300  # more than one run of 256 rows
    x = rng.standard_normal((steps, 3, I)).astype(dtype)
    dy = rng.standard_normal((steps, 3, layer._structure.features)).astype(dtype)
    lengths, resets = np.array([290, 0, 300]), rng.random((steps, 3)) < 0.01
    want = {name: [] for name in layer.params}
    for b in range(3):
        layer.zero_grad()
        alone = slice(b, b + 1)
        tape = layer.record(x[:, alone], lengths=lengths[alone], resets=resets[:, alone])[2]
        tape.backward(dy[:, alone])
        for name, grad in layer.grads.items():
            want[name].append(grad.copy())
    layer.zero_grad()
    for num_threads in (1, 2, 3):
        tape = layer.record(x, lengths=lengths, resets=resets)[2]
        tape.backward(dy, row_grads=True, num_threads=num_threads)
        assert not layer.flat_grads.any()
        for name, grads in tape.row_grads.items():
            np.testing.assert_array_equal(grads, np.stack(want[name]), err_msg=name)


@kinds
def test_row_gradients_add_up(cls: Any, options: Any) -> None:
    """Behind masks of all kinds, which depend on the row."""
    layer, (x, more) = layer_of(cls, options), arguments()
    layer.regularization = regularization(cls, 0.3)
    y, _, tape = layer.record(x, dropout_seed=6, **more)
    tape.backward(np.cos(y), retain=True)
    tape.backward(np.cos(y), row_grads=True)
    for name, grads in tape.row_grads.items():
        np.testing.assert_allclose(grads.sum(axis=0), layer.grads[name], atol=1e-12, err_msg=name)


def test_row_gradients_of_functions() -> None:
    layer, x = rk.LSTM(I, H, seed=0), np.ones((T, B, I), np.float32)
    _, _, tape = functional.lstm_forward(x, layer.params, record=True)
    _, _, grads = functional.lstm_backward(tape, np.ones((T, B, H), np.float32), row_grads=True)
    assert {name: g.shape[1:] for name, g in grads.items()} == layer.params.shapes
    assert {len(g) for g in grads.values()} == {B}


def test_wrong_row_gradients() -> None:
    x = np.ones((T, B, I), np.float32)
    for learn, checkpoint in ((False, "gates"), (False, 3), (True, None)):
        layer = rk.GRU(I, H, learn_initial_state=learn, seed=0)
        tape = layer.record(x, checkpoint=checkpoint)[2]
        with pytest.raises(ValueError, match="row_grads"):
            tape.backward(row_grads=True)
    tape = layer.record(x)[2]
    with pytest.raises(ValueError, match="grads"):
        tape.backward(row_grads=True, grads=layer.grads)
    with pytest.raises(TypeError, match="row_grads"):
        tape.backward(row_grads=1)


def test_wrong_forward_options() -> None:
    layer, x = rk.GRU(I, H, seed=0), np.ones((T, B, I), np.float32)
    for option in ("trace", "all_layers"):
        with pytest.raises(TypeError, match=option):
            layer(x, **{option: 1})
    with pytest.raises(ValueError, match="out"):
        layer(x, all_layers=True, out=np.empty((T, B, H), np.float32))
