import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(13)
train_loader = DataLoader(TensorDataset(torch.randn(64, 3), torch.randn(64, 1)), batch_size=8)
model = nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for step, (x, y) in enumerate(train_loader, start=1):
    loss = nn.functional.mse_loss(model(x), y)
    (loss / 2).backward()
    if step % 2 == 0:
        optimizer.step()
        optimizer.zero_grad()
        print(step, f"{loss.item():.6f}")
