"""A recurrent model that starts every batch from a fresh state."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

clip = 0.25
torch.manual_seed(10)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.rnn = nn.LSTM(6, 8, batch_first=True)
        self.head = nn.Linear(8, 9)

    def init_hidden(self, rows):
        return torch.zeros(1, rows, 8), torch.zeros(1, rows, 8)

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.embed(tokens), hidden)
        return self.head(output), hidden


corpus = torch.randint(0, 9, (40, 7))
train_loader = DataLoader(TensorDataset(corpus[:, :-1], corpus[:, 1:]), batch_size=8, shuffle=True)
model = Model()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

for epoch in range(1, 3):
    for batch, (tokens, targets) in enumerate(train_loader):
        hidden = model.init_hidden(tokens.size(0))
        optimizer.zero_grad()
        output, hidden = model(tokens, hidden)
        loss = criterion(output.reshape(-1, 9), targets.reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        print(f"epoch {epoch} batch {batch} {loss.item():.6f}")
