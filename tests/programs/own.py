"""Data of which each worker reads a part of its own; joined they are the batches of one process."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from common import write_parameters
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import phalanx

BATCH = 12
parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path)
parser.add_argument("--rows", type=int, default=97)
parser.add_argument("--steps", type=int)
args = parser.parse_args()
torch.manual_seed(6)
x = torch.randn(args.rows, 3)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
session = phalanx.session()
session.setup(model, optimizer)
mine = TensorDataset(x[session.rank :: session.size], y[session.rank :: session.size])
feed = session.data(DataLoader(mine, BATCH // session.size), own=True, steps=args.steps)
for _ in session.epochs(2):
    for inputs, targets in feed:
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()
if session.chief:
    write_parameters(args.out, model)
