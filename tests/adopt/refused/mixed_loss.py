import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from vae import VAE, images

loader = DataLoader(images, batch_size=32, shuffle=True)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(2):
    for x in loader:
        recon, mu, logvar = model(x)
        recon_loss = F.mse_loss(recon, x)
        kl = -0.5 * torch.sum(1 + logvar - mu**2 - logvar.exp())
        loss = recon_loss + 0.01 * kl
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
