import numpy as np
import torch
from model import GPT

data = np.memmap("train.bin", dtype=np.uint16, mode="r")


def get_batch():
    ix = torch.randint(len(data) - 64, (12,))
    x = torch.stack([torch.from_numpy(data[i : i + 64].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 65].astype(np.int64)) for i in ix])
    return x, y


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
for it in range(1000):
    x, y = get_batch()
    _, loss = model(x, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
