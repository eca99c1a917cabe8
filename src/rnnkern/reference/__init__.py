"""The specification: recurrent layers forward and backward in plain NumPy.

Every fast path of the package is tested against these functions, which have the same names and
signatures. They are written to be read. Start with one cell (`rnn`, `lstm` or `gru`: one step
forward, one step backward), then `stack`, the one loop that runs any cell over time, layers,
directions, lengths and resets, and back again.
"""

from .gru import gru_backward, gru_forward
from .lstm import lstm_backward, lstm_forward
from .rnn import rnn_backward, rnn_forward
from .stack import Tape

__all__ = [
    "Tape",
    "gru_backward",
    "gru_forward",
    "lstm_backward",
    "lstm_forward",
    "rnn_backward",
    "rnn_forward",
]
