"""Coordinating a run of several phases: one strategy's coordinator after another's.

Between two phases there is one moment of commitment. A lockstep phase is left when all workers have
said where they stand; until then a loss ends the run, as in any lockstep phase, and from then on
the rules of the phase with servers hold. A phase with servers is left when all updates are made and
all workers have read them; from then on the lockstep rules hold.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence

import msgspec
from typing_extensions import override

from phalanx.control.boundaries import boundary
from phalanx.control.coordinator import Coordinator, Desk, Process
from phalanx.control.looking import EVALUATOR
from phalanx.control.policy import ProcessFacts, Trouble, Verdict, diagnose
from phalanx.control.reacting import Move, Reactor
from phalanx.control.serving import ServingCoordinator
from phalanx.control.synchronous import SynchronousCoordinator
from phalanx.records import events
from phalanx.records.position import Position
from phalanx.spec.job import JobSpec
from phalanx.spec.phases import LOOSENED, phase_job, strategy_of
from phalanx.spec.switch import PhaseStrategy, SwitchSpec
from phalanx.wire.messages import Done, FromWorker, Outcome, PhaseOver, WorkTimes
from phalanx.wire.phases import CARRIED, Begin, Begun, Idle, Keep, Limit, Turn, Window
from phalanx.wire.serving import Finish, Looked, Measured, Saved, WorkDone

_WORDS = {
    "next": "switch to the next phase",
    "rollback": "undo the switch",
    "reshare": "change the shares of the batch",
    "loosen": "go to a looser strategy",
    "return": "go back to the strategy of the phase",
}

# Errors that a new start would only repeat.
_HOPELESS = frozenset({"SpecError", "DataError", "EngineError", "StoreError"})


class SwitchCoordinator(Coordinator):
    """For `switch`.

    Args:
        job: What is to be done.
        desk: Who acts.
        position: Where to begin.
        resumed: Whether that is taken from a checkpoint.
        group: Number of the first group of workers.
    """

    @classmethod
    @override
    def begin(cls, job: JobSpec, desk: Desk, found: Position | None) -> SwitchCoordinator:
        return cls(job, desk, found or Position(), resumed=found is not None)

    def __init__(
        self,
        job: JobSpec,
        desk: Desk,
        position: Position,
        *,
        resumed: bool = False,
        group: int = 0,
    ) -> None:
        assert isinstance(job.strategy, SwitchSpec)
        self._job = job
        self._switch = job.strategy
        self._desk = desk
        self._position = position
        self._phase = self._home = position.phase
        self._move: Move | None = None
        self._saved_position: Position | None = None
        self._shares: tuple[float, ...] = ()
        self._follows_servers = False
        self._begun_at = position
        self._checkpoint = "newest" if resumed else ""
        self._snapshot = ""
        self._statistics = b""
        self._num_samples = 0
        self._idle: set[str] = set()
        self._inner: SynchronousCoordinator | ServingCoordinator | None = None
        self._retired: ServingCoordinator | None = None
        self._looked_at: deque[ServingCoordinator] = deque()
        self._over: dict[str, PhaseOver] = {}
        self._begun: dict[str, float] = {}
        self._announced: events.Switched | None = None
        self._group = group
        self._grouped: dict[str, int] = {}  # incarnations of the workers in the group
        self._missing: set[str] = set()  # processes that were lost, and are not back yet
        self._num_lost = 0
        self._is_ending = False
        self._save_next = False
        self._between = SynchronousCoordinator(job, desk)  # judges when no phase does
        self._made = time.monotonic()
        self._startup_s: float | None = None
        self._left_at: float | None = None
        self.times: dict[str, WorkTimes] = {}
        self._earlier_times: dict[str, WorkTimes] = {}
        self.switches: list[events.Switched] = []

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
            case Idle():
                self._take_idle(process, message)
            case Begun():
                self._take_begun(process, message)
            case PhaseOver():
                self._phase_over(process, message)
            case Window() if isinstance(self._inner, SynchronousCoordinator):
                self._make(self._reactor.take_window(message))
            case Looked() | Measured() | Saved():
                # The evaluator may still be writing what the phase before asked it to.
                if self._looked_at:
                    self._looked_at[0].take(process, message)
            case Done():
                self._take_done(process, message)
            case _:
                assert self._inner is not None, f"{process} said {message} before any phase"
                self._inner.take(process, message)
                if isinstance(message, WorkDone):
                    self._make(self._reactor.take_work(message))
        self._go_on()

    @override
    def judge(self, processes: Sequence[ProcessFacts]) -> Verdict:
        if isinstance(self._inner, ServingCoordinator) and not self._inner.is_handed_over:
            if self._phase == LOOSENED:
                self._make(self._reactor.compare_workers())
            return self._inner.judge(processes)
        lockstep = self._between
        if isinstance(self._inner, SynchronousCoordinator):
            lockstep = self._inner
        workers = [facts for facts in processes if facts.process.startswith("worker-")]
        verdict = lockstep.judge(workers)
        if verdict.trouble is not None:
            return verdict
        others = [facts for facts in processes if not facts.process.startswith("worker-")]
        if verdict.finished:
            return Verdict(finished=all(facts.exit_code is not None for facts in others))
        return self._judge_helpers(others)

    def _judge_helpers(self, helpers: Sequence[ProcessFacts]) -> Verdict:
        """Servers and the evaluator have nothing to do in a lockstep phase, but will be needed."""
        lost: list[Trouble] = []
        for facts in helpers:
            found = diagnose(facts, self._job.deadlines) if not facts.done else None
            if found is None:
                continue
            if facts.error is not None and facts.error.kind in _HOPELESS:
                return Verdict(trouble=found[1])
            lost.append(found[1])
        if lost and self._num_lost + len(lost) > self._max_failures:
            return Verdict(trouble=lost[-1])
        return Verdict(replace=tuple(lost))

    @property
    def _max_failures(self) -> int:
        return self._switch.tolerated_failures

    @override
    def left(self, process: str) -> None:
        self._idle.discard(process)
        self._missing.add(process)
        self._num_lost += 1
        if process == EVALUATOR:
            self._forget_looks()
        if isinstance(self._inner, ServingCoordinator):
            self._inner.left(process)
            if process.startswith("worker-") and not self._inner.is_handed_over:
                self._rescue_snapshot()

    def _rescue_snapshot(self) -> None:
        """A successor needs the state at the switch, which the chief may not have written yet."""
        others = [f"worker-{rank}" for rank in range(self._job.workers)]
        holder = next((one for one in others if one not in self._missing), None)
        if holder is not None and self._snapshot and not self._follows_servers:
            at = msgspec.json.encode(self._begun_at)
            self._desk.send(holder, Keep(snapshot=self._snapshot, position=at))

    def _forget_looks(self) -> None:
        """The evaluator is gone, with whatever a phase before had asked it to write."""
        for coordinator in self._looked_at:
            if coordinator is not self._inner and not coordinator.has_looked:
                message = "the state at the last switch was not saved: the evaluator was lost"
                self._desk.record(events.Warned(message=message))
        self._looked_at.clear()

    @override
    def resize(self, num_workers: int) -> Sequence[Process]:
        return ()

    @override
    def outcome(self) -> Outcome:
        assert self._inner is not None
        outcome = self._inner.outcome()
        serving = self._inner if isinstance(self._inner, ServingCoordinator) else self._retired
        if serving is not None:
            self.serving = serving.serving or serving.summary()
        self.times = add_times(self._earlier_times, self._inner.times)
        return msgspec.structs.replace(outcome, startup_s=self._startup_s or 0.0)

    def _take_idle(self, process: str, message: Idle) -> None:
        self._missing.discard(process)
        self._idle.add(process)
        self._num_samples = message.num_samples
        if self._is_ending or self.successor is not None:
            self._dismiss_idle()
            return
        inner = self._inner
        if not isinstance(inner, ServingCoordinator) or inner.is_handed_over:
            return
        if process in (one.name for one in inner.processes()):
            # Its predecessor was lost.
            self._send_begin(process, newcomer=True)

    def _take_done(self, process: str, message: Done) -> None:
        assert self._inner is not None
        if process.startswith("worker-") or isinstance(self._inner, ServingCoordinator):
            self._inner.take(process, message)
        if self.successor is not None:
            # All workers go on as they are with the run's totals.
            assert isinstance(self.successor, SwitchCoordinator)
            if message.times is not None:
                own = {process: message.times}
                self.successor._earlier_times |= add_times(self._earlier_times, own)
        elif process == "worker-0":
            self._is_ending = True
            self._dismiss_idle()

    def _dismiss_idle(self) -> None:
        """The job is over: whoever waits for another phase need not."""
        for process in self._idle:
            self._desk.send(process, Finish())
        self._idle.clear()

    def _take_begun(self, process: str, message: Begun) -> None:
        self._begun[process] = message.pause_s
        if self._startup_s is None:
            self._startup_s = time.monotonic() - self._made
        if self._announced is not None and len(self._begun) == self._job.workers:
            self._announced.pause_s = (
                max(self._begun.values())
                if self._left_at is None
                else time.monotonic() - self._left_at
            )
            self._left_at = None
            self._reactor.note_pause(self._announced.pause_s)
            self._desk.record(self._announced)
            self.switches.append(self._announced)
            self._announced = None

    def _phase_over(self, process: str, message: PhaseOver) -> None:
        self._over[process] = message
        self._idle.add(process)
        if process == EVALUATOR and self._looked_at:
            self._looked_at.popleft()
        serving = self._inner if isinstance(self._inner, ServingCoordinator) else self._retired
        if serving is not None:
            serving.take(process, Done(server=message.server))
            self._is_ending |= serving is self._inner and serving.is_finishing
        if self._is_ending:
            self._dismiss_idle()

    def _go_on(self) -> None:
        """Begin the first phase once all are there, and the next one when one is over."""
        if self._inner is None:
            if len(self._idle) == len(self.processes()):
                self._reactor = Reactor(self._job, self._desk, num_samples=self._num_samples)
                self._begin(self._phase)
            return
        workers = [f"worker-{rank}" for rank in range(self._job.workers)]
        awaited = list(workers)
        if isinstance(self._inner, ServingCoordinator) and not self._goes_to_memory:
            # The next phase begins from what the evaluator has written, maybe on the same servers.
            awaited = [one.name for one in self._inner.processes() if one.name not in self._missing]
        if self.successor is not None or not all(one in self._over for one in awaited):
            return
        self._save_next = False
        if isinstance(self._inner, SynchronousCoordinator):
            self._take_positions([self._over[worker] for worker in workers])
        else:
            self._retired = self._inner
            self._statistics = self._inner.statistics
            self._position = self._inner.position
            self._save_next = self._inner.is_unsaved
            if not self._goes_to_memory:
                self._snapshot = self._inner.saved.replace("samples-", "switch-")
        self._next()

    @property
    def _goes_to_memory(self) -> bool:
        """Whether the present phase with servers is followed by one that goes on from memory."""
        if self._move is not None and not self._is_at_boundary():
            return True
        following = self._switch.resolved[self._home + 1 : self._home + 2]
        serves = bool(following) and following[0].strategy.updates_on_servers
        return self._switch.handover == "live" and not serves

    def _make(self, move: Move | None) -> None:
        """Have the present phase left, unless it is being left already."""
        if move is None or self._move is not None or self._inner is None:
            return
        self._move = move
        self._desk.record(events.Decision(what=_WORDS[move.what], reason=move.cause))
        if isinstance(self._inner, ServingCoordinator):
            self._inner.turn(discard=move.what == "rollback")
        else:
            self._desk.send("worker-0", Turn(stay=move.what == "reshare"))

    def _take_positions(self, reports: Sequence[PhaseOver]) -> None:
        """Put the chief's position and the sums of all workers together."""
        positions = [msgspec.json.decode(one.position, type=Position) for one in reports]
        self._position = positions[0]
        self._position.epoch_loss_sum = sum(one.epoch_loss_sum for one in positions)
        self._position.epoch_correct = sum(one.epoch_correct for one in positions)
        self._statistics = b""
        self._snapshot = reports[0].snapshot

    def _next(self) -> None:
        before, was_loose = strategy_of(self._job, self._phase).name, self._phase == LOOSENED
        self._follows_servers = isinstance(self._inner, ServingCoordinator)
        move, self._move = self._move, None
        if move is not None and move.what != "rollback" and self._is_at_boundary():
            # What was planned for this very moment comes first.
            move = None
        self._checkpoint = ""
        match move:
            case None | Move(what="next"):
                self._saved_position = msgspec.structs.replace(self._position)
                self._home += 1
                self._phase = self._home
            case Move(what="rollback"):
                assert self._saved_position is not None
                self._position = msgspec.structs.replace(self._saved_position)
                self._checkpoint = self._snapshot
                self._home -= 1
                self._phase = self._home
            case Move(what="loosen"):
                self._phase = LOOSENED
            case Move(what="return") | Move(what="reshare"):
                self._phase = self._home
        if move is not None and move.shares:
            self._shares = move.shares
        elif was_loose:
            self._shares = ()
        self._position.phase_begin = self._position.samples
        self._begun_at = msgspec.structs.replace(self._position)
        moment = self._switch.resolved[self._home]
        self._announced = events.Switched(
            phase=self._phase,
            before=before,
            after=strategy_of(self._job, self._phase).name,
            cause=move.cause if move else _cause(moment.at, moment.epoch, moment.lr_drop),
            epoch=self._position.epoch,
            samples=self._position.samples,
            pause_s=0.0,
            carried=list(CARRIED),
            handover=self._switch.handover,
        )
        if self._switch.handover == "restart":
            self._pass_on()
        else:
            self._begin(self._phase)

    def _pass_on(self) -> None:
        """Have new processes take over from the checkpoint at the boundary."""
        self._position.phase = self._home
        successor = SwitchCoordinator(
            self._job, self._desk, self._position, resumed=True, group=self._group + 1
        )
        successor._announced, self._announced = self._announced, None
        successor._left_at = time.monotonic()
        successor._made, successor._startup_s = self._made, self._startup_s
        successor.switches = self.switches
        successor._retired = self._retired
        self.successor = successor
        for process in self.processes():
            self._desk.send(process.name, Finish())

    def _begin(self, phase: int) -> None:
        """Let all processes take up a phase."""
        self._over.clear()
        self._begun.clear()
        self._position.phase = self._home
        incarnations = {
            process.name: self._desk.identity(process.name).incarnation
            for process in self.processes()
        }
        job = phase_job(self._job, phase, self._shares)
        if job.strategy.updates_on_servers:
            self._inner = ServingCoordinator(
                job,
                self._desk,
                self._position,
                limit=self._limit(),
                to_memory=self._goes_to_memory,
                incarnations=incarnations,
            )
            automatic = phase > 0 and self._switch.resolved[phase].at == "auto"
            watched = automatic and self._saved_position is not None
            self._reactor.enter_serving(self._position, watched=watched)
        else:
            self._regroup(incarnations)
            self._reactor.enter_lockstep(self._home, self._automatic_next())
            self._inner = SynchronousCoordinator(job, self._desk)
        for process in self._inner.processes():
            if process.name not in self._missing:
                self._send_begin(process.name)

    def _regroup(self, incarnations: Mapping[str, int]) -> None:
        """A worker that was replaced is not in the group of before: have a new one formed."""
        present = {name: one for name, one in incarnations.items() if name.startswith("worker-")}
        if self._grouped and self._grouped != present:
            self._group += 1
        self._grouped = present

    def _send_begin(self, process: str, *, newcomer: bool = False) -> None:
        strategy = strategy_of(self._job, self._phase)
        checkpoint = self._checkpoint
        serving = strategy.updates_on_servers
        from_file = newcomer or process.startswith("server-") or self._follows_servers
        if serving and not checkpoint and from_file:
            checkpoint = self._snapshot
        self._idle.discard(process)
        if process == EVALUATOR and isinstance(self._inner, ServingCoordinator):
            self._looked_at.append(self._inner)
        self._desk.send(
            process,
            Begin(
                phase=self._phase,
                position=msgspec.json.encode(self._position),
                stop=self._limit(),
                group=self._group,
                checkpoint=checkpoint,
                newcomer=newcomer,
                save=self._save_next,
                statistics=self._statistics,
                shares=self._shares,
            ),
        )

    def _limit(self) -> Limit | None:
        """Where the present phase ends by plan."""
        phases = self._switch.resolved
        if self._home + 1 >= len(phases):
            return None
        return boundary(phases[self._home + 1], self._job, num_samples=self._num_samples)

    def _is_at_boundary(self) -> bool:
        limit = self._limit()
        step = -(-self._position.epoch_samples // self._job.global_batch)
        here = (self._position.epoch, step)
        return limit is not None and here >= (limit.epoch, limit.step)

    def _automatic_next(self) -> PhaseStrategy | None:
        """The strategy that an automatic switch leads to, if one is planned."""
        following = self._switch.resolved[self._home + 1 : self._home + 2]
        return following[0].strategy if following and following[0].at == "auto" else None


def add_times(
    first: Mapping[str, WorkTimes], second: Mapping[str, WorkTimes]
) -> dict[str, WorkTimes]:
    """What workers spent in two parts of a run; those of the first part only are left out."""
    added = {}
    for process, own in second.items():
        before = first.get(process)
        fields = WorkTimes.__struct_fields__
        if before is not None:
            own = WorkTimes(**{key: getattr(before, key) + getattr(own, key) for key in fields})
        added[process] = own
    return added


def _cause(at: float | str | None, epoch: float | None, lr_drop: int | None) -> str:
    if at is not None:
        return f"{at:.0%} of the samples" if isinstance(at, float) else str(at)
    if epoch is not None:
        return f"epoch {epoch:g}"
    return f"decay {lr_drop} of the learning rate"
