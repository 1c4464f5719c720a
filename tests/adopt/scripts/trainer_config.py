"""A trainer that makes loader and optimiser itself, from a configuration."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    max_epochs: int = 2
    batch_size: int = 8
    grad_norm_clip: float = 1.0


class Trainer:
    def __init__(self, model, dataset, config):
        self.model = model
        self.config = config
        self.loader = DataLoader(dataset, batch_size=config.batch_size, shuffle=True)
        self.optimizer = self.configure()

    def configure(self):
        return torch.optim.AdamW(self.model.parameters(), lr=3e-3)

    def train(self):
        model, config = self.model, self.config
        for epoch in range(config.max_epochs):
            for it, (x, y) in enumerate(self.loader):
                loss = nn.functional.mse_loss(model(x), y)
                model.zero_grad()
                loss.backward()
                self.optimizer.step()
                print(f"epoch {epoch + 1} iter {it}: train loss {loss.item():.6f}")


torch.manual_seed(11)
data = TensorDataset(torch.randn(40, 3), torch.randn(40, 2))
trainer = Trainer(nn.Linear(3, 2), data, Config())
trainer.train()
