"""Momentum, weight decay and a schedule per update, which servers have to follow."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import arguments, images, note_seen, write_parameters
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import phalanx

args = arguments(epochs=2)
torch.manual_seed(8)
pictures, labels = images(130)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 700), nn.Tanh(), nn.Linear(700, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=18)
session = phalanx.session()
session.setup(model, optimizer, scheduler)
numbers = torch.arange(130)
feed = session.data(DataLoader(TensorDataset(pictures, labels, numbers), 16, shuffle=True))
for epoch in session.epochs(args.epochs):
    for inputs, targets, used in feed:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        scheduler.step()
        note_seen(args.seen, session.rank, epoch, used)
if session.chief:
    write_parameters(args.out, model)
