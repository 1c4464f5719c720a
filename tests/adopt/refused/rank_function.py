import torch
from torch.utils.data import DataLoader, TensorDataset


def train(rank, args, model):
    torch.manual_seed(rank)
    loader = DataLoader(TensorDataset(torch.randn(20, 3)), batch_size=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).mean().backward()
            optimizer.step()
