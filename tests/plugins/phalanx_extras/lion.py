"""Move parameters by the sign of their momentum: Lion (Chen et al., 2023)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from phalanx_extras import LionSpec


def make_update(
    spec: LionSpec, flat: Tensor
) -> tuple[Callable[[Tensor, float], None], dict[str, Tensor]]:
    """Bind the rule to one flat tensor of parameters; return it and its state."""
    now, later = spec.betas
    state = {"exp_avg": torch.zeros_like(flat)}

    def update(gradient: Tensor, lr: float) -> None:
        direction = torch.lerp(gradient, state["exp_avg"], now).sign_()
        flat.mul_(1 - lr * spec.weight_decay).add_(direction, alpha=-lr)
        state["exp_avg"].lerp_(gradient, 1 - later)

    return update, state
