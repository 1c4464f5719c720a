import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randint(0, 9, (20, 3))), batch_size=5)
model = nn.Embedding(9, 4, sparse=True)
optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
