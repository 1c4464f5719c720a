import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
loader = DataLoader(TensorDataset(torch.randn(20, 4), torch.randn(20, 1)), batch_size=5)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        first = nn.functional.mse_loss(model(x), y)
        first.backward()
        second = model(x.flip(0)).abs().mean()
        second.backward()
        optimizer.step()
        print(f"{first.item():.6f} {second.item():.6f}")
