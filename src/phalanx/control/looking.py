"""Having the state of the servers measured and saved by the evaluator, while training goes on.

A look has three parts: the evaluator reads everything (the servers must rest until it has),
measures a part of the data, and writes a checkpoint. One look at a time; what it finds belongs to
the moment at which it was begun, whatever training has done since.
"""

from __future__ import annotations

import msgspec

from phalanx.control.coordinator import Desk
from phalanx.records import events
from phalanx.records.improvement import may_stop, note_validation
from phalanx.records.position import Position
from phalanx.spec.job import JobSpec
from phalanx.wire.messages import EpochReport
from phalanx.wire.serving import Look, Looked, Measured, Save, Saved

EVALUATOR = "evaluator-0"
# What a look adds to the position.
_FOUND = ("val_loss", "val_accuracy", "best_value", "stale_epochs", "stopped_early")


class Looking:
    """The looks of one run.

    Args:
        job: Says what is measured and saved when.
        desk: Who sends and records.
    """

    def __init__(self, job: JobSpec, desk: Desk) -> None:
        self._job = job
        self._desk = desk
        self._number = 0
        self._part: str | None = None
        self._save = False
        self._pin = False
        self._end_of_epoch = False
        self._of: Position | None = None
        self._reading = False
        self._moved = False
        self._found: Save | None = None
        self._evaluator_up = False
        self._statistics = b""
        self.test: Measured | None = None
        self.saved: Saved | None = None
        self.regularisation = 0.0
        self.val_metrics: dict[str, float] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no look is under way."""
        return self._of is None

    @property
    def has_measured(self) -> bool:
        """Whether all is known of the last look; it may still be on its way to the disk."""
        return self.is_idle or (self._found is not None and not self._reading)

    @property
    def may_train(self) -> bool:
        """Whether training may go on: early stopping has to wait for what the look finds."""
        if self._reading:
            return False
        return self._of is None or not may_stop(self._job, self._of.epoch)

    @property
    def test_due(self) -> bool:
        """Whether the test part is still to be measured."""
        return self._job.evaluate != "never" and self.test is None

    def begin(
        self, position: Position, *, end_of_epoch: bool, statistics: bytes, pin: bool = False
    ) -> None:
        """Look at the servers now if the job wants anything of this moment.

        Args:
            position: Where the run stands.
            end_of_epoch: Whether an epoch is over.
            statistics: Of the workers, for batch normalisation.
            pin: Save it in any case, and keep it: another phase begins with it.
        """
        job = self._job
        self._statistics = statistics
        last = position.epoch >= job.epochs
        wanted = job.evaluate == "epoch" or (job.evaluate == "end" and last)
        validate = end_of_epoch and wanted and job.data.validation != 0
        every = job.checkpoint.every_epochs
        save = (
            pin or not end_of_epoch or last or (every is not None and position.epoch % every == 0)
        )
        self._pin = pin
        self._of = msgspec.structs.replace(position)
        self._end_of_epoch = end_of_epoch
        self._save = save
        self._found = None
        if validate or save:
            self._ask("validation" if validate else None)
        else:
            self._conclude(None, position)

    def begin_test(self) -> None:
        """Measure the test part; the run is over."""
        self._of = Position()
        self._end_of_epoch = self._save = False
        self._found = None
        self._ask("test")

    def training_goes_on(self) -> None:
        """The servers move on from the state that was last looked at."""
        self._moved = True

    def evaluator_ready(self) -> None:
        """The evaluator is there, maybe after a restart: ask it what is still open."""
        self._evaluator_up = True
        if self._of is not None:
            # What was measured already need not be measured again.
            self._ask(self._part if self._found is None else None)

    def evaluator_left(self) -> None:
        """The evaluator is gone; what it had read is lost once training has gone on."""
        self._evaluator_up = False
        of = self._of
        if of is None or not self._moved:
            return
        lacking = "neither measured nor saved" if self._found is None else "not saved"
        self._desk.record(
            events.Warned(
                message=f"the state after {of.samples} samples was {lacking}: the evaluator was "
                "lost while doing so"
            )
        )
        if self._end_of_epoch and self._found is None:
            of.val_loss = of.val_accuracy = None
            self._report(of)
        self._of = None

    def take(self, message: Looked | Measured | Saved, position: Position) -> None:
        """The evaluator has got one step further."""
        if message.look != self._number or self._of is None:
            return  # of a look that was given up
        match message:
            case Looked():
                self._reading = False
                if self._found is not None:
                    self._write(self._found)
                elif self._part is None:
                    self._conclude(None, position)
            case Measured():
                position.evaluate_s += message.duration_s
                self.regularisation = message.regularisation
                self._record(message)
                if message.part == "test":
                    self.test = message
                    self._of = None
                else:
                    self._conclude(message, position)
            case Saved():
                self.saved = message
                self._desk.record(
                    events.Checkpoint(
                        path=message.path,
                        epoch=self._of.epoch,
                        samples=self._of.samples,
                        size_bytes=message.size_bytes,
                        duration_s=message.duration_s,
                    )
                )
                self._of = None

    def _ask(self, part: str | None) -> None:
        self._part = part
        self._reading = True
        self._moved = False
        self._number += 1
        if self._evaluator_up:
            self._desk.send(
                EVALUATOR, Look(look=self._number, part=part, statistics=self._statistics)
            )

    def _conclude(self, measured: Measured | None, position: Position) -> None:
        """All is known of the moment: tell it, judge it, and write it down if that is due."""
        of = self._of
        assert of is not None
        improved = False
        if measured is not None:
            of.val_loss, of.val_accuracy = measured.loss, measured.accuracy
            self.val_metrics = measured.metrics
            of.evaluate_s = position.evaluate_s
            improved = note_validation(self._job, of)
            for field in _FOUND:
                setattr(position, field, getattr(of, field))
        if self._end_of_epoch:
            self._report(of)
        # The last state of a run is always written down, however early it ends.
        if self._save or improved or of.stopped_early:
            position_then = msgspec.json.encode(of)
            self._write(Save(look=0, position=position_then, best=improved, pin=self._pin))
        else:
            self._of = None

    def _write(self, save: Save) -> None:
        self._found = msgspec.structs.replace(save, look=self._number)
        self._desk.send(EVALUATOR, self._found)

    def _report(self, of: Position) -> None:
        assert of.train_loss is not None
        assert of.train_accuracy is not None
        report = EpochReport(
            epoch=of.epoch - 1,
            samples=of.samples,
            updates=of.updates,
            train_loss=of.train_loss,
            train_accuracy=of.train_accuracy,
            val_loss=of.val_loss,
            val_accuracy=of.val_accuracy,
            lr=self._desk.progress("worker-0").lr,
            train_s=of.train_s,
        )
        self._desk.record(
            events.Epoch(
                epoch=report.epoch,
                samples=report.samples,
                updates=report.updates,
                train_loss=report.train_loss,
                train_accuracy=report.train_accuracy,
                regularisation=self.regularisation,
                val_loss=report.val_loss,
                val_accuracy=report.val_accuracy,
                lr=report.lr,
                train_s=report.train_s,
                evaluate_s=of.evaluate_s,
            )
        )
        self._desk.announce(report)

    def _record(self, measured: Measured) -> None:
        of = self._of
        self._desk.record(
            events.Evaluation(
                part=measured.part,
                epoch=of.epoch if of is not None else 0,
                num_samples=measured.num_samples,
                loss=measured.loss,
                accuracy=measured.accuracy,
                duration_s=measured.duration_s,
                metrics=measured.metrics,
            )
        )
