"""How large a layer is and what a step of it costs, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from .structure import Structure, kind_of

_PARTS = {
    "weight_ih": "weight_ih",
    "weight_hh": "weight_hh",
    "bias_ih": "bias",
    "bias_hh": "bias",
    "weight_hr": "projection",
    "weight_ch": "peephole",
    "norm_ih": "normalisation",
    "norm_hh": "normalisation",
    "norm_c": "normalisation",
    "norm_c_bias": "normalisation",
    "initial_h": "initial",
    "initial_c": "initial",
}
"""What a kind of parameters is counted as."""


@dataclass(frozen=True)
class Description:
    """How large a layer is and what it costs: the result of ``layer.describe``.

    With I inputs and H units one layer in one direction has

        RNN      H I + H^2 weights, and biases of H numbers
        LSTM     4 times as many of both (with coupled gates 3 times)
        GRU      3 times, MGU 2 times
        IndRNN   H I + H weights; SRU 4 H I + 2 H; MinGRU 2 H I

    Of biases torch has two sets, and so have the layers here that have bias_hh: RNN 2 H, LSTM 8 H,
    GRU 6 H. Papers and Keras count one, since only the sum matters; the exception is the GRU with
    reset_after=True, whose r acts on one of the two, and of which Keras has both too. Further
    layers read D P features in place of I. A projection to P features makes H^2 into H P and adds
    P H; peepholes are 3 H (coupled 2 H).

    A weight is used once a step and row, so there are as many multiply-adds as weights: for the
    LSTM 4 H (I + H), with a projection 4 H (I + P) + P H. Not counted is what a step does beside:
    activations, biases, normalisation, and the 2 to 4 products a unit of gates and states. Backward
    takes twice as many again: once for the weights' gradients, once for those of x and h.

    Attributes:
        layer: its repr.
        steps: T that bytes are of.
        rows: B that bytes are of.
        parameters: how many there are of each part: "weight_ih", "weight_hh", "bias", "projection",
            "peephole" (weight_ch, the SRU's too), "normalisation" and "initial" (learned states).
        bias_sets: 2, 1 or 0.
        multiply_adds: of each layer, a step and row, both directions together.
        bytes: "parameters"; "packed", the weights as the kernels read them; "state" of one row;
            "tape", "workspace" and "outputs" of a recorded call on T steps of B rows, as
            ``layer.memory_estimate``.
    """

    layer: str
    steps: int
    rows: int
    parameters: dict[str, int]
    bias_sets: int
    multiply_adds: tuple[int, ...]
    bytes: dict[str, int]

    @property
    def parameter_count(self) -> int:
        """Of all parts."""
        return sum(self.parameters.values())

    @property
    def one_bias_count(self) -> int:
        """Of all parts, if there were one set of biases where there are two."""
        spare = self.parameters["bias"] // 2 if self.bias_sets == 2 else 0
        return self.parameter_count - spare

    def __str__(self) -> str:
        """A table."""
        parts = {f"  {part}": count for part, count in self.parameters.items() if count}
        layers = {f"  layer {k}": count for k, count in enumerate(self.multiply_adds)}
        blocks = {f"  {name}": count for name, count in self.bytes.items()}
        lines = [self.layer, _line("parameters", self.parameter_count), *_lines(parts)]
        if self.bias_sets == 2:
            lines.append(_line("  (with one set of biases)", self.one_bias_count))
        lines.append(_line("multiply-adds a step and row", sum(self.multiply_adds)))
        lines += _lines(layers) if len(layers) > 1 else []
        lines += [f"bytes for T={self.steps}, B={self.rows}", *_lines(blocks)]
        return "\n".join(lines)


def _line(name: str, number: int) -> str:
    return f"{name:32}{number:>16,}"


def _lines(numbers: Mapping[str, int]) -> list[str]:
    return [_line(name, number) for name, number in numbers.items()]


def description_of(
    structure: Structure, layer: str, T: int, B: int, memory: Mapping[str, int]
) -> Description:
    """That of a layer whose recorded call on T steps of B rows needs so much memory."""
    parameters = dict.fromkeys(_PARTS.values(), 0)
    for name, shape in structure.parameter_shapes.items():
        parameters[_PARTS[kind_of(name)]] += prod(shape)
    item = structure.dtype.itemsize
    return Description(
        layer=layer,
        steps=int(T),
        rows=int(B),
        parameters=parameters,
        bias_sets=sum(kind.startswith("bias") for kind in structure.kinds),
        multiply_adds=tuple(_multiply_adds(structure, k) for k in range(structure.num_layers)),
        bytes={
            "parameters": item * sum(parameters.values()),
            "packed": memory["packed"],
            "state": item * structure.sweeps * sum(structure.states.values()),
            **{name: memory[name] for name in ("tape", "workspace", "outputs")},
        },
    )


def _multiply_adds(structure: Structure, layer: int) -> int:
    shapes = structure.weight_shapes(layer).items()
    weights = sum(prod(shape) for kind, shape in shapes if kind.startswith("weight"))
    return structure.num_directions * weights
