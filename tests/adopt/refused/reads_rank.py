import os

import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

rank = int(os.environ["RANK"])
data = TensorDataset(torch.randn(20, 3))
loader = DataLoader(Subset(data, range(rank, 20, 2)), batch_size=5)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
