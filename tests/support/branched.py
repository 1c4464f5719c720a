"""A small network of three branches and a trunk, split over ranks that are threads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from phalanx.comm.base import Collective
from phalanx.comm.gloo import GlooCollective
from phalanx.engine.part_profiler import forms_of, graph_of
from phalanx.engine.replica import Replica
from phalanx.model.parts import Columns, PartedNetwork, drawing
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.split.graph import NetworkGraph, Places
from phalanx.split.op_order import SplitCosts
from phalanx.strategy.split.network import Partitioning, SplitNetwork, partition_model
from phalanx.strategy.split.step import SplitStrategy
from support.ranks import LIMIT_S, run_ranks

WIDTH = 48 + 32 + 20
NUM_CLASSES = 5


def branched(*, dropout: float = 0.3, batch_norm: bool = True) -> PartedNetwork:
    """Image, sequence and vector branches; eight parts.

    No bias before batch norm: its gradient is rounding noise, of which Adam makes full steps.
    """

    def norm(layer: nn.Module) -> nn.Module:
        return layer if batch_norm else nn.Identity()

    return PartedNetwork(
        {
            "image.conv1": nn.Sequential(
                nn.Conv2d(3, 6, 3, padding=1, bias=False),
                norm(nn.BatchNorm2d(6)),
                nn.ReLU(inplace=True),
            ),
            "image.conv2": nn.Sequential(
                nn.Conv2d(6, 4, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2)
            ),
            "image.dense": nn.Sequential(
                nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Dropout(dropout)
            ),
            "wave.conv": nn.Sequential(
                nn.Conv1d(2, 4, 5, padding=2, bias=False), norm(nn.BatchNorm1d(4)), nn.ReLU()
            ),
            "wave.dense": nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(dropout)),
            "vector": nn.Sequential(nn.Linear(20, 9), nn.Tanh()),
            "trunk.dense": nn.Sequential(
                nn.Linear(12 + 8 + 9, 16), nn.ReLU(inplace=True), nn.Dropout(dropout)
            ),
            "trunk.classes": nn.Linear(16, NUM_CLASSES),
        },
        reads={
            "image.conv1": ["image"],
            "image.conv2": ["image.conv1"],
            "image.dense": ["image.conv2"],
            "wave.conv": ["wave"],
            "wave.dense": ["wave.conv"],
            "vector": ["vector_in"],
            "trunk.dense": ["image.dense", "wave.dense", "vector"],
            "trunk.classes": ["trunk.dense"],
        },
        inputs={
            "image": Columns(0, 48, (3, 4, 4)),
            "wave": Columns(48, 80, (2, 16)),
            "vector_in": Columns(80, 100),
        },
    )


@dataclass(frozen=True)
class Samples:
    """One batch, as the engine sees it."""

    inputs: Any
    targets: Any
    fields: tuple[()] = ()

    @property
    def global_count(self) -> int:
        return len(self.targets)


def batches(count: int, rows: int, *, width: int = WIDTH, last: int | None = None) -> list[Samples]:
    """Learnable made-up batches; the last one may be smaller."""
    random = np.random.default_rng(3)
    rule = random.normal(size=(width, NUM_CLASSES))
    found = []
    for number in range(count):
        size = last if last is not None and number == count - 1 else rows
        inputs = random.normal(size=(size, width)).astype(np.float32)
        found.append(Samples(inputs, (inputs @ rule).argmax(1).astype(np.int64)))
    return found


def split_job(**fields: object) -> JobSpec:
    """A job whose strategy is split."""
    strategy = {"name": "split"} | dict(fields.pop("strategy", {}))  # type: ignore[call-overload]
    return job_from_mapping({"strategy": strategy, "workers": 5, **fields})


@dataclass
class Trained:
    """What a training came to."""

    losses: list[float]
    state: dict[str, torch.Tensor]
    evaluation: tuple[float, int, int]
    traffic: list[dict[tuple[str, int], int]] = field(default_factory=list)


def made(build: Mapping[str, Any] | None = None, *, seed: int = 1) -> PartedNetwork:
    """The network with the weights of a seed."""
    # The generator is the process's: other ranks must not draw from it meanwhile.
    with drawing(seed):
        return branched(**(build or {}))


def train_alone(
    job: JobSpec, data: Sequence[Samples], build: Mapping[str, Any] | None = None
) -> Trained:
    """The single-process reference: the engine's own replica."""
    replica = Replica(made(build), loss=job.loss, optimizer=job.optimizer, seed=job.seed)
    losses = []
    for step, batch in enumerate(data):
        result = replica.forward_backward(batch, step=step)
        replica.apply(job.optimizer.lr)
        losses.append(result.loss_sum / len(batch.targets))
    measured = replica.evaluate(data[0]).row()
    return Trained(losses, {k: v.clone() for k, v in replica.state().items()}, measured)


def uniform_costs(graph: NetworkGraph, num_workers: int) -> SplitCosts:
    """Every part takes as long as it has parameters."""
    one = tuple(1e-3 + part.parameters * 1e-6 for part in graph.parts)
    return SplitCosts(forward_s=(one,) * num_workers, backward_s=(one,) * num_workers)


def train_split(
    job: JobSpec,
    data: Sequence[Samples],
    places: Places,
    build: Mapping[str, Any] | None = None,
    *,
    start: dict[str, torch.Tensor] | None = None,
    first_step: int = 0,
) -> Trained:
    """The same training over as many ranks as the job has workers."""
    stores = dist.HashStore()

    def body(group: Collective) -> Trained:
        network, split = attach(job, places, group, build, stores=stores)
        if start is not None:
            network.load_state(start)
        losses = []
        for step, batch in enumerate(data, start=first_step):
            facts = split.step(batch, lr=job.optimizer.lr, step_index=step)  # type: ignore[arg-type]
            losses.append(facts.loss_sum / len(batch.targets))
        split.synchronize()
        measured = network.evaluate(data[0]).row()
        state = {key: value.clone() for key, value in network.state().items()}
        traffic = dict(network.runner.p2p.traffic)
        split.close()
        return Trained(losses, state, measured, [traffic])

    found = run_ranks(job.workers, body)
    return Trained(
        losses=[math.fsum(row) for row in zip(*(one.losses for one in found), strict=True)],
        state=found[0].state,
        evaluation=tuple(map(sum, zip(*(one.evaluation for one in found), strict=True))),
        traffic=[one.traffic[0] for one in found],
    )


def attach(
    job: JobSpec,
    places: Places,
    group: Collective,
    build: Mapping[str, Any] | None = None,
    *,
    stores: Any,
) -> tuple[SplitNetwork, SplitStrategy]:
    """One rank's side of the split network."""
    strategy: Any = job.strategy
    network = made(build)
    forms = forms_of(network, (WIDTH,))
    graph = graph_of(network, forms, num_moments=0, wire=strategy.wire)
    agreed = Partitioning(graph, forms, places, uniform_costs(graph, job.workers))
    cut = partition_model(network, agreed, job=job, rank=group.rank)
    own = SplitNetwork(cut, group, optimizer=job.optimizer, seed=job.seed)

    def make_group(ranks: Sequence[int]) -> Collective:
        prefix = dist.PrefixStore("-".join(map(str, ranks)), stores)
        return GlooCollective(
            prefix,
            rank=list(ranks).index(group.rank),
            size=len(ranks),
            host="127.0.0.1",
            deadline_s=LIMIT_S,
        )

    split = SplitStrategy(
        own, group, make_group=make_group, clip=job.optimizer.clip_norm is not None
    )
    return own, split
