import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Layer(nn.Linear):
    def __init__(self, a, b):
        super().__init__(a, b)
        self.opt = torch.optim.Adam(self.parameters(), lr=0.03)

    def train_layer(self, x_pos, x_neg):
        for i in range(10):
            g_pos = self.forward(x_pos).pow(2).mean(1)
            g_neg = self.forward(x_neg).pow(2).mean(1)
            loss = torch.log(1 + torch.exp(torch.cat([2 - g_pos, g_neg - 2]))).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()


loader = DataLoader(TensorDataset(torch.randn(20, 3)), batch_size=5)
layers = [Layer(3, 4), Layer(3, 4)]
for (x,) in loader:
    for layer in layers:
        layer.train_layer(x, x.flip(0))
