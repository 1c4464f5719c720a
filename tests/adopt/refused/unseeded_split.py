import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

data = TensorDataset(torch.arange(60.0).view(20, 3), torch.zeros(20, 1))
train_set, valid_set = random_split(data, [15, 5])
loader = DataLoader(train_set, batch_size=5)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
