"""The simulator's server does what the real one does: same arrivals in, same answers out."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from phalanx.consistency.rule import ConsistencyRule
from phalanx.paramserver import shard as real
from phalanx.paramserver.compression import Received
from phalanx.paramserver.shard import PushedSegment, Shard
from phalanx.simulate import server as simulated
from phalanx.simulate.server import SimulatedServer
from phalanx.wire.bulk import Kind
from support.paramserver import consistency_rule, make_shard, small_layout

SIZE, SEGMENTS = 12, 3
RULES = [
    consistency_rule(),
    consistency_rule(consistency="bsp"),
    consistency_rule(consistency="bsp", backup=1),
    consistency_rule(consistency="ssp", staleness=1),
    consistency_rule(consistency="dssp", staleness_range=[0, 3]),
    consistency_rule(consistency="k_sync", k=2),
    consistency_rule(consistency="k_async", k=2),
]


def test_both_run_the_very_same_policy() -> None:
    assert simulated.ConsistencyPolicy is real.ConsistencyPolicy


class Pair:
    """A real shard and a simulated one, fed alike."""

    def __init__(self, rule: ConsistencyRule, num_workers: int) -> None:
        layout = small_layout(SIZE, segments=SEGMENTS)
        self.segments = layout.of_server(0)
        self.shard: Shard = make_shard(layout, rule=rule, workers=range(num_workers))
        self.server = SimulatedServer("m0", self.segments, rule, num_workers)
        self.clock = dict.fromkeys(range(num_workers), 0)
        self.sent: dict[int, list[int]] = {}
        self.readver = dict.fromkeys(range(num_workers), 0)
        self.answered: dict[int, set[int]] = {w: set() for w in range(num_workers)}
        self.now_s = 0.0
        for worker in range(num_workers):
            answers = self.shard.enter(worker, 0)
            due = self.server.enter(worker, 0)
            self._same([(a.worker, a.index) for a in answers], due)

    def can_send(self) -> list[int]:
        """Workers that are in the middle of a push, or have all their parameters."""
        return [
            worker
            for worker in self.clock
            if worker in self.sent or len(self.answered[worker]) == len(self.segments)
        ]

    def send(self, worker: int) -> None:
        """The next segment of a worker arrives."""
        self.now_s += 1.0
        if worker not in self.sent:
            self.sent[worker] = list(reversed(range(len(self.segments))))
            self.clock[worker] += 1
            self.answered[worker] = set()
            self.readver[worker] = self.server.readver(worker)
            self.server.begin(worker, readver=self.readver[worker], num_samples=1, now_s=self.now_s)
        index = self.sent[worker].pop(0)
        if not self.sent[worker]:
            del self.sent[worker]
        size = self.segments[index].size
        gradient = Received(Kind.F32, torch.zeros(size).view(torch.uint8), size)
        answers = self.shard.deliver(
            PushedSegment(
                worker=worker,
                clock=self.clock[worker],
                readver=self.readver[worker],
                index=index,
                gradient=gradient,
                num_samples=1,
                ticket=1000 * (worker + 1) + self.clock[worker],
            ),
            self.now_s,
        )
        self._same([(a.worker, a.index) for a in answers], self.server.take(worker, index))

    def leave(self, worker: int) -> None:
        self.sent.pop(worker, None)
        del self.clock[worker]
        answers = self.shard.leave(worker)
        self._same([(a.worker, a.index) for a in answers], self.server.leave(worker))

    def _same(self, answers: list[tuple[int, int]], due: list[tuple[int, int]]) -> None:
        assert sorted(answers) == sorted(due)
        for worker, index in answers:
            self.answered[worker].add(index)
        assert self.shard.policy.version == self.server.policy.version
        assert self.shard.applied == self.server.applied
        assert self.shard.samples_seen == self.server.samples


@given(
    st.sampled_from(RULES),
    st.integers(2, 4),
    st.lists(st.tuples(st.booleans(), st.integers(0, 99)), max_size=80),
)
def test_same_arrivals_same_answers(
    rule: ConsistencyRule, num_workers: int, script: list[tuple[bool, int]]
) -> None:
    pair = Pair(rule, num_workers)
    for count, (leaves, choice) in enumerate(script):
        if leaves and count % 10 == 9 and len(pair.clock) > 1:
            pair.leave(sorted(pair.clock)[choice % len(pair.clock)])
            continue
        able = pair.can_send()
        assert able, "nobody can move"
        pair.send(able[choice % len(able)])
