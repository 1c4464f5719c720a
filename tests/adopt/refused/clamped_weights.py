import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

dataloader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=16, shuffle=True)
critic = nn.Linear(4, 1)
generator = nn.Linear(2, 4)
optimizer_D = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
optimizer_G = torch.optim.RMSprop(generator.parameters(), lr=5e-5)
for epoch in range(2):
    for i, (real,) in enumerate(dataloader):
        optimizer_D.zero_grad()
        fake = generator(torch.randn(len(real), 2)).detach()
        loss_D = -critic(real).mean() + critic(fake).mean()
        loss_D.backward()
        optimizer_D.step()
        for p in critic.parameters():
            p.data.clamp_(-0.01, 0.01)
        if i % 5 == 0:
            optimizer_G.zero_grad()
            loss_G = -critic(generator(torch.randn(len(real), 2))).mean()
            loss_G.backward()
            optimizer_G.step()
