"""Weights as the kernels read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from . import _core, threads
from .arguments import network, new_call
from .memory import new_block
from .structure import CellOptions, Structure, cell_options
from .validation import Array

if TYPE_CHECKING:
    from .regularization import Regularization


class Packed:
    """Weights as the kernels read them, made by ``pack``: immutable, cheap to share."""

    __slots__ = ("_block", "_initial", "_net", "_structure")

    def __init__(
        self,
        structure: Structure,
        weights: list[Array | None],
        initial: tuple[Array, ...] | None = None,
    ) -> None:
        self._structure, self._initial = structure, initial
        self._net = structure.net()
        self._block = new_block(structure.packed_bytes)
        _core.pack(self._net, weights, self._block)

    @property
    def structure(self) -> Structure:
        """What the weights are of."""
        return self._structure

    @property
    def net(self) -> _core.Net:
        """The same for the kernels."""
        return self._net

    @property
    def block(self) -> Array:
        """The packed weights, bytes."""
        return self._block

    @property
    def initial(self) -> tuple[Array, ...] | None:
        """Learned initial states, each (L*D, P or H)."""
        return self._initial

    def regularized(self, regularization: Regularization | None) -> Packed:
        """The same weights in a net with its zoneout; None changes nothing."""
        structure = self._structure.regularized(regularization)
        if structure is self._structure or structure == self._structure:
            return self
        twin = Packed.__new__(Packed)
        twin._structure, twin._net = structure, structure.net()
        twin._block, twin._initial = self._block, self._initial
        return twin

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle packed weights: pickle the weights, and pack them there")


def stepper(packed: Packed, rows: int) -> _core.Stepper:
    """For single steps of at most so many rows with little overhead."""
    stepper = _core.Stepper()
    workspace = new_block(_core.sizes(packed.net, new_call(1, rows))[2])
    stepper.bind(packed.net, packed.block, workspace, rows, threads.get_num_threads())
    return stepper


def pack(cell: str, params: Mapping[str, Array], **options: Unpack[CellOptions]) -> Packed:
    """Packs weights once for many calls.

    Args:
        cell: which cell the weights are of: "rnn", "lstm", "gru", "mgu", "indrnn", "sru" or
            "mingru".
        params: the module's docstring says how.
        options: as the cell's forward function has them; calls must be given the same.

    Raises:
        ValueError, TypeError: what is missing, unexpected or wrongly shaped in params, or an
            unknown option.
    """
    return Packed(*network(cell_options(cell, **options), params))
