"""Coordinate the processes of `backend: tensorflow`, phase by phase.

TensorFlow's chief assigns work and its servers hold the parameters; this module decides which
processes start, what the loss of one means, and what follows a phase. Every phase has new
processes, which resume the checkpoint that the chief of the phase before has written.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from typing_extensions import override

from phalanx.control.coordinator import ControllerApi, Coordinator, Process
from phalanx.control.failure_policy import (
    ProcessFacts,
    ProcessFailure,
    RunVerdict,
    find_cause,
    find_losses,
)
from phalanx.control.summarize import summarise_servers
from phalanx.control.switch.boundaries import boundary, describe_moment
from phalanx.control.work_times import add_times
from phalanx.errors import LaunchError, ProtocolError
from phalanx.records import events
from phalanx.records.position import Position
from phalanx.records.summary import ServingSummary
from phalanx.spec.job import JobSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.switch import PhaseSpec
from phalanx.wire.messages import Done, EpochDone, FromWorker, PhaseOver, RunOutcome, WorkTimes
from phalanx.wire.parameter_server import Finish
from phalanx.wire.relay import FromProcess, ProcessNote, SendToProcess
from phalanx.wire.server_stats import ServerStats
from phalanx.wire.switch import CARRIED, BeginPhase, PhaseBegun, PhaseIdle, StepLimit

CHIEF = "chief-0"
# TensorFlow cannot go on without these; all others are restarted when they are lost.
_KEY_ROLES = ("chief", "server")
# Heartbeats come twice a second: this long a silence is no accident.
_SILENT_S = 3.0


@dataclass(frozen=True)
class EarlierPhase:
    """State that a phase leaves to the coordinator of the next."""

    strategy: str
    ended_at: float
    num_lost: int
    times: Mapping[str, WorkTimes]
    """Of its workers, which may report after their chief."""
    switches: Sequence[events.Switched]
    serving: ServingSummary | None


class BackendCoordinator(Coordinator):
    """Coordinate all strategies of `backend: tensorflow`.

    Args:
        job: The job.
        api: Acts.
        position: Where the run begins.
        earlier: The phase before, in a run that switches.
    """

    @classmethod
    @override
    def begin(cls, job: JobSpec, api: ControllerApi, found: Position | None) -> BackendCoordinator:
        return cls(job, api, found or Position())

    def __init__(
        self,
        job: JobSpec,
        api: ControllerApi,
        position: Position,
        *,
        earlier: EarlierPhase | None = None,
    ) -> None:
        self._job = job
        self._api = api
        self._position = position
        phases = job.strategy.resolved
        self._phases: Sequence[PhaseSpec] = phases
        self._strategy = phases[position.phase].strategy if phases else job.strategy
        self._earlier = earlier
        self._has_begun = False
        self._outcome: RunOutcome | None = None
        self._suspicion: float | None = None
        self._num_lost = earlier.num_lost if earlier else 0
        self._own_times: dict[str, WorkTimes] = {}
        self._serving = earlier.serving if earlier else None
        self.times: dict[str, WorkTimes] = {}
        self.switches: list[events.Switched] = list(earlier.switches) if earlier else []

    @property
    @override
    def serving(self) -> ServingSummary | None:
        return self._serving

    @property
    def _served(self) -> ParameterServerSpec | None:
        """Settings of the present strategy; None: it has no servers."""
        if not self._strategy.updates_on_servers:
            return None
        assert isinstance(self._strategy, ParameterServerSpec)
        return self._strategy

    @property
    def _num_servers(self) -> int:
        return self._strategy.processes(self._job.workers).servers

    @property
    def _chief(self) -> str:
        return CHIEF if self._served else "worker-0"

    @property
    def _is_ending(self) -> bool:
        return self._outcome is not None or self.successor is not None

    @override
    def processes(self) -> Sequence[Process]:
        workers = [Process("worker", rank) for rank in range(self._job.worker_processes)]
        if self._served is None:
            return workers
        servers = [Process("server", rank) for rank in range(self._num_servers)]
        return [*servers, *workers, Process("chief", 0), Process("evaluator", 0)]

    @override
    def take(self, process: str, message: FromWorker) -> None:
        match message:
            case PhaseIdle():
                self._begin(process, message.num_samples)
            case PhaseBegun():
                if process == self._chief:
                    self._begun()
            case SendToProcess():
                self._api.send(message.process, FromProcess(process, message.body))
            case ProcessNote():
                self._api.record(msgspec.json.decode(message.event, type=events.AnyEvent))
            case EpochDone():
                self._api.announce(message.figures)
            case PhaseOver():
                self._phase_over(process, message)
            case Done():
                self._done(process, message)
            case _:
                raise ProtocolError(f"it sent {type(message).__name__}, which no backend takes")

    @override
    def judge(self, processes: Sequence[ProcessFacts]) -> RunVerdict:
        deadlines, served = self._job.deadlines, self._served
        if served is None:
            failure = self._find_cause(processes)
            is_over = self._suspicion is None and self._all_left(processes)
            return RunVerdict(failure=failure, finished=failure is None and is_over)
        if self._is_ending:
            # A process that exits now had only its report left to send.
            gone = all(
                f.exit_code is not None or f.silent_s > deadlines.heartbeat_s for f in processes
            )
            return RunVerdict(finished=gone)
        failure = self._find_cause([f for f in processes if _role(f) in _KEY_ROLES])
        if failure is not None:
            return RunVerdict(failure=failure)
        losses = find_losses([f for f in processes if _role(f) not in _KEY_ROLES], deadlines)
        return losses.verdict()

    def _find_cause(self, needed: Sequence[ProcessFacts]) -> ProcessFailure | None:
        """Return why processes that need one another cannot go on, once that is certain."""
        now = time.monotonic()
        # A process that is done sends no heartbeats while it exits: that is not frozen.
        busy = [facts for facts in needed if not facts.done or facts.exit_code is not None]
        wrong, cause = find_cause(
            busy,
            deadlines=self._job.deadlines,
            since_suspicion_s=None if self._suspicion is None else now - self._suspicion,
        )
        if wrong and self._suspicion is None:
            self._suspicion = now
        if cause is not None and _misses_a_peer(cause, needed):
            # TensorFlow may report a frozen process first; its missing heartbeats name it soon.
            return None
        return cause

    def _all_left(self, processes: Sequence[ProcessFacts]) -> bool:
        limit_s = self._job.deadlines.heartbeat_s
        return all(f.done and (f.exit_code == 0 or f.silent_s > limit_s) for f in processes)

    @override
    def left(self, process: str) -> None:
        if self._served is None:
            raise LaunchError(f"{process} cannot be replaced: every step needs all workers")
        self._num_lost += 1

    @override
    def resize(self, num_workers: int) -> Sequence[Process]:
        return ()

    @override
    def outcome(self) -> RunOutcome:
        assert self._outcome is not None, "asked before the chief had finished"
        return self._outcome

    def _begin(self, process: str, num_samples: int) -> None:
        following = self._phases[self._position.phase + 1 : self._position.phase + 2]
        stop: StepLimit | None = None
        if following:
            stop = boundary(following[0], self._job, num_samples=num_samples)
        self._api.send(
            process,
            BeginPhase(
                phase=self._position.phase,
                position=msgspec.json.encode(self._position),
                stop=stop,
                group=self._position.phase,
            ),
        )

    def _begun(self) -> None:
        earlier = self._earlier
        if earlier is None or self._has_begun:
            return
        self._has_begun = True
        switched = events.Switched(
            phase=self._position.phase,
            before=earlier.strategy,
            after=self._strategy.name,
            cause=describe_moment(self._phases[self._position.phase]),
            epoch=self._position.epoch,
            samples=self._position.samples,
            pause_s=time.monotonic() - earlier.ended_at,
            carried=list(CARRIED),
            handover="restart",
        )
        self.switches.append(switched)
        self._api.record(switched)

    def _phase_over(self, process: str, message: PhaseOver) -> None:
        self._note_times(process, message.times)
        if process != self._chief:
            return
        position = msgspec.json.decode(message.position, type=Position)
        self._sum_up(position, message.server)
        earlier = EarlierPhase(
            strategy=self._strategy.name,
            ended_at=time.monotonic(),
            num_lost=self._num_lost,
            times=self.times,
            switches=self.switches,
            serving=self._serving,
        )
        self.successor = BackendCoordinator(self._job, self._api, position, earlier=earlier)

    def _done(self, process: str, message: Done) -> None:
        self._note_times(process, message.times)
        if process == self._chief and message.outcome is not None:
            self._outcome = message.outcome
            end = Position(updates=message.outcome.updates, train_s=message.outcome.train_s)
            self._sum_up(end, message.server)

    def _sum_up(self, end: Position, facts: ServerStats | None) -> None:
        """Summarise a phase that the chief has ended, and dismiss its other processes."""
        if self._served is None:
            return
        self._serving = summarise_servers(
            self._served,
            {self._chief: facts} if facts is not None else {},
            updates=end.updates - self._position.updates,
            train_s=end.train_s - self._position.train_s,
            updates_lost=0,
            processes_replaced=self._num_lost,
        )
        self._serving.servers = self._num_servers
        for one in self.processes():
            if one.name != self._chief:
                self._api.send(one.name, Finish())

    def _note_times(self, process: str, times: WorkTimes | None) -> None:
        if times is None:
            return
        self._own_times[process] = times
        # Read now, because workers of the phase before may report after their chief.
        earlier = dict(self._earlier.times) if self._earlier is not None else {}
        # In place: the next phase holds a reference to this dictionary.
        self.times |= add_times(earlier, self._own_times)


def _misses_a_peer(cause: ProcessFailure, processes: Sequence[ProcessFacts]) -> bool:
    """Say whether a process reports a lost peer while another is silent."""
    said = {one.process: one.error for one in processes if one.error is not None}
    own = said.get(cause.process)
    complains = own is not None and own.kind == "PeerError"
    return complains and any(
        one.silent_s > _SILENT_S and one.exit_code is None and one.error is None
        for one in processes
    )


def _role(facts: ProcessFacts) -> str:
    return facts.process.partition("-")[0]
