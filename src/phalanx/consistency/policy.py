"""Decide when pushes are applied and answered: the pure core of a parameter server.

Notation: `version` counts updates; a worker's `clock` counts the pushes it has begun; the
staleness of a push is the version now minus the version that the worker had read. One
`ConsistencyPolicy` decides for one shard. It does no I/O and has no clock: facts come in (a push
begins, a push has arrived, a worker joins or leaves), a `PushOutcome` goes out. The server and the
simulator run the same class.

A push arrives in segments. It is accepted or dropped at its first segment, so that segments can be
applied and answered while the rest is on its way; for workers that are ahead of this one, it counts
only when the last has arrived.

References: Ho et al. 2013 (SSP), Zhao et al. 2019 (DSSP), Dutta et al. 2018 (K-sync, K-async), Chen
et al. 2016 (backup workers).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from phalanx.consistency.dssp import PushIntervals, extra_steps
from phalanx.consistency.rule import ConsistencyRule


@dataclass(frozen=True)
class PushMember:
    """A gradient inside an update."""

    worker: int
    staleness: int
    num_samples: int


@dataclass(frozen=True)
class Update:
    """Gradients to apply together; `number` is the version that they make."""

    number: int
    members: tuple[PushMember, ...]


@dataclass(frozen=True)
class Release:
    """A worker may read any segment to which `at_least` updates have been applied."""

    worker: int
    version: int
    at_least: int


@dataclass(frozen=True)
class PushOutcome:
    """Consequences of a fact.

    Attributes:
        update: The update that the offered push belongs to; None: it is dropped, or none was
            offered.
        staleness: Of the offered push.
        closed: Updates whose members are now final; apply each segment when all have sent it.
        released: Workers whose pull may be answered.
    """

    update: int | None = None
    staleness: int = 0
    closed: tuple[Update, ...] = ()
    released: tuple[Release, ...] = ()


@dataclass
class _Worker:
    started: int
    done: int
    enters: int
    offered: int | None = None
    present: bool = False
    waiting: bool = False
    credit: int = 0
    pace: PushIntervals = field(default_factory=PushIntervals)


class ConsistencyPolicy:
    """Decide for one shard.

    Args:
        rule: The consistency.
        members: Workers that take part from the beginning, so that the first update waits for
            them even if they are late.
    """

    def __init__(self, rule: ConsistencyRule, members: Iterable[int] = ()) -> None:
        self.rule = rule
        self.version = 0
        self.num_pushes = 0
        self.num_applied = 0
        self.num_dropped = 0
        self.num_lost = 0
        self._workers = {worker: _Worker(started=0, done=0, enters=0) for worker in members}
        self._open: list[PushMember] = []
        self._last_clock = 0
        self._resting = False
        self._knows_clocks = True

    @property
    def num_workers(self) -> int:
        """Members, including those that have not joined yet."""
        return len(self._workers)

    @property
    def num_gathered(self) -> int:
        """Accepted pushes that are in no update yet."""
        return len(self._open)

    @property
    def min_clock(self) -> int:
        """Pushes that have arrived from the slowest worker."""
        return min((worker.done for worker in self._workers.values()), default=self._last_clock)

    def entry_clock(self, worker: int) -> int:
        """Return the clock at which a worker joins; with several servers, take the greatest."""
        known = self._workers.get(worker)
        if known is not None and not known.present:
            if self._knows_clocks:
                return known.enters
            # Those that are back at a restored server have brought their clocks along. Before they
            # are, the updates tell about how many pushes each had made: a newcomer that began at 0
            # would hold back all others until it had made up for these.
            pushes = self.version * (self.rule.gather or 1) // len(self._workers)
            return min((one.done for one in self._workers.values() if one.present), default=pushes)
        if not self.rule.barrier:
            return self.min_clock
        if self._resting:
            return self.version
        return self.version + any(other.present for other in self._workers.values())

    def expect(self, worker: int) -> None:
        """Wait for a member that has yet to come back; call before any push."""
        self._workers.setdefault(worker, _Worker(started=0, done=0, enters=0))

    def restore(self, version: int) -> None:
        """Continue from a version that was reached before; call before any push."""
        self.version = version
        self._knows_clocks = self.rule.barrier
        for worker in self._workers.values():
            worker.started = worker.done = worker.enters = version if self.rule.barrier else 0

    def join(self, worker: int, clock: int) -> PushOutcome:
        """Let a worker join; it may read as soon as it appears in `released`.

        Args:
            worker: Its rank.
            clock: Pushes to credit it with, normally `entry_clock`. With a barrier, the update that
                it must have read before it computes.
        """
        known = self._workers.get(worker)
        if self.rule.barrier and self._resting:
            # No worker is computing, so it can begin with the next update, whatever others propose.
            clock = self.version
        if known is None:
            known = self._workers[worker] = _Worker(started=clock, done=clock, enters=clock)
        elif not known.present and not self.rule.barrier:
            known.started = known.done = clock
        known.present = known.waiting = True
        return PushOutcome(released=self._released())

    def leave(self, worker: int) -> PushOutcome:
        """Remove a worker, so that no update waits for it.

        A push of it that has not arrived completely is taken out of the update being gathered.
        """
        gone = self._workers.pop(worker, None)
        if gone is None:
            return PushOutcome()
        # Kept, so that a worker that joins an empty group does not start over at clock 0.
        self._last_clock = max(self._last_clock, gone.done)
        if gone.done < gone.started and gone.offered == self.version + 1:
            self._open.remove(next(m for m in reversed(self._open) if m.worker == worker))
            self.num_lost += 1
        closed = self._closed()
        return PushOutcome(closed=closed, released=self._released(closed))

    def offer(
        self, worker: int, *, readver: int, num_samples: int = 0, now_s: float = 0.0
    ) -> PushOutcome:
        """Accept or drop a push at its first segment.

        Args:
            worker: A member.
            readver: The version that the gradient was computed on.
            num_samples: Samples that it was computed from.
            now_s: Monotonic time.
        """
        member = self._workers[worker]
        self._resting = False
        member.started += 1
        member.waiting = True
        member.pace = member.pace.after_push(now_s)
        self.num_pushes += 1
        staleness = max(0, self.version - readver)
        if self.rule.fresh and staleness > 0:
            # Released at once: the worker needs newer parameters, not the update that it missed.
            self.num_dropped += 1
            member.offered = None
            return PushOutcome(staleness=staleness, released=(self._let_go(worker, member),))
        number = member.offered = self.version + 1
        self._open.append(PushMember(worker, staleness, num_samples))
        closed = self._closed()
        return PushOutcome(
            update=number,
            staleness=staleness,
            closed=closed,
            released=self._released(closed, pushing=member),
        )

    def finish(self, worker: int) -> PushOutcome:
        """Note that a push has arrived completely, which may release workers that were ahead."""
        member = self._workers[worker]
        member.done = member.started
        return PushOutcome(released=self._released())

    def flush(self) -> PushOutcome:
        """Make an update of the gathered pushes, however few, and rest until the next push.

        Called when no worker computes or pushes; one that joins now begins with the next update.
        """
        self._resting = True
        if self.rule.barrier and not any(member.num_samples for member in self._open):
            self._begin_with_next_update()
            return PushOutcome(released=self._let_go_without_update())
        closed = (self._close(),) if self._open else ()
        self._begin_with_next_update()
        return PushOutcome(closed=closed, released=self._released(closed))

    def _begin_with_next_update(self) -> None:
        """Let workers that joined before the flush begin with the next update, too.

        They were to wait for an update that nobody makes while all workers rest, and the
        coordinator waits for them before it gives out work.
        """
        for worker in self._workers.values():
            if self.rule.barrier and worker.enters > self.version:
                worker.started = worker.done = worker.enters = self.version

    def _let_go_without_update(self) -> tuple[Release, ...]:
        """Release workers whose gathered pushes hold no samples.

        An update of nothing would make the next gradients of all others stale, and drop them.
        """
        pushed = [member.worker for member in self._open]
        self.num_applied += len(pushed)
        self._open = []
        waiting = {name: self._workers[name] for name in pushed if name in self._workers}
        released = [self._let_go(name, one) for name, one in waiting.items() if one.waiting]
        return (*released, *self._released())

    def _closed(self) -> tuple[Update, ...]:
        return (self._close(),) if self._is_full() else ()

    def _is_full(self) -> bool:
        if not self._open:
            return False
        if not self.rule.barrier:
            return self.rule.gather is not None and len(self._open) >= self.rule.gather
        expected = {w for w, state in self._workers.items() if state.enters <= self.version}
        if not expected:
            return True
        if self.rule.gather is not None:
            return len(self._open) >= min(self.rule.gather, len(expected))
        # Gradients of workers that have left count, but every present worker is still waited for.
        here = sum(member.worker in expected for member in self._open)
        return here >= max(1, len(expected) - self.rule.spare)

    def _close(self) -> Update:
        self.version += 1
        update = Update(self.version, tuple(self._open))
        self.num_applied += len(self._open)
        self._open = []
        return update

    def _released(
        self, closed: tuple[Update, ...] = (), pushing: _Worker | None = None
    ) -> tuple[Release, ...]:
        if self.rule.barrier:
            return self._released_by_barrier(closed)
        slowest = self.min_clock
        return tuple(
            self._let_go(name, worker)
            for name, worker in self._workers.items()
            if worker.waiting and self._may_lead(worker, worker.started - slowest, pushing)
        )

    def _released_by_barrier(self, closed: tuple[Update, ...]) -> tuple[Release, ...]:
        if not any(worker.enters <= self.version for worker in self._workers.values()):
            # Only newcomers are left, and no worker that could make the version they wait for.
            for worker in self._workers.values():
                worker.started = worker.done = worker.enters = self.version
        served = {member.worker for update in closed for member in update.members}
        return tuple(
            self._let_go(name, worker)
            for name, worker in self._workers.items()
            if worker.waiting and (name in served or self._may_enter(worker))
        )

    def _may_enter(self, worker: _Worker) -> bool:
        return worker.started == worker.enters and worker.enters <= self.version

    def _may_lead(self, worker: _Worker, lead: int, pushing: _Worker | None) -> bool:
        rule = self.rule
        if rule.lead is None or lead <= rule.lead:
            worker.credit = 0
            return True
        if rule.lead_max is None or lead > rule.lead_max:
            return False
        if worker.credit == 0 and worker is pushing and self._is_fastest(worker):
            slow = min(self._workers.values(), key=lambda other: other.done)
            worker.credit = extra_steps(worker.pace, slow.pace, most=rule.lead_max - lead + 1)
        if worker.credit == 0:
            return False
        worker.credit -= 1
        return True

    def _is_fastest(self, worker: _Worker) -> bool:
        return worker.started == max(other.started for other in self._workers.values())

    def _let_go(self, name: int, worker: _Worker) -> Release:
        worker.waiting = False
        return Release(name, self.version, self.version if self.rule.barrier else 0)
