"""Simulate a parameter server: the real policy, with counters instead of tensors.

Follows `paramserver.shard` step by step, without gradients: the policy decides on a push at its
first segment, a segment is applied when all members of its update have sent it, and answered when
its worker is released and the segment is new enough. Only `parameter_server` uses it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from phalanx.consistency.policy import ConsistencyPolicy, PushOutcome
from phalanx.consistency.rule import ConsistencyRule
from phalanx.consistency.shards import Segment
from phalanx.simulate.event_queue import FifoResource

Due = list[tuple[int, int]]
"""Answers to send now: worker and segment."""


@dataclass
class _Member:
    """State of one worker at a server."""

    clock: int = 0
    missing: int = 0
    update: int | None = None
    released: bool = False
    at_least: int = 0
    readver: int = 0
    unanswered: set[int] = field(default_factory=set)


@dataclass
class _Gathering:
    """An update that is collecting gradients."""

    pushes: set[tuple[int, int]] = field(default_factory=set)
    """Worker and clock: without waiting, one worker may contribute to an update twice."""
    arrived: dict[int, set[tuple[int, int]]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    closed: bool = False


class SimulatedServer:
    """One server: the policy, and the segments received and answered."""

    def __init__(
        self, machine: str, segments: Sequence[Segment], rule: ConsistencyRule, num_workers: int
    ) -> None:
        self.machine = machine
        self.segments = segments
        self.policy = ConsistencyPolicy(rule, range(num_workers))
        self.processor = FifoResource()
        self.local_in, self.local_out = FifoResource(), FifoResource()
        self.applied = [0] * len(segments)
        self.staleness: Counter[int] = Counter()
        self.samples = 0
        self._members = {worker: _Member() for worker in range(num_workers)}
        self._gatherings: dict[int, _Gathering] = {}
        self._touched: set[int] = set()

    def enter(self, worker: int, clock: int) -> Due:
        """Admit a worker and send it every segment."""
        self._members[worker] = _Member(unanswered=set(range(len(self.segments))))
        self._follow(self.policy.join(worker, clock))
        return self._answers()

    def readver(self, worker: int) -> int:
        """Return the version that a worker has read."""
        return self._members[worker].readver

    def leave(self, worker: int) -> Due:
        """Remove a worker; an incomplete push is withdrawn."""
        member = self._members.pop(worker, None)
        if member is not None and member.missing and member.update in self._gatherings:
            gathering = self._gatherings[member.update]
            gathering.pushes.discard((worker, member.clock))
            for arrived in gathering.arrived.values():
                arrived.discard((worker, member.clock))
            self._apply_ready(member.update)
        self._follow(self.policy.leave(worker))
        return self._answers()

    def begin(self, worker: int, *, readver: int, num_samples: int, now_s: float) -> None:
        """Process the first segment of a push."""
        member = self._members[worker]
        member.clock += 1
        member.missing = len(self.segments)
        member.released = False
        member.unanswered = set()
        outcome = self.policy.offer(worker, readver=readver, num_samples=num_samples, now_s=now_s)
        member.update = outcome.update
        if outcome.update is not None:
            self._gatherings.setdefault(outcome.update, _Gathering()).pushes.add(
                (worker, member.clock)
            )
        self._follow(outcome)

    def has_member(self, worker: int) -> bool:
        """Return whether a worker is a member."""
        return worker in self._members

    def is_complete(self, worker: int) -> bool:
        """Return whether a worker's current push is complete."""
        return self._members[worker].missing == 0

    def flush(self) -> None:
        """Apply an update of the gradients collected so far, however few."""
        self._follow(self.policy.flush())

    def take(self, worker: int, index: int) -> Due:
        """Process a segment; return the answers to send now."""
        member = self._members[worker]
        member.missing -= 1
        member.unanswered.add(index)
        self._touched.add(worker)
        if member.update is not None:
            gathering = self._gatherings[member.update]
            gathering.arrived.setdefault(index, set()).add((worker, member.clock))
            self._try_apply(member.update, index)
        if member.missing == 0:
            self._follow(self.policy.finish(worker))
        return self._answers()

    def _follow(self, outcome: PushOutcome) -> None:
        for update in outcome.closed:
            self._gatherings.setdefault(update.number, _Gathering()).closed = True
            for push in update.members:
                self.staleness[push.staleness] += 1
                self.samples += push.num_samples
            self._apply_ready(update.number)
        for release in outcome.released:
            member = self._members.get(release.worker)
            if member is not None:
                member.released = True
                member.readver = release.version
                member.at_least = release.at_least
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
            self._touched.update(self._members)
        gathering.done.add(index)
        if len(gathering.done) == len(self.segments):
            del self._gatherings[number]

    def _answers(self) -> Due:
        due = []
        for worker in sorted(self._touched):
            member = self._members.get(worker)
            if member is None or not member.released or not member.unanswered:
                continue
            ready = [i for i in sorted(member.unanswered) if self.applied[i] >= member.at_least]
            member.unanswered.difference_update(ready)
            due += [(worker, index) for index in ready]
        self._touched.clear()
        return due
