"""Optimisers as their authors write them: subclasses of torch's, and a function with groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer


class Lamb(Optimizer):
    """Adam's direction, as long as the tensor that it moves (You et al., 2020)."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float = 0.01,
        betas: tuple[float, ...] = (0.9, 0.99),
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make one step."""
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(p)
                    state["exp_avg_sq"] = torch.zeros_like(p)
                state["step"] += 1
                state["exp_avg"].lerp_(p.grad, 1 - first)
                state["exp_avg_sq"].lerp_(p.grad.square(), 1 - second)
                direction = state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-6)
                ratio = p.norm() / direction.norm().clamp(min=1e-6)
                p.sub_(group["lr"] * ratio.clamp(min=0.1) * direction)


def decay_matrices_only(network: nn.Module, lr: float = 0.01, decay: float = 0.1) -> Optimizer:
    """Make AdamW that leaves biases and scales alone, and moves them half as fast."""
    matrices = [p for p in network.parameters() if p.ndim > 1]
    others = [p for p in network.parameters() if p.ndim <= 1]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": decay},
            {"params": others, "weight_decay": 0.0, "lr": lr / 2},
        ],
        lr=lr,
    )


def muon_for_matrices(network: nn.Module, lr: float = 0.01) -> Optimizer:
    """Make Muon, which takes matrices only; biases stay as they are."""
    return torch.optim.Muon([p for p in network.parameters() if p.ndim == 2], lr=lr)
