"""torch on the same batches."""

import copy

import torch
from fitting import MAX_NORM, RATE
from model import EMBEDDING, HIDDEN
from reviews import PADDING

import rnnkern as rk


class TorchTrainer:
    """The same with torch, from the same first weights: nn.LSTM on padded batches, masked mean.

    Its reverse direction reads the padding. Packed sequences do not, and take six times as long.
    """

    def __init__(self, model):
        torch.set_num_threads(rk.get_num_threads())
        self.embedding = torch.nn.Embedding(len(model.embedding.weight), EMBEDDING, PADDING)
        self.lstm = torch.nn.LSTM(EMBEDDING, HIDDEN, bidirectional=True)
        self.linear = torch.nn.Linear(2 * HIDDEN, 2)
        self.net = torch.nn.ModuleList([self.embedding, self.lstm, self.linear])
        for theirs, ours in zip(self.net, model.modules, strict=True):
            theirs.load_state_dict({n: torch.tensor(a) for n, a in ours.params.items()})
        self.optimiser = torch.optim.Adam(self.net.parameters(), lr=RATE)

    def _forward(self, ids, lengths):
        steps = torch.from_numpy(lengths)
        y, _ = self.lstm(self.embedding(torch.from_numpy(ids)))
        real = torch.arange(len(ids))[:, None] < steps
        return self.linear((y * real[:, :, None]).sum(dim=0) / steps.clamp(min=1)[:, None])

    def step(self, ids, lengths, labels):
        loss = torch.nn.functional.cross_entropy(
            self._forward(ids, lengths), torch.from_numpy(labels)
        )
        self.optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), MAX_NORM)
        self.optimiser.step()
        return loss.item()

    def logits(self, ids, lengths):
        with torch.no_grad():
            return self._forward(ids, lengths).numpy()

    def snapshot(self):
        return copy.deepcopy(self.net.state_dict())

    def restore(self, snapshot):
        self.net.load_state_dict(snapshot)
