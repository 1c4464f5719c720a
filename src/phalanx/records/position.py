"""Define the position of a run in its job: the state in a checkpoint besides tensors.

Written by the chief of a synchronous run, or by the controller of one with parameter servers;
either can resume from the other's.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from phalanx.errors import StoreError
from phalanx.records.measures import ModelFigures, PartFigures
from phalanx.store.local import read_metadata
from phalanx.wire.messages import EpochFigures, RunOutcome

CHECKPOINT_PATTERN = "samples-*.safetensors"


class Position(msgspec.Struct, kw_only=True):
    """The state of a run without its tensors."""

    epoch: int = 0
    epoch_samples: int = 0
    epoch_loss_sum: float = 0.0
    epoch_correct: int = 0
    epoch_weight: float | None = None
    """What the two sums are over, if it is not the samples."""
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
    val_metrics: dict[str, float] = {}
    phase: int = 0
    """Of a strategy with several."""
    phase_begin: int = 0
    """Samples that had been seen when that phase began."""

    @property
    def epoch_divisor(self) -> float:
        """What the sums of the epoch are over."""
        return self.epoch_samples if self.epoch_weight is None else self.epoch_weight

    def begin_next_epoch(self) -> None:
        """Count the finished epoch, and reset the sums."""
        self.epoch += 1
        self.epoch_samples = self.epoch_correct = 0
        self.epoch_loss_sum = 0.0
        self.epoch_weight = None

    def begin_next_phase(self) -> None:
        """Count the finished phase."""
        self.phase += 1
        self.phase_begin = self.samples

    def take_validation(self, of: Position) -> None:
        """Adopt the validation results of an earlier position of the same run."""
        self.val_loss, self.val_accuracy = of.val_loss, of.val_accuracy
        self.val_metrics = of.val_metrics
        self.best_value, self.stale_epochs = of.best_value, of.stale_epochs
        self.stopped_early = of.stopped_early

    def epoch_figures(self, epoch: int, *, lr: float, regularisation: float) -> EpochFigures:
        """Return the figures of an epoch; validation may be missing."""
        assert self.train_loss is not None
        return EpochFigures(
            epoch=epoch,
            samples=self.samples,
            updates=self.updates,
            train_loss=self.train_loss,
            train_accuracy=self.train_accuracy,
            regularisation=regularisation,
            val_loss=self.val_loss,
            val_accuracy=self.val_accuracy,
            lr=lr,
            train_s=self.train_s,
            evaluate_s=self.evaluate_s,
        )

    def outcome(
        self,
        model: ModelFigures,
        *,
        test: PartFigures | None,
        precision: str,
        startup_s: float,
    ) -> RunOutcome:
        """Return the outcome of a run that ends at this position."""
        return RunOutcome(
            precision=precision,
            parameters=model.num_parameters,
            epochs=self.epoch,
            samples=self.samples,
            updates=self.updates,
            train_s=self.train_s,
            evaluate_s=self.evaluate_s,
            startup_s=startup_s,
            stopped_early=self.stopped_early,
            train_loss=self.train_loss,
            train_accuracy=self.train_accuracy,
            regularisation=model.regularisation,
            val_loss=self.val_loss,
            val_accuracy=self.val_accuracy,
            test_loss=test.loss if test else None,
            test_accuracy=test.accuracy if test else None,
            val_metrics=dict(self.val_metrics),
            test_metrics=dict(test.metrics) if test else {},
            parameters_sha256=model.digest,
        )


def read_position(path: Path) -> Position:
    """Read the position in a checkpoint file, from its header alone.

    A truncated file has none, because its tensors cannot be read either.
    """
    try:
        return msgspec.json.decode(read_metadata(path)["position"], type=Position)
    except (KeyError, msgspec.DecodeError) as error:
        raise StoreError(f"cannot read the checkpoint {path}: {error}", path=str(path)) from error


def newest_position(directory: Path) -> Position | None:
    """Read the position of the newest checkpoint with a readable header, if there is one."""
    for path in sorted(directory.glob(CHECKPOINT_PATTERN), reverse=True):
        try:
            return read_position(path)
        except StoreError:
            continue
    return None


def checkpoint_bytes(directory: Path) -> int:
    """Return the size of the newest checkpoint; 0: there is none."""
    return max((path.stat().st_size for path in directory.glob(CHECKPOINT_PATTERN)), default=0)


def describe_saved(directory: Path, *, num_epochs: int) -> str:
    """Say what of the finished epochs is in no checkpoint; empty: nothing is missing.

    Args:
        directory: Of the checkpoints.
        num_epochs: Epochs that were reported as finished.
    """
    position = newest_position(directory)
    if position is None:
        return "no checkpoint has been written yet; if it is resumed, the run begins anew"
    if position.epoch >= num_epochs:
        return ""
    return (
        f"the newest checkpoint holds {position.epoch} of {num_epochs} finished epochs "
        f"({position.samples:,} samples); the rest will be trained again"
    )
