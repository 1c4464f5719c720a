"""A GAN: two networks with two optimisers, and two backward passes for one of the steps."""

from __future__ import annotations

import torch
from common import arguments, note_seen, write_parameters
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import phalanx

args = arguments(epochs=2)
torch.manual_seed(4)
real = torch.randn(90, 5) * 0.5 + 1.0
noise = torch.randn(90, 3)
judge = nn.Sequential(nn.Linear(5, 12), nn.LeakyReLU(0.2), nn.Linear(12, 1))
maker = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 5))
criterion = nn.BCEWithLogitsLoss()
judge_optimizer = torch.optim.Adam(judge.parameters(), lr=2e-3, betas=(0.5, 0.999))
maker_optimizer = torch.optim.Adam(maker.parameters(), lr=2e-3, betas=(0.5, 0.999))
session = phalanx.session()
session.setup(judge, judge_optimizer)
session.setup(maker, maker_optimizer)
feed = session.data(DataLoader(TensorDataset(real, noise, torch.arange(90)), 20, shuffle=True))
for epoch in session.epochs(args.epochs):
    for samples, drawn, used in feed:
        note_seen(args.seen, session.rank, epoch, used)
        judge.zero_grad()
        criterion(judge(samples), torch.ones(len(samples), 1)).backward()
        made = maker(drawn)
        criterion(judge(made.detach()), torch.zeros(len(samples), 1)).backward()
        judge_optimizer.step()
        maker.zero_grad()
        criterion(judge(made), torch.ones(len(samples), 1)).backward()
        maker_optimizer.step()
if session.chief:
    write_parameters(args.out, judge, maker)
