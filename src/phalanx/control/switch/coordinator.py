"""Coordinate a run of several phases, one strategy after another.

Until a switch is committed the rules of the phase that ends hold, from then on those of the next. A
synchronous phase is committed when all workers have reported their position, a phase with servers
when all workers have read the servers' final state. One `PhaseEnd` carries the state over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from typing_extensions import override

from phalanx.control.coordinator import Awaited, ControllerApi, Coordinator, PhaseEnd, Process
from phalanx.control.failure_policy import ProcessFacts, RunVerdict, find_losses
from phalanx.control.parameter_server.training_progress import PhaseBound
from phalanx.control.state_machine import StateMachine
from phalanx.control.switch.attendance import Attendance
from phalanx.control.switch.phase_controller import PhaseController
from phalanx.control.switch.phases import LockstepPhase, PhaseRun, ServedPhase
from phalanx.control.switch.record import SwitchRecord
from phalanx.control.switch.sequence import (
    PhaseSequence,
    PhaseStart,
)
from phalanx.control.switch.states import (
    TRANSITIONS,
    Committed,
    Ending,
    Gathering,
    HandedOn,
    InPhase,
    Leaving,
    SwitchEvent,
    SwitchState,
)
from phalanx.control.switch.transition import PhaseTransition
from phalanx.control.synchronous import SynchronousCoordinator
from phalanx.errors import ProtocolError
from phalanx.records import events
from phalanx.records.position import Position
from phalanx.records.summary import ServingSummary
from phalanx.spec.job import JobSpec
from phalanx.spec.switch import LOOSENED, SwitchSpec, phase_job, strategy_of
from phalanx.wire.messages import Done, FromWorker, PhaseOver, RunOutcome
from phalanx.wire.parameter_server import Finish, WorkDone
from phalanx.wire.switch import BeginPhase, KeepSnapshot, PhaseBegun, PhaseIdle, WindowReport


class SwitchCoordinator(Coordinator):
    """Coordinate a run under `switch`.

    Args:
        job: The job.
        api: Acts.
        position: Where the run begins.
        resumed: Whether the state comes from a checkpoint.
        group: Number of the first group of workers.
        record: Of the coordinator whose processes these ones replace.
    """

    @classmethod
    @override
    def begin(cls, job: JobSpec, api: ControllerApi, found: Position | None) -> SwitchCoordinator:
        return cls(job, api, found or Position(), resumed=found is not None)

    def __init__(
        self,
        job: JobSpec,
        api: ControllerApi,
        position: Position,
        *,
        resumed: bool = False,
        group: int = 0,
        record: SwitchRecord | None = None,
    ) -> None:
        assert isinstance(job.strategy, SwitchSpec)
        self._job = job
        self._switch = job.strategy
        self._api = api
        self._machine = StateMachine[SwitchState](Gathering(), TRANSITIONS)
        self._start = PhaseStart(
            position.phase, position.phase, position, checkpoint="newest" if resumed else ""
        )
        self._record = record or SwitchRecord(api, job.workers)
        self._controller: PhaseController | None = None
        self._between = SynchronousCoordinator(job, api)  # judges between phases
        self._attendance = Attendance(group=group)
        self.switches = self._record.switches
        self.times = {}

    @property
    def state(self) -> SwitchState:
        """The current state."""
        return self._machine.state

    @property
    @override
    def serving(self) -> ServingSummary | None:
        served = self._record.last_served
        return served.serving if served is not None else None

    @override
    def processes(self) -> Sequence[Process]:
        counts = self._job.processes
        return [
            *(Process("server", rank) for rank in range(counts.servers)),
            *(Process("worker", rank) for rank in range(counts.workers)),
            *(Process("evaluator", rank) for rank in range(counts.evaluators)),
        ]

    @override
    def take(self, process: str, message: FromWorker) -> None:
        match message:
            case PhaseIdle():
                self._take_idle(process, message)
            case PhaseBegun():
                if self._controller is None:
                    raise ProtocolError("it sent PhaseBegun before any process was idle")
                pause_s = self._record.worker_began(process, message.pause_s)
                if pause_s is not None:
                    self._decider.note_pause(pause_s)
            case _:
                self._take_in_phase(process, message)
        self._advance()

    @override
    def judge(self, processes: Sequence[ProcessFacts]) -> RunVerdict:
        phase = self._phase
        judge: Coordinator = self._between
        if phase is not None and phase.replaces_losses:
            if self._start.phase == LOOSENED:
                self._request(self._decider.compare_workers())
            judge = phase.coordinator
            own = {one.name for one in judge.processes()}
        else:
            if phase is not None and not phase.has_servers:
                judge = phase.coordinator
            own = {facts.process for facts in processes if facts.process.startswith("worker-")}
        verdict = judge.judge([facts for facts in processes if facts.process in own])
        others = [facts for facts in processes if facts.process not in own]
        if verdict.failure is not None:
            return verdict
        if verdict.finished:
            return RunVerdict(finished=all(facts.exit_code is not None for facts in others))
        # Processes outside this phase are idle, but later phases need them.
        idle = [facts for facts in others if not facts.done]
        spare = find_losses(idle, self._job.deadlines, retry_start=True).verdict()
        if spare.failure is not None:
            return spare
        return RunVerdict(replace=(*verdict.replace, *spare.replace))

    @override
    def awaited(self) -> Sequence[Awaited]:
        match self.state:
            case Gathering():
                idle = self._attendance.idle
                return [
                    Awaited(one.name, "to report that it is idle")
                    for one in self.processes()
                    if one.name not in idle
                ]
            case Committed(phase):
                return [Awaited(one, "to leave its phase") for one in phase.awaited_processes]
            case HandedOn():
                return [Awaited(one.name, "to end") for one in self.processes()]
            case Ending():
                return ()  # those that have not said that they are done
            case InPhase(phase) | Leaving(phase):
                return phase.coordinator.awaited()

    @override
    def left(self, process: str) -> None:
        current = self._phase
        for phase in self._attendance.lose(process):
            if phase is not current:
                # It was still ending an earlier phase; what it was writing there is lost.
                phase.left(process)
        if current is None or not self._is_in(process, current):
            return
        current.left(process)
        if process.startswith("worker-") and current.replaces_losses:
            self._rescue_snapshot()
        self._advance()

    @override
    def resize(self, num_workers: int) -> Sequence[Process]:
        return ()

    @override
    def begin_next_phase(self, cause: str) -> bool:
        is_last = self._start.home + 1 >= len(self._switch.resolved)
        present = strategy_of(self._job, self._start.phase)
        if is_last or not isinstance(self.state, InPhase) or not self._switch.ends_early(present):
            return False
        self._request(PhaseTransition("next", cause))
        self._advance()
        return True

    @override
    def outcome(self) -> RunOutcome:
        assert self._phase is not None
        last = self._phase.coordinator
        outcome = last.outcome()
        self.times = self._record.total_times(last.times)
        return msgspec.structs.replace(outcome, startup_s=self._record.startup_s or 0.0)

    @property
    def _phase(self) -> PhaseRun | None:
        state = self.state
        return None if isinstance(state, Gathering | HandedOn) else state.phase

    @property
    def _decider(self) -> PhaseController:
        assert self._controller is not None, "no process has reported"
        return self._controller

    @property
    def _sequence(self) -> PhaseSequence:
        return self._decider.sequence

    def _advance(self) -> None:
        """Make every transition that is due; besides `_request`, only this changes the state."""
        while self._make_transition():
            pass

    def _make_transition(self) -> bool:
        match self.state:
            case Gathering():
                if len(self._attendance.idle) < len(self.processes()):
                    return False
                self._begin(SwitchEvent.ALL_IDLE)
            case (InPhase(phase) | Leaving(phase)) as state:
                if phase.is_job_done:
                    self._machine.advance(SwitchEvent.JOB_DONE, Ending(phase))
                    self._dismiss_idle()
                elif phase.is_committed:
                    transition = state.transition if isinstance(state, Leaving) else None
                    self._machine.advance(SwitchEvent.HANDED_OVER, Committed(phase, transition))
                elif (end := phase.end) is not None:
                    self._follow(end, state.transition if isinstance(state, Leaving) else None)
                else:
                    return False
            case Committed(phase, transition) if (end := phase.end) is not None:
                self._follow(end, transition)
            case _:
                return False
        return True

    def _take_idle(self, process: str, message: PhaseIdle) -> None:
        if self._attendance.phase_of(process) is not None:
            raise ProtocolError("it sent PhaseIdle in the middle of a phase")
        self._attendance.came(process)
        if self._controller is None:
            samples = message.num_samples
            self._controller = PhaseController(self._job, self._api, num_samples=samples)
        phase = self._phase
        if isinstance(self.state, Ending | HandedOn):
            self._dismiss_idle()
        elif phase is not None and phase.replaces_losses and self._is_in(process, phase):
            # A restarted process joins the phase that its predecessor was in.
            self._send_begin(process, phase, newcomer=True)

    @staticmethod
    def _is_in(process: str, phase: PhaseRun) -> bool:
        return process in (one.name for one in phase.coordinator.processes())

    def _take_in_phase(self, process: str, message: FromWorker) -> None:
        phase = self._attendance.phase_of(process)
        if phase is None:
            # Only its final report is left; or it is a late message of a replaced process.
            if isinstance(message, Done) and isinstance(self.state, HandedOn):
                self._record.process_ended(process, message.times)
            return
        if isinstance(message, WindowReport) and not message.covers(self._job.workers):
            raise ProtocolError(f"it sent a WindowReport not of {self._job.workers} workers")
        phase.take(process, message)
        match message:
            case WindowReport():
                self._request(self._decider.take_window(message))
            case WorkDone():
                self._request(self._decider.take_work(message))
            case PhaseOver():
                self._attendance.ends(process)
                if isinstance(self.state, Ending):
                    self._dismiss_idle()

    def _request(self, transition: PhaseTransition | None) -> None:
        """Leave the current phase early, unless it is being left already."""
        state = self.state
        if transition is None or not isinstance(state, InPhase):
            return
        # The state changes first, because the phase may end within `leave`.
        leaving = Leaving(state.phase, transition)
        self._machine.advance(SwitchEvent.TRANSITION_REQUESTED, leaving)
        self._api.record(events.Decision(what=transition.description, reason=transition.cause))
        state.phase.leave(transition)

    def _follow(self, end: PhaseEnd, transition: PhaseTransition | None) -> None:
        """Begin the next phase with the state that this one leaves."""
        sequence, before = self._sequence, self._start
        self._start = sequence.following(before, end, transition)
        self._record.announce(sequence.event(before, end, transition, self._start))
        if self._switch.handover == "restart":
            self._hand_on()
        else:
            self._begin(SwitchEvent.PHASE_OVER)

    def _hand_on(self) -> None:
        """Have new processes continue from the checkpoint at the boundary."""
        position = msgspec.structs.replace(self._start.position, phase=self._start.home)
        self._record.processes_leave()
        self._machine.advance(SwitchEvent.PHASE_OVER_RESTART, HandedOn())
        self.successor = SwitchCoordinator(
            self._job,
            self._api,
            position,
            resumed=True,
            group=self._attendance.group + 1,
            record=self._record,
        )
        for process in self.processes():
            self._api.send(process.name, Finish())

    def _begin(self, event: SwitchEvent) -> None:
        """Begin a phase in all of its processes."""
        self._record.phase_begins()
        names = [process.name for process in self.processes()]
        phase = self._make_phase({name: self._api.identity(name).incarnation for name in names})
        self._machine.advance(event, InPhase(phase))
        for process in phase.coordinator.processes():
            if process.name not in self._attendance.missing:
                self._send_begin(process.name, phase)

    def _make_phase(self, incarnations: Mapping[str, int]) -> PhaseRun:
        start, sequence = self._start, self._sequence
        position = msgspec.structs.replace(start.position, phase=start.home)
        job = phase_job(self._job, start.phase, start.shares)
        if not strategy_of(self._job, start.phase).updates_on_servers:
            self._attendance.regroup(incarnations)
            self._decider.enter_lockstep(start.home, sequence.automatic_next(start.home))
            return LockstepPhase(job, self._api, position)
        bound = PhaseBound(sequence.limit(start.home), sequence.goes_to_memory(start.home))
        phase = ServedPhase(job, self._api, position, bound=bound, incarnations=incarnations)
        self._record.last_served = phase.coordinator
        self._decider.enter_serving(position, watched=sequence.is_watched(start))
        return phase

    def _send_begin(self, process: str, phase: PhaseRun, *, newcomer: bool = False) -> None:
        start = self._start
        from_file = newcomer or process.startswith("server-") or start.follows_servers
        checkpoint = start.checkpoint
        if phase.has_servers and not checkpoint and from_file:
            checkpoint = start.snapshot
        # Noted before it is sent: the first answer must find the phase it belongs to.
        self._attendance.begins(process, phase)
        phase.enter(process)
        self._api.send(
            process,
            BeginPhase(
                phase=start.phase,
                position=msgspec.json.encode(phase.position),
                stop=self._sequence.limit(start.home),
                group=self._attendance.group,
                checkpoint=checkpoint,
                newcomer=newcomer,
                save=start.save,
                statistics=start.statistics,
                shares=start.shares,
            ),
        )

    def _rescue_snapshot(self) -> None:
        """Have the state at the switch saved, which successors load, as the chief may be lost."""
        workers = [f"worker-{rank}" for rank in range(self._job.workers)]
        holder = next((one for one in workers if one not in self._attendance.missing), None)
        start = self._start
        if holder is not None and start.snapshot and not start.follows_servers:
            at = msgspec.json.encode(start.position)
            self._api.send(holder, KeepSnapshot(snapshot=start.snapshot, position=at))

    def _dismiss_idle(self) -> None:
        for process in self._attendance.idle:
            self._api.send(process, Finish())
        self._attendance.idle.clear()
