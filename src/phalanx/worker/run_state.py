"""Track the position of a run, and report its epochs and its outcome.

Used by every backend and every loop; imports no framework. Every worker of a group keeps one and
comes to the same decisions; only the chief's writes records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phalanx.data.pipeline import Dataset
from phalanx.records import events
from phalanx.records.improvement import is_validation_due, note_validation
from phalanx.records.measures import Measures, ModelFigures
from phalanx.records.position import Position
from phalanx.spec.job import JobSpec
from phalanx.wire.control_client import ControlClient
from phalanx.wire.messages import EpochDone, RunOutcome
from phalanx.wire.switch import StepLimit

RecordEvent = Callable[[events.Event], None]


@dataclass(frozen=True)
class ResumePoint:
    """A checkpoint that was restored."""

    position: Position
    path: str


@dataclass(frozen=True)
class EpochEnd:
    """Actions due on the state at the end of an epoch."""

    save: bool
    is_best: bool


@dataclass(frozen=True)
class UnsavedPoint:
    """A checkpoint that is due, of the position that the run has come to."""

    is_best: bool


class RunState:
    """Count steps and epochs, and decide what is due.

    Args:
        job: What is to be done.
        position: Where the run stands; moved on here.
        dataset: Gives the length of an epoch, and the parts to evaluate.
        control: Where finished epochs are announced.
        record: Where facts about the whole run go; None: another process writes and announces.
        records_epochs: False if the controller writes down finished epochs, as whichever process
            announces them may be lost.
    """

    def __init__(
        self,
        job: JobSpec,
        position: Position,
        *,
        dataset: Dataset,
        control: ControlClient,
        record: RecordEvent | None,
        records_epochs: bool = True,
    ) -> None:
        self._job = job
        self._dataset = dataset
        self._control = control
        self._record = record
        self._records_epochs = records_epochs
        self.position = position

    @property
    def is_over(self) -> bool:
        """Whether the job is done."""
        return self.position.epoch >= self._job.epochs or self.position.stopped_early

    def is_at(self, limit: StepLimit | None) -> bool:
        """Return whether the limit is reached; within an epoch by whole steps."""
        if limit is None:
            return False
        step = -(-self.position.epoch_samples // self._job.global_batch)
        return (self.position.epoch, step) >= (limit.epoch, limit.step)

    @property
    def is_at_end_of_epoch(self) -> bool:
        """Whether all samples of the epoch have been seen."""
        return self.position.epoch_samples >= self._dataset.epoch_samples

    @property
    def progress(self) -> float:
        """The share of all samples of the job that have been seen."""
        return self.position.samples / (self._dataset.epoch_samples * self._job.epochs)

    @property
    def is_validation_due(self) -> bool:
        """Whether validation is due at the end of the present epoch."""
        wanted = is_validation_due(self._job, self.position.epoch + 1)
        return wanted and self._dataset.validation.num_samples > 0

    @property
    def is_test_due(self) -> bool:
        """Whether the test part is evaluated at the end of the job."""
        return self._job.evaluate != "never" and self._dataset.test.num_samples > 0

    @property
    def is_mid_epoch_checkpoint_due(self) -> bool:
        """Whether a checkpoint is due before the next step of the epoch."""
        every = self._job.checkpoint.every_steps
        if every is None or self.is_at_end_of_epoch:
            return False
        return self.position.updates % every == 0

    def resume(self, point: ResumePoint | None) -> None:
        """Continue from a checkpoint; None: there is none."""
        if point is None:
            self.record(events.Warned(message="no checkpoint yet: starting from the beginning"))
            return
        point.position.num_workers = self.position.num_workers
        self.position = point.position
        self.record(
            events.Resumed(
                path=point.path, epoch=self.position.epoch, samples=self.position.samples
            )
        )

    def count_step(self, num_samples: int) -> None:
        """Count an update that all workers made together from so many samples."""
        self.position.samples += num_samples
        self.position.epoch_samples += num_samples
        self.position.updates += 1

    def note_evaluation(self, part: str, measures: Measures) -> None:
        """Count and record an evaluation."""
        self.position.evaluate_s += measures.duration_s
        self.record(events.Evaluation.of(measures, part=part, epoch=self.position.epoch))

    def end_epoch(
        self, train: Measures, validation: Measures | None, *, regularisation: float, lr: float
    ) -> EpochEnd:
        """Report an epoch and count it; may stop the run early."""
        position, job = self.position, self._job
        position.train_loss, position.train_accuracy = train.loss, train.accuracy
        if validation is not None:
            self.note_evaluation("validation", validation)
            position.val_loss, position.val_accuracy = validation.loss, validation.accuracy
            position.val_metrics = dict(validation.metrics)
        figures = position.epoch_figures(position.epoch, lr=lr, regularisation=regularisation)
        if self._records_epochs:
            self.record(events.Epoch.of(figures))
        if self._record is not None:
            self._control.send(EpochDone(figures))
        # Early stopping is decided by the number of finished epochs: count first.
        position.begin_next_epoch()
        improved = note_validation(job, position)
        every = job.checkpoint.every_epochs
        last = position.epoch == job.epochs
        due = every is not None and (position.epoch % every == 0 or last)
        return EpochEnd(save=due or improved or position.stopped_early, is_best=improved)

    def outcome(
        self, model: ModelFigures, test: Measures | None, *, precision: str, startup_s: float
    ) -> RunOutcome:
        """Return the outcome of the run."""
        return self.position.outcome(
            model,
            test=test,
            precision=precision,
            startup_s=startup_s,
        )

    def set_recorder(self, record: RecordEvent | None) -> None:
        """Write facts about the whole run from now on, or leave that to another process."""
        self._record = record

    def record(self, event: events.Event) -> None:
        """Record a fact about the whole run, if this process writes the records."""
        if self._record is not None:
            self._record(event)
