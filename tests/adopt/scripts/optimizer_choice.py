import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

choice, use_schedule = "adam", True


def main():
    torch.manual_seed(6)
    dataset = TensorDataset(torch.randn(36, 3), torch.randn(36, 1))
    loader = DataLoader(dataset, batch_size=6, shuffle=True)
    model = nn.Linear(3, 1)
    if choice == "adam":
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    elif choice == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    else:
        raise ValueError(choice)
    scheduler = None
    if use_schedule:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    # Train.
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = (model(x) - y).pow(2).mean()
            loss.backward()
            optimizer.step()
        if scheduler is not None:
            scheduler.step()
        print(epoch, f"{loss.item():.6f}")


main()
