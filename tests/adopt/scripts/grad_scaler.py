import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train_model(model, epochs=2, batch_size=12, learning_rate=1e-2, gradient_clipping=1.0):
    data = TensorDataset(torch.randn(60, 4), torch.randint(0, 3, (60,)))
    loader_args = dict(batch_size=batch_size)
    train_loader = DataLoader(data, shuffle=True, **loader_args)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=learning_rate, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    grad_scaler = torch.amp.GradScaler("cpu", enabled=False)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(1, epochs + 1):
        model.train()
        for batch in train_loader:
            images, labels = batch
            with torch.autocast("cpu", enabled=False):
                loss = criterion(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            grad_scaler.scale(loss).backward()
            grad_scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), gradient_clipping)
            grad_scaler.step(optimizer)
            grad_scaler.update()
            print(f"{epoch} {loss.item():.6f}")
        scheduler.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    train_model(nn.Linear(4, 3))
