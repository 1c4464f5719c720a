"""Coordinating the processes of `backend: tensorflow`, phase by phase.

TensorFlow's chief hands out work and its servers hold the parameters; here is decided which
processes there are, what the loss of one means, and what follows a phase. Every phase has processes
of its own: the next one takes up the checkpoint that the chief of the last has written.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from typing_extensions import override

from phalanx.control.boundaries import boundary
from phalanx.control.collect import summarise_servers
from phalanx.control.coordinator import Coordinator, Desk, Process
from phalanx.control.policy import ProcessFacts, Trouble, Verdict, Weight, diagnose, find_cause
from phalanx.control.switching import add_times
from phalanx.errors import ExitCode, LaunchError
from phalanx.records import events
from phalanx.records.position import Position
from phalanx.spec.job import JobSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.switch import PhaseSpec
from phalanx.wire.facts import ServerFacts
from phalanx.wire.messages import Done, EpochDone, FromWorker, Outcome, PhaseOver, WorkTimes
from phalanx.wire.peers import Note, Relay, Relayed
from phalanx.wire.phases import CARRIED, Begin, Begun, Idle, Limit
from phalanx.wire.serving import Finish

CHIEF = "chief-0"
# TensorFlow cannot go on without these; whoever else is lost is started again.
_KEY_ROLES = ("chief", "server")
# Heartbeats come twice a second: so long a silence is no accident.
_SILENT_S = 3.0
# Errors that a new start would only repeat.
_HOPELESS = frozenset({"SpecError", "DataError", "EngineError", "StoreError"})


class PeerCoordinator(Coordinator):
    """For all strategies of `backend: tensorflow`.

    Args:
        job: What is to be done.
        desk: Who acts.
        position: Where to begin.
        before: The coordinator of the phase before, in a run that switches.
    """

    @classmethod
    @override
    def begin(cls, job: JobSpec, desk: Desk, found: Position | None) -> PeerCoordinator:
        return cls(job, desk, found or Position())

    def __init__(
        self,
        job: JobSpec,
        desk: Desk,
        position: Position,
        *,
        before: PeerCoordinator | None = None,
    ) -> None:
        self._job = job
        self._desk = desk
        self._position = position
        phases = job.strategy.resolved
        self._phases: Sequence[PhaseSpec] = phases
        self._strategy = phases[position.phase].strategy if phases else job.strategy
        self._before = before
        self._ended = 0.0
        self._outcome: Outcome | None = None
        self._over: PhaseOver | None = None
        self._suspicion: float | None = None
        self._num_lost: int = before._num_lost if before else 0
        self._earlier = before
        self._own_times: dict[str, WorkTimes] = {}
        self.times: dict[str, WorkTimes] = {}
        self.switches: list[events.Switched] = list(before.switches) if before else []
        self.serving = before.serving if before else None

    @property
    def _is_serving(self) -> bool:
        return self._strategy.updates_on_servers

    @property
    def _chief(self) -> str:
        return CHIEF if self._is_serving else "worker-0"

    @property
    def _is_ending(self) -> bool:
        """Whether the chief has said its last word in this phase."""
        return self._outcome is not None or self._over is not None

    @override
    def processes(self) -> Sequence[Process]:
        workers = [Process("worker", rank) for rank in range(self._job.worker_processes)]
        if not self._is_serving:
            return workers
        counts = self._strategy.processes(self._job.workers)
        servers = [Process("server", rank) for rank in range(counts.servers)]
        return [*servers, *workers, Process("chief", 0), Process("evaluator", 0)]

    @override
    def take(self, process: str, message: FromWorker) -> None:
        match message:
            case Idle():
                self._begin(process, message.num_samples)
            case Begun():
                if process == self._chief:
                    self._begun()
            case Relay():
                self._desk.send(message.process, Relayed(process, message.body))
            case Note():
                self._desk.record(msgspec.json.decode(message.event, type=events.AnyEvent))
            case EpochDone():
                self._desk.announce(message.report)
            case PhaseOver():
                self._phase_over(process, message)
            case Done():
                self._done(process, message)
            case _:
                raise AssertionError(f"{process} said {message}, which is not for this coordinator")

    @override
    def judge(self, processes: Sequence[ProcessFacts]) -> Verdict:
        deadlines = self._job.deadlines
        if self._is_ending and self._is_serving:
            # Whoever goes now has nothing left to do but to say goodbye.
            gone = all(
                f.exit_code is not None or f.silent_s > deadlines.heartbeat_s for f in processes
            )
            return Verdict(finished=gone)
        needed = [f for f in processes if not self._is_serving or _role(f) in _KEY_ROLES]
        trouble = self._find_cause(needed)
        if trouble is not None:
            return Verdict(trouble=trouble)
        if not self._is_serving:
            return Verdict(finished=self._suspicion is None and self._all_left(processes))
        return self._judge_replaceable([f for f in processes if _role(f) not in _KEY_ROLES])

    def _find_cause(self, needed: Sequence[ProcessFacts]) -> Trouble | None:
        """Why those that need one another cannot go on, once that is certain."""
        now = time.monotonic()
        # Who is done falls silent, and leaving takes its time on a busy machine: not frozen.
        busy = [facts for facts in needed if not facts.done or facts.exit_code is not None]
        wrong, cause = find_cause(
            busy,
            deadlines=self._job.deadlines,
            since_suspicion_s=None if self._suspicion is None else now - self._suspicion,
        )
        if wrong and self._suspicion is None:
            self._suspicion = now
        if cause is not None and _misses_somebody(cause, needed):
            # TensorFlow may notice a frozen peer first; who has fallen silent is about to be named.
            return None
        return cause

    def _all_left(self, processes: Sequence[ProcessFacts]) -> bool:
        limit_s = self._job.deadlines.heartbeat_s
        return all(f.done and (f.exit_code == 0 or f.silent_s > limit_s) for f in processes)

    def _judge_replaceable(self, processes: Sequence[ProcessFacts]) -> Verdict:
        assert isinstance(self._strategy, ParameterServerSpec)
        lost: list[Trouble] = []
        for facts in processes:
            found = diagnose(facts, self._job.deadlines)
            if found is None:
                continue
            weight, trouble = found
            hopeless = facts.error is not None and facts.error.kind in _HOPELESS
            if hopeless or weight == Weight.NEVER_JOINED:
                return Verdict(trouble=trouble)
            lost.append(trouble)
        allowed = self._strategy.max_failures
        if self._num_lost + len(lost) > allowed:
            number = self._num_lost + len(lost)
            return Verdict(
                trouble=Trouble(
                    process=lost[-1].process,
                    cause=f"{lost[-1].cause}; that is loss number {number}, and "
                    f"strategy.max_failures allows {allowed}",
                    exit_code=ExitCode.WORKER_LOST,
                    detail=lost[-1].detail,
                )
            )
        return Verdict(replace=tuple(lost))

    @override
    def left(self, process: str) -> None:
        if not self._is_serving:
            raise LaunchError(f"{process} cannot be replaced: every step needs all workers")
        self._num_lost += 1

    @override
    def resize(self, num_workers: int) -> Sequence[Process]:
        return ()

    @override
    def outcome(self) -> Outcome:
        assert self._outcome is not None, "asked before the chief had finished"
        return self._outcome

    def _begin(self, process: str, num_samples: int) -> None:
        following = self._phases[self._position.phase + 1 : self._position.phase + 2]
        stop: Limit | None = None
        if following:
            stop = boundary(following[0], self._job, num_samples=num_samples)
        self._desk.send(
            process,
            Begin(
                phase=self._position.phase,
                position=msgspec.json.encode(self._position),
                stop=stop,
                group=self._position.phase,
            ),
        )

    def _begun(self) -> None:
        """The chief trains: a switch is complete."""
        if self._before is None:
            return
        phase = self._phases[self._position.phase]
        switched = events.Switched(
            phase=self._position.phase,
            before=self._before._strategy.name,
            after=self._strategy.name,
            cause=_cause(phase),
            epoch=self._position.epoch,
            samples=self._position.samples,
            pause_s=time.monotonic() - self._before._ended,
            carried=list(CARRIED),
            handover="restart",
        )
        self.switches.append(switched)
        self._desk.record(switched)
        self._before = None

    def _phase_over(self, process: str, message: PhaseOver) -> None:
        self._note_times(process, message.times)
        if process != self._chief:
            return
        self._over = message
        self._ended = time.monotonic()
        position = msgspec.json.decode(message.position, type=Position)
        self._sum_up(position, message.server)
        self.successor = PeerCoordinator(self._job, self._desk, position, before=self)

    def _done(self, process: str, message: Done) -> None:
        self._note_times(process, message.times)
        if process == self._chief and message.outcome is not None:
            self._outcome = message.outcome
            end = Position(updates=message.outcome.updates, train_s=message.outcome.train_s)
            self._sum_up(end, message.server)

    def _sum_up(self, end: Position, facts: ServerFacts | None) -> None:
        """The chief has ended the phase: let the others go."""
        if not self._is_serving:
            return
        assert isinstance(self._strategy, ParameterServerSpec)
        self.serving = summarise_servers(
            self._strategy,
            {self._chief: facts} if facts is not None else {},
            updates=end.updates - self._position.updates,
            train_s=end.train_s - self._position.train_s,
            updates_lost=0,
            processes_replaced=self._num_lost,
        )
        assert isinstance(self._strategy.servers, int)
        self.serving.servers = self._strategy.servers
        for one in self.processes():
            if one.name != self._chief:
                self._desk.send(one.name, Finish())

    def _note_times(self, process: str, times: WorkTimes | None) -> None:
        if times is None:
            return
        self._own_times[process] = times
        # Asked now, because workers of the phase before may speak after their chief.
        earlier = self._earlier.times if self._earlier is not None else {}
        self.times = earlier | add_times(earlier, self._own_times)


def _misses_somebody(cause: Trouble, processes: Sequence[ProcessFacts]) -> bool:
    """Whether a process complains about a peer while another has fallen silent."""
    said = {one.process: one.error for one in processes if one.error is not None}
    own = said.get(cause.process)
    complains = own is not None and own.kind == "PeerError"
    return complains and any(
        one.silent_s > _SILENT_S and one.exit_code is None and one.error is None
        for one in processes
    )


def _role(facts: ProcessFacts) -> str:
    return facts.process.partition("-")[0]


def _cause(phase: PhaseSpec) -> str:
    if isinstance(phase.at, float):
        return f"{phase.at:.0%} of the samples"
    if phase.epoch is not None:
        return f"epoch {phase.epoch:g}"
    return f"decay {phase.lr_drop} of the learning rate"
