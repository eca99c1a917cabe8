"""rnnkern: fast recurrent layers (RNN, LSTM, GRU) on the CPU, with NumPy alone.

RNN, LSTM, GRU              layers, as torch's
RNNCell, LSTMCell, GRUCell  single steps
load                        a layer from the file that its `save` wrote
functional                  the same as functions, for those who hold their own arrays
train                       what training needs besides: embedding, linear, loss, optimisers
reference                   the specification, in NumPy
"""

from typing import TYPE_CHECKING, Any

from . import functional
from .layers import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell, load
from .threads import get_num_threads, set_num_threads

if TYPE_CHECKING:
    from . import reference, train

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "GRUCell",
    "LSTMCell",
    "RNNCell",
    "__version__",
    "functional",
    "get_num_threads",
    "load",
    "reference",
    "set_num_threads",
    "train",
]
__version__ = "0.1.0"


# Imported when first used, so that `import rnnkern` stays quick.
def __getattr__(name: str) -> Any:
    if name in ("reference", "train"):
        from importlib import import_module

        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "reference", "train"})
