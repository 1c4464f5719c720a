"""A decoder-only transformer (Radford et al. 2019), small enough for two cores."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Attend to earlier tokens, then compute on each; both are added to the input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the changed tokens."""
        rows, length, width = x.shape
        parts = self.attend(self.norm1(x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(rows, length, width))
        computed: Tensor = self.shrink(F.gelu(self.expand(self.norm2(x))))
        return x + computed


class Gpt(nn.Module):
    """Predict the next token at every position."""

    def __init__(self, tokens: int, context: int, *, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(tokens, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)
        self.apply(_initialise)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits of shape (rows, length, tokens)."""
        places = torch.arange(ids.shape[1])
        logits: Tensor = self.head(self.norm(self.blocks(self.token(ids) + self.place(places))))
        return logits


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


def gpt(
    input_shape: tuple[int, ...],
    num_classes: int,
    width: int = 64,
    heads: int = 4,
    layers: int = 2,
) -> nn.Module:
    """Build a network for blocks of the data's length and its number of tokens."""
    return Gpt(num_classes, input_shape[0], width=width, heads=heads, layers=layers)
