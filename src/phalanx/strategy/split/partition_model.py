"""Partition a network: keep the parts of this worker, and the facts shared by all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from phalanx.engine.part_profiler import Form
from phalanx.engine.precision import Precision
from phalanx.engine.stage import Stage, contents_of
from phalanx.engine.state_layout import state_layout_of
from phalanx.model.parts import PartedNetwork
from phalanx.spec.job import JobSpec
from phalanx.spec.split import SplitSpec
from phalanx.split.graph import NetworkGraph, Places
from phalanx.split.op_order import SplitCosts
from phalanx.strategy.split.network import ModelPartition
from phalanx.strategy.split.pipeline_runner import PipelineLayout


@dataclass(frozen=True)
class Partitioning:
    """Facts that all workers share before the network is partitioned."""

    graph: NetworkGraph
    forms: Sequence[Form]
    places: Places
    costs: SplitCosts


def partition_model(
    network: PartedNetwork,
    partitioning: Partitioning,
    *,
    job: JobSpec,
    rank: int,
    precision: Precision = "fp32",
    offset: int = 0,
) -> ModelPartition:
    """Keep the parts of one worker; the network must not be used afterwards.

    `offset` is the first column of the samples that this worker loads.
    """
    strategy = job.strategy
    assert isinstance(strategy, SplitSpec)
    outline = state_layout_of(network)
    contents = contents_of(network, partitioning.graph.tied, outline)
    own = [number for number, holders in enumerate(partitioning.places) if rank in holders]
    names = list(network.reads)
    sources = [
        tuple(names.index(source) if source in network.reads else source for source in reads)
        for reads in network.reads.values()
    ]
    stage = Stage(
        network,
        own,
        contents=contents,
        layout=outline,
        loss=job.loss,
        optimizer=job.optimizer,
        precision=precision,
    )
    layout = PipelineLayout(
        graph=partitioning.graph,
        places=partitioning.places,
        forms=partitioning.forms,
        sources=sources,
        costs=partitioning.costs,
        micro_batches=strategy.micro_batches,
        schedule=strategy.schedule,
        wire=strategy.wire,
    )
    return ModelPartition(
        stage=stage,
        layout=layout,
        # Identities of parameters are invalid once the network is gone.
        outline=replace(outline, name_of={}),
        contents=contents,
        inputs={
            name: replace(columns, start=columns.start - offset, stop=columns.stop - offset)
            for name, columns in network.inputs.items()
        },
    )


def loaded_columns(network: PartedNetwork, places: Places, rank: int) -> tuple[int, int] | None:
    """Return the first and last (excluded) column that a worker has to load; None: all columns.

    A worker that reads no columns gets the first, because a batch cannot be empty.
    """
    read = {
        source
        for sources, holders in zip(network.reads.values(), places, strict=True)
        if rank in holders
        for source in sources
        if source not in network.reads
    }
    if not network.inputs or any(source not in network.inputs for source in read):
        return None
    wanted = [network.inputs[name] for name in read]
    first = min((one.start for one in wanted), default=0)
    return first, max((one.stop for one in wanted), default=1)
