import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(20, 3)), batch_size=5)
layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in layers]
for epoch in range(2):
    for (x,) in loader:
        for layer in layers:
            x = layer(x)
        x.mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
