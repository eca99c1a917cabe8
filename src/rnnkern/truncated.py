"""Truncated backpropagation through time (Williams & Peng, 1990, "An efficient gradient-based
algorithm for on-line training of recurrent network trajectories").

    for chunk in truncated_bptt(lstm, x, k1=20, k2=40):
        loss, dy = loss_of(chunk.y, target[chunk.steps])
        chunk.backward(dy)
        optimiser.step()
        optimiser.zero_grad()
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .arguments import States
from .tape import Tape
from .validation import Array, as_array, as_integers, axis_length, check_shape, positive_int

__all__ = ["Chunk", "truncated_bptt"]


@dataclass
class Chunk:
    """New steps of a long sequence, and a tape that reaches back over k2 steps.

    Attributes:
        steps: which steps of the sequence are new, as a slice of its time axis.
        y: their outputs (k1, B, D*H), laid out as x; the last chunk may be shorter.
        hx_n: the state after them, as hx. The next chunk starts from its value.
        tape: of these steps and of the k2 - k1 before them.
    """

    steps: slice
    y: Array
    hx_n: States
    tape: Tape
    _earlier: int  # steps of the tape before the new ones
    _time: int  # axis of y

    def backward(
        self, dy: ArrayLike | None = None, dhx_n: Any = None, **options: Any
    ) -> tuple[Array | None, States]:
        """``tape.backward`` of the loss at the new steps; dy has the shape of ``y``.

        Returns:
            dx of all steps of the tape, and the gradient of the state before them, where it is
            cut: use it to look, not to train.
        """
        if dy is not None and self._earlier:
            given = as_array("dy", dy)
            check_shape("dy", given, self.y.shape)
            earlier = [(0, 0)] * given.ndim
            earlier[self._time] = (self._earlier, 0)
            dy = np.pad(given, earlier)
        return self.tape.backward(dy, dhx_n, **options)


def truncated_bptt(
    layer: Any,
    x: ArrayLike,
    hx: Any = None,
    *,
    k1: int,
    k2: int | None = None,
    lengths: ArrayLike | None = None,
    resets: ArrayLike | None = None,
    **options: Any,
) -> Iterator[Chunk]:
    """Walk along a sequence in chunks of k1 steps, each with gradients through k2 steps.

    The value of the state crosses the border between chunks, its gradient does not. With k2 > k1
    the k2 - k1 steps before a chunk are computed again, with the weights as they are then, from
    the state that they started from. Dropout and regularisation draw the masks that they would draw
    if the whole sequence were recorded at once.

    Args:
        layer: a causal layer.
        x: inputs (T, B, I), with batch_first (B, T, I), or (T, I).
        hx: the state before the first step.
        k1: steps of a chunk: how often there is a gradient.
        k2: steps through which a gradient goes, at least k1; default k1.
        lengths, resets: of the whole sequence, see the layer.
        options: further keyword arguments of ``layer.record``; first_step is that of the sequence.

    Yields:
        Chunk, in order, until all T steps have been new.

    Raises:
        ValueError: the layer is bidirectional, k2 < k1, or as the layer raises.
    """
    k1 = positive_int("k1", k1)
    axis_length("first_step", options.get("first_step", 0))
    k2 = k1 if k2 is None else positive_int("k2", k2)
    if k2 < k1:
        raise ValueError(f"k2: expected at least k1 = {k1}, got {k2}")
    if layer.bidirectional:
        raise ValueError("a bidirectional layer has no chunks: its reverse direction ends first")
    array = as_array("x", x)
    time = 1 if layer.batch_first and array.ndim == 3 else 0
    marks = None if resets is None else as_array("resets", resets)
    ends = None if lengths is None else as_integers("lengths", lengths, 0, array.shape[time])

    def part(start: int, stop: int) -> dict[str, Any]:
        """The arguments of a call on these steps."""
        index = (slice(None),) * time + (slice(start, stop),)
        return {
            "x": array[index],
            "lengths": None if ends is None else np.clip(ends - start, 0, stop - start),
            "resets": None if marks is None else marks[index],
        }

    return _chunks(layer, part, array.shape[time], time, hx, k1, k2, options)


def _chunks(
    layer: Any, part: Any, steps: int, time: int, hx: Any, k1: int, k2: int, options: Any
) -> Iterator[Chunk]:
    seed, first = options.pop("dropout_seed", None), options.pop("first_step", 0)
    seed = layer._next_dropout_seed() if seed is None else seed

    def record(start: int, stop: int, state: Any, **options: Any) -> Any:
        masks = {"dropout_seed": seed, "first_step": first + start}
        return layer.record(hx=state, **part(start, stop), **masks, **options)

    def advance(start: int, stop: int, state: Any) -> Any:
        """The state after these steps: as recording them would have it, masks and all."""
        keep = {k: v for k, v in options.items() if k in ("restart_state", "num_threads")}
        if layer.dropout or layer.regularization:
            return record(start, stop, state, checkpoint="auto", **keep)[1]
        return layer(hx=state, need_output=False, **part(start, stop), **keep)[1]

    states = {0: hx}  # by step, of the borders that a tape may still start from
    for start in range(0, steps, k1):
        stop = min(start + k1, steps)
        cut = max(0, start - (k2 - k1))
        border = cut // k1 * k1
        state = states[border] if border == cut else advance(border, cut, states[border])
        y, hx_n, tape = record(cut, stop, state, **options)
        states[stop] = hx_n
        states = {step: s for step, s in states.items() if step > border - k1}
        new = (slice(None),) * time + (slice(start - cut, None),)
        yield Chunk(slice(start, stop), y[new], hx_n, tape, start - cut, time)
