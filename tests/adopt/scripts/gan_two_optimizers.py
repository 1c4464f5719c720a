import os

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
niter = 2
outf = "out"
try:
    os.makedirs(outf)
except OSError:
    pass

dataloader = DataLoader(TensorDataset(torch.randn(64, 4) + 2), batch_size=16, shuffle=True)
netG = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4))
netD = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1), nn.Sigmoid())
criterion = nn.BCELoss()

# setup optimizer
optimizerD = optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))

for epoch in range(niter):
    for i, data in enumerate(dataloader, 0):
        netD.zero_grad()
        real = data[0]
        label = torch.full((real.size(0), 1), 1.0)
        errD_real = criterion(netD(real), label)
        errD_real.backward()
        fake = netG(torch.randn(real.size(0), 2))
        label.fill_(0)
        errD_fake = criterion(netD(fake.detach()), label)
        errD_fake.backward()
        optimizerD.step()

        netG.zero_grad()
        label.fill_(1)
        errG = criterion(netD(fake), label)
        errG.backward()
        optimizerG.step()
        print(f"[{epoch}/{niter}][{i}/{len(dataloader)}] {errD_real.item():.5f} {errG.item():.5f}")
    # do checkpointing
    torch.save(netG.state_dict(), "%s/netG_epoch_%d.pth" % (outf, epoch))
    torch.save(netD.state_dict(), "%s/netD_epoch_%d.pth" % (outf, epoch))
