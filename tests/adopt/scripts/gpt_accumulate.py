import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

accumulation_steps = 4
grad_clip = 0.5
epochs = 2
torch.manual_seed(7)


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.mix = nn.Linear(16, 16)
        self.head = nn.Linear(16, 11)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        logits = self.head(x + torch.tanh(self.mix(x.cumsum(1))))
        return F.cross_entropy(logits.view(-1, 11), targets.view(-1))


text = torch.randint(0, 11, (88, 9))
loader = DataLoader(TensorDataset(text[:, :-1], text[:, 1:]), batch_size=8, shuffle=True)
model = Gpt()
decay = [p for p in model.parameters() if p.ndim > 1]
rest = [p for p in model.parameters() if p.ndim <= 1]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-2
)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)

for epoch in range(epochs):
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x, y) / accumulation_steps
        loss.backward()
        if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
            torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad(set_to_none=True)
            print(f"{epoch} {i} {loss.item():.6f} {scheduler.get_last_lr()[0]:.6f}")
