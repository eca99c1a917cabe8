"""A small training kit: what stands before and behind a recurrent layer, in NumPy alone.

    Embedding, Linear                  modules: call them for inference, `record` for training
    masked_mean, masked_mean_backward  a sequence's outputs averaged over its real steps
    softmax_cross_entropy              loss and gradient of a classifier
    clip_grad_norm                     bounds the common norm of all gradients
    SGD, Adam                          optimisers

Names, defaults and formulas are torch's. As with the recurrent layers, a backward pass adds
parameter gradients into `module.grads` and returns those of the input:

    y, tape = linear.record(x)
    loss, dy = softmax_cross_entropy(y, targets)
    dx = tape.backward(dy)
    clip_grad_norm([lstm, linear], 1.0)
    optimiser.step()
    optimiser.zero_grad()
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .parameters import FloatArray, Module, converted_all
from .validation import (
    Shape,
    as_floats,
    as_integers,
    as_targets,
    axis_length,
    boolean,
    check_shape,
    integer,
    number,
    positive,
    positive_int,
    refuse_mask,
)

__all__ = [
    "SGD",
    "Adam",
    "Embedding",
    "Linear",
    "clip_grad_norm",
    "masked_mean",
    "masked_mean_backward",
    "softmax_cross_entropy",
]

IntArray = NDArray[np.int64]

_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


# --- argument checks -----------------------------------------------------------------------------


def _floats(
    name: str, value: Any, shape: tuple[int | str, ...], dtype: np.dtype[Any] | None = None
) -> FloatArray:
    """Return `value` as an array of native byte order, checked for dtype and shape.

    In `shape` a letter stands for any size, and "..." in front for any leading dimensions. Without
    `dtype`, float32 and float64 are accepted.
    """
    array = as_floats(name, value, *([dtype] if dtype else _DTYPES))
    sizes = array.shape
    if shape[0] == "...":
        sizes = ("...", *array.shape[max(array.ndim - len(shape) + 1, 0) :])
    if len(sizes) != len(shape) or any(
        isinstance(size, int) and size != got for size, got in zip(shape, sizes, strict=True)
    ):
        expected = ", ".join(map(str, shape)) + "," * (len(shape) == 1)
        raise ValueError(f"{name}: expected shape ({expected}), got {array.shape}")
    return array


def _targets(module: Module, grads: Any) -> dict[str, FloatArray]:
    """Return where a tape of the module adds gradients: into `grads`, by default its own."""
    return as_targets(module.grads if grads is None else grads, module.params.shapes, module.dtype)


# --- modules -------------------------------------------------------------------------------------


class Embedding(Module):
    """A table of vectors, looked up by integer (torch.nn.Embedding).

    Parameter `weight` (num_embeddings, embedding_dim) ~ N(0, 1), drawn in float64 from
    numpy.random.default_rng(seed) and rounded to `dtype` (float32 or float64).

    The row `padding_idx` (negative: from the end) starts at zero and gets no gradient. It also
    stays zero under SGD and Adam with momentum and weight decay: every term of their steps is a
    multiple of the row itself or of gradients of it, and all of those are zero. Only an assignment
    changes it; such a row is looked up like any other, as in torch.

    Examples:
        >>> words = Embedding(1000, 16, padding_idx=0, seed=0)
        >>> words([[5, 7, 0]]).shape
        (1, 3, 16)
    """

    weight: FloatArray

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        dtype: DTypeLike = np.float32,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        self.num_embeddings = positive_int("num_embeddings", num_embeddings)
        self.embedding_dim = positive_int("embedding_dim", embedding_dim)
        if padding_idx is not None:
            n = self.num_embeddings
            expected = f"an integer from {-n} to {n - 1}"
            padding_idx = integer("padding_idx", padding_idx, expected, -n, n - 1) % n
        self.padding_idx = padding_idx
        super().__init__({"weight": (self.num_embeddings, self.embedding_dim)}, dtype)
        self.weight[...] = np.random.default_rng(seed).standard_normal(self.weight.shape)
        if padding_idx is not None:
            self.weight[padding_idx] = 0

    def __call__(self, ids: Any) -> FloatArray:
        """Return the vectors (..., embedding_dim) of the integers `ids` (...).

        TypeError for a dtype that is no integer, ValueError for an id that is not from 0 to
        num_embeddings - 1.
        """
        return self._lookup(as_integers("ids", ids, 0, self.num_embeddings - 1))

    def record(self, ids: Any) -> tuple[FloatArray, EmbeddingTape]:
        """Return the same vectors, and a tape for the backward pass."""
        checked = as_integers("ids", ids, 0, self.num_embeddings - 1)
        return self._lookup(checked), EmbeddingTape(self, checked)

    def _lookup(self, ids: IntArray) -> FloatArray:
        return np.asarray(self.weight.take(ids, axis=0))

    def __repr__(self) -> str:
        return (
            f"Embedding({self.num_embeddings}, {self.embedding_dim}, "
            f"padding_idx={self.padding_idx}, dtype={self.dtype})"
        )


class EmbeddingTape:
    """The ids of one `Embedding.record` (a copy)."""

    __slots__ = ("_embedding", "_ids")

    def __init__(self, embedding: Embedding, ids: IntArray) -> None:
        self._embedding, self._ids = embedding, ids

    def backward(self, dy: Any, *, grads: Mapping[str, FloatArray] | None = None) -> None:
        """Add the gradient dy (..., embedding_dim) of each id to its row of grads["weight"].

        `grads` defaults to the embedding's own. The rows of one id are summed pairwise, in an order
        that depends on nothing but their number; then there is one addition into `grads`. Each call
        adds again.
        """
        embedding = self._embedding
        width = embedding.embedding_dim
        rows = _floats("dy", dy, (*self._ids.shape, width), embedding.dtype).reshape(-1, width)
        targets = _targets(embedding, grads)
        ids = self._ids.ravel()
        if embedding.padding_idx is None:
            order = np.argsort(ids, kind="stable")
        else:
            real = np.flatnonzero(ids != embedding.padding_idx)
            order = real[np.argsort(ids[real], kind="stable")]
        ids, rows = ids[order], rows[order]
        # Equal ids are neighbours now. Add each id's 2nd, 4th, ... row to the one before it and
        # drop it, until every id has one row: a few wide operations, several times faster than
        # np.add.at and more accurate.
        rank = np.arange(ids.size) - np.searchsorted(ids, ids)
        while rank.any():
            odd = np.flatnonzero(rank & 1)
            rows[odd - 1] += rows[odd]
            even = np.flatnonzero(rank & 1 == 0)
            ids, rows, rank = ids[even], rows[even], rank[even] >> 1
        targets["weight"][ids] += rows


class Linear(Module):
    """y = x weight^T + bias (torch.nn.Linear).

    Parameters `weight` (out_features, in_features) and, unless `bias` is false, `bias`
    (out_features,): both uniform in +-1/sqrt(in_features), drawn in float64 from
    numpy.random.default_rng(seed) and rounded to `dtype` (float32 or float64). The products are
    NumPy's: their last bits depend on its BLAS.
    """

    weight: FloatArray
    bias: FloatArray

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        dtype: DTypeLike = np.float32,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        self.in_features = positive_int("in_features", in_features)
        self.out_features = positive_int("out_features", out_features)
        shapes: dict[str, Shape] = {"weight": (self.out_features, self.in_features)}
        if boolean("bias", bias):
            shapes["bias"] = (self.out_features,)
        super().__init__(shapes, dtype)
        bound = 1 / math.sqrt(self.in_features)
        self.flat_params[...] = np.random.default_rng(seed).uniform(
            -bound, bound, self.flat_params.size
        )

    def __call__(self, x: Any) -> FloatArray:
        """Return y (..., out_features) for x (..., in_features) of the layer's dtype."""
        return self._apply(self._checked(x))

    def record(self, x: Any) -> tuple[FloatArray, LinearTape]:
        """Return y, and a tape for the backward pass.

        The tape holds x by reference: do not change it in between."""
        checked = self._checked(x)
        return self._apply(checked), LinearTape(self, checked)

    def _checked(self, x: Any) -> FloatArray:
        return _floats("x", x, ("...", self.in_features), self.dtype)

    def _apply(self, x: FloatArray) -> FloatArray:
        # One multiply: matmul of a stack would do one for each of its matrices.
        y = x.reshape(-1, self.in_features) @ self.weight.T
        if "bias" in self.params:
            y += self.bias
        return y.reshape(*x.shape[:-1], self.out_features)

    def __repr__(self) -> str:
        return (
            f"Linear({self.in_features}, {self.out_features}, "
            f"bias={'bias' in self.params}, dtype={self.dtype})"
        )


class LinearTape:
    """The input of one `Linear.record`, and a copy of the weight: dx is that of the recorded pass
    even if an optimiser stepped in between.
    """

    __slots__ = ("_linear", "_weight", "_x")

    def __init__(self, linear: Linear, x: FloatArray) -> None:
        # A view: x itself may be given another shape.
        self._linear, self._x, self._weight = linear, x.view(), linear.weight.copy()

    def backward(
        self, dy: Any, *, grads: Mapping[str, FloatArray] | None = None, need_dx: bool = True
    ) -> FloatArray | None:
        """Return dx (..., in_features) for dy (..., out_features); None if `need_dx` is false.

        Adds the parameters' gradients into `grads`, which defaults to the layer's own. Each call
        adds again.
        """
        linear, x = self._linear, self._x
        rows = _floats("dy", dy, (*x.shape[:-1], linear.out_features), linear.dtype)
        rows = rows.reshape(-1, linear.out_features)
        targets = _targets(linear, grads)
        boolean("need_dx", need_dx)
        targets["weight"] += rows.T @ x.reshape(-1, linear.in_features)
        if "bias" in targets:
            targets["bias"] += rows.sum(axis=0)
        return (rows @ self._weight).reshape(x.shape) if need_dx else None


# --- pooling and loss ----------------------------------------------------------------------------


def masked_mean(y: Any, lengths: Any, *, batch_first: bool = False) -> FloatArray:
    """Return the mean (B, F) over the real steps of y (T, B, F), or (B, T, F) with batch_first.

    lengths (B,), integers from 0 to T: a row of 4 real steps padded to 11 is divided by 4. A row of
    length 0 gives zeros. Values behind a length are never read (NaN may stand there), and a row's
    result depends on its own real steps only. y float32 or float64; the result has its dtype.

    Examples:
        >>> y = np.array([[[1.0], [5.0]], [[3.0], [np.nan]]])  # T = 2, B = 2, F = 1
        >>> masked_mean(y, [2, 1]).tolist()
        [[2.0], [5.0]]
    """
    boolean("batch_first", batch_first)
    y = _floats("y", y, ("B", "T", "F") if batch_first else ("T", "B", "F"))
    rows = y if batch_first else y.swapaxes(0, 1)
    lengths = _lengths(lengths, *rows.shape[:2])
    mean = np.empty((rows.shape[0], rows.shape[2]), y.dtype)
    # A loop over rows costs the time of the real steps only, and needs no care for 0 * NaN.
    for total, row, length in zip(mean, rows, lengths.tolist(), strict=True):
        np.add.reduce(row[:length], axis=0, out=total)
    mean /= np.maximum(lengths, 1).astype(y.dtype)[:, None]
    return mean


def masked_mean_backward(dm: Any, lengths: Any, T: int, *, batch_first: bool = False) -> FloatArray:
    """Return the gradient of `masked_mean`: dy (T, B, F), or (B, T, F) with batch_first.

    dm (B, F) is the gradient of its result, lengths (B,) and batch_first as there. Behind a length
    dy is zero. dm is float32 or float64; the result has its dtype.
    """
    boolean("batch_first", batch_first)
    dm = _floats("dm", dm, ("B", "F"))
    T = axis_length("T", T)
    B, F = dm.shape
    lengths = _lengths(lengths, B, T)
    share = dm / np.maximum(lengths, 1).astype(dm.dtype)[:, None]
    dy = np.zeros((B, T, F) if batch_first else (T, B, F), dm.dtype)
    for row, step, length in zip(
        dy if batch_first else dy.swapaxes(0, 1), share, lengths.tolist(), strict=True
    ):
        row[:length] = step
    return dy


def _lengths(lengths: Any, B: int, T: int) -> IntArray:
    checked = as_integers("lengths", lengths, 0, T)
    check_shape("lengths", checked, (B,))
    return checked


def softmax_cross_entropy(logits: Any, targets: Any) -> tuple[float, FloatArray]:
    """Return the mean over rows of -log softmax(logits)[target], and its gradient dlogits (N, C).

    logits (N, C), float32 or float64; targets (N,), integers from 0 to C - 1. Stable for logits of
    any size: each row's maximum is subtracted first. Rows with NaN or +inf give a NaN loss and NaN
    in their own row of dlogits only. Without rows the loss is 0.

    Examples:
        >>> loss, dlogits = softmax_cross_entropy(np.zeros((1, 4)), [2])
        >>> round(loss, 6), dlogits.tolist()
        (1.386294, [[0.25, 0.25, -0.75, 0.25]])
    """
    logits = _floats("logits", logits, ("N", "C"))
    N, C = logits.shape
    if N and not C:
        raise ValueError(f"logits: expected at least one class, got shape {logits.shape}")
    targets = as_integers("targets", targets, 0, C - 1)
    check_shape("targets", targets, (N,))
    if N == 0:
        return 0.0, np.zeros((0, C), logits.dtype)
    rows = np.arange(N)
    with np.errstate(invalid="ignore"):  # inf - inf: the NaN in the result says it
        shifted = logits - logits.max(axis=1, keepdims=True)
        dlogits = np.exp(shifted)
        total = dlogits.sum(axis=1, keepdims=True)
        loss = np.mean(np.log(total[:, 0]) - shifted[rows, targets], dtype=np.float64)
        dlogits /= total
    dlogits[rows, targets] -= 1
    dlogits /= N
    return float(loss), dlogits


# --- gradients and optimisers --------------------------------------------------------------------


class Trainable(Protocol):
    """Anything with parameters and gradients under the same names, as arrays of float32 or float64.

    Where there are also `flat_params` and `flat_grads`, which hold all of them, those are used
    instead.
    """

    @property
    def params(self) -> Mapping[str, FloatArray]: ...

    @property
    def grads(self) -> Mapping[str, FloatArray]: ...


def _pairs(module: Trainable) -> list[tuple[FloatArray, FloatArray]]:
    """Return the arrays of parameters and gradients that an optimiser works on."""
    if hasattr(module, "flat_params") and hasattr(module, "flat_grads"):
        return [(module.flat_params, module.flat_grads)]
    return [(module.params[name], module.grads[name]) for name in module.params]


def _checked_float_arrays(name: str, arrays: Iterable[Any]) -> list[FloatArray]:
    found = list(arrays)
    for array in found:
        if not isinstance(array, np.ndarray) or array.dtype not in (np.float32, np.float64):
            got = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
            raise TypeError(f"{name}: expected modules and arrays of float32 or float64, got {got}")
        refuse_mask(name, array)
        if not array.flags.writeable:
            raise ValueError(f"{name}: expected writable arrays, got a read-only one")
    if len({id(array) for array in found}) < len(found):
        raise ValueError(f"{name}: expected each module or array once, got one twice")
    return found


# A step makes a dozen passes over each array: in runs of this many entries they find it in the
# cache.
_RUN = 32768


def _runs(*arrays: FloatArray) -> Iterator[tuple[FloatArray, ...]]:
    """Yield arrays of one shape in runs of entries (views)."""
    if all(array.flags.c_contiguous for array in arrays):
        lines = [array.reshape(-1) for array in arrays]
        for start in range(0, lines[0].size, _RUN):
            yield tuple(line[start : start + _RUN] for line in lines)
    else:
        yield arrays


def clip_grad_norm(modules_or_arrays: Any, max_norm: float) -> float:
    """Bound the common norm of gradients in place; return the Euclidean norm before.

    Takes a list of modules (their `grads` are meant), arrays and mappings of arrays, mixed, or one
    of these; the norm is that of everything together. As torch.nn.utils.clip_grad_norm_, everything
    is multiplied by min(1, max_norm / (norm + 1e-6)): a norm of NaN turns all gradients into NaN,
    an infinite one turns the infinite entries into NaN and the others into 0. The returned norm
    shows it, so that a step can be skipped; `max_norm=inf` measures only. The sum of squares is
    taken in float64 and in one fixed order.

    Examples:
        >>> gradient = np.array([3.0, 4.0])
        >>> clip_grad_norm(gradient, 1.0)
        5.0
        >>> gradient.round(3).tolist()
        [0.6, 0.8]
    """
    max_norm = number("max_norm", max_norm, infinite=True)
    given = modules_or_arrays
    if isinstance(given, (np.ndarray, Mapping)) or hasattr(given, "grads"):
        given = [given]
    elif not isinstance(given, Iterable):
        raise TypeError(
            f"modules_or_arrays: expected modules or arrays, got {type(given).__name__}"
        )
    arrays: list[Any] = []
    for item in given:
        if hasattr(item, "flat_grads"):
            arrays.append(item.flat_grads)
        elif hasattr(item, "grads") or isinstance(item, Mapping):
            arrays += getattr(item, "grads", item).values()
        else:
            arrays.append(item)
    arrays = _checked_float_arrays("modules_or_arrays", arrays)

    with np.errstate(over="ignore", invalid="ignore"):  # the returned norm says it
        squares = sum(
            float(np.square(run, dtype=np.float64).sum())
            for array in arrays
            for (run,) in _runs(array)
        )
        norm = math.sqrt(squares)
        scale = max_norm / (norm + 1e-6)
        if not scale >= 1:  # also where it is NaN
            for array in arrays:
                array *= scale
    return norm


class _Optimiser:
    """What SGD and Adam share: modules, the count of steps, buffers shaped like parameters."""

    # Constructor arguments that are attributes and part of the state, and their checks.
    _checks: ClassVar[dict[str, Callable[[str, Any], Any]]]

    def __init__(self, modules: Iterable[Trainable], buffers: tuple[str, ...]) -> None:
        if not isinstance(modules, Iterable) or isinstance(modules, (str, Mapping)):
            raise TypeError(f"modules: expected a list of modules, got {type(modules).__name__}")
        self.modules = list(modules)
        if not self.modules:
            raise ValueError("modules: expected at least one module, got an empty list")
        for module in self.modules:
            if not (hasattr(module, "params") and hasattr(module, "grads")):
                raise TypeError(f"modules: expected params and grads, got {type(module).__name__}")
        pairs = self._all_pairs()
        _checked_float_arrays("modules", (array for pair in pairs for array in pair))
        for param, grad in pairs:
            if param.shape != grad.shape:
                raise ValueError(
                    f"modules: expected a gradient of shape {param.shape}, got {grad.shape}"
                )
        self.steps = 0
        self._buffers = [{name: np.zeros_like(param) for name in buffers} for param, _ in pairs]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._checks:
            self._set_options({name: value})
        else:
            super().__setattr__(name, value)

    def _set_options(self, options: Mapping[str, Any]) -> None:
        """Set options, unless one is wrong in itself or beside the others: then none is set."""
        checked = {name: self._checks[name](name, value) for name, value in options.items()}
        self._check_together({**vars(self), **checked})
        vars(self).update(checked)

    def _check_together(self, options: Mapping[str, Any]) -> None:
        pass

    def _all_pairs(self) -> list[tuple[FloatArray, FloatArray]]:
        # Asked for anew at each step: a plain module may have put other arrays into its mappings.
        return [pair for module in self.modules for pair in _pairs(module)]

    def step(self) -> None:
        """Change all parameters by their gradients, in place."""
        self.steps += 1
        for (param, grad), buffers in zip(self._all_pairs(), self._buffers, strict=True):
            for run in _runs(param, grad, *buffers.values()):
                self._update(*run)

    def zero_grad(self) -> None:
        """Set all gradients to zero."""
        for _, grad in self._all_pairs():
            grad.fill(0)

    def state_dict(self) -> dict[str, FloatArray]:
        """Return copies of options, step count and buffers by name: what resuming needs.

        All are arrays: numpy.savez(file, **state) stores them, numpy.load(file) may be loaded.
        """
        return {name: array.copy() for name, array in self._state().items()}

    def load_state_dict(self, mapping: Mapping[str, Any]) -> None:
        """Copy a state in, options such as lr included.

        One ValueError names everything missing, unexpected or of a wrong shape, and then nothing
        was loaded.
        """
        state = converted_all("load_state_dict", mapping, self._state())
        kinds = {name: type(getattr(self, name)) for name in self._checks}  # float, bool or tuple
        self._set_options({name: kind(state[name].tolist()) for name, kind in kinds.items()})
        self.steps = int(state["steps"])
        for index, buffers in enumerate(self._buffers):
            for name, buffer in buffers.items():
                buffer[...] = state[f"{name}.{index}"]

    def _state(self) -> dict[str, FloatArray]:
        names = (*self._checks, "steps")
        state: dict[str, FloatArray] = {n: np.array(getattr(self, n), np.float64) for n in names}
        for index, buffers in enumerate(self._buffers):
            state |= {f"{name}.{index}": buffer for name, buffer in buffers.items()}
        return state

    def _update(self, param: FloatArray, grad: FloatArray, *buffers: FloatArray) -> None:
        raise NotImplementedError


def _decayed(param: FloatArray, grad: FloatArray, weight_decay: float) -> FloatArray:
    """Return grad + weight_decay * param without a change of grad."""
    if not weight_decay:
        return grad
    sum_ = param * weight_decay
    sum_ += grad
    return sum_


def _drop_tiny(average: FloatArray) -> None:
    """Set entries below about 1e-31 (float32) or 1e-292 (float64) to zero, in place.

    A running average whose gradients stay zero (a rare row of an Embedding) decays into subnormal
    numbers and, by rounding, never leaves them; each operation on them is about six times slower.
    """
    info = np.finfo(average.dtype)
    average[np.abs(average) < float(info.tiny) / float(info.eps)] = 0


# Often enough: from that bound down to the subnormal numbers it is 150 steps at a decay of 0.9.
_DROP_EVERY = 16


class SGD(_Optimiser):
    """Stochastic gradient descent with torch.optim.SGD's meaning of momentum (no dampening).

        g = grad + weight_decay * param
        b = momentum * b + g                                    (b = 0 at first)
        param -= lr * (g + momentum * b if nesterov else b)

    Nesterov's form is that of Sutskever, Martens, Dahl & Hinton 2013. Without momentum there is no
    b and the step is lr * g. Options may be changed between steps, but not from or to no momentum.
    Entries of b that have decayed to nearly nothing are dropped (see _drop_tiny).

    modules: a list of anything with `params` and `grads` (see Trainable), each once.
    """

    _checks: ClassVar = {
        "lr": number,
        "momentum": number,
        "weight_decay": number,
        "nesterov": boolean,
    }

    lr: float
    momentum: float
    weight_decay: float
    nesterov: bool

    def __init__(
        self,
        modules: Iterable[Trainable],
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        self._set_options(options | {"nesterov": nesterov})
        super().__init__(modules, ("momentum_buffer",) if self.momentum else ())

    def _check_together(self, options: Mapping[str, Any]) -> None:
        if options["nesterov"] and not options["momentum"]:
            raise ValueError("nesterov: expected a momentum above 0 with it, got 0")
        buffers = options.get("_buffers")
        if buffers and bool(buffers[0]) != bool(options["momentum"]):
            was = "one above 0" if buffers[0] else "0"
            raise ValueError(
                f"momentum: expected {was} as when SGD was built, got {options['momentum']}"
            )

    def _update(self, param: FloatArray, grad: FloatArray, *buffers: FloatArray) -> None:
        grad = _decayed(param, grad, self.weight_decay)
        change = grad
        for average in buffers:  # one with momentum, else none
            average *= self.momentum
            average += grad
            if self.steps % _DROP_EVERY == 0:
                _drop_tiny(average)
            change = grad + self.momentum * average if self.nesterov else average
        param -= float(self.lr) * change


def _betas(name: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"{name}: expected a pair of numbers, got {value!r}")
    return number(f"{name}[0]", value[0], below=1), number(f"{name}[1]", value[1], below=1)


class Adam(_Optimiser):
    """Adam (Kingma & Ba 2015) in the form of torch.optim.Adam.

    With t the count of steps from 1:

        g = grad + weight_decay * param
        m += (1 - b1) * (g - m)
        v = b2 * v + (1 - b2) * g^2
        param -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)

    The decay is part of the gradient (L2), as there; eps must be above 0, since an entry that never
    had a gradient, such as an Embedding's padding row, would be 0 / 0. `lr` may be changed between
    steps. Entries of m that have decayed to nearly nothing are dropped (see _drop_tiny).

    modules: a list of anything with `params` and `grads` (see Trainable), each once.
    """

    _checks: ClassVar = {"lr": number, "betas": _betas, "eps": positive, "weight_decay": number}

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float

    def __init__(
        self,
        modules: Iterable[Trainable],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        self._set_options(options)
        super().__init__(modules, ("first_moment", "second_moment"))

    def _update(self, param: FloatArray, grad: FloatArray, *buffers: FloatArray) -> None:
        first, second = buffers
        beta1, beta2 = self.betas
        grad = _decayed(param, grad, self.weight_decay)
        scratch = grad - first
        scratch *= 1 - beta1
        first += scratch
        if self.steps % _DROP_EVERY == 0:
            _drop_tiny(first)
        np.multiply(grad, grad, out=scratch)
        scratch *= 1 - beta2
        second *= beta2
        second += scratch
        np.sqrt(second, out=scratch)
        scratch /= math.sqrt(1 - beta2**self.steps)
        scratch += self.eps
        np.divide(first, scratch, out=scratch)
        scratch *= float(self.lr) / (1 - beta1**self.steps)
        param -= scratch
