import torch
from engine import evaluate, train_one_epoch
from torch.utils.data import DataLoader
from data import dataset

loader = DataLoader(dataset, batch_size=2, shuffle=True)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
for epoch in range(10):
    train_one_epoch(model, optimizer, loader, epoch)
    evaluate(model, loader)
