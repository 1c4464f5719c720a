"""Coordinate a parameter-server run: handle messages, judge losses, replace lost processes.

The coordinator does not train. Tickets of a lost worker go to other workers; a lost server gets its
parameters back from the worker with the freshest copy. `gates` decides the order of events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from typing_extensions import override

from phalanx.consistency.rule import rule_for
from phalanx.control.coordinator import Awaited, ControllerApi, Coordinator, PhaseEnd, Process
from phalanx.control.failure_policy import ProcessFacts, RunVerdict, find_losses
from phalanx.control.parameter_server.awaited import awaited_in
from phalanx.control.parameter_server.evaluation import EvaluationScheduler
from phalanx.control.parameter_server.gates import GateCycle, ServedRun
from phalanx.control.parameter_server.membership import Membership
from phalanx.control.parameter_server.run_counts import NormStatistics, RunCounts, ServerCounts
from phalanx.control.parameter_server.script_evaluation import ScriptWorkers
from phalanx.control.parameter_server.states import Finishing, Left, RunState, Training
from phalanx.control.parameter_server.training_progress import PhaseBound, TrainingProgress
from phalanx.errors import ProtocolError
from phalanx.records import events
from phalanx.records.position import Position
from phalanx.records.summary import ServingSummary
from phalanx.spec.job import JobSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.wire.messages import Done, FromWorker, PhaseOver, RunOutcome, WorkTimes
from phalanx.wire.parameter_server import (
    Evaluated,
    Finish,
    Flushed,
    HeldVersion,
    Paused,
    Ready,
    RequestWork,
    Restored,
    RestoredTickets,
    RestoreProgress,
    Saved,
    ServerUp,
    SnapshotTaken,
    WorkDone,
)
from phalanx.wire.program import ScriptEvaluated, ScriptFigures, ScriptSaved
from phalanx.wire.switch import HandedOver


class ParameterServerCoordinator(Coordinator):
    """Coordinate a run, or one phase of a run, under `parameter_server`.

    Args:
        job: The job.
        api: Acts.
        position: Where the run begins.
        bound: Where to hand over to another strategy.
        incarnations: Of processes that were replaced before this strategy began.
        clock: Returns the time in seconds.
    """

    @classmethod
    @override
    def begin(
        cls, job: JobSpec, api: ControllerApi, found: Position | None
    ) -> ParameterServerCoordinator:
        return cls(job, api, found or Position())

    def __init__(
        self,
        job: JobSpec,
        api: ControllerApi,
        position: Position,
        *,
        bound: PhaseBound | None = None,
        incarnations: Mapping[str, int] = MappingProxyType({}),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert isinstance(job.strategy, ParameterServerSpec)
        self._job = job
        self._spec = job.strategy
        self._script = ScriptWorkers(api) if job.program is not None else None
        self._run = ServedRun(
            api=api,
            clock=clock,
            rule=rule_for(job.strategy),
            num_workers=job.workers,
            is_colocated=self._spec.servers == "colocated",
            is_static=self._spec.dispatch == "static",
            course=TrainingProgress(job, position, bound or PhaseBound()),
            membership=Membership(
                self._num_servers,
                api,
                num_workers=job.workers,
                incarnations=incarnations,
                clock=clock,
                patience_s=job.deadlines.exchange_s,
            ),
            evaluation=EvaluationScheduler(job, api, self._script),
            account=RunCounts(position, now=clock()),
            servers=ServerCounts(),
            statistics=NormStatistics(),
        )
        self._cycle = GateCycle(self._run)
        self.times: dict[str, WorkTimes] = {}

    @property
    def state(self) -> RunState:
        """The current state."""
        return self._cycle.state

    @property
    def end(self) -> PhaseEnd | None:
        """State that the phase leaves to the next; None: it has not been left."""
        return self.state.end if isinstance(self.state, Left) else None

    @property
    def is_job_done(self) -> bool:
        """Whether the job ended with this strategy and all processes are being dismissed."""
        return isinstance(self.state, Finishing)

    @property
    @override
    def serving(self) -> ServingSummary:
        return self._run.account.summary(self._spec, self._run.servers)

    @property
    @override
    def can_shrink(self) -> bool:
        # A worker that hosts a slice of the parameters has to come back somewhere.
        return not self._run.is_colocated

    @override
    def processes(self) -> Sequence[Process]:
        counts = self._job.processes
        return [
            *(Process("server", rank) for rank in range(counts.servers)),
            *(Process("worker", rank) for rank in range(self._job.workers)),
            *(Process("evaluator", rank) for rank in range(counts.evaluators)),
        ]

    def leave(self, *, discard: bool = False) -> None:
        """End the phase once the batches that workers have begun are done; see `end`.

        Args:
            discard: Neither evaluate nor save the state at the end.
        """
        if self.end is None:
            self._cycle.end_early(discard=discard)
            self._cycle.advance()

    @override
    def take(self, process: str, message: FromWorker) -> None:
        run, cycle, rank = self._run, self._cycle, _rank(process)
        self._check_place(process, message)
        match message:
            case ServerUp() | Ready() if self.end is not None:
                # A successor that starts after the phase was left has nothing to join.
                run.api.send(process, Finish())
            case ServerUp():
                run.membership.server_up(process, message)
                cycle.dismiss_if_finishing(process)
            case Ready():
                self._take_ready(process, message)
            case RequestWork():
                cycle.work_wanted(rank, message.count)
                self._note_evaluator(process)
            case WorkDone():
                cycle.work_done(rank, message)
            case Paused():
                run.statistics.note(rank, message.statistics)
                cycle.worker_paused(rank)
            case HeldVersion():
                run.membership.copy_offered(process, message)
            case RestoreProgress():
                run.membership.restore_moved(message)
            case RestoredTickets():
                self._note_tickets(message)
            case Restored():
                self._take_restored(message)
            case Flushed():
                run.servers.flushed(message.server, message.version)
                cycle.server_flushed(process)
            case HandedOver():
                cycle.worker_handed_over(rank)
            case SnapshotTaken() | Evaluated() | Saved():
                run.evaluation.take(message, run.course.position)
            case ScriptFigures() if self._script is not None:
                self._script.take_figures(process, message)
            case ScriptSaved(saved):
                run.evaluation.take(saved, run.course.position)
            case ScriptEvaluated() if self._script is not None:
                self._take_measured(self._script.take_answer(process, message))
            case Done() | PhaseOver():
                self._take_end(process, message)
            case _:
                raise ProtocolError(f"it sent {type(message).__name__}, of another strategy")
        self._note_sources()
        cycle.advance()

    @override
    def judge(self, processes: Sequence[ProcessFacts]) -> RunVerdict:
        losses = find_losses(processes, self._job.deadlines)
        if losses.fatal is None and self.is_job_done:
            # A process that is lost now had only its exit left.
            gone = {failure.process for failure in losses.replaceable}
            over = all(f.exit_code is not None or f.process in gone for f in processes)
            return RunVerdict(finished=over)
        verdict = losses.verdict()
        if verdict.failure is None:
            self._cycle.even_out()
            self._run.membership.tick()
            self._note_sources()
        return verdict

    @override
    def awaited(self) -> Sequence[Awaited]:
        return awaited_in(self._cycle, self._run)

    @override
    def left(self, process: str) -> None:
        run, role, rank = self._run, process.split("-")[0], _rank(process)
        if isinstance(self.state, Left):
            # Workers and servers are done; only the evaluator's unfinished checkpoint can be lost.
            if process == run.evaluation.evaluator.name:
                run.evaluation.evaluator_left()
            return
        run.account.num_lost += 1
        match role:
            case "server":
                self._server_left(rank)
            case "worker":
                self._worker_left(rank)
            case _:
                run.evaluation.evaluator_left()
                run.membership.peer_left(Process(role, rank))
        self._note_sources()
        self._cycle.advance()

    @override
    def resize(self, num_workers: int) -> Sequence[Process]:
        return self._run.membership.grow(num_workers)

    @override
    def outcome(self) -> RunOutcome:
        return self._run.account.outcome(self._run.evaluation)

    def _check_place(self, process: str, message: FromWorker) -> None:
        """Refuse, before anything changes, what the sender cannot say in this run.

        Raises:
            ProtocolError: Another process hosts the servers, or nobody has told what there is to
                train on.
        """
        kind = type(message).__name__
        if isinstance(message, ServerUp | RestoreProgress | RestoredTickets | Restored | Flushed):
            host = "worker" if self._run.is_colocated else "server"
            if not process.startswith(host):
                raise ProtocolError(f"it sent {kind}, but servers are in each {host}")
        if isinstance(message, ScriptSaved) and process != self._run.evaluation.evaluator.name:
            raise ProtocolError(f"it sent {kind}, but another process writes checkpoints")
        if isinstance(message, RequestWork | WorkDone) and not self._cycle.is_planned:
            raise ProtocolError(f"it sent {kind} before Ready")

    def _take_ready(self, process: str, message: Ready) -> None:
        membership, role, rank = self._run.membership, process.split("-")[0], _rank(process)
        if role == "worker" and self._must_wait_for_gate(rank):
            membership.wait_for_gate(rank)
            if not isinstance(self.state, Training) or not membership.workers:
                membership.admit_waiting()
        else:
            membership.peer_up(Process(role, rank))
        self._cycle.dismiss_if_finishing(process)
        if role == "evaluator":
            self._run.evaluation.evaluator_ready()
            return
        self._run.account.precision = message.precision
        self._run.account.has_classes = message.has_classes
        if self._run.is_colocated and not message.serves:
            membership.server_without_slice(rank)
        self._cycle.plan(message)

    def _must_wait_for_gate(self, worker: int) -> bool:
        """Return whether a worker joins rounds that others have begun.

        Where every update takes a gradient of every worker, it must begin with the same update at
        every server. While updates are being made, several servers cannot agree on one, so it waits
        for the next gate; and the gate waits for it.
        """
        in_rounds = self._run.rule.in_rounds(self._job.workers)
        is_new = self._run.membership.is_newcomer(worker)
        return in_rounds and self._num_servers > 1 and is_new

    def _take_restored(self, message: Restored) -> None:
        run, server = self._run, message.server
        self._note_tickets(message)
        if not run.membership.server_restored(server):
            return  # a repeated report
        num_repeated = self._cycle.server_restored(server, run.membership.host_of(server))
        run.api.record(
            events.ServerRestored(
                server=server,
                version=message.version,
                lost_updates=run.servers.restored(server, message.version),
                optimizer_version=message.optimizer_version,
                repeated=num_repeated,
            )
        )

    def _note_tickets(self, message: RestoredTickets | Restored) -> None:
        try:
            self._cycle.tickets_held(message.server, message.tickets)
        except ValueError as error:
            raise ProtocolError(f"what it holds cannot be read: {error}") from error

    def _note_sources(self) -> None:
        """Fix what a lost server has to contain, at the moment when its source was chosen."""
        for server, acknowledged in self._run.membership.restorations.take_chosen().items():
            self._cycle.source_chosen(server, acknowledged)

    def _take_end(self, process: str, message: Done | PhaseOver) -> None:
        if isinstance(message, Done) and message.times is not None:
            self.times[process] = message.times
        if message.server is not None:
            self._run.servers.facts[process] = message.server
        elif process.startswith("server-") and not isinstance(self.state, Left | Finishing):
            self._run.membership.server_without_slice(_rank(process))

    def _note_evaluator(self, process: str) -> None:
        """Have a script's worker, which is connected now, take part in the open evaluation."""
        if self._script is not None:
            self._script.joined(process)
            if process == self._script.name:
                self._run.evaluation.evaluator_ready()

    def _take_measured(self, measured: Evaluated | None) -> None:
        """Pass on what all workers of a script have measured, once they are done."""
        if measured is None:
            return
        evaluation, position = self._run.evaluation, self._run.course.position
        evaluation.take(SnapshotTaken(measured.look), position)
        if measured.part:
            evaluation.take(measured, position)

    def _worker_left(self, rank: int) -> None:
        run, process = self._run, Process("worker", rank)
        run.statistics.forget(rank)
        if self._script is not None:
            self._script.left(process.name)
            if process.name == self._script.name:
                run.evaluation.evaluator_left()
            self._take_measured(self._script.measured())
        # Its server first, so that the dismissal below is not sent to the lost process.
        if run.is_colocated:
            self._server_left(rank)
        # Before its tickets are reassigned, which counts on present workers only.
        run.membership.peer_left(process)
        returned = self._cycle.worker_left(rank)
        if returned is not None:
            what = f"give {returned} batches of {process.name} to others"
            run.api.record(events.Decision(what=what, reason="it is gone", rank=rank))
        if not run.membership.workers:
            # Without workers no update is being made, so waiting ones may join now.
            run.membership.admit_waiting()

    def _server_left(self, server: int) -> None:
        run, process = self._run, self._run.membership.host_of(server)
        if process is not None:  # otherwise it was lost before it ever served
            run.servers.lost(server, run.api.progress(process).version)
            run.membership.server_left(server)

    @property
    def _num_servers(self) -> int:
        return self._spec.num_servers(self._job.workers)


def _rank(process: str) -> int:
    return int(process.rsplit("-", 1)[1])
