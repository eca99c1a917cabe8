"""The specification: recurrent layers forward and backward in plain NumPy.

Every fast path of the package is tested against these functions, which have the same names and
signatures. They are written to be read. Start with one cell (`rnn` is the shortest; `lstm`, `gru`,
`mgu`, `indrnn`, `sru`, `mingru`): one step forward, one step backward, and the names and shapes of
its parameters. Then `stack`, the one loop that runs any cell over time, layers, directions,
lengths and resets, and back again; and `dropout`, which masks stand around a cell.
"""

from .gru import gru_backward, gru_forward
from .indrnn import indrnn_backward, indrnn_forward
from .lstm import lstm_backward, lstm_forward
from .mgu import mgu_backward, mgu_forward
from .mingru import mingru_backward, mingru_forward
from .rnn import rnn_backward, rnn_forward
from .sru import sru_backward, sru_forward
from .stack import Tape

__all__ = [
    "Tape",
    "gru_backward",
    "gru_forward",
    "indrnn_backward",
    "indrnn_forward",
    "lstm_backward",
    "lstm_forward",
    "mgu_backward",
    "mgu_forward",
    "mingru_backward",
    "mingru_forward",
    "rnn_backward",
    "rnn_forward",
    "sru_backward",
    "sru_forward",
]
