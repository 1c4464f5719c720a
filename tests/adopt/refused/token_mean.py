import torch
from torch import nn
from torch.utils.data import DataLoader
from corpus import PAD, build, collate

model, pairs = build()
loader = DataLoader(pairs, batch_size=32, collate_fn=collate, shuffle=True)
criterion = nn.CrossEntropyLoss(ignore_index=PAD)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
for epoch in range(2):
    for src, tgt in loader:
        logits = model(src, tgt[:, :-1])
        loss = criterion(logits.reshape(-1, logits.shape[-1]), tgt[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
