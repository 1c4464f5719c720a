"""Whether validation still improves: decides early stopping and the best checkpoint. Pure.

Asked by the chief of a synchronous run and by the controller of one with parameter servers, so that
both stop at the same epoch.
"""

from __future__ import annotations

from typing import Literal

from phalanx.records.position import Position
from phalanx.spec.job import JobSpec

Monitor = Literal["val_loss", "val_accuracy"]


def is_better(
    monitor: Monitor, value: float, best: float | None, *, min_delta: float = 0.0
) -> bool:
    """Whether a value beats the best so far by more than `min_delta`."""
    if best is None:
        return True
    return value < best - min_delta if monitor == "val_loss" else value > best + min_delta


def note_validation(job: JobSpec, position: Position) -> bool:
    """Count epochs without improvement in `position`, and stop there when there are too many.

    Returns:
        Whether this is the best so far, and the job wants the best to be kept.
    """
    early = job.early_stop
    monitor = early.monitor if early else job.checkpoint.best
    if monitor is None:
        return False
    value = position.val_loss if monitor == "val_loss" else position.val_accuracy
    if value is None:
        return False
    if is_better(monitor, value, position.best_value, min_delta=early.min_delta if early else 0.0):
        position.best_value = value
        position.stale_epochs = 0
        return job.checkpoint.best is not None
    position.stale_epochs += 1
    position.stopped_early = early is not None and position.stale_epochs >= early.patience
    return False
