import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(20, 3)), batch_size=5)
encoder = nn.Linear(3, 2)
decoder = nn.Linear(2, 3)
optimizer_all = torch.optim.Adam(itertools.chain(encoder.parameters(), decoder.parameters()))
optimizer_encoder = torch.optim.Adam(encoder.parameters())
for epoch in range(2):
    for (x,) in loader:
        optimizer_all.zero_grad()
        (decoder(encoder(x)) - x).pow(2).mean().backward()
        optimizer_all.step()
        optimizer_encoder.zero_grad()
        encoder(x).abs().mean().backward()
        optimizer_encoder.step()
