"""Parameters and Module: names, views into flat arrays, copies, loading, errors."""

import copy
import pickle

import numpy as np
import pytest

from rnnkern.parameters import Module, Parameters, float_dtype
from rnnkern.validation import positive_int

SHAPES = {"weight": (2, 3), "bias": (2,)}


class Layer(Module):
    def __init__(self, dtype=np.float32):
        self.size = 3  # set before there are parameters
        super().__init__(SHAPES, dtype)
        self.flat_params = np.arange(8)


def pickled(thing):
    return pickle.loads(pickle.dumps(thing))


def pickled_out_of_band(thing):
    """As through shared memory: the arrays come back over read-only buffers."""
    buffers = []
    data = pickle.dumps(thing, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[bytes(b.raw()) for b in buffers])


def is_view(view, flat):
    return np.shares_memory(view, flat)


def test_names_order_shapes_and_views():
    p = Parameters(SHAPES, np.float64)
    assert list(p) == ["weight", "bias"]
    assert len(p) == 2
    assert p.shapes == SHAPES
    assert p.flat.shape == (8,)
    assert p.flat.dtype == np.float64
    assert not p.flat.any()
    p["bias"][1] = 5
    assert p.flat.tolist() == [0, 0, 0, 0, 0, 0, 0, 5]
    p.flat[0] = 7
    assert p["weight"][0, 0] == 7
    assert "weight" in p
    assert "gain" not in p
    assert dict(p.items())["bias"] is p["bias"]
    assert repr(p) == "Parameters({weight: (2, 3), bias: (2,)}, float64)"


def test_assignment_copies_in():
    p = Parameters(SHAPES)
    flat, view, given = p.flat, p["bias"], np.array([1.5, 2.5])
    p["bias"] = given
    given[:] = 0
    assert p["bias"] is view
    assert view.tolist() == [1.5, 2.5]
    p["bias"] += 1
    p.flat += 1
    assert p.flat is flat
    assert flat.tolist() == [1, 1, 1, 1, 1, 1, 3.5, 4.5]
    p["bias"] = p["bias"][::-1]  # overlaps itself
    assert view.tolist() == [4.5, 3.5]
    p["weight"] = [[1, 2, 3], [4, 5, 6]]
    assert p["weight"].tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (np.zeros(3), ValueError, r"bias: expected shape \(2,\), got \(3,\)"),
        (0.0, ValueError, r"bias: expected shape \(2,\), got \(\)"),
        (np.zeros((2, 1)), ValueError, r"bias: expected shape \(2,\), got \(2, 1\)"),
        (np.zeros(2, complex), TypeError, "bias: expected real numbers, got dtype complex128"),
        (np.zeros(2, bool), TypeError, "bias: expected real numbers, got dtype bool"),
        (["a", "b"], TypeError, "bias: expected real numbers, got dtype <U1"),
        (None, TypeError, "bias: expected real numbers, got None"),
        ([[1], [1, 2]], ValueError, "bias: expected real numbers, got a list of 2; "),
        (np.ma.masked_array([1.0, 2.0], [0, 1]), TypeError, "bias: .* without a mask"),
    ],
)
def test_assignment_refuses_and_leaves_the_entry(value, error, message):
    p = Parameters(SHAPES)
    p["bias"][:] = 9
    with pytest.raises(error, match=message):
        p["bias"] = value
    assert p["bias"].tolist() == [9, 9]


def test_names_are_fixed():
    p = Parameters(SHAPES)
    with pytest.raises(KeyError, match="no parameter 'gain'; the names are weight, bias"):
        p["gain"] = np.zeros(2)
    with pytest.raises(KeyError, match="gain"):
        p["gain"]
    with pytest.raises(TypeError, match="cannot remove 'bias': the names are fixed"):
        del p["bias"]
    with pytest.raises(ValueError, match=r"flat: expected shape \(8,\), got \(7,\)"):
        p.flat = np.zeros(7)
    with pytest.raises(AttributeError):
        p.other = 1


@pytest.mark.parametrize("dtype", [np.float16, int, None, "text", ">f4", np.longdouble])
def test_dtype_is_float32_or_float64(dtype):
    with pytest.raises(TypeError, match="dtype: expected float32 or float64, got"):
        float_dtype(dtype)
    with pytest.raises(TypeError, match="dtype"):
        Parameters(SHAPES, dtype)


def test_accepted_dtypes():
    assert float_dtype("float32") == float_dtype(np.dtype("f4")) == np.float32
    assert float_dtype(float) == float_dtype(np.float64) == np.float64


def test_positive_int():
    assert positive_int("size", np.int8(3)) == 3
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=f"size: expected a positive integer, got {wrong}"):
            positive_int("size", wrong)
    for wrong in (1.0, "1", True, None, np.bool_(True)):
        with pytest.raises(TypeError, match="size: expected a positive integer, got"):
            positive_int("size", wrong)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled, pickled_out_of_band])
def test_copies_of_parameters_keep_views(duplicate):
    p = Parameters(SHAPES, np.float64)
    p.flat[:] = np.arange(8)
    q = duplicate(p)
    assert list(q) == list(p)
    assert q.shapes == SHAPES
    assert q.flat.dtype == np.float64
    assert q.flat.tolist() == p.flat.tolist()
    assert not is_view(q.flat, p.flat)
    q["weight"][0, 0] = 100
    q["bias"] = [50, 60]
    assert q.flat.tolist() == [100, 1, 2, 3, 4, 5, 50, 60]
    assert p.flat.tolist() == list(range(8))


def test_shallow_copy_shares():
    p = Parameters(SHAPES)
    copy.copy(p)["bias"][0] = 4
    assert p["bias"][0] == 4


def test_foreign_byte_order_is_restored_natively():
    p = Parameters(SHAPES)
    restore, (shapes, _) = p.__reduce__()
    q = restore(shapes, np.arange(8, dtype=">f4"))
    assert q.flat.dtype.isnative
    assert q["bias"].tolist() == [6, 7]
    assert is_view(q["bias"], q.flat)


def test_equality_is_identity():
    p = Parameters(SHAPES)
    assert p == p
    assert p != Parameters(SHAPES)
    assert len({p, p}) == 1


def test_zeros_like_and_empty():
    p = Parameters(SHAPES, np.float64)
    p.flat[:] = 1
    z = p.zeros_like()
    assert z.shapes == SHAPES
    assert z.flat.dtype == np.float64
    assert not z.flat.any()
    assert p.flat.all()
    assert Parameters({}).flat.shape == (0,)
    assert Parameters({"scalar": ()})["scalar"].shape == ()


def test_module_attributes():
    layer = Layer()
    assert layer.weight is layer.params["weight"]
    layer.bias = [8, 9]
    assert layer.flat_params.tolist() == [0, 1, 2, 3, 4, 5, 8, 9]
    layer.bias += 1
    layer.flat_params -= 1
    assert layer.params["bias"].tolist() == [8, 9]
    assert layer.dtype == np.float32
    layer.flat_grads = np.ones(8)
    layer.flat_grads *= 3
    assert layer.grads["weight"].tolist() == [[3, 3, 3], [3, 3, 3]]
    assert "bias" not in vars(layer)
    layer.zero_grad()
    assert not layer.flat_grads.any()
    assert layer.flat_params.any()
    layer.size = 4
    assert layer.size == 4


def test_module_attribute_errors():
    layer = Layer()
    with pytest.raises(ValueError, match=r"weight: expected shape \(2, 3\), got \(3, 2\)"):
        layer.weight = np.zeros((3, 2))
    with pytest.raises(AttributeError, match="'Layer' object has no attribute 'gain'"):
        _ = layer.gain
    with pytest.raises(AttributeError):
        layer.params = {}
    assert not hasattr(Layer.__new__(Layer), "weight")  # no endless recursion before __init__


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled, pickled_out_of_band])
def test_copies_of_modules(duplicate):
    layer = Layer(np.float64)
    layer.grads["bias"] = [1, 2]
    twin = duplicate(layer)
    assert type(twin) is Layer
    assert twin.size == 3
    assert twin.flat_params.tolist() == layer.flat_params.tolist()
    assert twin.flat_grads.tolist() == layer.flat_grads.tolist()
    assert is_view(twin.weight, twin.flat_params)
    assert is_view(twin.grads["bias"], twin.flat_grads)
    twin.flat_params[:] = -1
    twin.flat_grads[:] = -1
    assert (twin.weight == -1).all()
    assert layer.flat_params.tolist() == list(range(8))
    assert layer.grads["bias"].tolist() == [1, 2]


def test_state_dict_is_a_copy_and_loads():
    layer = Layer()
    state = layer.state_dict()
    assert list(state) == ["weight", "bias"]
    layer.flat_params[:] = 0
    assert state["bias"].tolist() == [6, 7]
    layer.load_state_dict(state)
    assert layer.flat_params.tolist() == list(range(8))
    state["bias"][:] = 0
    assert layer.bias.tolist() == [6, 7]
    double = {name: array.astype(np.float64) for name, array in state.items()}
    layer.load_state_dict(double)
    assert layer.dtype == np.float32
    assert layer.bias.tolist() == [0, 0]


def test_load_from_views_of_itself():
    swapped = Module({"a": (2,), "b": (2,)})
    swapped.flat_params = [1, 2, 3, 4]
    swapped.load_state_dict({"a": swapped.params["b"], "b": swapped.params["a"]})
    assert swapped.flat_params.tolist() == [3, 4, 1, 2]


def test_load_from_npz(tmp_path):
    layer = Layer()
    np.savez(tmp_path / "state.npz", **layer.state_dict())
    layer.flat_params[:] = 0
    with np.load(tmp_path / "state.npz") as state:
        layer.load_state_dict(state)
    assert layer.flat_params.tolist() == list(range(8))


def test_load_names_everything_wrong_and_loads_nothing():
    layer = Layer()
    layer.flat_params[:] = 3
    with pytest.raises(ValueError, match="load_state_dict") as caught:
        layer.load_state_dict({"weight": np.zeros((3, 2)), "gain": 1, "scale": 2})
    message = str(caught.value)
    assert "missing 'bias'" in message
    assert "unexpected 'gain'" in message
    assert "unexpected 'scale'" in message
    assert "weight: expected shape (2, 3), got (3, 2)" in message
    with pytest.raises(ValueError, match="bias: expected real numbers"):
        layer.load_state_dict({"weight": np.zeros((2, 3)), "bias": ["a", "b"]})
    assert (layer.flat_params == 3).all()
    with pytest.raises(TypeError, match="expected a mapping of names to arrays, got a list of 1"):
        layer.load_state_dict([np.zeros((2, 3))])


def test_load_not_strict():
    layer = Layer()
    layer.load_state_dict({"bias": [1, 2], "gain": 5}, strict=False)
    assert layer.bias.tolist() == [1, 2]
    assert layer.weight[1, 2] == 5
    with pytest.raises(ValueError, match="bias: expected shape"):
        layer.load_state_dict({"bias": [1, 2, 3]}, strict=False)
    with pytest.raises(TypeError, match=r"^strict: expected True or False, got 0"):
        layer.load_state_dict({}, strict=0)


@pytest.mark.parametrize("shape", [(2**50,), (2**70,)])
def test_too_many_for_memory(shape):
    with pytest.raises(ValueError, match=r"^too large: \d+ parameters do not fit into memory"):
        Parameters({"weight": shape})
