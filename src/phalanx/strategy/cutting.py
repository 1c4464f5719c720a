"""Cutting a network up: which parts stay here, and everything that all workers agree on about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from phalanx.engine.outline import outline_of
from phalanx.engine.precision import Precision
from phalanx.engine.probe import Form
from phalanx.engine.stage import Stage, contents_of
from phalanx.model.parts import Columns, PartedNetwork
from phalanx.protocol.splitting.graph import Graph, Places
from phalanx.protocol.splitting.order import Costs
from phalanx.spec.job import JobSpec
from phalanx.spec.split import SplitSpec
from phalanx.strategy.relay import Layout
from phalanx.strategy.split_network import Cut


@dataclass(frozen=True)
class Agreed:
    """What all workers know alike before the network is cut."""

    graph: Graph
    forms: Sequence[Form]
    places: Places
    costs: Costs


def cut_up(
    network: PartedNetwork,
    agreed: Agreed,
    *,
    job: JobSpec,
    rank: int,
    precision: Precision = "fp32",
) -> Cut:
    """Keep the parts of one worker; the network must not be used afterwards."""
    strategy = job.strategy
    assert isinstance(strategy, SplitSpec)
    outline = outline_of(network)
    contents = contents_of(network, agreed.graph.tied, outline)
    own = [number for number, holders in enumerate(agreed.places) if rank in holders]
    names = list(network.reads)
    sources = [
        tuple(names.index(source) if source in network.reads else source for source in reads)
        for reads in network.reads.values()
    ]
    stage = Stage(
        network,
        own,
        contents=contents,
        outline=outline,
        loss=job.loss,
        optimizer=job.optimizer,
        precision=precision,
    )
    layout = Layout(
        graph=agreed.graph,
        places=agreed.places,
        forms=agreed.forms,
        sources=sources,
        costs=agreed.costs,
        micro_batches=strategy.micro_batches,
        schedule=strategy.schedule,
        wire=strategy.wire,
    )
    _, inputs = loaded_columns(network, agreed.places, rank)
    return Cut(
        stage=stage,
        layout=layout,
        # Identities of parameters mean nothing once the network is gone.
        outline=replace(outline, name_of={}),
        contents=contents,
        inputs=inputs,
    )


def loaded_columns(
    network: PartedNetwork, places: Places, rank: int
) -> tuple[tuple[tuple[int, int], ...] | None, dict[str, Columns]]:
    """The columns of samples that a worker has to load, and where its inputs lie among them.

    None: whole samples, because a part reads them as they are. An empty tuple: none at all.
    """
    read = {
        source
        for (_, sources), holders in zip(network.reads.items(), places, strict=True)
        if rank in holders
        for source in sources
        if source not in network.reads
    }
    if any(source not in network.inputs for source in read) or not network.inputs:
        return None, dict(network.inputs)
    found: dict[str, Columns] = {}
    ranges: list[tuple[int, int]] = []
    width = 0
    for name in sorted(read, key=lambda one: network.inputs[one].start):
        columns = network.inputs[name]
        size = columns.stop - columns.start
        ranges.append((columns.start, columns.stop))
        found[name] = replace(columns, start=width, stop=width + size)
        width += size
    return tuple(ranges), found
