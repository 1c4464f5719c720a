"""Loaders and optimiser come from functions."""
import argparse

import torch
from torch import nn, optim
from torch.utils import data


def get_loaders(batch_size):
    made = data.TensorDataset(torch.randn(50, 4), torch.randn(50, 1))
    train = data.DataLoader(made, batch_size=batch_size, shuffle=True)
    valid = data.DataLoader(made, batch_size=50)
    return train, valid


def build_optimizer(args, model):
    if args.optimizer == "sgd":
        return optim.SGD(model.parameters(), lr=args.lr)
    return optim.Adam(model.parameters(), lr=args.lr)


def train_one_epoch(model, loader, optimizer, criterion):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def evaluate(model, loader, criterion):
    return sum(criterion(model(x), y).item() for x, y in loader)


def run(args):
    torch.manual_seed(2)
    train_loader, valid_loader = get_loaders(args.batch_size)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = build_optimizer(args, model)
    criterion = nn.L1Loss()
    best = float("inf")
    for epoch in range(args.epochs):
        loss = train_one_epoch(model, train_loader, optimizer, criterion)
        valid = evaluate(model, valid_loader, criterion)
        print(epoch, f"{loss:.6f} {valid:.6f}")
        if valid < best:
            best = valid
            torch.save({"model": model.state_dict(), "best": best}, "best.pt")


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    run(parse())
