"""What can be read from states, and whether it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..train import Adam, Linear, softmax_cross_entropy
from ..validation import Array, as_array, check_shape, number, positive, positive_int

__all__ = ["Ablation", "Probe", "ablation", "linear_probe", "without_directions"]


class Probe(NamedTuple):
    """See `linear_probe`."""

    weight: Array
    bias: Array
    classes: Array | None
    score: float
    train_score: float
    chance: float
    directions: Array

    def __call__(self, states: ArrayLike) -> Array:
        """The values, or the logits of classes, (..., K) of states (..., F)."""
        return np.asarray(np.asarray(states) @ self.weight.T + self.bias)


def linear_probe(
    states: ArrayLike,
    targets: ArrayLike,
    *,
    groups: ArrayLike | None = None,
    test: float = 0.25,
    ridge: float = 1e-3,
    steps: int = 300,
    seed: int | np.random.Generator | None = 0,
) -> Probe:
    """Fit a linear map from states to something one suspects in them; score it on held-out ones.

    Alain & Bengio 2017, "Understanding intermediate layers using linear classifier probes";
    Belinkov 2022, "Probing classifiers: promises, shortcomings, and advances". Integers, booleans
    are classes, fitted by logistic regression (`rnnkern.train`); floats are values, fitted by ridge
    regression. Features are standardised by the training part, and the result is in terms of the
    states as they are.

    Args:
        states: (N, F), such as y[t], or y of many steps one below the other.
        targets: (N,) integers or floats.
        groups: (N,) integers: states of one group, such as the steps of one sequence, are all in
            the training part or all in the test part. Without them neighbours in time that look
            alike fall into both, and the score is too good.
        test: the share of the groups, or states, that is held out, between 0 and 1.
        ridge: the penalty on squared weights, of standardised features.
        steps: of Adam, for classes.
        seed: of the split.

    Returns:
        weight, bias: (K, F) and (K,): a row for each class, or one for values; float64.
        classes: (K,) what the rows stand for; None for values.
        score, train_score: accuracy, for values R**2, of the test and of the training part.
        chance: accuracy on the test part of always saying the training part's most frequent class;
            for values 0.
        directions: orthonormal (r, F), for `ablation`: along them the classes' means differ, or the
            states covary with the values, in the training part. Without them no linear probe reads
            anything there (Belrose et al. 2023, "LEACE"); without the probe's weights alone,
            other weights would.

    Proves: that the quantity can be read linearly from the states, where score is far above chance.
    Does not prove: that the network uses it. Random networks, too, hold a good deal of their input,
    and a probe with many features learns by itself (Hewitt & Liang 2019). A low score shows only
    that it is not there *linearly*. See `ablation` for the use.
    """
    X, given = as_array("states", states).astype(np.float64), as_array("targets", targets)
    if X.ndim != 2:
        raise ValueError(f"states: expected shape (N, F), got {X.shape}")
    check_shape("targets", given, (len(X),))
    rng = np.random.default_rng(seed)
    held_out = _held_out(groups, len(X), number("test", test, below=1), rng)
    mean, scale = X[~held_out].mean(axis=0), X[~held_out].std(axis=0)
    scale[scale == 0] = 1
    Z = (X - mean) / scale
    classes = None
    if given.dtype.kind in "biu":
        classes, labels = np.unique(given, return_inverse=True)
        fitted = _logistic(Z[~held_out], labels[~held_out], len(classes), ridge, steps)
        accuracy = np.argmax(Z @ fitted[0].T + fitted[1], axis=1) == labels
        frequent = np.bincount(labels[~held_out]).argmax()
        score, train_score = accuracy[held_out].mean(), accuracy[~held_out].mean()
        chance = (labels[held_out] == frequent).mean()
    else:
        values = given.astype(np.float64)
        fitted = _least_squares(Z[~held_out], values[~held_out], ridge)
        said = Z @ fitted[0][0] + fitted[1]
        score, train_score = (_r2(said[k], values[k]) for k in (held_out, ~held_out))
        chance = 0.0
    weight = fitted[0] / scale
    return Probe(
        weight, fitted[1] - weight @ mean, classes, float(score), float(train_score),
        float(chance), _directions(X[~held_out], given[~held_out], classes),
    )  # fmt: skip


def _held_out(groups: ArrayLike | None, n: int, share: float, rng: np.random.Generator) -> Array:
    """Booleans (n,): the test part."""
    members = np.arange(n) if groups is None else as_array("groups", groups)
    check_shape("groups", members, (n,))
    names = rng.permutation(np.unique(members))
    count = round(share * len(names))
    if not 0 < count < len(names):
        raise ValueError(
            f"test: expected a share that leaves both parts some of {len(names)} states or groups, "
            f"got {share:g}"
        )
    return np.isin(members, names[:count])


def _logistic(
    Z: Array, labels: Array, classes: int, ridge: float, steps: int
) -> tuple[Array, Array]:
    """Weight (K, F) and bias (K,) of a softmax."""
    linear = Linear(Z.shape[1], classes, dtype=np.float64, seed=0)
    linear.flat_params[...] = 0
    optimiser = Adam([linear], lr=0.05)
    for _ in range(positive_int("steps", steps)):
        logits, tape = linear.record(Z)
        tape.backward(softmax_cross_entropy(logits, labels)[1], need_dx=False)
        linear.grads["weight"][...] += number("ridge", ridge) * linear.weight
        optimiser.step()
        optimiser.zero_grad()
    return linear.weight, linear.bias


def _least_squares(Z: Array, values: Array, ridge: float) -> tuple[Array, Array]:
    """Weight (1, F) and bias (1,) of ridge regression; the bias is not penalised."""
    mean = values.mean()
    A = Z.T @ Z / len(Z) + positive("ridge", ridge) * np.eye(Z.shape[1])
    return np.linalg.solve(A, Z.T @ (values - mean) / len(Z))[None], np.array([mean])


def _r2(said: Array, values: Array) -> float:
    total = np.square(values - values.mean()).sum()
    return float(1 - np.square(said - values).sum() / total) if total else np.nan


def _directions(X: Array, given: Array, classes: Array | None) -> Array:
    """An orthonormal basis of the covariances of states and targets (or classes, one-hot)."""
    Z = given[:, None] if classes is None else given[:, None] == classes
    covariance = (Z - Z.mean(axis=0)).T @ (X - X.mean(axis=0))
    _, sizes, basis = np.linalg.svd(covariance, full_matrices=False)
    return np.asarray(basis[sizes > max(1e-8 * sizes.max(), 1e-300)])


def without_directions(
    states: ArrayLike, directions: ArrayLike, mean: ArrayLike | None = None
) -> Array:
    """States (..., F) with their components along orthonormal directions (r, F) set to the mean's.

    mean: (F,); default that of these states. Other components stay. The result has the states'
    dtype.
    """
    given, D = as_array("states", states), np.asarray(directions, np.float64)
    F = given.shape[-1]
    if D.ndim != 2 or D.shape[1] != F:
        raise ValueError(f"directions: expected shape (r, {F}) beside these states, got {D.shape}")
    centre = given.reshape(-1, D.shape[1]).mean(axis=0, dtype=np.float64) if mean is None else mean
    moved = (given - np.asarray(centre)) @ D.T @ D
    return np.asarray(given - moved, given.dtype)


class Ablation(NamedTuple):
    """See `ablation`."""

    baseline: float
    ablated: float
    random: Array


def ablation(
    states: ArrayLike,
    directions: ArrayLike,
    loss: Callable[[Any], float],
    *,
    trials: int = 20,
    seed: int | np.random.Generator | None = 0,
) -> Ablation:
    """Take what a probe reads out of the states that a head reads, and measure the loss.

    Ravfogel et al. 2020, "Null it out"; Elazar, Ravfogel, Jacovi & Goldberg 2021, "Amnesic
    probing". As many random directions, taken out in the same way, say what taking out costs.

        probe = linear_probe(y[-1], first_digit)
        ablation(y[-1], probe.directions, lambda s: softmax_cross_entropy(head(s), target)[0])

    Args:
        states: (..., F), what the head reads.
        directions: (r, F) orthonormal, such as `Probe.directions`.
        loss: a function of states, the head's loss.
        trials: how many sets of random directions.
        seed: of these.

    Returns:
        baseline: the loss of the states as they are.
        ablated: that without the directions; see `without_directions`.
        random: (trials,) those without r random directions.

    Proves: that the head uses what lies along the directions, where ablated is far above both
    baseline and random.
    Does not prove: the contrary, where it is not: the quantity may be there a second time, in other
    directions or not linearly. Nor that exactly this quantity is used: others may lie in the same
    directions. States without them are ones that the head has never seen. It is of the head; what
    later steps of the recurrence read needs an intervention there.
    """
    given, D = as_array("states", states), np.asarray(directions, np.float64)
    rng = np.random.default_rng(seed)
    baseline = float(loss(given))
    ablated = float(loss(without_directions(given, D)))
    others = (
        np.linalg.qr(rng.standard_normal((D.shape[1], len(D))))[0].T
        for _ in range(positive_int("trials", trials))
    )
    random = np.array([float(loss(without_directions(given, other))) for other in others])
    return Ablation(baseline, ablated, random)
