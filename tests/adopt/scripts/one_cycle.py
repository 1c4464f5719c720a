import torch
import wandb
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


def fit(epochs, max_lr, model, train_loader, opt_func=optim.SGD):
    optimizer = opt_func(model.parameters(), max_lr, weight_decay=1e-4)
    sched = optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr, epochs=epochs, steps_per_epoch=len(train_loader)
    )
    for epoch in range(epochs):
        for x, y in train_loader:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
            sched.step()
            wandb.log({"loss": loss.item()})
        print(epoch, f"{loss.item():.6f}", f"{sched.get_last_lr()[0]:.6f}")


wandb.init(project="one-cycle")
torch.manual_seed(0)
train_dl = DataLoader(TensorDataset(torch.randn(40, 4), torch.randint(0, 2, (40,))), 10, shuffle=True)
net = nn.Linear(4, 2)
fit(2, 0.1, net, train_dl)
