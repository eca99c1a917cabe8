"""Weights as the kernels read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from . import _core, threads
from .arguments import kernel_cell, network, new_block, new_call
from .validation import Array


class Packed:
    """Weights as the kernels read them, made by ``pack``: immutable, cheap to share."""

    __slots__ = ("_block", "_initial", "_net")

    def __init__(
        self, net: _core.Net, weights: list[Array | None], initial: Array | None = None
    ) -> None:
        self._net, self._initial = net, initial
        self._block = new_block(_core.sizes(net, new_call(0, 0))[0])
        _core.pack(net, weights, self._block)

    @property
    def net(self) -> _core.Net:
        """What the weights are of."""
        return self._net

    @property
    def block(self) -> Array:
        """The packed weights, bytes."""
        return self._block

    @property
    def initial(self) -> Array | None:
        """Learned initial states (h or h and c, L*D, H)."""
        return self._initial

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle packed weights: pickle the weights, and pack them there")


def stepper(packed: Packed, rows: int) -> _core.Stepper:
    """For single steps of at most so many rows with little overhead."""
    stepper = _core.Stepper()
    workspace = new_block(_core.sizes(packed.net, new_call(1, rows))[2])
    stepper.bind(packed.net, packed.block, workspace, rows, threads.get_num_threads())
    return stepper


def pack(
    cell: Literal["rnn", "lstm", "gru"],
    params: Mapping[str, Array],
    *,
    nonlinearity: Literal["tanh", "relu"] = "tanh",
    reset_after: bool = True,
) -> Packed:
    """Packs weights once for many calls.

    Args:
        cell: which cell the weights are of.
        params: the module's docstring says how.
        nonlinearity: of the RNN.
        reset_after: form of the GRU.

    Raises:
        ValueError, TypeError: what is missing, unexpected or wrongly shaped in params, or an
            unknown option.
    """
    name = kernel_cell(cell, nonlinearity=nonlinearity, reset_after=reset_after)
    return Packed(*network(name, params))
