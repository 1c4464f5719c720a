"""Decide who trains together in an elastic run. Pure: facts in, orders out; no clock, no I/O.

Notation: g generation, c commits of a worker (units of work that its state holds), base the c that
a generation goes on from. A unit is committed by a member after all members have sent their parts
of it, and a part of unit c + 1 is sent after c was committed: members of a generation are at most
one commit apart when it breaks off. So the largest c is the state of the run; who has less takes
the state of a holder and is given no samples until it has caught up.

    Gathering  the first workers start
    Running    g trains
    Turning    g ends at a boundary that its members agree on: for a joiner, a leaver, one caught up
    Halting    g was broken off by a loss; its members report what they have committed
    Short      fewer than the minimum are left; successors are awaited

Orders and reports may come late, twice or not at all: every one names its generation, those of an
older one change nothing, and `repeat` sends again what has not been answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from phalanx.wire.elastic import NO_STATE, HaltGroup, LeaveGroup, TurnGroup


class GroupState(Enum):
    """What the membership waits for."""

    GATHERING = "the first workers"
    RUNNING = "nothing"
    TURNING = "members to come to the boundary"
    HALTING = "members to report"
    SHORT = "successors"


@dataclass(frozen=True)
class Formation:
    """One generation: its members, and the state that it goes on from.

    Attributes:
        generation: Its number.
        members: Workers in the order of their ranks in the group; the first holds the state.
        base: Commits that it goes on from; `NO_STATE`: nobody has a state.
        donors: Who gives the state to a member without it, by member.
    """

    generation: int
    members: tuple[str, ...]
    base: int
    donors: dict[str, str] = field(default_factory=dict)

    @property
    def active(self) -> tuple[str, ...]:
        """Members that are given samples."""
        return tuple(name for name in self.members if name not in self.donors)


GroupOrder = HaltGroup | TurnGroup | LeaveGroup | Formation
Orders = list[tuple[str, GroupOrder]]


def order_of(process: str) -> tuple[int, str]:
    """Return the key by which workers are ordered: their number, as in worker-3."""
    number = process.rpartition("-")[2]
    return (int(number) if number.isdigit() else 0, process)


class GroupMembership:
    """Who takes part in an elastic run.

    Args:
        expected: Workers that are started with the run; the first generation waits for them.
        minimum: Fewer workers than that do not train.
        choose_donor: Picks the giver of a state for a member, out of those who have it.
    """

    def __init__(
        self,
        expected: Iterable[str],
        *,
        minimum: int = 1,
        choose_donor: Callable[[str, Sequence[str]], str] | None = None,
    ) -> None:
        self.state = GroupState.GATHERING
        self.formation = Formation(0, (), NO_STATE)
        self._expected = set(expected)
        self._minimum = minimum
        self._choose_donor = choose_donor
        self._ready: set[str] = set()
        """Wait to become members."""
        self._present: set[str] = set()
        """Members that are neither lost nor done."""
        self._reports: dict[str, int] = {}
        self._leaving: dict[str, str] = {}
        self._caught: set[str] = set()
        self._kept: dict[str, int] = {}
        """Reports of members that wait while there are too few."""
        self._granted: set[str] = set()
        """Members that know that they leave at this boundary, and settle what only they hold."""
        self._is_over = False

    @property
    def generation(self) -> int:
        """Number of the newest generation."""
        return self.formation.generation

    @property
    def present(self) -> frozenset[str]:
        """Members of the newest generation that are neither lost nor done."""
        return frozenset(self._present)

    @property
    def waiting(self) -> frozenset[str]:
        """Workers that could become members."""
        return frozenset(self._ready)

    @property
    def leaving(self) -> frozenset[str]:
        """Workers that are to leave."""
        return frozenset(self._leaving)

    @property
    def unreported(self) -> frozenset[str]:
        """Members whose report is awaited."""
        if self.state not in (GroupState.HALTING, GroupState.TURNING):
            return frozenset()
        return frozenset(self._present - self._reports.keys())

    @property
    def missing(self) -> int:
        """Workers that have to come before the run goes on."""
        if self.state is not GroupState.SHORT:
            return 0
        return self._minimum - len(self._ready) - len(self._kept)

    def ready(self, worker: str) -> Orders:
        """Note a worker that has no state and can become a member."""
        orders = self._forget(worker)
        self._expected.discard(worker)
        if self._is_over:
            return [*orders, (worker, LeaveGroup("the job is done"))]
        self._ready.add(worker)
        return orders + self._advance()

    def lost(self, worker: str) -> Orders:
        """Note that a worker is gone; its successor comes as a new one."""
        self._expected.discard(worker)
        self._leaving.pop(worker, None)
        return self._forget(worker) + self._advance()

    def finished(self, worker: str) -> Orders:
        """Note that a member has come to the end of the job; the others need no newcomers."""
        if worker not in self._present:
            return []
        self._is_over = True
        self._leaving.clear()
        self._kept.pop(worker, None)
        self._drop_member(worker)
        waiting, self._ready = sorted(self._ready, key=order_of), set()
        orders: Orders = [(name, LeaveGroup("the job is done")) for name in waiting]
        return orders + self._advance()

    def halted(
        self, worker: str, generation: int, commits: int, *, planned: bool = False
    ) -> Orders:
        """Note the report of a member that has left a generation."""
        if worker not in self._present:
            return []
        if generation != self.generation or self.state is GroupState.SHORT:
            # Sent again because it waits: the order to form, or the one to wait, was lost.
            return self._repeat_to(worker, generation)
        orders: Orders = []
        self._reports.setdefault(worker, commits)
        if not planned and self.state in (GroupState.RUNNING, GroupState.TURNING):
            orders += self._halt()
        elif self.state is GroupState.RUNNING:
            # The order to turn was answered before anybody knew that it had been given.
            self.state = GroupState.TURNING
        return orders + self._advance()

    def caught_up(self, worker: str, generation: int) -> Orders:
        """Note that a member has the state of the run now."""
        if generation == self.generation and worker in self.formation.donors:
            self._caught.add(worker)
        return self._advance()

    def leave(self, worker: str, reason: str) -> Orders:
        """Let a worker leave at the next boundary."""
        if worker in self._ready:
            self._ready.discard(worker)
            return [(worker, LeaveGroup(reason))]
        if worker in self._present and worker not in self._leaving:
            self._leaving[worker] = reason
        return self._advance()

    def rearrange(self) -> Orders:
        """Form the same members again at the next boundary, with new shares."""
        if self.state is GroupState.RUNNING and not self._transferring:
            return self._turn()
        return []

    def repeat(self) -> Orders:
        """Give the orders again that have not been answered."""
        g = self.generation
        if self.state is GroupState.HALTING:
            return [(name, HaltGroup(g)) for name in sorted(self.unreported, key=order_of)]
        if self.state is GroupState.TURNING:
            return self._turn_orders(self.unreported)
        return []

    @property
    def _transferring(self) -> bool:
        """Whether a member is still given its state, which no planned change interrupts."""
        receivers = self.formation.donors.keys() & self._present
        return bool(receivers - self._caught)

    def _repeat_to(self, worker: str, generation: int) -> Orders:
        is_member = worker in self.formation.members and generation < self.generation
        return [(worker, self.formation)] if is_member else []

    def _forget(self, worker: str) -> Orders:
        self._ready.discard(worker)
        self._kept.pop(worker, None)
        was_member = self._drop_member(worker)
        if was_member and self.state in (GroupState.RUNNING, GroupState.TURNING):
            return self._halt()
        return []

    def _drop_member(self, worker: str) -> bool:
        if worker not in self._present:
            return False
        self._present.discard(worker)
        self._reports.pop(worker, None)
        return True

    def _halt(self) -> Orders:
        self.state = GroupState.HALTING
        self._granted.clear()
        return self.repeat()

    def _turn(self) -> Orders:
        self.state = GroupState.TURNING
        self._granted = set(self._leaving) if self._can_let_go else set()
        return self.repeat()

    @property
    def _can_let_go(self) -> bool:
        """Whether enough members are left without those who want to leave."""
        staying = len(self._present - self._leaving.keys()) + len(self._ready)
        return bool(self._leaving) and staying >= max(1, self._minimum)

    def _turn_orders(self, members: Iterable[str]) -> Orders:
        return [
            (name, TurnGroup(self.generation, leaving=name in self._granted))
            for name in sorted(members, key=order_of)
        ]

    def _advance(self) -> Orders:
        """Move on as far as what is known allows."""
        match self.state:
            case GroupState.GATHERING:
                return self._form({}) if not self._expected else []
            case GroupState.RUNNING:
                wants = self._ready or self._can_let_go or self._caught & self._present
                if self._present and wants and not self._transferring and not self._is_over:
                    return self._turn()
                return []
            case GroupState.TURNING | GroupState.HALTING:
                return [] if self.unreported else self._form(dict(self._reports))
            case GroupState.SHORT:
                return self._form(dict(self._kept))

    def _form(self, reports: dict[str, int]) -> Orders:
        """Form the next generation of those who have reported and those who wait."""
        staying = self._staying(reports)
        if not reports and not self._ready:
            return []  # all are done, or gone: successors are awaited
        if not self._is_over and len(staying) + len(self._ready) < self._minimum:
            self.state, self._kept = GroupState.SHORT, reports
            return []
        holders = {name: staying[name] for name in staying if staying[name] != NO_STATE}
        base = max(holders.values(), default=NO_STATE)
        self._check(holders, base)
        active = sorted((n for n, c in holders.items() if c == base), key=order_of)
        others = sorted((staying.keys() | self._ready) - set(active), key=order_of)
        donors: dict[str, str] = {}
        if active:
            donors = {name: self._donor(name, active, at) for at, name in enumerate(others)}
        members = (*active, *others)
        orders: Orders = [
            (name, LeaveGroup(self._leaving.pop(name)))
            for name in sorted(reports.keys() - staying.keys(), key=order_of)
        ]
        self.formation = Formation(self.generation + 1, members, base, donors)
        self.state = GroupState.RUNNING
        self._present = set(members)
        self._ready, self._caught, self._granted = set(), set(), set()
        self._reports, self._kept = {}, {}
        return orders + [(name, self.formation) for name in members] + self._advance()

    def _staying(self, reports: dict[str, int]) -> dict[str, int]:
        """Return the reports without those who leave, unless nobody else has the state."""
        base = max((c for c in reports.values() if c != NO_STATE), default=NO_STATE)
        staying = {name: c for name, c in reports.items() if name not in self._granted}
        return staying if base in staying.values() else reports

    def _donor(self, member: str, active: Sequence[str], at: int) -> str:
        if self._choose_donor is not None:
            return self._choose_donor(member, active)
        return active[at % len(active)]

    def _check(self, holders: dict[str, int], base: int) -> None:
        """Assert what makes the largest commit the state of the run."""
        before = self.formation
        # A member that was still being given its state may have kept an older one.
        trained = {n: c for n, c in holders.items() if n not in before.donors or c >= before.base}
        if trained and before.base != NO_STATE:
            assert min(trained.values()) >= before.base, f"a member went back: {trained}"
        whole = {n: c for n, c in trained.items() if n not in before.donors}
        if whole:
            assert base - min(whole.values()) <= 1, f"members are more than one apart: {whole}"
