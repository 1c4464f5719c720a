"""A variational auto-encoder: its loss is a sum over samples, and its noise comes with the data."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import arguments, images, write_parameters
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import phalanx

args = arguments(epochs=2)
torch.manual_seed(6)


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(64, 24)
        self.mean, self.log_var = nn.Linear(24, 4), nn.Linear(24, 4)
        self.decode = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 64))

    def loss(self, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(self.encode(x))
        mean, log_var = self.mean(hidden), self.log_var(hidden)
        made = self.decode(mean + noise * torch.exp(0.5 * log_var))
        divergence = -0.5 * torch.sum(1 + log_var - mean.pow(2) - log_var.exp())
        return F.binary_cross_entropy_with_logits(made, x, reduction="sum") + divergence


pictures = images(100)[0].flatten(1).sigmoid()
model = Vae()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
session = phalanx.session()
session.setup(model, optimizer, loss="sum")
feed = session.data(DataLoader(TensorDataset(pictures, torch.randn(100, 4)), 16, shuffle=True))
for _ in session.epochs(args.epochs):
    for x, noise in feed:
        optimizer.zero_grad()
        model.loss(x, noise).backward()
        optimizer.step()
if session.chief:
    write_parameters(args.out, model)
