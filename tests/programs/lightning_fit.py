"""A Lightning module: accumulation over an uneven epoch, clipping, a schedule and validation."""

from __future__ import annotations

import lightning as L
import torch
import torch.nn.functional as F
from common import arguments, fail_once, images, write_parameters
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from phalanx.integrations.lightning import PhalanxStrategy

args = arguments(epochs=3)
L.seed_everything(4)


class Net(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 4))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = F.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        found = self.net(batch[0])
        self.log("val_loss", F.cross_entropy(found, batch[1]))
        self.log("val_accuracy", (found.argmax(1) == batch[1]).float().mean())

    def on_train_batch_end(self, *_: object) -> None:
        fail_once(trainer.global_rank, trainer.global_step)

    def configure_optimizers(self) -> object:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


model = Net()
trainer = L.Trainer(
    max_epochs=args.epochs,
    accumulate_grad_batches=2,
    gradient_clip_val=0.5,
    strategy=PhalanxStrategy(),
    default_root_dir=args.out.parent / "lightning" if args.out else None,
    enable_progress_bar=False,
    enable_model_summary=False,
    logger=False,
)
trainer.fit(
    model,
    DataLoader(TensorDataset(*images(90)), 13, shuffle=True),
    DataLoader(TensorDataset(*images(40)), 40),
)
if trainer.is_global_zero:
    write_parameters(args.out, model)
