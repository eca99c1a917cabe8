"""What is measured: one layer in rnnkern, in the unfused baseline, in NumPy and in torch."""

from dataclasses import dataclass

import numpy as np
from unfused import Unfused

from rnnkern import functional, reference

try:
    import torch
except ImportError:
    torch = None

SHAPES = [
    (100, 1, 64, 64),
    (100, 1, 128, 256),
    (100, 16, 128, 128),
    (100, 32, 256, 256),
    (256, 64, 128, 512),
    (50, 128, 512, 1024),
    (35, 20, 650, 650),
    (1000, 1, 80, 512),
    (256, 128, 100, 128),
]
GATES = {"rnn": 1, "lstm": 4, "gru": 3}


@dataclass
class Workload:
    """One float32 layer on one shape (T, B, I, H); all methods run the same weights."""

    cell: str
    shape: tuple[int, int, int, int]
    threads: int = 1

    def __post_init__(self):
        steps, rows, inputs, hidden = self.shape
        rng = np.random.default_rng(0)
        scale = 1 / np.sqrt(hidden)
        gates = GATES[self.cell] * hidden
        shapes = {"weight_ih_l0": (gates, inputs), "weight_hh_l0": (gates, hidden)}
        shapes |= {"bias_ih_l0": (gates,), "bias_hh_l0": (gates,)}
        self.params = {
            name: rng.uniform(-scale, scale, shape).astype(np.float32)
            for name, shape in shapes.items()
        }
        self.x = rng.standard_normal((steps, rows, inputs), np.float32)
        self.dy = rng.standard_normal((steps, rows, hidden), np.float32)
        self.grads = {name: np.zeros_like(p) for name, p in self.params.items()}
        self.forward = getattr(functional, f"{self.cell}_forward")
        self.backward = getattr(functional, f"{self.cell}_backward")
        self.baseline = Unfused("rnn_tanh" if self.cell == "rnn" else self.cell, self.params)
        if torch is not None:
            module = {"rnn": torch.nn.RNN, "lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[self.cell]
            self.module = module(inputs, hidden)
            self.module.load_state_dict({k: torch.from_numpy(v) for k, v in self.params.items()})
            self.torch_x, self.torch_dy = torch.from_numpy(self.x), torch.from_numpy(self.dy)

    @property
    def gflop(self):
        """10^9 operations of a forward call's products; training does three times as many."""
        steps, rows, inputs, hidden = self.shape
        return 2e-9 * steps * rows * GATES[self.cell] * hidden * (inputs + hidden)

    def fused(self):
        return self.forward(self.x, self.params, num_threads=self.threads)[0]

    def unfused(self):
        return self.baseline(self.x)

    def numpy(self):
        return getattr(reference, f"{self.cell}_forward")(self.x, self.params)[0]

    def torch(self):
        with torch.no_grad():
            return self.module(self.torch_x)[0].numpy()

    def fused_training(self):
        _, _, tape = self.forward(self.x, self.params, record=True, num_threads=self.threads)
        return self.backward(tape, self.dy, grads=self.grads, num_threads=self.threads)[0]

    def torch_training(self):
        x = self.torch_x.clone().requires_grad_()
        self.module(x)[0].backward(self.torch_dy)
        return x.grad.numpy()
