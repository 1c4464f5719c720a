"""Decide when to validate, when to stop early, and which checkpoint is the best; pure.

Called by the chief of a synchronous run and by the controller of one with parameter servers, so
that both stop at the same epoch.
"""

from __future__ import annotations

from phalanx.records.position import Position
from phalanx.spec.job import JobSpec
from phalanx.spec.metrics import Direction, direction_of
from phalanx.spec.optimize import EarlyStopSpec


def is_better(
    direction: Direction, value: float, best: float | None, *, min_delta: float = 0.0
) -> bool:
    """Tell whether a value beats the best so far by more than `min_delta`."""
    if best is None:
        return True
    return value < best - min_delta if direction == "min" else value > best + min_delta


def note_validation(job: JobSpec, position: Position) -> bool:
    """Count epochs without improvement in `position`, and stop there when there are too many.

    Args:
        job: Has the settings of early stopping.
        position: At the end of an epoch, which is counted already; updated in place.

    Returns:
        Whether this is the best so far, and the job keeps the best checkpoint.
    """
    early = job.early_stop
    monitor = early.monitor if early else job.checkpoint.best
    if monitor is None:
        return False
    # Targets that are no classes have no accuracy: the loss decides.
    if position.val_accuracy is None and monitor == "val_accuracy":
        monitor = "val_loss"
    value = _value(monitor, position)
    if value is None:
        return False
    direction = direction_of(monitor, job.metrics)
    improved = is_better(
        direction, value, position.best_value, min_delta=early.min_delta if early else 0.0
    )
    if improved:
        position.best_value = value
    position.stale_epochs = 0 if improved else position.stale_epochs + 1
    position.stopped_early = early is not None and _stops(
        early, monitor, position, value, direction=direction
    )
    return improved and job.checkpoint.best is not None


def is_validation_due(job: JobSpec, epochs_done: int) -> bool:
    """Tell whether the validation part is measured after so many epochs."""
    return job.evaluate == "epoch" or (job.evaluate == "end" and epochs_done >= job.epochs)


def may_stop(job: JobSpec, epochs_done: int) -> bool:
    """Tell whether the evaluation after so many epochs can end the run."""
    early = job.early_stop
    if early is None:
        return False
    return early.patience is not None or (early.bar is not None and early.bar.epoch == epochs_done)


def _value(monitor: str, position: Position) -> float | None:
    known = {"val_loss": position.val_loss, "val_accuracy": position.val_accuracy}
    if monitor in known:
        return known[monitor]
    return position.val_metrics.get(monitor.removeprefix("val_"))


def _stops(
    early: EarlyStopSpec, monitor: str, position: Position, value: float, *, direction: Direction
) -> bool:
    if early.patience is not None and position.stale_epochs >= early.patience:
        return True
    bar = early.bar
    # A bar is in the unit of its own metric.
    if bar is None or bar.epoch != position.epoch or monitor != early.monitor:
        return False
    # NaN compares false, so a diverged loss never counts as below the bar.
    met = value <= bar.value if direction == "min" else value >= bar.value
    return not met
