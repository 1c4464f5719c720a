import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    world_size = dist.get_world_size()
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(40, 4), torch.randn(40, 2))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    model = nn.Linear(4, 2)
    ddp_model = DDP(model)
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(ddp_model(x), y)
            loss.backward()
            optimizer.step()
            if rank == 0:
                print(f"{epoch} {world_size} {loss.item():.6f}")
    if rank == 0:
        torch.save(ddp_model.module.state_dict(), "ddp.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
