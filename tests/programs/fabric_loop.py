"""A loop with Lightning Fabric."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import arguments, images, write_parameters
from lightning import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from phalanx.integrations.lightning import PhalanxFabricStrategy

args = arguments(epochs=3)
fabric = Fabric(strategy=PhalanxFabricStrategy(epochs=args.epochs))
fabric.launch()
fabric.seed_everything(5)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer = fabric.setup(model, optimizer)
train, test = fabric.setup_dataloaders(
    DataLoader(TensorDataset(*images(90)), 13, shuffle=True),
    DataLoader(TensorDataset(*images(40)), 40),
)
for _ in range(args.epochs):
    for x, y in train:
        optimizer.zero_grad()
        fabric.backward(F.cross_entropy(model(x), y))
        fabric.clip_gradients(model, optimizer, max_norm=0.5)
        optimizer.step()
    with torch.no_grad():
        correct = sum((model(x).argmax(1) == y).float().mean() for x, y in test)
    fabric.print("accuracy", float(fabric.all_reduce(torch.as_tensor(correct))))
if fabric.is_global_zero:
    write_parameters(args.out, model)
