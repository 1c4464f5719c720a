import torch
from sklearn.model_selection import KFold
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

data = TensorDataset(torch.randn(20, 3), torch.randn(20, 1))
for fold, (train_ids, test_ids) in enumerate(KFold(5).split(data)):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train_loader = DataLoader(Subset(data, train_ids), batch_size=4)
    for epoch in range(2):
        for x, y in train_loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
