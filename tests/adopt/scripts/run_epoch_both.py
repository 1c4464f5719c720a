"""One function trains and evaluates."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def run_epoch(model, loader, criterion, optimizer=None):
    total = 0.0
    for x, y in loader:
        loss = criterion(model(x), y)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total / len(loader)


def main():
    torch.manual_seed(21)
    made = TensorDataset(torch.randn(30, 3), torch.randn(30, 1))
    train_loader = DataLoader(made, batch_size=6, shuffle=True)
    val_loader = DataLoader(made, batch_size=15)
    model = nn.Linear(3, 1)
    criterion = nn.MSELoss()
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.02)
    for epoch in range(3):
        train = run_epoch(model, train_loader, criterion, optimizer)
        valid = run_epoch(model, val_loader, criterion)
        print(f"{epoch} {train:.6f} {valid:.6f}")


if __name__ == "__main__":
    main()
