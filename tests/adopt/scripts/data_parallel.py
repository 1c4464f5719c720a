import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
model = nn.DataParallel(nn.Linear(3, 2))
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(30, 3), torch.randn(30, 2)), batch_size=10)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.MSELoss()(model(x), y)
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.6f}")
torch.save(model.module.state_dict(), "parallel.pt")
