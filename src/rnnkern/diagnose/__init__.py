"""What a recurrent network remembers, and whether it uses it: arrays first, pictures from them.

gradient_by_lag      how far back a loss at one step reaches
step_jacobians       of each step, by vector-Jacobian products through the kernels
jacobian_products    of all steps up to the last, and their singular values
nonnormal_example    a stable matrix whose powers grow before they decay
gate_maps            gates and states of one sequence, position by unit
gate_statistics      distribution and saturation of gates beside the gradients of their parameters
state_range          how the values of c, or of h, spread from step to step
perturbation         shuffle, delay or blank a span of the input, and measure
linear_probe         what can be read from the states
ablation             whether what can be read is used
truncation           what truncated backpropagation keeps of the gradient
clipping             norms before and after clipping
plots                a picture of each result; needs the extra [plot]

From the command line: `python -m rnnkern diagnose MODEL DATA`.

Each docstring says what the numbers prove and what they do not. They see the layer as inference
runs it: without dropout. Where gradients are asked for, a layer with zoneout is refused, since
recording draws it. Sequences are laid out as the layer has them, (T, B, I), with batch_first
(B, T, I), or (T, I); results are always (L*D, T, B, ...): L layers, D directions, T steps, B rows.
"""

from typing import TYPE_CHECKING, Any

from .command import main
from .gates import GateStatistics, gate_maps, gate_statistics, state_range
from .gradients import Clipping, Truncation, clipping, gradient_by_lag, truncation
from .jacobians import (
    JacobianProducts,
    NonNormal,
    jacobian_products,
    nonnormal_example,
    step_jacobians,
)
from .perturb import Perturbation, blank, delay, perturbation, shuffle
from .probe import Ablation, Probe, ablation, linear_probe, without_directions

if TYPE_CHECKING:
    from . import plots

__all__ = [
    "Ablation",
    "Clipping",
    "GateStatistics",
    "JacobianProducts",
    "NonNormal",
    "Perturbation",
    "Probe",
    "Truncation",
    "ablation",
    "blank",
    "clipping",
    "delay",
    "gate_maps",
    "gate_statistics",
    "gradient_by_lag",
    "jacobian_products",
    "linear_probe",
    "main",
    "nonnormal_example",
    "perturbation",
    "plots",
    "shuffle",
    "state_range",
    "step_jacobians",
    "truncation",
    "without_directions",
]


def __getattr__(name: str) -> Any:
    if name == "plots":
        from importlib import import_module

        return import_module(".plots", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
