import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from model import RNNModel

loader = DataLoader(TensorDataset(torch.randint(0, 9, (40, 7))), batch_size=8)
model = RNNModel(9)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
hidden = model.init_hidden(8)
for epoch in range(2):
    for (tokens,) in loader:
        hidden = tuple(h.detach() for h in hidden)
        output, hidden = model(tokens[:, :-1], hidden)
        loss = criterion(output.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
