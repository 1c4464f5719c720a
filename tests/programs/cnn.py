"""A plain loop: a convolutional network with Adadelta, StepLR and its own evaluation."""

from __future__ import annotations

import os

import torch
import torch.nn.functional as F
from common import arguments, images, note_seen, write_parameters
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import phalanx

args = arguments(epochs=3)
if "RANK" in os.environ:  # noqa: TID251 (what a script written for torchrun looks for)
    raise SystemExit("RANK is set")
torch.manual_seed(1)
pictures, labels = images(150)
numbers = torch.arange(150)
model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(216, 4))
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
session = phalanx.session()
session.setup(model, optimizer, scheduler)
train = session.data(DataLoader(TensorDataset(pictures, labels, numbers), 16, shuffle=True))
test = session.data(DataLoader(TensorDataset(pictures, labels), 40), train=False)
for epoch in session.epochs(args.epochs):
    model.train()
    for inputs, targets, used in train:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        note_seen(args.seen, session.rank, epoch, used)
    scheduler.step()
    model.eval()
    correct = seen = 0
    with torch.no_grad():
        for inputs, targets in test:
            correct += int((model(inputs).argmax(1) == targets).sum())
            seen += len(targets)
    accuracy = session.report(accuracy=(correct, seen))["accuracy"]
    if session.chief:
        print(f"epoch {epoch}: accuracy {accuracy:.3f}")  # noqa: T201 (shown to the user)
if session.chief:
    write_parameters(args.out, model)
