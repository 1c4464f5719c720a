"""A small GPT: accumulation, clipping, AdamW with two groups, cosine, bf16 and an average."""

from __future__ import annotations

import contextlib
import copy
import sys

import torch
import torch.nn.functional as F
from common import arguments, tokens, write_parameters
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import phalanx

BLOCK, WIDTH, ACCUMULATE = 12, 16, 4
BF16 = "--bf16" in sys.argv
if BF16:
    sys.argv.remove("--bf16")
args = arguments(epochs=1)
torch.manual_seed(2)


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, WIDTH)
        self.place = nn.Parameter(torch.randn(BLOCK, WIDTH) * 0.02)
        self.norm = nn.LayerNorm(WIDTH)
        # Without biases: the gradient of the keys' is zero but for rounding, which Adam blows up.
        self.attend = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.mix = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))
        self.head = nn.Linear(WIDTH, 13, bias=False)
        self.head.weight = self.embed.weight  # tied, as usual

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.embed(text) + self.place
        q, k, v = self.attend(self.norm(x)).split(WIDTH, dim=2)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x + self.mix(x))


class Average:
    """An exponential moving average of the parameters."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for mine, theirs in zip(self.model.parameters(), model.parameters(), strict=True):
            mine.lerp_(theirs, 0.1)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self.model.state_dict()

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.model.load_state_dict(state)


text = tokens(1500)
starts = torch.arange(0, len(text) - BLOCK - 1, 7)
blocks = torch.stack([text[i : i + BLOCK + 1] for i in starts.tolist()])
model = Gpt()
average = Average(model)
decayed = [p for p in model.parameters() if p.ndim > 1]
others = [p for p in model.parameters() if p.ndim <= 1]
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
    lr=3e-3,
    betas=(0.9, 0.95),
)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
session = phalanx.session()
session.setup(
    model, optimizer, scheduler, accumulate=ACCUMULATE, clip_norm=0.5, extra={"average": average}
)
feed = session.data(DataLoader(TensorDataset(blocks), 10, shuffle=True), steps=12)
for micro, (part,) in enumerate(feed):
    with torch.autocast("cpu", dtype=torch.bfloat16) if BF16 else contextlib.nullcontext():
        logits = model(part[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten()) / ACCUMULATE
    loss.backward()
    if (micro + 1) % ACCUMULATE == 0:
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        average.update(model)
if session.chief:
    write_parameters(args.out, model, average.model)
