import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(8)
full = TensorDataset(torch.randn(80, 3), torch.randn(80, 1))
train_set, valid_set = random_split(full, [60, 20])
train_loader = DataLoader(train_set, batch_size=15, shuffle=True)
valid_loader = DataLoader(valid_set, batch_size=20)
model = nn.Linear(3, 1)
loss_fn = nn.SmoothL1Loss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
best, patience = float("inf"), 0

for epoch in range(1, 5):
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        valid = sum(loss_fn(model(x), y).item() for x, y in valid_loader)
    scheduler.step(valid)
    print(epoch, f"{valid:.6f}", optimizer.param_groups[0]["lr"])
    if valid < best:
        best, patience = valid, 0
        with open("best.txt", "w") as f:
            f.write(f"{epoch} {valid}\n")
    else:
        patience += 1
        if patience > 2:
            break
