"""A stream without a length: a fixed number of updates, whatever there is to read."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from common import arguments, write_parameters
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import phalanx

args = arguments(epochs=1)
torch.manual_seed(5)


class Numbers(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for number in range(100):
            x = torch.tensor([number % 7, number % 11, number % 13], dtype=torch.float32) / 10
            yield x, x.sum().reshape(1) * 0.5


model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)
session = phalanx.session()
session.setup(model, optimizer)
for x, y in session.data(DataLoader(Numbers(), batch_size=8), steps=30):
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2)
    optimizer.step()
if session.chief:
    write_parameters(args.out, model)
