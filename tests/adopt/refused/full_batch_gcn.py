import torch
import torch.nn.functional as F
from model import GCN, load_data

adj, features, labels, idx_train = load_data()
model = GCN(features.shape[1], int(labels.max()) + 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)


def train(epoch):
    model.train()
    optimizer.zero_grad()
    output = model(features, adj)
    loss_train = F.nll_loss(output[idx_train], labels[idx_train])
    loss_train.backward()
    optimizer.step()
    print(epoch, loss_train.item())


for epoch in range(200):
    train(epoch)
