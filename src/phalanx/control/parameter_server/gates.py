"""Move a parameter-server run from gate to gate.

Messages only note facts here; `GateCycle.advance` is the only place that changes the state, by the
table in `states`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from phalanx.consistency.rule import ConsistencyRule
from phalanx.control.coordinator import ControllerApi, PhaseEnd
from phalanx.control.parameter_server.batches import BatchAssignment, BatchScheduler
from phalanx.control.parameter_server.evaluation import EvaluationScheduler
from phalanx.control.parameter_server.membership import Membership
from phalanx.control.parameter_server.run_counts import NormStatistics, RunCounts, ServerCounts
from phalanx.control.parameter_server.states import (
    TRANSITIONS,
    AtGate,
    Closing,
    Finishing,
    Flushing,
    GateEvent,
    HandingOver,
    Left,
    Pausing,
    RunState,
    Starting,
    Training,
)
from phalanx.control.parameter_server.training_progress import TrainingProgress
from phalanx.control.state_machine import StateMachine
from phalanx.wire.parameter_server import Finish, Flush, Pause, Ready, Work, WorkDone
from phalanx.wire.switch import HandOver

# Before every server has written its state: tickets that one has lost are computed again.
_REOPENS = (Training, Pausing, Flushing)
# Servers have been flushed or are about to be: no worker computes.
AtRest = Flushing | Closing | AtGate | HandingOver


@dataclass(frozen=True)
class ServedRun:
    """The parts of a parameter-server run, shared by its coordinator and its gates."""

    api: ControllerApi
    clock: Callable[[], float]
    rule: ConsistencyRule
    num_workers: int
    """Workers of the job; more may have joined."""
    is_colocated: bool
    """Whether every worker hosts a server."""
    is_static: bool
    """Whether batches belong to workers by rank."""
    course: TrainingProgress
    membership: Membership
    evaluation: EvaluationScheduler
    account: RunCounts
    servers: ServerCounts
    statistics: NormStatistics


class GateCycle:
    """Hold the state of a run, and make every transition as soon as it is due."""

    def __init__(self, run: ServedRun) -> None:
        self._run = run
        self._machine = StateMachine[RunState](Starting(), TRANSITIONS)
        self._batches: BatchScheduler | None = None

    @property
    def state(self) -> RunState:
        """The current state."""
        return self._machine.state

    @property
    def is_planned(self) -> bool:
        """Whether a worker has told what there is to train on."""
        return self._batches is not None

    @property
    def num_open(self) -> Mapping[int, int]:
        """Tickets up to the gate that each worker owes."""
        return self._batches.num_open if self._batches is not None else {}

    def advance(self) -> None:
        """Make every transition that is due; called after every message and every loss."""
        while self._make_transition():
            pass

    def plan(self, ready: Ready) -> None:
        """Number the tickets when the first worker reports, and open the first gate."""
        run = self._run
        if self._batches is not None:
            return
        run.course.make_plan(ready)
        self._batches = BatchScheduler(
            run.course.plan, run.rule, static=run.is_static, now=run.clock()
        )
        if not run.course.is_over and not run.course.is_at_limit:
            self._open_gate(GateEvent.PLANNED)
            return
        # Resumed at the end: only evaluate, with the statistics that the workers have loaded.
        workers = frozenset(range(run.num_workers))
        self._machine.advance(GateEvent.NOTHING_TO_TRAIN, Pausing(workers))
        for rank in run.membership.connected:
            self._pause(rank)

    def end_early(self, *, discard: bool) -> None:
        """End the phase once the batches that workers have begun are done."""
        ticket = None
        if isinstance(self.state, Training) and self._batches is not None:
            ticket = self._batches.shorten()
        self._run.course.end_at(ticket, discard=discard)

    def work_wanted(self, worker: int, count: int) -> None:
        """Assign tickets to a worker that has connected to the servers."""
        run = self._run
        assert self._batches is not None, "asked for work before its own report"
        run.membership.worker_connected(worker)
        self._batches.request(worker, count)
        self._send(self._batches.assign(worker, run.membership.workers), run.statistics.mean)
        # It connected after the others were asked to pause.
        if isinstance(self.state, Pausing) and worker in self.state.unpaused:
            self._pause(worker)

    def work_done(self, worker: int, message: WorkDone) -> None:
        """Count the completed tickets of a worker, and assign more."""
        run, batches = self._run, self._batches
        assert batches is not None
        done, want = message.completed, message.want
        run.account.count(batches.complete(worker, done, want=want, now=run.clock()))
        self._send(batches.assign(worker, run.membership.workers))

    def even_out(self) -> None:
        """Complete a round that lacks gradients after losses; called several times a second."""
        if self._batches is not None:
            self._send(self._batches.even_out(self._run.clock()))

    def worker_paused(self, worker: int) -> None:
        """Note that a worker is paused, or lost."""
        if isinstance(self.state, Pausing):
            self._machine.update(Pausing(self.state.unpaused - {worker}))

    def server_flushed(self, process: str) -> None:
        """Note that a server has applied the gradients it had gathered."""
        state = self.state
        if isinstance(state, AtRest):
            self._machine.update(replace(state, unflushed=state.unflushed - {process}))

    def source_chosen(self, server: int, acknowledged: Iterable[int]) -> None:
        """Note what a lost server must contain again: what is done, and what it acknowledged."""
        if self._batches is not None:
            held = self._batches.only_held(acknowledged)
            self._batches.done.source_chosen(server, held)

    def tickets_held(self, server: int, tickets: bytes) -> None:
        """Note tickets that a restored server contains, in one or several parts."""
        if self._batches is not None:
            self._batches.done.note_held(server, tickets)

    def server_restored(self, server: int, process: str | None) -> int:
        """Have tickets computed again that a restored server lacks; returns how many.

        Where late gradients are dropped by rule, done tickets need not be on any server.
        """
        run, batches = self._run, self._batches
        state = self.state
        repeats = not run.rule.fresh or run.rule.in_rounds(run.num_workers)
        num_repeated, work = 0, list[BatchAssignment]()
        if batches is not None and repeats and isinstance(self.state, _REOPENS):
            num_repeated, work = batches.repeat(server, run.membership.workers)
        if num_repeated > 0 and not isinstance(self.state, Training):
            # Not flushed: the gate closes again, and all servers are flushed then.
            self._machine.advance(GateEvent.REPEATED, Training(run.clock()))
        elif isinstance(state, AtRest) and process is not None:
            # Also if its predecessor had answered: a restored server takes the round for begun, and
            # would let workers that join wait for an update that nobody makes.
            self._machine.update(replace(state, unflushed=state.unflushed | {process}))
            run.api.send(process, self._flush())
        # After the transition: workers must not be asked to pause before these tickets are done.
        self._send(work)
        return num_repeated

    def worker_handed_over(self, worker: int) -> None:
        """Note that a worker has read the final state of the servers."""
        state = self.state
        # Otherwise it is a late answer of a worker that was replaced.
        if isinstance(state, HandingOver) and worker in state.asked:
            self._machine.update(replace(state, read=state.read | {worker}))

    def worker_left(self, worker: int) -> int | None:
        """Reassign the tickets of a lost worker.

        Returns:
            Their number; None: no ticket was ever assigned.
        """
        # Counts as paused: the gate must not wait for a lost worker.
        self.worker_paused(worker)
        state = self.state
        if isinstance(state, HandingOver):
            asked, read = state.asked - {worker}, state.read - {worker}
            self._machine.update(replace(state, asked=asked, read=read))
        if self._batches is None:
            return None
        num_returned, work = self._batches.lose(worker, self._run.membership.workers)
        self._send(work)
        return num_returned

    def dismiss_if_finishing(self, process: str) -> None:
        """Dismiss a process that was restarted shortly before the end."""
        if isinstance(self.state, Finishing):
            self._run.api.send(process, Finish())

    def _make_transition(self) -> bool:
        """Make the next transition, if it is due.

        The order at a gate keeps the evaluated state well defined: workers pause before servers
        flush, so that no gradient comes after; servers flush before the evaluator reads.
        """
        match self.state:
            case Training(opened_at) if self._batches is not None and self._batches.is_drained:
                self._close_gate(self._batches, opened_at)
            case Pausing(unpaused) if not unpaused and self._run.membership.is_whole:
                # A server that was lost meanwhile has to be restored first.
                self._flush_servers()
            case Flushing(unflushed) if not unflushed:
                self._machine.advance(GateEvent.FLUSHED, Closing())
            case Closing(unflushed) if self._run.evaluation.is_free:
                self._close_stretch(unflushed)
            case AtGate() as state:
                return self._leave_gate(state)
            case HandingOver() as state:
                return self._hand_over(state)
            case _:
                return False
        return True

    def _open_gate(self, event: GateEvent) -> None:
        run, batches, now = self._run, self._batches, self._run.clock()
        assert batches is not None
        first, stop = run.course.next_stretch()
        self._machine.advance(event, Training(now))
        # Before the first ticket leaves: the servers change from then on.
        run.evaluation.servers_move_on()
        run.account.gate_opened(now)
        self._send(batches.open(first, stop, run.membership.workers), run.statistics.mean)

    def _close_gate(self, batches: BatchScheduler, opened_at: float) -> None:
        run = self._run
        # First: a ticket assigned from here on would belong behind the gate.
        batches.close()
        run.course.position.train_s += run.clock() - opened_at
        workers = frozenset(run.membership.workers)
        self._machine.advance(GateEvent.DRAINED, Pausing(workers))
        for rank in workers:
            self._pause(rank)

    def _flush_servers(self) -> None:
        run = self._run
        run.statistics.average()
        hosts = run.membership.hosts
        self._machine.advance(GateEvent.PAUSED, Flushing(frozenset(hosts)))
        for host in hosts:
            run.api.send(host, self._flush())

    def _close_stretch(self, unflushed: frozenset[str]) -> None:
        """Note that all updates up to the gate are applied, and request the evaluation."""
        run, course = self._run, self._run.course
        course.position.updates = run.servers.updates
        if course.goes_on_in_memory:
            at_gate = AtGate(is_unsaved=not course.bound.discard, unflushed=unflushed)
            self._machine.advance(GateEvent.EVALUATOR_FREE, at_gate)
            return
        end_of_epoch = course.is_at_end_of_epoch
        if end_of_epoch:
            run.account.end_epoch()
        at_gate = AtGate(is_unsaved=False, unflushed=unflushed)
        self._machine.advance(GateEvent.EVALUATOR_FREE, at_gate)
        run.evaluation.start(
            course.position,
            end_of_epoch=end_of_epoch,
            statistics=run.statistics.mean,
            pin=course.is_pinned_here,
        )

    def _leave_gate(self, state: AtGate) -> bool:
        """Open the next gate, hand over or finish; False: not yet."""
        run, evaluation = self._run, self._run.evaluation
        if run.course.is_over:
            if not evaluation.is_free:
                return False
            if evaluation.test_due:
                evaluation.start_test(run.statistics.mean)
                return False
            self._machine.advance(GateEvent.JOB_DONE, Finishing())
            self._dismiss_all()
            return True
        if run.course.is_at_limit:
            if self._is_evaluated:
                handing_over = HandingOver(state.is_unsaved, unflushed=state.unflushed)
                self._machine.advance(GateEvent.LIMIT_REACHED, handing_over)
            return self._is_evaluated
        if not evaluation.may_train or state.unflushed:
            return False
        # No update is being made, so waiting workers can begin with the same one at every server.
        run.membership.admit_waiting()
        if run.membership.is_joining:
            return False
        self._open_gate(GateEvent.GATE_OPENED)
        return True

    def _hand_over(self, state: HandingOver) -> bool:
        """Have all workers read the servers' final state; False: some have not.

        A lost worker is waited for: the next strategy may need all of them.
        """
        run, workers = self._run, frozenset(range(self._run.num_workers))
        if state.read >= workers:
            self._machine.advance(GateEvent.HANDED_OVER, Left(self._phase_end(state)))
            run.evaluation.servers_move_on()
            self._dismiss_all()
            return True
        # A restarted evaluator has to read again before the servers are dismissed.
        if self._is_evaluated and not state.unflushed:
            run.membership.admit_waiting()
            if run.membership.connected >= workers:
                # A colocated server shares memory with its worker: nothing has to be read.
                read = not (run.course.bound.to_memory and run.is_colocated)
                for rank in workers - state.asked:
                    run.api.send(f"worker-{rank}", HandOver(read=read))
                self._machine.update(replace(state, asked=workers))
        return False

    def _phase_end(self, state: HandingOver) -> PhaseEnd:
        run, bound = self._run, self._run.course.bound
        saved = None if bound.to_memory or bound.discard else run.evaluation.saved
        return PhaseEnd(
            position=run.course.position,
            statistics=run.statistics.mean,
            snapshot=saved.pinned if saved is not None else "",
            is_unsaved=state.is_unsaved,
        )

    @property
    def _is_evaluated(self) -> bool:
        """Whether the next phase may begin; a state in memory need not be written before."""
        evaluation = self._run.evaluation
        return evaluation.has_measured if self._run.course.bound.to_memory else evaluation.is_free

    def _send(self, work: Iterable[BatchAssignment], statistics: bytes = b"") -> None:
        run = self._run
        for one in work:
            if one.tickets:
                run.membership.worker_called(one.worker)
                run.api.send(f"worker-{one.worker}", Work(one.tickets, statistics))
            else:
                run.membership.worker_left_servers(one.worker)
                run.api.send(f"worker-{one.worker}", Pause(leave=True))

    def _pause(self, worker: int) -> None:
        """Pause a worker; it leaves the servers if others would wait for it meanwhile."""
        leave = self._run.rule.holds_back(self._run.num_workers)
        if leave:
            self._run.membership.worker_left_servers(worker)
        self._run.api.send(f"worker-{worker}", Pause(leave=leave))

    def _flush(self) -> Flush:
        run = self._run
        # Servers in separate processes pass optimiser state on through the files they write.
        write = not (run.course.goes_on_in_memory and run.is_colocated)
        # Not the tickets of the stretch that ends here: a server that is lost before the gate has
        # opened may need them again, and the others must then recognise them.
        done_below = self._batches.done.first if self._batches is not None else 0
        return Flush(done_below=done_below, write=write)

    def _dismiss_all(self) -> None:
        for process in self._run.membership.everyone:
            self._run.api.send(process, Finish())
