"""rnnkern: fast recurrent layers (RNN, LSTM, GRU and their relatives) on the CPU, with NumPy alone.

RNN, LSTM, GRU              layers, as torch's
MGU, IndRNN, SRU, MinGRU    further layers
Regularization              dropout inside layers, DropConnect, zoneout
RNNCell, LSTMCell, GRUCell  single steps
load                        a layer from the file that its `save` wrote
Stream                      what `layer.stream()` returns: a step at a time, with state
truncated_bptt              training on long sequences in chunks
functional                  the same as functions, for those who hold their own arrays
activations                 names of activation functions
initializers                other first values of parameters
train                       what training needs besides: embedding, linear, loss, optimisers
diagnose                    what a layer remembers: gradients by lag, gates, probes, and pictures
reference                   the specification, in NumPy
"""

from typing import TYPE_CHECKING, Any

from . import activations, functional
from .cells import GRUCell, LSTMCell, RNNCell
from .files import load
from .layers import GRU, LSTM, MGU, RNN, SRU, IndRNN, MinGRU
from .memory import empty_cache
from .threads import get_num_threads, set_num_threads

if TYPE_CHECKING:
    from . import diagnose, initializers, reference, train
    from .regularization import Regularization
    from .stream import Stream
    from .truncated import truncated_bptt

__all__ = [
    "GRU",
    "LSTM",
    "MGU",
    "RNN",
    "SRU",
    "GRUCell",
    "IndRNN",
    "LSTMCell",
    "MinGRU",
    "RNNCell",
    "Regularization",
    "Stream",
    "__version__",
    "activations",
    "diagnose",
    "empty_cache",
    "functional",
    "get_num_threads",
    "initializers",
    "load",
    "reference",
    "set_num_threads",
    "train",
    "truncated_bptt",
]
__version__ = "0.1.0"


# Imported when first used, so that `import rnnkern` stays quick.
_MODULES = ("diagnose", "initializers", "reference", "train")
_NAMES = {
    "Regularization": ".regularization",
    "Stream": ".stream",
    "truncated_bptt": ".truncated",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name in _NAMES:
        return getattr(import_module(_NAMES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_NAMES})
