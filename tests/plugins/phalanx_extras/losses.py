"""Weigh hard samples more than easy ones."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def focal(outputs: Tensor, targets: Tensor, *, gamma: float = 2.0) -> Tensor:
    """Compute the focal loss of every sample (Lin et al., 2017)."""
    entropy = F.cross_entropy(outputs, targets, reduction="none")
    return (1 - (-entropy).exp()) ** gamma * entropy
