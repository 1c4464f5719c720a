"""Saving and taking up the state of a strategy, in a group of the same and of another size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from phalanx.comm.base import Collective
from phalanx.data.pipeline import Dataset, train_batches
from phalanx.engine.replica import Replica
from phalanx.spec.job import JobSpec
from phalanx.strategy.base import Strategy, build_strategy
from phalanx.worker.checkpoint.state import collect_state, restore_state
from phalanx.worker.metrics import WorkerMetrics
from support.ranks import run_ranks
from support.toy import toy_data, toy_job, toy_replica

BF16 = {"name": "allreduce", "compression": "bf16"}
POWERSGD = {"name": "allreduce", "compression": {"name": "powersgd", "rank": 1}}
INT4 = {"name": "allreduce", "compression": {"name": "int4", "start_after": 2}}
TOPK = {"name": "allreduce", "compression": {"name": "topk", "share": 0.1, "momentum": 0.9}}
DILOCO = {"name": "local_sgd", "every": 3, "outer": {"lr": 0.7, "momentum": 0.9}}
SHORT = {"name": "local_sgd", "every": 3, "compression": {"name": "powersgd", "rank": 1}}
ADAM = {"name": "adam", "lr": 0.001}
State = dict[str, torch.Tensor]
STEPS = 4  # one more than a round of local SGD, so that a settled state is in its middle


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


class Rank:
    """One rank's way through a job, step by step."""

    def __init__(self, job: JobSpec, dataset: Dataset, group: Collective) -> None:
        self.replica: Replica = toy_replica(job, dataset, rank=group.rank)
        self.strategy: Strategy = build_strategy(job.strategy)
        self.metrics = WorkerMetrics()
        self.strategy.attach(self.replica, group)
        self._job, self._dataset, self.group = job, dataset, group

    def train(self, first: int, last: int) -> None:
        with train_batches(
            self._dataset,
            spec=self._job.data,
            seed=self._job.seed,
            epoch=0,
            global_batch=self._job.global_batch,
            rank=self.group.rank,
            num_workers=self.group.size,
            start_sample=first * self._job.global_batch,
        ) as batches:
            for step, batch in zip(range(first, last), batches, strict=False):
                facts = self.strategy.step(batch, lr=0.01, step_index=step)
                self.metrics.add(facts, input_s=0.0, lr=0.01, sent_bytes=0)

    def save(self) -> State:
        self.strategy.synchronize()
        state = collect_state(self.replica, self.strategy, self.group, self.metrics)
        return {name: tensor.clone() for name, tensor in state.items()}

    def load(self, state: State) -> None:
        restore_state(state, self.replica, self.strategy, self.group, self.metrics)


def saved_and_final(job: JobSpec, dataset: Dataset) -> tuple[State, State]:
    """The states after some steps and after as many again, without a break."""

    def body(group: Collective) -> tuple[State, State]:
        rank = Rank(job, dataset, group)
        rank.train(0, STEPS)
        saved = rank.save()
        rank.train(STEPS, 2 * STEPS)
        return saved, rank.save()

    return run_ranks(job.workers, body)[0]


def resumed(job: JobSpec, dataset: Dataset, state: State, steps: int = STEPS) -> State:
    def body(group: Collective) -> State:
        rank = Rank(job, dataset, group)
        rank.load(state)
        rank.train(STEPS, STEPS + steps)
        return rank.save()

    return run_ranks(job.workers, body)[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"strategy": "single", "workers": 1, "optimizer": ADAM},
        {"strategy": BF16, "workers": 2, "optimizer": ADAM},
        {"strategy": BF16, "workers": 3},
        {"strategy": POWERSGD, "workers": 2, "optimizer": ADAM},
        {"strategy": INT4, "workers": 3, "optimizer": ADAM},
        {"strategy": TOPK, "workers": 2, "optimizer": {"name": "sgd"}},
        {"strategy": SHORT, "workers": 2, "optimizer": {"name": "sgd", "momentum": 0.9}},
        {"strategy": DILOCO, "workers": 2, "optimizer": {"name": "sgd", "momentum": 0.9}},
    ],
    ids=str,
)
# No dropout: ranks in threads share torch's generator. tests/e2e/test_resume.py has it.
@pytest.mark.parametrize("model", [{"name": "mlp"}, {"name": "resnet", "n": 1}], ids=str)
def test_a_state_taken_up_goes_on_bit_by_bit(
    folder: Path, fields: dict[str, object], model: dict[str, object]
) -> None:
    job = toy_job(**fields, model=model)
    dataset = toy_data(job, folder)
    saved, final = saved_and_final(job, dataset)
    found = resumed(job, dataset, saved)
    assert found.keys() == final.keys()
    for name, tensor in final.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3), (2, 1), (1, 3)])
def test_residuals_are_neither_lost_nor_doubled_in_another_group(
    folder: Path, before: int, after: int
) -> None:
    dataset = toy_data(toy_job(), folder)
    saved, _ = saved_and_final(toy_job(workers=before, strategy=BF16), dataset)
    owed = saved["strategy.residual"]
    assert owed.shape[0] == before
    assert owed.abs().sum() > 0, "nothing was rounded: the test shows nothing"
    found = resumed(toy_job(workers=after, strategy=BF16), dataset, saved, steps=0)
    assert found["strategy.residual"].shape[0] == after
    torch.testing.assert_close(found["strategy.residual"].sum(0), owed.sum(0))


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3), (2, 1)])
def test_anchor_and_velocity_pass_to_another_group(folder: Path, before: int, after: int) -> None:
    dataset = toy_data(toy_job(), folder)
    saved, _ = saved_and_final(toy_job(workers=before, strategy=DILOCO), dataset)
    assert saved["strategy.velocity"].abs().sum() > 0
    found = resumed(toy_job(workers=after, strategy=DILOCO), dataset, saved, steps=0)
    for name in ("strategy.anchor", "strategy.velocity", "replica.parameters"):
        assert torch.equal(found[name], saved[name]), name


def test_the_sums_of_the_epoch_pass_to_another_group(folder: Path) -> None:
    dataset = toy_data(toy_job(), folder)
    saved, _ = saved_and_final(toy_job(workers=3), dataset)
    found = resumed(toy_job(workers=2), dataset, saved, steps=0)
    sums = "worker.epoch_sums"
    torch.testing.assert_close(found[sums].sum(0), saved[sums].sum(0))
    assert found[sums][:, 2].sum().item() == STEPS * toy_job().global_batch


def test_a_state_without_residuals_is_taken_up_under_compression(folder: Path) -> None:
    dataset = toy_data(toy_job(), folder)
    saved, _ = saved_and_final(toy_job(workers=2, strategy="allreduce"), dataset)
    found = resumed(toy_job(workers=2, strategy=BF16), dataset, saved, steps=0)
    assert found["strategy.residual"].abs().sum() == 0
    assert torch.equal(found["replica.parameters"], saved["replica.parameters"])
