"""Everything in main(), with progress bars."""
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm


def main(args):
    """Train."""
    torch.manual_seed(args.seed)
    data = TensorDataset(torch.randn(70, 5), torch.randn(70, 1))
    train_dl = DataLoader(data, batch_size=10, shuffle=True, drop_last=True)
    model = nn.Linear(5, 1)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loss_fn = nn.MSELoss()
    for epoch in tqdm(range(args.epochs), desc="epochs"):
        bar = tqdm(train_dl, desc=f"epoch {epoch}")
        for xb, yb in bar:
            loss = loss_fn(model(xb), yb)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            bar.set_postfix(loss=loss.item())
        print(epoch, f"{loss.item():.6f}")
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
