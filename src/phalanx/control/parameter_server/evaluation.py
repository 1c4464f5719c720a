"""Schedule evaluations and checkpoints of parameter-server runs, one at a time.

The evaluator reads the parameters (servers must not change until it has), evaluates a part of the
data, and writes a checkpoint; the last two overlap with training. Results belong to the position at
which the evaluation was requested. docs/explain-protocol.md shows the table below as a diagram.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

import msgspec

from phalanx.control.coordinator import ControllerApi
from phalanx.control.state_machine import StateMachine, Transitions
from phalanx.errors import ProtocolError
from phalanx.records import events
from phalanx.records.improvement import is_validation_due, may_stop, note_validation
from phalanx.records.position import Position
from phalanx.spec.job import JobSpec
from phalanx.wire.parameter_server import Evaluated, ReadAndEvaluate, Save, Saved, SnapshotTaken

EVALUATOR = "evaluator-0"


class Evaluator(Protocol):
    """Who reads, measures and saves."""

    name: str
    """Process that writes checkpoints, and without which nothing is measured."""

    def look(self, order: ReadAndEvaluate) -> None:
        """Have the servers read, and a part of the data evaluated."""


class EvaluatorProcess:
    """A process of its own, which evaluates jobs."""

    name = EVALUATOR

    def __init__(self, api: ControllerApi) -> None:
        self._api = api

    def look(self, order: ReadAndEvaluate) -> None:
        """Send it the request."""
        self._api.send(EVALUATOR, order)


@dataclass(frozen=True)
class EvaluationRequest:
    """Evaluation of the servers' state at one moment."""

    position: Position
    """A copy of where the run stood."""
    part: str | None
    """Part of the data to evaluate; None: only save."""
    statistics: bytes
    number: int = 0
    end_of_epoch: bool = False
    save: bool = False
    pin: bool = False


@dataclass(frozen=True)
class EvaluatorFree:
    """The evaluator has no request."""


@dataclass(frozen=True)
class ReadingServers:
    """The evaluator reads the parameters; the servers must not change."""

    request: EvaluationRequest
    save: Save | None = None
    """The checkpoint to write, if a lost evaluator had already evaluated it."""
    is_superseded: bool = False


@dataclass(frozen=True)
class MeasuringPart:
    """The evaluator has read everything and evaluates."""

    request: EvaluationRequest
    is_superseded: bool = False
    """Whether the servers have moved on: only this evaluator holds what it read."""


@dataclass(frozen=True)
class SavingCheckpoint:
    """The evaluator writes the checkpoint; its metrics are known."""

    request: EvaluationRequest
    save: Save
    is_superseded: bool = False


EvaluationState = EvaluatorFree | ReadingServers | MeasuringPart | SavingCheckpoint


class EvaluationEvent(StrEnum):
    """Events between the states of an evaluation."""

    REQUESTED = "requested"
    READ = "read"
    READ_TO_SAVE = "read, nothing to measure"
    MEASURED = "measured"  # and nothing is to be saved
    MEASURED_TO_SAVE = "measured, to be saved"
    SAVED = "saved"
    EVALUATOR_BACK = "evaluator back"
    ABANDONED = "evaluator lost, servers moved on"


INITIAL = EvaluatorFree
FINAL = (EvaluatorFree,)
TRANSITIONS: Transitions[EvaluationState] = {
    (EvaluatorFree, EvaluationEvent.REQUESTED): ReadingServers,
    (ReadingServers, EvaluationEvent.READ): MeasuringPart,
    (ReadingServers, EvaluationEvent.READ_TO_SAVE): SavingCheckpoint,
    (ReadingServers, EvaluationEvent.EVALUATOR_BACK): ReadingServers,
    (ReadingServers, EvaluationEvent.ABANDONED): EvaluatorFree,
    (MeasuringPart, EvaluationEvent.MEASURED): EvaluatorFree,
    (MeasuringPart, EvaluationEvent.MEASURED_TO_SAVE): SavingCheckpoint,
    (MeasuringPart, EvaluationEvent.EVALUATOR_BACK): ReadingServers,
    (MeasuringPart, EvaluationEvent.ABANDONED): EvaluatorFree,
    (SavingCheckpoint, EvaluationEvent.SAVED): EvaluatorFree,
    (SavingCheckpoint, EvaluationEvent.EVALUATOR_BACK): ReadingServers,
    (SavingCheckpoint, EvaluationEvent.ABANDONED): EvaluatorFree,
}


class EvaluationScheduler:
    """Have the state of the servers evaluated and saved when the job asks for it.

    Args:
        job: The job.
        api: Acts.
        evaluator: Does it; None: a process of its own.
    """

    def __init__(
        self, job: JobSpec, api: ControllerApi, evaluator: Evaluator | None = None
    ) -> None:
        self._job = job
        self._api = api
        self.evaluator: Evaluator = evaluator or EvaluatorProcess(api)
        self._machine = StateMachine[EvaluationState](EvaluatorFree(), TRANSITIONS)
        self._num_requests = 0
        self._evaluator_is_up = False
        self.test: Evaluated | None = None
        self.saved: Saved | None = None
        self.regularisation = 0.0

    @property
    def state(self) -> EvaluationState:
        """The current state."""
        return self._machine.state

    @property
    def is_free(self) -> bool:
        """Whether no evaluation is under way."""
        return isinstance(self.state, EvaluatorFree)

    @property
    def has_measured(self) -> bool:
        """Whether the last evaluation has its metrics; its checkpoint may be unfinished."""
        return isinstance(self.state, EvaluatorFree | SavingCheckpoint)

    @property
    def may_train(self) -> bool:
        """Whether training may go on: the servers were read, and no early stop is possible."""
        match self.state:
            case EvaluatorFree():
                return True
            case ReadingServers():
                return False
            case state:
                return not may_stop(self._job, state.request.position.epoch)

    @property
    def test_due(self) -> bool:
        """Whether the test part has yet to be evaluated."""
        return self._job.evaluate != "never" and self.test is None

    def start(
        self, position: Position, *, end_of_epoch: bool, statistics: bytes, pin: bool = False
    ) -> None:
        """Evaluate the servers now if anything is due at this position.

        Args:
            position: Where the run stands.
            end_of_epoch: Whether an epoch is over.
            statistics: Batch-norm statistics of the workers.
            pin: Save in any case, and keep it: another phase begins with it.
        """
        job = self._job
        last = position.epoch >= job.epochs
        wanted = is_validation_due(job, position.epoch)
        # A script evaluates by itself, on what it likes.
        has_part = job.data.validation != 0 or job.program is not None
        validate = end_of_epoch and wanted and has_part
        every = job.checkpoint.every_epochs
        save = (
            pin or not end_of_epoch or last or (every is not None and position.epoch % every == 0)
        )
        request = EvaluationRequest(
            position=msgspec.structs.replace(position),
            part="validation" if validate else None,
            statistics=statistics,
            end_of_epoch=end_of_epoch,
            save=save,
            pin=pin,
        )
        if validate or save:
            self._read(EvaluationEvent.REQUESTED, request)
        else:
            self._conclude(request, None, position)

    def start_test(self, statistics: bytes) -> None:
        """Evaluate the test part; training is over."""
        request = EvaluationRequest(position=Position(), part="test", statistics=statistics)
        self._read(EvaluationEvent.REQUESTED, request)

    def servers_move_on(self) -> None:
        """Note that the servers change: what was read last cannot be read again."""
        if not isinstance(self.state, EvaluatorFree):
            self._machine.update(replace(self.state, is_superseded=True))

    def evaluator_ready(self) -> None:
        """Send the evaluator, which has started or restarted, the open request."""
        self._evaluator_is_up = True
        match self.state:
            case EvaluatorFree():
                return
            case MeasuringPart(request):
                save = None
            case ReadingServers(request, save) | SavingCheckpoint(request, save):
                pass
        if save is not None:
            # Metrics that are known need not be computed again.
            request = replace(request, part=None)
        self._read(EvaluationEvent.EVALUATOR_BACK, request, save)

    def evaluator_left(self) -> None:
        """Note that the evaluator is lost; so is what it had read, once the servers moved on."""
        self._evaluator_is_up = False
        state = self.state
        if isinstance(state, EvaluatorFree) or not state.is_superseded:
            return
        is_measured = not isinstance(state, MeasuringPart) and state.save is not None
        of = state.request.position
        lacking = "not saved" if is_measured else "neither measured nor saved"
        self._api.record(
            events.Warned(
                message=f"the state after {of.samples} samples was {lacking}: the evaluator was "
                "lost while doing so"
            )
        )
        if state.request.end_of_epoch and not is_measured:
            of.val_loss = of.val_accuracy = None
            self._report(of)
        self._machine.advance(EvaluationEvent.ABANDONED, EvaluatorFree())

    def take(self, message: SnapshotTaken | Evaluated | Saved, position: Position) -> None:
        """Handle an answer of the evaluator; answers to superseded requests are ignored."""
        state = self.state
        if isinstance(state, EvaluatorFree) or message.look != state.request.number:
            return
        request, is_superseded = state.request, state.is_superseded
        match state, message:
            case ReadingServers(save=save), SnapshotTaken():
                if request.part is not None:
                    measuring = MeasuringPart(request, is_superseded)
                    self._machine.advance(EvaluationEvent.READ, measuring)
                    return
                save = save or self._conclude(request, None, position)
                assert save is not None, "the servers were read for nothing"
                self._write(EvaluationEvent.READ_TO_SAVE, request, save)
            case MeasuringPart(), Evaluated():
                self._take_measures(request, message, position)
            case SavingCheckpoint(), Saved():
                self._machine.advance(EvaluationEvent.SAVED, EvaluatorFree())
                self._take_saved(request, message)
            case _:
                said, due = type(message).__name__, type(state).__name__
                raise ProtocolError(f"it sent {said} in the state {due}")

    def _read(
        self, event: EvaluationEvent, request: EvaluationRequest, save: Save | None = None
    ) -> None:
        # A new number for every attempt, by which late answers of a lost evaluator are ignored.
        self._num_requests += 1
        request = replace(request, number=self._num_requests)
        self._machine.advance(event, ReadingServers(request, save))
        if self._evaluator_is_up:
            look = ReadAndEvaluate(
                look=request.number,
                part=request.part,
                statistics=request.statistics,
                epoch=request.position.epoch,
            )
            self.evaluator.look(look)

    def _take_measures(
        self, request: EvaluationRequest, message: Evaluated, position: Position
    ) -> None:
        position.evaluate_s += message.duration_s
        self.regularisation = message.regularisation
        if message.has_figures:
            self._api.record(
                events.Evaluation.of(message, part=message.part, epoch=request.position.epoch)
            )
        save = None
        if message.part == "test":
            self.test = message
        else:
            save = self._conclude(request, message, position)
        if save is None:
            self._machine.advance(EvaluationEvent.MEASURED, EvaluatorFree())
        else:
            self._write(EvaluationEvent.MEASURED_TO_SAVE, request, save)

    def _take_saved(self, request: EvaluationRequest, message: Saved) -> None:
        self.saved = message
        self._api.record(
            events.Checkpoint(
                path=message.path,
                epoch=request.position.epoch,
                samples=request.position.samples,
                size_bytes=message.size_bytes,
                duration_s=message.duration_s,
            )
        )

    def _conclude(
        self, request: EvaluationRequest, measured: Evaluated | None, position: Position
    ) -> Save | None:
        """Report a position whose metrics are known; returns the checkpoint to write, if any."""
        of = request.position
        improved = False
        # A part of few samples may round to none: its mean is not a loss and accuracy of 0.
        if measured is not None and measured.num_samples > 0:
            of.val_loss, of.val_accuracy = measured.loss, measured.accuracy
            of.val_metrics = measured.metrics
            of.evaluate_s = position.evaluate_s
            improved = note_validation(self._job, of)
            position.take_validation(of)
        if measured is not None and measured.ended and of.epoch < self._job.epochs:
            of.stopped_early = position.stopped_early = True
        if request.end_of_epoch:
            self._report(of)
        # The last state of a run is always written, however early it ends.
        if request.save or improved or of.stopped_early:
            return Save(look=0, position=msgspec.json.encode(of), best=improved, pin=request.pin)
        return None

    def _write(self, event: EvaluationEvent, request: EvaluationRequest, save: Save) -> None:
        state = self.state
        assert not isinstance(state, EvaluatorFree)
        save = msgspec.structs.replace(save, look=request.number)
        self._machine.advance(event, SavingCheckpoint(request, save, state.is_superseded))
        self._api.send(self.evaluator.name, save)

    def _report(self, of: Position) -> None:
        figures = of.epoch_figures(
            of.epoch - 1,
            lr=self._api.learning_rate(),
            regularisation=self.regularisation,
        )
        self._api.record(events.Epoch.of(figures))
        self._api.announce(figures)
