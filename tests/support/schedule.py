"""A cluster without machines: workers that read, compute and push in any order a test chooses."""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.consistency.policy import ConsistencyPolicy, PushOutcome, Release, Update
from phalanx.consistency.rule import ConsistencyRule


@dataclass
class Puppet:
    """A worker as the outside sees it."""

    readver: int = 0
    at_least: int = 0
    released: bool = False
    arriving: bool = False
    started: int = 0
    done: int = 0


@dataclass
class Cluster:
    """Drives a policy the way a server does, and keeps its own books."""

    rule: ConsistencyRule
    size: int
    now_s: float = 0.0
    updates: list[Update] = field(default_factory=list)
    releases: list[tuple[int, int]] = field(default_factory=list)
    """Worker and version, in order."""
    leads: list[int] = field(default_factory=list)
    """How far ahead each released worker was, by the cluster's own books."""
    staleness: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.policy = ConsistencyPolicy(self.rule, range(self.size))
        self.workers: dict[int, Puppet] = {}
        self._next_name = self.size
        self._unfinished: dict[int, set[int]] = {}
        self._absent = set(range(self.size))
        for worker in range(self.size):
            self.enter(worker, 0)

    def enter(self, worker: int, clock: int) -> None:
        self._absent.discard(worker)
        self.workers[worker] = Puppet(started=clock, done=clock)
        self._follow(self.policy.join(worker, clock))

    def join(self) -> int:
        worker, self._next_name = self._next_name, self._next_name + 1
        self.enter(worker, self.policy.entry_clock(worker))
        return worker

    def leave(self, worker: int) -> None:
        del self.workers[worker]
        for waiting in self._unfinished.values():
            waiting.discard(worker)
        self._follow(self.policy.leave(worker))

    def able(self) -> list[int]:
        """Workers that can do something now: finish a push, or read, compute and begin one."""
        return [name for name, worker in self.workers.items() if self._can_act(worker)]

    def act(self, name: int, took_s: float = 1.0) -> None:
        worker = self.workers[name]
        self.now_s += took_s
        if worker.arriving:
            worker.arriving = False
            worker.done = worker.started
            for waiting in self._unfinished.values():
                waiting.discard(name)
            self._follow(self.policy.finish(name))
            return
        worker.released = False
        worker.arriving = True
        worker.started += 1
        outcome = self.policy.offer(name, readver=worker.readver, num_samples=1, now_s=self.now_s)
        self.staleness.append(outcome.staleness)
        if outcome.update is not None:
            self._unfinished.setdefault(outcome.update, set()).add(name)
        self._follow(outcome)

    def push(self, name: int) -> None:
        """Begin and finish a push."""
        self.act(name)
        self.act(name)

    def _can_act(self, worker: Puppet) -> bool:
        if worker.arriving:
            return True
        applied = not any(
            waiting for number, waiting in self._unfinished.items() if number <= worker.at_least
        )
        return worker.released and applied

    def _follow(self, outcome: PushOutcome) -> None:
        self.updates += outcome.closed
        for release in outcome.released:
            self._release(release)

    def _release(self, release: Release) -> None:
        worker = self.workers[release.worker]
        assert not worker.released, "released twice"
        worker.released = True
        worker.readver = release.version
        worker.at_least = release.at_least
        self.releases.append((release.worker, release.version))
        slowest = min(other.done for other in self.workers.values())
        if not self._absent:
            self.leads.append(worker.started - slowest)
