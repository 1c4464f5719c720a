"""A parameter server in made-up time: the real policy, and books instead of numbers.

Follows `paramserver.shard` step by step, without gradients: pushes are judged at their first
segment, a segment is applied when all members of its update have sent it, and answered when its
worker is released and the segment is new enough. Only `simulate_serving` uses it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from phalanx.plan.clockwork import Line
from phalanx.protocol.policy import Outcome, Policy
from phalanx.protocol.rule import Rule
from phalanx.protocol.shards import Segment

Due = list[tuple[int, int]]
"""Answers that may go out now: worker and segment."""


@dataclass
class _Seat:
    """What a server knows of one worker."""

    clock: int = 0
    missing: int = 0
    update: int | None = None
    released: bool = False
    at_least: int = 0
    readver: int = 0
    unanswered: set[int] = field(default_factory=set)


@dataclass
class _Gathering:
    """An update whose gradients are coming in."""

    pushes: set[tuple[int, int]] = field(default_factory=set)
    """Worker and clock: where nobody waits, one worker may be in an update twice."""
    arrived: dict[int, set[tuple[int, int]]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    closed: bool = False


class SimulatedServer:
    """One server: the policy, and books of what has arrived and been answered."""

    def __init__(
        self, machine: str, segments: Sequence[Segment], rule: Rule, num_workers: int
    ) -> None:
        self.machine = machine
        self.segments = segments
        self.policy = Policy(rule, range(num_workers))
        self.processor = Line()
        self.local_in, self.local_out = Line(), Line()
        self.applied = [0] * len(segments)
        self.staleness: Counter[int] = Counter()
        self.samples = 0
        self._seats = {worker: _Seat() for worker in range(num_workers)}
        self._gatherings: dict[int, _Gathering] = {}
        self._touched: set[int] = set()

    def enter(self, worker: int, clock: int) -> Due:
        """A worker takes its place and is sent every segment."""
        self._seats[worker] = _Seat(unanswered=set(range(len(self.segments))))
        self._follow(self.policy.join(worker, clock))
        return self._answers()

    def readver(self, worker: int) -> int:
        """The version that a worker has read."""
        return self._seats[worker].readver

    def leave(self, worker: int) -> Due:
        """A worker is gone; what it had not sent completely is taken back."""
        seat = self._seats.pop(worker, None)
        if seat is not None and seat.missing and seat.update in self._gatherings:
            gathering = self._gatherings[seat.update]
            gathering.pushes.discard((worker, seat.clock))
            for arrived in gathering.arrived.values():
                arrived.discard((worker, seat.clock))
            self._apply_ready(seat.update)
        self._follow(self.policy.leave(worker))
        return self._answers()

    def begin(self, worker: int, *, readver: int, num_samples: int, now_s: float) -> None:
        """The first segment of a push is here."""
        seat = self._seats[worker]
        seat.clock += 1
        seat.missing = len(self.segments)
        seat.released = False
        seat.unanswered = set()
        outcome = self.policy.offer(worker, readver=readver, num_samples=num_samples, now_s=now_s)
        seat.update = outcome.update
        if outcome.update is not None:
            self._gatherings.setdefault(outcome.update, _Gathering()).pushes.add(
                (worker, seat.clock)
            )
        self._follow(outcome)

    def has_seat(self, worker: int) -> bool:
        """Whether a worker takes part."""
        return worker in self._seats

    def is_complete(self, worker: int) -> bool:
        """Whether all of a worker's present push is here."""
        return self._seats[worker].missing == 0

    def flush(self) -> None:
        """Make an update of what has been gathered, however little."""
        self._follow(self.policy.flush())

    def take(self, worker: int, index: int) -> Due:
        """A segment has been worked up; returns the answers that are due now."""
        seat = self._seats[worker]
        seat.missing -= 1
        seat.unanswered.add(index)
        self._touched.add(worker)
        if seat.update is not None:
            gathering = self._gatherings[seat.update]
            gathering.arrived.setdefault(index, set()).add((worker, seat.clock))
            self._try_apply(seat.update, index)
        if seat.missing == 0:
            self._follow(self.policy.finish(worker))
        return self._answers()

    def _follow(self, outcome: Outcome) -> None:
        for update in outcome.closed:
            self._gatherings.setdefault(update.number, _Gathering()).closed = True
            for member in update.members:
                self.staleness[member.staleness] += 1
                self.samples += member.num_samples
            self._apply_ready(update.number)
        for release in outcome.released:
            seat = self._seats.get(release.worker)
            if seat is not None:
                seat.released = True
                seat.readver = release.version
                seat.at_least = release.at_least
                self._touched.add(release.worker)

    def _apply_ready(self, number: int) -> None:
        for index in range(len(self.segments)):
            self._try_apply(number, index)

    def _try_apply(self, number: int, index: int) -> None:
        gathering = self._gatherings.get(number)
        if gathering is None or not gathering.closed or index in gathering.done:
            return
        if len(gathering.arrived.get(index, ())) < len(gathering.pushes):
            return
        self.applied[index] += 1
        if self.policy.rule.barrier:
            self._touched.update(self._seats)
        gathering.done.add(index)
        if len(gathering.done) == len(self.segments):
            del self._gatherings[number]

    def _answers(self) -> Due:
        due = []
        for worker in sorted(self._touched):
            seat = self._seats.get(worker)
            if seat is None or not seat.released or not seat.unanswered:
                continue
            ready = [i for i in sorted(seat.unanswered) if self.applied[i] >= seat.at_least]
            seat.unanswered.difference_update(ready)
            due += [(worker, index) for index in ready]
        self._touched.clear()
        return due
