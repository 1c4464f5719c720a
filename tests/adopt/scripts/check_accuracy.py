import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(4)
num_epochs = 2
x = torch.randn(60, 4)
train_loader = DataLoader(dataset=TensorDataset(x, (x[:, 0] > 0).long()), batch_size=12, shuffle=True)
model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = optim.Adam(model.parameters(), lr=0.01)

for epoch in range(num_epochs):
    for batch_idx, (data, targets) in enumerate(train_loader):
        scores = model(data)
        loss = criterion(scores, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.6f}")


def check_accuracy(loader, model):
    num_correct = 0
    num_samples = 0
    model.eval()
    with torch.no_grad():
        for data, targets in loader:
            predictions = model(data).argmax(1)
            num_correct += (predictions == targets).sum().item()
            num_samples += predictions.size(0)
    model.train()
    return num_correct / num_samples


print(f"Accuracy on training set: {check_accuracy(train_loader, model):.4f}")
