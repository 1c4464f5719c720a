"""Training against servers, over real sockets, equals the single-process reference where it should.

Servers and workers are threads of this process; everything between them is what real runs use.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from phalanx.consistency.policy import ConsistencyPolicy
from phalanx.consistency.rule import rule_for
from phalanx.consistency.shards import ShardLayout
from phalanx.data.pipeline import Batch, Dataset, train_batches
from phalanx.engine.optimizer_factory import factory_for
from phalanx.engine.replica import Replica
from phalanx.paramserver.client import Client
from phalanx.paramserver.client_settings import ClientSettings
from phalanx.paramserver.handshake import ClientIdentity
from phalanx.paramserver.server import Server
from phalanx.paramserver.shard import Shard
from phalanx.paramserver.update import SliceUpdater, StepSize
from phalanx.spec.job import JobSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.strategy.push_pull import PushPull
from phalanx.wire.deadline import Deadline
from phalanx.wire.keys import KeyPair
from phalanx.wire.server_stats import ServerStats
from support.paramserver import LIMIT_S, serving, settings_for, small_layout, soon
from support.plugins import PLUGINS
from support.ranks import run_ranks
from support.toy import toy_data, toy_job, toy_replica, train_epochs

OPTIMIZERS = [
    {"name": "sgd", "lr": 0.05},
    {"name": "sgd", "lr": 0.05, "momentum": 0.9},
    {"name": "sgd", "lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-3},
    {"name": "sgd", "lr": 0.05, "l2": 1e-3, "clip_norm": 0.5},
    {"name": "adagrad", "lr": 0.01},
    {"name": "adadelta", "lr": 1.0},
    {"name": "adam", "lr": 0.001},
    {"name": "adamw", "lr": 0.001, "weight_decay": 0.05},
]
# A job with clip_norm and several servers is refused: nobody would see the whole gradient.
CASES = [
    (o, servers) for o in OPTIMIZERS for servers in (1, 2) if servers == 1 or "clip_norm" not in o
]
# Cut anywhere, between tensors, or nowhere, as each allows.
TORCH: list[dict[str, Any]] = [
    {"name": "phalanx_extras.own_optimizers:decay_matrices_only"},
    {
        "name": "torch.optim:SGD",
        "lr": 0.05,
        "args": {"momentum": 0.9, "dampening": 0.2},
        "groups": [{"match": ["*bias"], "args": {"lr": 0.02, "momentum": 0.0}}],
    },
    {"name": "torch.optim:Adam", "args": {"amsgrad": True}},
    {"name": "torch.optim:AdamW"},
    {"name": "torch.optim:NAdam"},
    {"name": "torch.optim:RAdam", "lr": 0.01},
    {"name": "torch.optim:Adamax"},
    {"name": "torch.optim:Adagrad", "args": {"initial_accumulator_value": 0.1}},
    {"name": "torch.optim:Adadelta", "args": {"rho": 0.95}},
    {"name": "torch.optim:RMSprop", "lr": 0.001, "args": {"centered": True}},
    {"name": "torch.optim:Rprop", "lr": 0.001},
    {"name": "torch.optim:ASGD"},
    {"name": "torch.optim:Adafactor"},
    {"name": "phalanx_extras.own_optimizers:ClippedSgd"},
    {"name": "phalanx_extras.own_optimizers:Lamb"},
    {"name": "phalanx_extras.own_optimizers:muon_for_matrices"},
]
# The others differ in arithmetic only, which unit tests compare.
QUICK = {"phalanx_extras.own_optimizers:decay_matrices_only", "torch.optim:Adafactor"}
BSP = {"name": "parameter_server", "consistency": "bsp"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PLUGINS)


class Served:
    """A job's servers, running, and its workers, connected."""

    def __init__(self, servers: list[Server], workers: list[Worker]) -> None:
        self.servers = servers
        self.workers = workers

    def facts(self) -> list[ServerStats]:
        return [server.call(server.facts).result(LIMIT_S) for server in self.servers]

    def parameters(self) -> torch.Tensor:
        """What the servers hold."""
        parts = [server.call(server._shard.state).result(LIMIT_S) for server in self.servers]
        return torch.cat([part.parameters for part in parts])


class Worker:
    """A replica that trains against servers."""

    def __init__(self, job: JobSpec, dataset: Dataset, replica: Replica, client: Client) -> None:
        strategy = job.strategy
        assert isinstance(strategy, ParameterServerSpec)
        self.client = client
        self.push_pull = PushPull(
            replica,
            client,
            overlap=strategy.overlap,
            make_deadline=lambda activity: Deadline.after(LIMIT_S, activity),
            on_idle=lambda: None,
        )
        self.rank = client._settings.worker
        self._job, self._dataset = job, dataset

    def batches(self) -> list[Batch]:
        """Its part of every batch of an epoch."""
        with train_batches(
            self._dataset,
            spec=self._job.data,
            seed=self._job.seed,
            epoch=0,
            global_batch=self._job.global_batch,
            rank=self.rank,
            num_workers=self._job.workers,
            shares=self._job.batch.shares,
        ) as batches:
            return [
                Batch(
                    inputs=batch.inputs.copy(),
                    targets=batch.targets.copy(),
                    indices=batch.indices,
                    global_count=batch.global_count,
                    global_offset=batch.global_offset,
                    epoch=batch.epoch,
                    step=batch.step,
                )
                for batch in batches
            ]

    def ticket(self, batch: Batch) -> int:
        return 1 + batch.step * self._job.workers + self.rank

    def step(self, batch: Batch) -> None:
        self.push_pull.push(batch, self.ticket(batch))

    def train(self) -> None:
        """An epoch."""
        for batch in self.batches():
            self.step(batch)
        self.push_pull.drain()


def shard_of(job: JobSpec, replica: Replica, layout: ShardLayout, server: int) -> Shard:
    strategy = job.strategy
    assert isinstance(strategy, ParameterServerSpec)
    start, stop = layout.bounds(server)
    segments = layout.of_server(server)
    rule = rule_for(strategy)
    updater = SliceUpdater(
        factory_for(job.optimizer, replica.module, replica.layout),
        replica.parameters[start:stop].clone(),
        segments,
    )
    return Shard(
        segments,
        updater=updater,
        policy=ConsistencyPolicy(rule, range(job.workers)),
        step_size=StepSize(lambda _: job.optimizer.lr, scaling=strategy.lr_scaling, rule=rule),
    )


@contextmanager
def served(job: JobSpec, dataset: Dataset, num_servers: int) -> Iterator[Served]:
    model = toy_replica(job, dataset, rank=0)
    factory = factory_for(job.optimizer, model.module, model.layout)
    layout = small_layout(model.parameters.numel(), servers=num_servers, cut_at=factory.cut_at)
    keys = [KeyPair.make() for _ in range(job.workers)]
    with ExitStack() as stack:
        servers = []
        for index in range(layout.num_servers):
            server = Server(
                shard_of(job, model, layout, index),
                keys=KeyPair.make(),
                settings=settings_for(layout, index),
            )
            servers.append(stack.enter_context(serving(server)))
            for rank, pair in enumerate(keys):
                key, peer = pair.public, ClientIdentity("worker", rank, 1)
                server.call(lambda s=server, k=key, p=peer: s.admit(k, p)).result(LIMIT_S)  # type: ignore[misc]
        workers = []
        for rank, pair in enumerate(keys):
            replica = toy_replica(job, dataset, rank=rank)
            client = Client(
                layout,
                parameters=replica.parameters,
                gradients=replica.gradients,
                servers=[server.address for server in servers],
                settings=ClientSettings(worker=rank, keys=pair),
            )
            stack.enter_context(client)
            workers.append(Worker(job, dataset, replica, client))
        together(workers, lambda worker: worker.client.connect(soon("a place")))
        yield Served(servers, workers)


def together(workers: list[Worker], act: Callable[[Worker], None]) -> None:
    """Have every worker do something in a thread of its own."""
    with ThreadPoolExecutor(len(workers)) as pool:
        futures = [pool.submit(act, worker) for worker in workers]
        wait(futures, LIMIT_S)
        for future in futures:
            future.result(timeout=0)


def trained(folder: Path, *, servers: int = 1, **fields: object) -> torch.Tensor:
    """An epoch, all workers at once; returns the servers' parameters."""
    job = toy_job(**({"strategy": BSP} | fields))
    dataset = toy_data(job, folder)
    with served(job, dataset, servers) as group:
        together(group.workers, Worker.train)
        facts = group.facts()
        for one in facts:
            assert one.pushes == one.applied + one.dropped
            assert one.samples == dataset.train.num_samples
        return group.parameters()


def reference(folder: Path, **fields: object) -> torch.Tensor:
    job = toy_job(**fields, workers=1, strategy="single")
    dataset = toy_data(job, folder)
    return run_ranks(1, lambda group: train_epochs(job, dataset, group))[0]


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize(
    ("optimizer", "servers"), CASES, ids=["-".join(map(str, [*o.values(), s])) for o, s in CASES]
)
def test_bsp_equals_single(
    folder: Path, optimizer: dict[str, object], servers: int, workers: int
) -> None:
    expected = reference(folder, optimizer=optimizer)
    found = trained(folder, optimizer=optimizer, workers=workers, servers=servers)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    start = toy_replica(toy_job(), toy_data(toy_job(), folder), rank=0).parameters
    assert not torch.allclose(found, start, atol=1e-3), "nothing was learnt: the test shows nothing"


@pytest.mark.parametrize(
    ("optimizer", "servers"),
    [
        pytest.param(
            one,
            servers,
            id=f"{one['name'].rpartition(':')[2]}-{servers}",
            marks=[pytest.mark.full] * (one["name"] not in QUICK or servers == 1),
        )
        for one in TORCH
        for servers in (1, 2)
    ],
)
def test_any_optimiser_of_torch_on_servers_equals_single_to_the_bit(
    folder: Path, optimizer: dict[str, object], servers: int
) -> None:
    """One worker, so that no sum is made in another order."""
    expected = reference(folder, optimizer=optimizer)
    found = trained(folder, optimizer=optimizer, workers=1, servers=servers)
    assert torch.equal(found, expected)
    start = toy_replica(toy_job(), toy_data(toy_job(), folder), rank=0).parameters
    assert not torch.allclose(found, start, atol=1e-3), "nothing was learnt: the test shows nothing"


@pytest.mark.full
@pytest.mark.parametrize("optimizer", TORCH[:2] + TORCH[-3:-1], ids=lambda one: one["name"])
def test_workers_with_an_optimiser_of_torch_equal_single(
    folder: Path, optimizer: dict[str, object]
) -> None:
    expected = reference(folder, optimizer=optimizer)
    found = trained(folder, optimizer=optimizer, workers=3, servers=2)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "batch",
    [
        {"global": 7},  # leaves a last batch of two for three workers: one of them has none
        {"global": 40, "shares": [5, 1, 2]},
        {"per_worker": 9},
    ],
    ids=str,
)
def test_uneven_batches_give_the_exact_mean(folder: Path, batch: dict[str, object]) -> None:
    optimizer = {"name": "sgd", "lr": 0.05, "momentum": 0.9}
    single_batch = {"global": 27} if "per_worker" in batch else {"global": batch["global"]}
    expected = reference(folder, optimizer=optimizer, batch=single_batch)
    found = trained(folder, optimizer=optimizer, batch=batch, workers=3, servers=2)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_batches_too_small_for_everybody_are_skipped_by_some(folder: Path) -> None:
    job = toy_job(batch={"global": 7}, workers=3, strategy=BSP)
    with served(job, toy_data(job, folder), 1) as group:
        empty = [sum(len(b.targets) == 0 for b in worker.batches()) for worker in group.workers]
    assert sum(empty) > 0, "every part had samples: the test above shows less than it says"


def test_convolutions_and_batch_order_too(folder: Path) -> None:
    model = {"name": "mnist-cnn", "dropout": False}
    expected = reference(folder, model=model)
    torch.testing.assert_close(
        trained(folder, model=model, workers=2, servers=2), expected, atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("workers", [2, 3])
def test_ssp_with_staleness_0_is_bsp_to_the_bit(folder: Path, workers: int) -> None:
    """Gradients are added in the order of workers, so the threads' timing changes no bit."""
    optimizer = {"name": "adam", "lr": 0.002}
    ssp = {"name": "parameter_server", "consistency": "ssp", "staleness": 0}
    bsp = trained(folder, optimizer=optimizer, workers=workers, servers=2)
    bounded = trained(folder, optimizer=optimizer, workers=workers, servers=2, strategy=ssp)
    assert torch.equal(bsp, bounded)


def scheduled(folder: Path, order: list[int], **strategy: object) -> tuple[torch.Tensor, int]:
    """Push one batch at a time in a given order of workers: parameters, and stale pushes."""
    job = toy_job(
        workers=3,
        optimizer={"name": "sgd", "lr": 0.05, "momentum": 0.9},
        strategy={"name": "parameter_server", **strategy},
    )
    with served(job, toy_data(job, folder), 2) as group:
        batches = [iter(worker.batches()) for worker in group.workers]
        for rank in order:
            group.workers[rank].step(next(batches[rank]))
        [facts, _] = group.facts()
        stale = sum(
            count
            for one in facts.staleness.values()
            for staleness, count in one.histogram.items()
            if staleness > 0
        )
        assert facts.pushes == facts.applied == facts.version == len(order)
        return group.parameters(), stale


@pytest.mark.parametrize("lr_scaling", ["none", "by_workers", "by_staleness"])
def test_k_async_with_1_gradient_is_async_to_the_bit(folder: Path, lr_scaling: str) -> None:
    order = [rank for rank in range(3) for _ in range(8)]
    random.Random(5).shuffle(order)
    one = scheduled(folder, order, consistency="async", lr_scaling=lr_scaling)
    other = scheduled(folder, order, consistency="k_async", k=1, lr_scaling=lr_scaling)
    assert torch.equal(one[0], other[0])
    assert one[1] == other[1] > 0, "nothing was stale: the schedule shows nothing"


def test_the_order_of_pushes_matters_without_a_barrier(folder: Path) -> None:
    """The comparison above is not trivially true."""
    order = [rank for rank in range(3) for _ in range(4)]
    first = scheduled(folder, order, consistency="async")
    second = scheduled(folder, order[::-1], consistency="async")
    assert not torch.allclose(first[0], second[0], atol=1e-5)
