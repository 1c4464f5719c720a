"""Where in the job a run stands: what a checkpoint holds besides tensors.

Written by the chief of a synchronous run, or by the controller of one with parameter servers;
either can take up the other's.
"""

from __future__ import annotations

import msgspec


class Position(msgspec.Struct, kw_only=True):
    """Everything of the state that is not a tensor."""

    epoch: int = 0
    epoch_samples: int = 0
    samples: int = 0
    updates: int = 0
    train_s: float = 0.0
    evaluate_s: float = 0.0
    num_workers: int = 1
    stopped_early: bool = False
    best_value: float | None = None
    stale_epochs: int = 0
    train_loss: float | None = None
    train_accuracy: float | None = None
    val_loss: float | None = None
    val_accuracy: float | None = None
