"""rnnkern: fast recurrent layers (RNN, LSTM, GRU) on the CPU, with NumPy alone."""

from . import functional
from .threads import get_num_threads, set_num_threads

__all__ = ["functional", "get_num_threads", "set_num_threads"]
__version__ = "0.1.0"
