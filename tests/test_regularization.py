"""`Regularization`: its options, and what layers, tapes and packed weights do with it."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest
from support import VARIANTS, Array, assert_bits, function_options, regularization, shaken

import rnnkern as rk
from rnnkern import functional
from rnnkern.reference import dropout

KINDS = [field.name for field in fields(rk.Regularization) if field.name != "variational"]
SEED = 0x0123456789ABCDEF

variants = pytest.mark.parametrize("name", VARIANTS)
dropped = pytest.mark.parametrize(  # those that have weight_dropout
    "name", [n for n, (cls, _) in VARIANTS.items() if regularization(cls, 0.5).weight_dropout]
)


def layer_of(name: str, **options: Any) -> Any:
    cls, own = VARIANTS[name]
    return shaken(cls(5, 20, **{"num_layers": 2, "seed": 0, **own, **options}))


def inputs(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(1).standard_normal((*shape, 5)).astype(dtype)


def parts(states: Any) -> tuple[Any, ...]:
    return states if isinstance(states, tuple) else (states,)


def assert_same(got: Any, want: Any) -> None:
    """y and the states of two calls."""
    for a, b in zip((got[0], *parts(got[1])), (want[0], *parts(want[1])), strict=True):
        assert_bits(a, b)


# The options


@pytest.mark.parametrize("name", KINDS)
def test_probabilities_are_checked(name: str) -> None:
    for value, error in ((-0.1, ValueError), (1.1, ValueError), (np.nan, ValueError),
                         (np.inf, ValueError), ("0.5", TypeError), (True, TypeError),
                         (None, TypeError)):  # fmt: skip
        with pytest.raises(error, match=f"^{name}: expected a probability from 0 to 1, got "):
            rk.Regularization(**{name: value})
    value = getattr(rk.Regularization(**{name: np.float32(0.5)}), name)
    assert (value, type(value)) == (0.5, float)
    assert getattr(rk.Regularization(**{name: 1}), name) == 1


def test_a_value() -> None:
    """Frozen, compared by value, shown as it is written; also in copies."""
    given = rk.Regularization(zoneout_h=0.5, input_dropout=np.float64(0.25), variational=True)
    assert repr(given) == "Regularization(input_dropout=0.25, zoneout_h=0.5, variational=True)"
    assert repr(rk.Regularization()) == "Regularization()"
    for twin in (copy.deepcopy(given), pickle.loads(pickle.dumps(given)), replace(given)):
        assert twin == given
        assert hash(twin) == hash(given)
    assert given != replace(given, variational=False)
    with pytest.raises(FrozenInstanceError):
        given.zoneout_h = 0  # type: ignore[misc]
    with pytest.raises(ValueError, match=r"^zoneout_c: "):
        replace(given, zoneout_c=2)
    with pytest.raises(TypeError, match=r"^variational: expected True or False, got 1"):
        rk.Regularization(variational=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-1, 2**31, 1.5, True, "1", None])
def test_first_step_is_checked(value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"^first_step: expected an integer from 0"):
        layer_of("sru").record(inputs(2, 3), first_step=value)


# Layers


@variants
def test_it_can_be_assigned(name: str) -> None:
    """As if the layer had been built with it; only zoneout acts in inference, and in streams."""
    x, cls = inputs(7, 3), VARIANTS[name][0]
    own = regularization(cls, 0.3)
    zoneout = rk.Regularization(zoneout_h=own.zoneout_h, zoneout_c=own.zoneout_c)
    layer = layer_of(name)
    plain, recorded = layer(x), layer.record(x, dropout_seed=SEED)
    frozen, stream = layer.freeze(), layer.stream(3)
    layer.regularization = own
    built = layer_of(name, regularization=own)
    assert_same(layer(x), built(x))
    assert_same(layer(x), layer_of(name, regularization=zoneout)(x))
    assert not np.array_equal(layer(x)[0], plain[0])
    assert_same(layer.record(x, dropout_seed=SEED), built.record(x, dropout_seed=SEED))
    assert_same(frozen(x), plain)
    assert_bits(stream.process(x), plain[0])
    stream.refresh()
    stream.reset()
    assert_bits(stream.process(x), layer(x)[0])
    assert_same(layer.freeze()(x), layer(x))
    layer.regularization = None
    assert_same(layer(x), plain)
    assert_same(layer.record(x, dropout_seed=SEED), recorded)
    with pytest.raises(TypeError, match=r"^regularization: "):
        layer.regularization = 0.5


@variants
def test_none_of_it_is_none(name: str) -> None:
    x = inputs(7, 3)
    for empty in (rk.Regularization(), rk.Regularization(variational=True)):
        layer = layer_of(name, regularization=empty)
        assert_same(layer.record(x), layer_of(name).record(x))
        assert_same(layer(x), layer_of(name)(x))


@pytest.mark.parametrize(("name", "state", "kind"), [
    (name, i, f"zoneout_{state}")
    for name, (cls, _) in VARIANTS.items()
    for i, state in enumerate(layer_of(name)._structure.states)
])  # fmt: skip
def test_zoneout_of_all_keeps_the_state(name: str, state: int, kind: str) -> None:
    """In training and, as its expectation, in inference; all of the gradient goes around."""
    layer = layer_of(name, regularization=rk.Regularization(**{kind: 1.0}))
    x, (_, final) = inputs(6, 3), layer(inputs(9, 3))
    hx = tuple(np.cos(np.arange(s.size, dtype=s.dtype)).reshape(s.shape) for s in parts(final))
    hx = hx if isinstance(final, tuple) else hx[0]
    _, after, tape = layer.record(x, hx)
    assert_bits(parts(after)[state], parts(hx)[state])
    assert_bits(parts(layer(x, hx)[1])[state], parts(hx)[state])
    _, dhx = tape.backward(dhx_n=hx)
    if len(parts(hx)) == 1:
        assert_bits(dhx, hx)
        assert not layer.flat_grads.any()


@variants
def test_everything_dropped(name: str) -> None:
    """Without inputs the outputs are those of zeros, without outputs there are no gradients."""
    x, layer = inputs(6, 3), layer_of(name, num_layers=1)
    layer.regularization = rk.Regularization(input_dropout=1)
    y, state, tape = layer.record(np.full_like(x, np.nan))
    assert_same((y, state), layer(np.zeros_like(x)))
    dx, _ = tape.backward(np.ones_like(y))
    assert not dx.any()
    layer.zero_grad()
    layer.regularization = rk.Regularization(output_dropout=1)
    y, state, tape = layer.record(x)
    assert not y.any()
    assert_same((y, state), (np.zeros_like(y), layer(x)[1]))
    tape.backward(np.full_like(y, np.nan))
    assert not layer.flat_grads.any()


def test_each_call_draws_new_masks() -> None:
    """Of every kind."""
    for cls in (rk.LSTM, rk.SRU):
        for kind in KINDS:
            try:
                layer = cls(5, 20, seed=0, regularization=rk.Regularization(**{kind: 0.5}))
            except ValueError:
                continue
            x = inputs(4, 2)
            first, second = (layer.record(x)[0] for _ in range(2))
            assert not np.array_equal(first, second), kind
            again = cls(5, 20, seed=0, regularization=layer.regularization)
            assert_bits(again.record(x)[0], first)


# DropConnect


@dropped
@pytest.mark.parametrize("p", [0.4, 1.0])
def test_drop_connect_is_a_mask_on_the_weights(name: str, p: float) -> None:
    """The bits of a layer with masked weights; of whose gradients the mask takes a part."""
    x, layer = inputs(7, 3), layer_of(name, bidirectional=True)
    layer.regularization = rk.Regularization(weight_dropout=p)
    twin, masks = layer_of(name, bidirectional=True), {}
    for k, matrix in enumerate(n for n in layer.params if n.startswith("weight_hh")):
        shape = (1, *layer.params[matrix].shape)
        kept = dropout.kept(p, SEED, k // 2, shape, kind=7, direction=k % 2)[0]
        masks[matrix] = np.where(kept, dropout.scale(p, np.float32), np.float32(0))
        twin.params[matrix] *= masks[matrix]
    y, state, tape = layer.record(x, dropout_seed=SEED)
    want, want_state, want_tape = twin.record(x)
    assert_same((y, state), (want, want_state))
    assert_same(layer(x), layer_of(name, bidirectional=True)(x))  # inference has all weights
    layer.flat_params *= 2  # an optimiser's step between record and backward
    assert_same(tape.backward(np.cos(y)), want_tape.backward(np.cos(y)))
    for n, g in twin.grads.items():
        assert_bits(layer.grads[n], 0 + g * masks[n] if n in masks else g, n)  # never -0


@dropped
def test_drop_connect_adds_into_gradients(name: str) -> None:
    x, layer = inputs(7, 3), layer_of(name, dtype=np.float64)
    x = x.astype(np.float64)
    layer.regularization = rk.Regularization(weight_dropout=0.4)
    y, _, tape = layer.record(x)
    tape.backward(np.cos(y), retain=True)
    once = layer.flat_grads.copy()
    tape.backward(np.cos(y))
    np.testing.assert_allclose(layer.flat_grads, 2 * once, rtol=1e-12, atol=1e-14)
    _, _, tape = layer.record(x)
    before = layer.flat_grads.copy()
    with pytest.raises(ValueError, match="dy"):
        tape.backward(y[1:])
    assert_bits(layer.flat_grads, before)


@dropped
def test_packed_weights_have_no_drop_connect(name: str) -> None:
    """Which changes the weights; everything else they take, and inference ignores it."""
    cls, options = VARIANTS[name]
    layer, x, own = layer_of(name), inputs(7, 3), function_options(options)
    forward = getattr(functional, f"{cls.__name__.lower()}_forward")
    packed = functional.pack(cls.__name__.lower(), layer.params, **own)
    given = regularization(cls, 0.3)
    assert_same(
        forward(x, packed, regularization=given, **own),
        forward(x, layer.params, regularization=given, **own),
    )
    says = "^params: expected a mapping with weight_dropout, got packed weights$"
    with pytest.raises(ValueError, match=says):
        forward(x, packed, regularization=given, record=True, **own)
    given = replace(given, weight_dropout=0)
    assert_same(
        forward(x, packed, regularization=given, record=True, seed=3, **own),
        forward(x, layer.params, regularization=given, record=True, seed=3, **own),
    )


@variants
def test_packed_weights_have_their_options(name: str) -> None:
    """Calls must be given the same."""
    cls, options = VARIANTS[name]
    layer, x, own = layer_of(name), inputs(7, 3), function_options(options)
    stem = cls.__name__.lower()
    packed = functional.pack(stem, layer.params, **own)
    forward = getattr(functional, f"{stem}_forward")
    assert_same(forward(x, packed, **own), forward(x, layer.params, **own))
    assert_same(forward(x, packed, **own), layer(x))
    if own:
        with pytest.raises(ValueError, match=r"^params: expected weights"):
            forward(x, packed)
    with pytest.raises(TypeError, match=r"^foo: not an option of the \w+, which has "):
        functional.pack(stem, layer.params, **own, foo=1)
