"""Regularisation of recurrent layers: what is left out at random while training."""

from __future__ import annotations

from dataclasses import dataclass, fields

from .validation import boolean, probability

__all__ = ["Regularization"]


@dataclass(frozen=True, repr=False)
class Regularization:
    """Dropout inside the recurrence, on weights and of steps, beside a layer's ``dropout``.

    Probabilities from 0 to 1; kept values are scaled by 1/(1-p), so that means stay. All of it acts
    when recording only, but for zoneout, whose mean inference computes. Not every cell has every
    option; what it lacks is refused.

    Attributes:
        input_dropout: on x, with one mask for all steps of a row.
        output_dropout: on y, with one mask for all steps of a row; final states are as they were.
        hidden_dropout: h' = f(W x + U (m h)), with one mask m for all steps of a row, in each layer
            and direction. Not SRU, MinGRU. Gal & Ghahramani, "A theoretically grounded application
            of dropout in recurrent neural networks" (NIPS 2016).
        candidate_dropout: on the candidate, m g, before it is added to the state: for the LSTM
            c' = f c + i (m g), with a mask m for each step. Not RNN, IndRNN. Semeniuta, Severyn &
            Barth, "Recurrent dropout without memory loss" (COLING 2016).
        weight_dropout: DropConnect, U m in place of U = weight_hh, with one mask m of its shape for
            a call. RNN, LSTM, GRU, MGU. Merity, Keskar & Socher, "Regularizing and optimizing LSTM
            language models" (ICLR 2018).
        zoneout_h: a unit of h keeps its value: h_t = z h_{t-1} + (1-z) h~_t, where z is 1 with
            this probability at each step, else 0; in inference z is the probability. Not SRU.
            Krueger et al., "Zoneout: regularizing RNNs by randomly preserving hidden activations"
            (ICLR 2017).
        zoneout_c: the same of c. LSTM and SRU.
        variational: the layer's ``dropout`` between layers, too, has one mask for all steps of a
            row (Gal & Ghahramani), in place of one for each step.
    """

    input_dropout: float = 0.0
    output_dropout: float = 0.0
    hidden_dropout: float = 0.0
    candidate_dropout: float = 0.0
    weight_dropout: float = 0.0
    zoneout_h: float = 0.0
    zoneout_c: float = 0.0
    variational: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            check = boolean if field.name == "variational" else probability
            value = check(field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, value)  # it is frozen

    def __repr__(self) -> str:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        words = [f"{name}={value!r}" for name, value in given.items() if value]
        return f"Regularization({', '.join(words)})"
