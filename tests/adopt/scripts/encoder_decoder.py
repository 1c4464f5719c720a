import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train():
    torch.manual_seed(9)
    data_loader = DataLoader(TensorDataset(torch.randn(45, 6)), batch_size=15, shuffle=True)
    encoder = nn.Sequential(nn.Linear(6, 2), nn.Tanh())
    decoder = nn.Linear(2, 6)
    params = list(encoder.parameters()) + list(decoder.parameters())
    optimizer = torch.optim.Adam(params, lr=1e-2)
    criterion = nn.MSELoss()
    for epoch in range(2):
        for (x,) in data_loader:
            loss = criterion(decoder(encoder(x)), x)
            encoder.zero_grad()
            decoder.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"{loss.item():.6f}")
    torch.save(
        {"encoder": encoder.state_dict(), "decoder": decoder.state_dict()},
        "autoencoder.pt",
    )


train()
