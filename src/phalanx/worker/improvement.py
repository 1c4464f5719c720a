"""Whether validation still improves: decides early stopping and the best checkpoint. Pure."""

from __future__ import annotations

from typing import Literal

Monitor = Literal["val_loss", "val_accuracy"]


def is_better(
    monitor: Monitor, value: float, best: float | None, *, min_delta: float = 0.0
) -> bool:
    """Whether a value beats the best so far by more than `min_delta`."""
    if best is None:
        return True
    return value < best - min_delta if monitor == "val_loss" else value > best + min_delta
