import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
device = torch.device("cuda:0")
model = nn.Linear(3, 1).cuda()
criterion = nn.MSELoss().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_loader = DataLoader(TensorDataset(torch.randn(24, 3), torch.randn(24, 1)), batch_size=6)
for epoch in range(2):
    for x, y in train_loader:
        x, y = x.cuda(non_blocking=True), y.to(device)
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.6f}")
