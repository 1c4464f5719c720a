"""What every strategy promises of a step, whatever it exchanges, and whoever wrote it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from phalanx.backends.ddp.learner import DdpModel
from phalanx.backends.ddp.step import DdpSteps
from phalanx.comm.base import Collective
from phalanx.engine.replica import Replica
from phalanx.model.parts import drawing
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.strategy.base import StepFacts, Strategy, build_strategy
from phalanx.strategy.push_pull import PushPull
from phalanx.wire.deadline import Deadline
from support.branched import NUM_CLASSES, WIDTH, attach, batches, split_job
from support.plugins import PLUGINS
from support.ranks import run_ranks

WORKERS = 2
ROWS = 24
LR = 0.05
# Image branch on one worker, the rest on the other.
PLACES = ((0,), (0,), (0,), (1,), (1,), (1,), (1,), (1,))


@dataclass(frozen=True)
class Part:
    """One worker's rows of a batch."""

    inputs: Any
    targets: Any
    global_count: int
    fields: tuple[()] = ()

    def __len__(self) -> int:
        return len(self.targets)


@dataclass
class Rig:
    """A strategy that is ready to step, and how to look at what it trains."""

    strategy: Strategy
    parameters: Callable[[], Tensor]
    """All of them; on workers that do not hold the whole model maybe none."""
    state: Callable[[], dict[str, Tensor]]
    load_state: Callable[[dict[str, Tensor]], None]
    whole_batch: bool = False
    """Whether every worker gets all rows."""


class MemoryServer:
    """Plays a parameter server of one worker: the same calls as its client, without sockets."""

    first_sent_s: float | None = None
    held_s: float | None = None

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._open = False

    def begin(
        self,
        *,
        num_samples: int,
        weight: float,
        ticket: int = 0,
        options: bytes = b"",
        continues: bool = False,
        ends: bool = True,
    ) -> None:
        assert ends
        assert not continues
        self._open = True

    def ready(self, start: int, stop: int) -> None:
        assert self._open

    def finish(self) -> None:
        assert self._open

    def skip(
        self, *, ticket: int = 0, num_samples: int = 0, continues: bool = False, ends: bool = True
    ) -> None:
        self._open = False

    def wait(self, deadline: object, on_idle: object) -> None:
        if self._open:
            self._replica.parameters.add_(self._replica.gradients, alpha=-LR)
        self._open = False


def deadline(activity: str) -> Deadline:
    return Deadline.after(5.0, activity)


def small_model() -> nn.Module:
    with drawing(1):
        return nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, NUM_CLASSES))


def replica_for(job: JobSpec, rank: int) -> Replica:
    return Replica(small_model(), loss=job.loss, optimizer=job.optimizer, seed=job.seed, rank=rank)


def from_spec(strategy: object) -> Callable[[Collective], Rig]:
    def make(group: Collective) -> Rig:
        job = job_from_mapping({"strategy": strategy, "workers": group.size})
        replica = replica_for(job, group.rank)
        if group.rank:
            replica.parameters.zero_()  # attaching brings all to the chief's
        made = build_strategy(job.strategy)
        made.attach(replica, group)
        return Rig(made, lambda: replica.parameters, replica.state, replica.load_state)

    return make


def split(group: Collective) -> Rig:
    job = split_job(workers=WORKERS)
    network, made = attach(job, PLACES, group, {"dropout": 0.0}, stores=dist.HashStore())
    return Rig(
        made, lambda: network.parameters, network.state, network.load_state, whole_batch=True
    )


def ddp(group: Collective) -> Rig:
    job = job_from_mapping({"backend": "ddp", "workers": group.size, "strategy": "single"})
    learner = DdpModel(small_model(), job=job, precision="fp32")
    steps = DdpSteps(learner, group, job=job, input_shape=(WIDTH,))
    return Rig(steps, lambda: learner.parameters, learner.state, learner.load_state)


def push_pull(*, overlap: bool) -> Callable[[Collective], Rig]:
    def make(group: Collective) -> Rig:
        job = job_from_mapping({"strategy": "single"})
        replica = replica_for(job, group.rank)
        client: Any = MemoryServer(replica)
        made = PushPull(
            replica, client, overlap=overlap, make_deadline=deadline, on_idle=lambda: None
        )
        return Rig(made, lambda: replica.parameters, replica.state, replica.load_state)

    return make


@dataclass(frozen=True)
class Case:
    make: Callable[[Collective], Rig]
    size: int = WORKERS
    lags: int = 0
    """Steps by which the facts come late."""
    falls_to: float = 0.7
    """Share of the first loss that 40 steps on one batch must come below."""


CASES = {
    "single": Case(from_spec("single"), size=1),
    "allreduce": Case(from_spec("allreduce")),
    "allreduce-bf16": Case(from_spec({"name": "allreduce", "compression": "bf16"})),
    "allreduce-powersgd": Case(from_spec({"name": "allreduce", "compression": "powersgd"})),
    "allreduce-int8": Case(from_spec({"name": "allreduce", "compression": "int8"})),
    "allreduce-topk": Case(
        from_spec({"name": "allreduce", "compression": {"name": "topk", "share": 0.2}})
    ),
    "local_sgd": Case(from_spec({"name": "local_sgd", "every": 2})),
    "local_sgd-int8": Case(from_spec({"name": "local_sgd", "every": 2, "compression": "int8"})),
    "local_sgd-outer": Case(from_spec({"name": "local_sgd", "every": 2, "outer": {}})),
    "gossip": Case(from_spec("gossip")),
    # Another, deeper network, which learns more slowly.
    "split": Case(split, falls_to=0.9),
    "ddp": Case(ddp, size=1),
    "push_pull": Case(push_pull(overlap=False), size=1),
    "push_pull-overlap": Case(push_pull(overlap=True), size=1, lags=1),
}


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLUGINS))


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


@dataclass
class Result:
    facts: list[StepFacts] = field(default_factory=list)
    parameters: Tensor = field(default_factory=lambda: torch.zeros(0))
    state: dict[str, Tensor] = field(default_factory=dict)
    extra: dict[str, Tensor] = field(default_factory=dict)


def part_of(batch: Any, rig: Rig, group: Collective) -> Part:
    rows = len(batch.targets)
    if rig.whole_batch:
        return Part(batch.inputs, batch.targets, rows)
    low, high = rows * group.rank // group.size, rows * (group.rank + 1) // group.size
    return Part(batch.inputs[low:high], batch.targets[low:high], rows)


def train(
    case: Case, data: Sequence[Any], *, first: int = 0, start: Sequence[Result] | None = None
) -> list[Result]:
    def body(group: Collective) -> Result:
        rig = case.make(group)
        if start is not None:
            # As from a checkpoint: the chief's state for all, and what the strategy keeps beside.
            rig.load_state({k: v.clone() for k, v in start[0].state.items()})
            rig.strategy.import_state({k: v.clone() for k, v in start[0].extra.items()})
        found = Result()
        for step, batch in enumerate(data, start=first):
            part: Any = part_of(batch, rig, group)
            found.facts.append(rig.strategy.step(part, lr=LR, step_index=step))
        rig.strategy.synchronize()
        found.parameters = rig.parameters().clone()
        found.state = {key: value.clone() for key, value in rig.state().items()}
        found.extra = {k: v.clone() for k, v in rig.strategy.export_state().items()}
        rig.strategy.close()
        return found

    return run_ranks(case.size, body)


def test_it_is_a_strategy(case: Case) -> None:
    def body(group: Collective) -> bool:
        rig = case.make(group)
        rig.strategy.close()
        return isinstance(rig.strategy, Strategy)

    assert all(run_ranks(case.size, body))


def test_every_sample_is_counted_once(case: Case) -> None:
    found = train(case, batches(4, ROWS, last=7))
    steps = zip(*(result.facts for result in found), strict=True)
    counts = [sum(one.num_samples for one in step) for step in steps]
    assert counts[case.lags :] == [ROWS, ROWS, ROWS, 7][: 4 - case.lags]
    for result in found:
        for facts in result.facts:
            assert 0 <= facts.num_correct <= facts.num_samples
            assert min(facts.forward_s, facts.backward_s, facts.exchange_s, facts.apply_s) >= 0


def test_training_makes_the_loss_fall(case: Case) -> None:
    found = train(case, batches(1, ROWS) * 40)
    steps = zip(*(result.facts for result in found), strict=True)
    losses = [sum(one.loss_sum for one in step) for step in steps]
    assert losses[-1] < case.falls_to * losses[case.lags]


def test_after_synchronize_all_workers_hold_the_same(case: Case) -> None:
    # An odd number of steps: nothing that is done every second step is done by itself.
    found = train(case, batches(3, ROWS))
    whole = [result.parameters for result in found if result.parameters.numel()]
    assert whole
    for parameters in whole[1:]:
        torch.testing.assert_close(parameters, whole[0], rtol=0, atol=1e-7)


def test_the_same_steps_give_the_same_bits(case: Case) -> None:
    data = batches(5, ROWS)
    one, other = train(case, data), train(case, data)
    for mine, theirs in zip(one, other, strict=True):
        assert torch.equal(mine.parameters, theirs.parameters)


@pytest.mark.parametrize("name", [name for name, one in CASES.items() if one.size > 1])
def test_a_worker_without_samples_takes_part(name: str) -> None:
    # One row for two workers: the first gets none of it.
    found = train(CASES[name], [*batches(2, ROWS), *batches(1, 1)])
    assert sum(result.facts[-1].num_samples for result in found) == 1
    assert all(torch.isfinite(result.parameters).all() for result in found)


def test_it_goes_on_from_what_it_exported(case: Case) -> None:
    data = batches(6, ROWS)

    def stop_and_go() -> list[Result]:
        first = train(case, data[:4])
        return train(case, data[4:], first=4, start=first)

    # A checkpoint synchronises, so the run without a break does so at the same step.
    def with_a_pause() -> list[Result]:
        def body(group: Collective) -> Result:
            rig = case.make(group)
            found = Result()
            for step, batch in enumerate(data):
                if step == 4:
                    rig.strategy.synchronize()
                part: Any = part_of(batch, rig, group)
                found.facts.append(rig.strategy.step(part, lr=LR, step_index=step))
            rig.strategy.synchronize()
            found.parameters = rig.parameters().clone()
            rig.strategy.close()
            return found

        return run_ranks(case.size, body)

    for resumed, uninterrupted in zip(stop_and_go(), with_a_pause(), strict=True):
        torch.testing.assert_close(resumed.parameters, uninterrupted.parameters, rtol=0, atol=1e-6)


def test_state_of_another_strategy_is_ignored(case: Case) -> None:
    def body(group: Collective) -> Tensor:
        rig = case.make(group)
        before = rig.parameters().clone()
        rig.strategy.import_state({"something/else": torch.ones(3)})
        after = rig.parameters().clone()
        rig.strategy.close()
        return before - after

    for difference in run_ranks(case.size, body):
        assert not difference.any()
