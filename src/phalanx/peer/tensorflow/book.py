"""What the chief keeps of the run: position, epochs, measures, checkpoints, and the outcome.

The same for every strategy; where the facts about the whole run are written differs, so it is
given. Nothing here touches TensorFlow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from phalanx.records import events
from phalanx.records.improvement import note_validation
from phalanx.records.position import Position
from phalanx.spec.job import JobSpec
from phalanx.store.numpy_tensors import Arrays, NumpyAdapter
from phalanx.wire.messages import EpochDone, EpochReport, Outcome
from phalanx.wire.phases import Limit
from phalanx.worker.checkpoint import NEWEST, Checkpoints
from phalanx.worker.station import Station


@dataclass(frozen=True)
class Measures:
    """Loss and accuracy over a part, as means over its samples."""

    loss: float
    accuracy: float
    num_samples: int
    duration_s: float


class Book:
    """The run as its chief knows it; other workers keep one that writes nothing.

    Args:
        station: Of this process.
        position: Where the run stands.
        num_samples: Training samples of an epoch.
        record: Where facts about the whole run go; None: another process writes them.
    """

    def __init__(
        self,
        station: Station,
        position: Position,
        *,
        num_samples: int,
        record: Callable[[events.Event], None] | None,
    ) -> None:
        self._station = station
        self._job: JobSpec = station.job
        self._num_samples = num_samples
        self._record = record
        self._checkpoints = Checkpoints(station.open_store(NumpyAdapter()), self._job.checkpoint)
        self.position = position

    @property
    def is_over(self) -> bool:
        """Whether the job is done."""
        return self.position.epoch >= self._job.epochs or self.position.stopped_early

    def is_at(self, limit: Limit | None) -> bool:
        """Whether the phase ends here."""
        if limit is None:
            return False
        step = -(-self.position.epoch_samples // self._job.global_batch)
        return (self.position.epoch, step) >= (limit.epoch, limit.step)

    @property
    def is_at_end_of_epoch(self) -> bool:
        """Whether all samples of the epoch have been seen."""
        return self.position.epoch_samples >= self._num_samples

    @property
    def validates(self) -> bool:
        """Whether the validation part is measured at the end of the present epoch."""
        last = self.position.epoch + 1 == self._job.epochs
        return self._job.evaluate == "epoch" or (self._job.evaluate == "end" and last)

    @property
    def is_mid_epoch_checkpoint_due(self) -> bool:
        """Whether the state is written down before the next step, where all step together."""
        every = self._job.checkpoint.every_steps
        if every is None or self.is_at_end_of_epoch:
            return False
        return self.position.updates % every == 0

    def note_evaluation(self, part: str, measures: Measures) -> None:
        """A part has been measured."""
        self.position.evaluate_s += measures.duration_s
        self._write(
            events.Evaluation(
                part=part,
                epoch=self.position.epoch,
                num_samples=measures.num_samples,
                loss=measures.loss,
                accuracy=measures.accuracy,
                duration_s=measures.duration_s,
            )
        )

    def end_epoch(
        self, train: Measures, validation: Measures | None, *, regularisation: float, lr: float
    ) -> tuple[bool, bool]:
        """Count an epoch and tell what it came to.

        Returns:
            Whether its state is to be written down, and whether it is the best so far.
        """
        position, job = self.position, self._job
        position.train_loss, position.train_accuracy = train.loss, train.accuracy
        if validation is not None:
            self.note_evaluation("validation", validation)
            position.val_loss, position.val_accuracy = validation.loss, validation.accuracy
        self._report(regularisation, lr)
        last = position.epoch + 1 == job.epochs
        position.epoch += 1
        improved = note_validation(job, position)
        position.epoch_samples = position.epoch_correct = 0
        position.epoch_loss_sum = 0.0
        every = job.checkpoint.every_epochs
        due = every is not None and (position.epoch % every == 0 or last)
        return due or improved or position.stopped_early, improved

    def save(
        self, state: Arrays, *, order: Sequence[str], best: bool = False, pin: bool = False
    ) -> None:
        """Write a checkpoint.

        Arrays are named by variable, so a run goes on only under the backend that began it.

        Args:
            state: Of the network.
            order: Names of its arrays in the order of the model's variables.
            best: Keep it as the best one.
            pin: Keep it for the rest of the run.
        """
        begin = time.perf_counter()
        variables = msgspec.json.encode(list(order)).decode()
        written = self._checkpoints.write(
            self.position, state, metadata={"backend": "tensorflow", "variables": variables}
        )
        if best:
            self._checkpoints.mark_best(written.name)
        if pin:
            self._checkpoints.pin(written.name)
        self._write(
            events.Checkpoint(
                path=written.name,
                epoch=self.position.epoch,
                samples=self.position.samples,
                size_bytes=written.size_bytes,
                duration_s=time.perf_counter() - begin,
            )
        )

    def restore(self) -> Arrays | None:
        """The newest checkpoint's state; the position becomes its own. None: start anew."""
        found = self._checkpoints.load(NEWEST)
        if found is None:
            self._write(events.Warned(message="no checkpoint yet: starting from the beginning"))
            return None
        self.position = found.position
        self.position.num_workers = self._job.workers
        self._write(
            events.Resumed(
                path=found.name, epoch=self.position.epoch, samples=self.position.samples
            )
        )
        return found.tensors

    def outcome(
        self,
        test: Measures | None,
        *,
        startup_s: float,
        num_parameters: int,
        digest: str,
        regularisation: float,
    ) -> Outcome:
        """What the run came to."""
        position = self.position
        return Outcome(
            precision=self._job.precision,
            parameters=num_parameters,
            epochs=position.epoch,
            samples=position.samples,
            updates=position.updates,
            train_s=position.train_s,
            evaluate_s=position.evaluate_s,
            startup_s=startup_s,
            stopped_early=position.stopped_early,
            train_loss=position.train_loss,
            train_accuracy=position.train_accuracy,
            regularisation=regularisation,
            val_loss=position.val_loss,
            val_accuracy=position.val_accuracy,
            test_loss=test.loss if test else None,
            test_accuracy=test.accuracy if test else None,
            parameters_sha256=digest,
        )

    def _report(self, regularisation: float, lr: float) -> None:
        position = self.position
        assert position.train_loss is not None
        assert position.train_accuracy is not None
        report = EpochReport(
            epoch=position.epoch,
            samples=position.samples,
            updates=position.updates,
            train_loss=position.train_loss,
            train_accuracy=position.train_accuracy,
            val_loss=position.val_loss,
            val_accuracy=position.val_accuracy,
            lr=lr,
            train_s=position.train_s,
        )
        self._write(
            events.Epoch(
                epoch=report.epoch,
                samples=report.samples,
                updates=report.updates,
                train_loss=report.train_loss,
                train_accuracy=report.train_accuracy,
                regularisation=regularisation,
                val_loss=report.val_loss,
                val_accuracy=report.val_accuracy,
                lr=report.lr,
                train_s=position.train_s,
                evaluate_s=position.evaluate_s,
            )
        )
        if self._record is not None:
            self._station.control.send(EpochDone(report))

    def _write(self, event: events.Event) -> None:
        if self._record is not None:
            self._record(event)
