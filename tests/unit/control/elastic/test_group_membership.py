"""Membership of elastic runs under any order of losses, joins and messages late, doubled or lost.

Workers are played: they send parts, commit units, take states and report. Histories stand for
parameters: the list of units that a state holds, each with the generation that committed it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from phalanx.control.elastic.membership import (
    Formation,
    GroupMembership,
    GroupOrder,
    GroupState,
    Orders,
)
from phalanx.wire.elastic import NO_STATE, HaltGroup, LeaveGroup, TurnGroup

Unit = tuple[int, int]
PICK = st.integers(0, 1 << 16)


@dataclass(eq=False)
class Worker:
    """One incarnation of a worker.

    Attributes:
        name: Shared with its predecessors.
        is_heard: Whether the controller still listens to it.
        history: Units that its state holds; None: it has no state.
        group: The generation that it is in.
        position: Units that it has gone through, with the state or beside it.
        backlog: Sums that it keeps until it has the state.
        is_halted: It has left the group, and reports that.
    """

    name: str
    is_alive: bool = True
    is_heard: bool = True
    history: list[Unit] | None = None
    group: Formation = field(default_factory=lambda: Formation(0, (), NO_STATE))
    position: int = 0
    backlog: list[Unit] = field(default_factory=list)
    is_catching: bool = False
    is_halted: bool = True
    is_planned: bool = False
    has_left: bool = False

    @property
    def commits(self) -> int:
        return NO_STATE if self.history is None else len(self.history)


class PlayedRun(RuleBasedStateMachine):
    """A run: the membership under test, its workers, and the messages between them."""

    def __init__(self) -> None:
        super().__init__()
        self.workers: dict[str, Worker] = {}
        self.orders: list[tuple[Worker, GroupOrder]] = []
        self.reports: list[tuple[str, Worker, int, int, bool]] = []
        self.parts: dict[tuple[int, int], set[Worker]] = defaultdict(set)
        self.turns: dict[int, int] = {}
        self.base = NO_STATE
        self.generation = 0

    @initialize(size=st.integers(1, 4), minimum=st.integers(1, 2))
    def begin(self, size: int, minimum: int) -> None:
        names = [f"worker-{rank}" for rank in range(size)]
        self.minimum = min(minimum, size)
        self.membership = GroupMembership(names, minimum=self.minimum)
        for name in names:
            self.start(name)

    # What the controller does.

    def start(self, name: str) -> None:
        worker = self.workers[name] = Worker(name)
        self.give(self.membership.ready(worker.name))

    def give(self, orders: Orders) -> None:
        for name, order in orders:
            if name in self.workers:
                self.orders.append((self.workers[name], order))
        formation = self.membership.formation
        if formation.generation > self.generation:
            self.check(formation)
            self.generation, self.base = formation.generation, formation.base

    def check(self, formation: Formation) -> None:
        """A generation is one newer, and goes on from the furthest state that anybody has."""
        assert formation.generation == self.generation + 1
        assert len(set(formation.members)) == len(formation.members)
        members = [self.workers[name] for name in formation.members]
        assert all(one.is_heard for one in members)
        known = [one.commits for one in members if one.history is not None]
        assert formation.base == max(known, default=NO_STATE)
        if known:
            assert formation.base >= self.base or self.base == NO_STATE
            for name in formation.active:
                assert self.workers[name].commits == formation.base
            assert set(formation.donors.values()) <= set(formation.active)

    def hear(self, kind: str, worker: Worker, generation: int, commits: int, planned: bool) -> None:
        if not worker.is_heard:
            return  # its key was revoked
        if kind == "halted":
            self.give(self.membership.halted(worker.name, generation, commits, planned=planned))
        else:
            self.give(self.membership.caught_up(worker.name, generation))

    # What workers do.

    def report(self, worker: Worker) -> None:
        generation = worker.group.generation
        self.reports.append(("halted", worker, generation, worker.commits, worker.is_planned))

    def halt(self, worker: Worker, *, planned: bool) -> None:
        worker.is_halted, worker.is_planned = True, planned
        worker.is_catching, worker.backlog = False, []
        self.report(worker)

    def obey(self, worker: Worker, order: GroupOrder) -> None:
        if not worker.is_alive or worker.has_left:
            return
        match order:
            case Formation() if order.generation > worker.group.generation:
                self.enter(worker, order)
            case HaltGroup(generation) if generation == worker.group.generation:
                if worker.is_halted:
                    self.report(worker)
                else:
                    self.halt(worker, planned=False)
            case HaltGroup(generation) if generation > worker.group.generation:
                # It never took this generation up, and has what it had.
                worker.group = Formation(generation, (), NO_STATE)
                self.halt(worker, planned=False)
            case TurnGroup(generation) if generation == worker.group.generation:
                if worker.is_halted:
                    self.report(worker)
                elif worker.name == worker.group.members[0]:
                    # The chief says so in the note of the next unit that it sends.
                    sent = worker in self.parts[generation, worker.position + 1]
                    self.turns.setdefault(generation, worker.position + (2 if sent else 1))
            case LeaveGroup():
                worker.has_left = True

    def enter(self, worker: Worker, formation: Formation) -> None:
        worker.group, worker.is_halted, worker.is_planned = formation, False, False
        worker.is_catching = worker.name in formation.donors
        worker.backlog = []
        if formation.base == NO_STATE:
            worker.history, worker.position = [], 0
            return
        worker.position = formation.base
        assert worker.is_catching or worker.commits == formation.base

    def work(self, worker: Worker) -> None:
        """Send the part of the next unit, or commit it if all members have sent theirs."""
        if not worker.is_alive or worker.is_halted or worker.has_left:
            return
        unit = (worker.group.generation, worker.position + 1)
        sent = self.parts[unit]
        if worker not in sent:
            sent.add(worker)
        elif {one.name for one in sent} >= set(worker.group.members):
            worker.position += 1
            done = (worker.position, unit[0])
            if worker.is_catching:
                worker.backlog.append(done)
            else:
                assert worker.history is not None
                worker.history.append(done)
            if self.turns.get(unit[0]) == worker.position:
                self.halt(worker, planned=True)

    def transfer(self, worker: Worker) -> None:
        if not worker.is_alive or not worker.is_catching or worker.is_halted:
            return
        donor = self.workers.get(worker.group.donors[worker.name])
        formation = worker.group
        if donor is None or not donor.is_alive or donor.group is not formation or donor.is_halted:
            return
        assert donor.history is not None
        worker.history = donor.history[: formation.base] + worker.backlog
        worker.is_catching, worker.backlog = False, []
        self.reports.append(("caught", worker, formation.generation, 0, False))

    # What may happen.

    def pick(self, number: int) -> Worker:
        names = sorted(self.workers)
        return self.workers[names[number % len(names)]]

    @rule(number=PICK, times=st.integers(1, 6))
    def train(self, number: int, times: int) -> None:
        for offset in range(times):
            self.work(self.pick(number + offset))

    @rule(number=PICK)
    def give_state(self, number: int) -> None:
        self.transfer(self.pick(number))

    @precondition(lambda self: self.orders)
    @rule(number=PICK, doubled=st.booleans())
    def deliver_order(self, number: int, doubled: bool) -> None:
        worker, order = self.orders.pop(number % len(self.orders))
        for _ in range(2 if doubled else 1):
            self.obey(worker, order)

    @precondition(lambda self: self.reports)
    @rule(number=PICK, doubled=st.booleans())
    def deliver_report(self, number: int, doubled: bool) -> None:
        report = self.reports.pop(number % len(self.reports))
        for _ in range(2 if doubled else 1):
            self.hear(*report)

    @precondition(lambda self: self.orders)
    @rule(number=PICK)
    def lose_order(self, number: int) -> None:
        if not isinstance(self.orders[number % len(self.orders)][1], LeaveGroup):
            self.orders.pop(number % len(self.orders))

    @precondition(lambda self: self.reports)
    @rule(number=PICK)
    def lose_report(self, number: int) -> None:
        if self.reports[number % len(self.reports)][0] == "halted":
            self.reports.pop(number % len(self.reports))

    @rule()
    def repeat(self) -> None:
        self.give(self.membership.repeat())
        for worker in self.workers.values():
            if worker.is_alive and worker.is_halted and not worker.has_left:
                self.report(worker)

    @rule(number=PICK, is_dead=st.booleans())
    def lose_worker(self, number: int, is_dead: bool) -> None:
        """Killed, or frozen and given up: one that wakes up is heard by nobody."""
        worker = self.pick(number)
        if worker.is_heard:
            worker.is_alive, worker.is_heard = worker.is_alive and not is_dead, False
            self.give(self.membership.lost(worker.name))

    @rule(number=PICK)
    def replace_worker(self, number: int) -> None:
        worker = self.pick(number)
        if not worker.is_heard or worker.has_left:
            if worker.is_heard:
                self.give(self.membership.lost(worker.name))
            worker.is_heard = False
            self.start(worker.name)

    @precondition(lambda self: len(self.workers) < 6)
    @rule()
    def add_worker(self) -> None:
        self.start(f"worker-{len(self.workers)}")

    @rule(number=PICK)
    def break_link(self, number: int) -> None:
        worker = self.pick(number)
        if worker.is_alive and not worker.is_halted and len(worker.group.members) > 1:
            self.halt(worker, planned=False)

    @rule(number=PICK)
    def drain(self, number: int) -> None:
        self.give(self.membership.leave(self.pick(number).name, "drained"))

    @rule()
    def rearrange(self) -> None:
        self.give(self.membership.rearrange())

    # What must hold.

    @invariant()
    def states_of_equal_length_are_equal(self) -> None:
        seen: dict[int, list[Unit]] = {}
        for worker in self.workers.values():
            if worker.is_heard and worker.is_alive and worker.history is not None:
                assert seen.setdefault(worker.commits, worker.history) == worker.history

    @invariant()
    def units_follow_one_another(self) -> None:
        for worker in self.workers.values():
            units = [unit for unit, _ in worker.history or ()]
            assert units == list(range(1, len(units) + 1))

    def teardown(self) -> None:
        """Once nothing goes wrong any more, everybody who is there trains on."""
        if not self.workers:
            return
        for name, worker in list(self.workers.items()):
            if not worker.is_alive and worker.is_heard:
                worker.is_heard = False
                self.give(self.membership.lost(name))
        while self.num_usable() < self.minimum:
            self.start(f"worker-{len(self.workers)}")
        goal: int | None = None
        for _ in range(300):
            self.calm_round()
            if goal is None and self.is_calm():
                goal = max(one.commits for one in self.usable()) + 3
            if goal is not None and all(one.commits >= goal for one in self.usable()):
                return
        raise AssertionError(f"no progress: {self.membership.state}, {self.workers}")

    def usable(self) -> list[Worker]:
        found = self.workers.values()
        return [one for one in found if one.is_heard and one.is_alive and not one.has_left]

    def num_usable(self) -> int:
        return len(self.usable())

    def is_calm(self) -> bool:
        return self.membership.state is GroupState.RUNNING and not self.orders and not self.reports

    def calm_round(self) -> None:
        self.repeat()
        while self.orders or self.reports:
            if self.orders:
                self.obey(*self.orders.pop(0))
            if self.reports:
                self.hear(*self.reports.pop(0))
        for worker in list(self.workers.values()):
            self.transfer(worker)
        for _ in range(2):
            for worker in list(self.workers.values()):
                self.work(worker)
        if self.num_usable() < self.minimum:
            self.start(f"worker-{len(self.workers)}")


PlayedRun.TestCase.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
TestMembership = PlayedRun.TestCase
