"""Run a worker of a split run: place the network's parts, keep the worker's own, train.

Every worker builds the whole network once, because initial weights depend on the order in which all
of them are drawn; the parts of others are dropped before the first step.
"""

from __future__ import annotations

import msgspec
import torch
from torch import nn

from phalanx.comm.base import Collective
from phalanx.data.dataset import only_columns
from phalanx.data.pipeline import Dataset
from phalanx.engine.optimizer import FlatOptimizer
from phalanx.engine.part_profiler import forms_of, graph_of
from phalanx.engine.precision import Precision, PrecisionChoice, choose_precision
from phalanx.model.fx_trace import parts_of
from phalanx.model.parts import PartedNetwork
from phalanx.observe.process import stream_bytes
from phalanx.records import events
from phalanx.spec.job import JobSpec
from phalanx.spec.split import SplitSpec
from phalanx.split.placement import PlacementChoice, choose
from phalanx.split.placement_search import PlacementProblem
from phalanx.strategy.split.network import (
    Partitioning,
    SplitNetwork,
    loaded_columns,
    partition_model,
)
from phalanx.strategy.split.step import SplitStrategy
from phalanx.wire.messages import Done
from phalanx.wire.split import PlacementReport, SplitFacts, SplitTraffic
from phalanx.worker.chief_io import ChiefData, broadcast_from_chief
from phalanx.worker.context import WorkerContext
from phalanx.worker.evaluate import EvaluationShare
from phalanx.worker.groups import join_group
from phalanx.worker.lockstep import train_in_lockstep
from phalanx.worker.network_record import record_network
from phalanx.worker.replica import build_network
from phalanx.worker.split.cost_survey import survey_costs, survey_memory
from phalanx.worker.torch_trainer import TrainSetup


def run_split_worker(context: WorkerContext) -> Done:
    """Train as one of the workers that a network is split over."""
    job = context.job
    torch.set_num_threads(context.spec.threads)
    context.metrics.activity = "reading data"
    dataset = context.open_data()
    context.metrics.activity = "joining"
    collective = join_group(context)
    try:
        precision = _precision(job)
        context.metrics.activity = "profiling the parts"
        model = build_network(job, dataset)
        network = parts_of(model)
        record_network(context, network, dataset, original=model)
        del model
        warn_of_pieces(context, network)
        agreed, choice = agree(network, dataset, collective, job=job, precision=precision.name)
        announce(context, collective, agreed, choice)
        columns = loaded_columns(network, agreed.places, collective.rank)
        if columns is not None:
            dataset = only_columns(dataset, *columns)
        cut = partition_model(
            network,
            agreed,
            job=job,
            rank=collective.rank,
            precision=precision.name,
            offset=columns[0] if columns is not None else 0,
        )
        del network
        own = SplitNetwork(cut, collective, optimizer=job.optimizer, seed=job.seed)
        split = SplitStrategy(
            own,
            collective,
            make_group=lambda ranks: join_group(
                context, f"holders-{'-'.join(map(str, ranks))}", ranks=ranks
            ),
            clip=job.optimizer.clip_norm is not None,
        )
        try:
            # Every worker sees every sample, or the columns of it that it reads.
            setup = TrainSetup(dataset, own, split, collective, share=EvaluationShare(0, 1))
            done = train_in_lockstep(context, setup, precision)
        finally:
            split.close()
        facts = facts_of(own, collective, agreed)
        # A worker that leaves closes its connections, and loses the kernel's counters of them.
        collective.all_reduce(torch.zeros(1))
        return msgspec.structs.replace(done, split=facts)
    finally:
        collective.close()


def warn_of_pieces(context: WorkerContext, network: PartedNetwork) -> None:
    """Warn of what micro-batches change."""
    spec = context.job.strategy
    assert isinstance(spec, SplitSpec)
    normed = [one for one in network.modules() if isinstance(one, nn.modules.batchnorm._BatchNorm)]
    if spec.micro_batches > 1 and normed and context.spec.rank == 0:
        context.log.record(
            events.Warned(
                message=f"batch norm sees one of {spec.micro_batches} micro-batches at a time: "
                "its statistics differ from those of a single process"
            )
        )


def agree(
    network: PartedNetwork,
    dataset: Dataset,
    collective: Collective,
    *,
    job: JobSpec,
    precision: Precision,
) -> tuple[Partitioning, PlacementChoice]:
    """Measure together, and let the chief decide for all.

    Raises:
        SpecError: The job names parts that are not there.
        PlanError: The parts do not fit into the workers' memory.
    """
    spec = job.strategy
    assert isinstance(spec, SplitSpec)
    rows = min(job.global_batch, dataset.train.num_samples)
    forms = forms_of(
        network,
        dataset.input_shape,
        precision=precision,
        whole_numbers=dataset.has_whole_numbers,
    )
    moments = FlatOptimizer(job.optimizer, torch.zeros(0)).state().values()
    graph = graph_of(
        network, forms, num_moments=sum(one.ndim > 0 for one in moments), wire=spec.wire
    )
    costs = survey_costs(network, dataset, collective, spec=spec, rows=rows, precision=precision)
    question = PlacementProblem(
        graph=graph,
        costs=costs,
        num_rows=rows,
        micro_batches=spec.micro_batches,
        schedule=spec.schedule,
        memory_bytes=survey_memory(collective, spec),
    )
    # The search may take longer than an exchange is allowed to.
    found = broadcast_from_chief(collective, lambda: _decide(spec, question))
    assert found is not None
    choice = msgspec.json.decode(found.metadata["choice"], type=PlacementChoice)
    return Partitioning(graph, forms, choice.places, costs), choice


def _decide(spec: SplitSpec, question: PlacementProblem) -> ChiefData:
    return ChiefData({"choice": msgspec.json.encode(choose(spec, question)).decode()}, {})


def announce(
    context: WorkerContext, collective: Collective, agreed: Partitioning, choice: PlacementChoice
) -> None:
    """Report the placement and its predictions to the controller."""
    if collective.rank != 0:
        return
    costs, graph = agreed.costs, agreed.graph
    event = events.Placed(
        forecast=choice.forecast,
        others=choice.others,
        parts=[
            events.PlacedPart(
                name=part.name,
                workers=list(workers),
                forward_s=costs.forward_s[workers[0]][number],
                backward_s=costs.backward_s[workers[0]][number],
                chief_forward_s=costs.forward_s[0][number],
                chief_backward_s=costs.backward_s[0][number],
                out_bytes=part.out_bytes,
                parameters=part.parameters,
                reads=[graph.parts[source].name for source in part.reads],
                state_bytes=part.state_bytes,
                sample_bytes=part.sample_bytes,
                needs_gradient=part.needs_gradient,
            )
            for number, (part, workers) in enumerate(zip(graph.parts, choice.places, strict=True))
        ],
        rows=context.job.global_batch,
        latency_s=costs.latency_s,
        bytes_per_s=costs.bytes_per_s,
        proven=choice.proven,
        tied=[[graph.parts[number].name for number in group] for group in graph.tied],
        attempt=context.spec.attempt,
    )
    context.control.send(PlacementReport(msgspec.json.encode(event)))


def facts_of(network: SplitNetwork, collective: Collective, agreed: Partitioning) -> SplitFacts:
    """Return the bytes that this worker sent, by kind and receiver, and the kernel's count."""
    posts = network.runner.p2p
    return SplitFacts(
        rank=collective.rank,
        parts=[
            part.name
            for part, workers in zip(agreed.graph.parts, agreed.places, strict=True)
            if collective.rank in workers
        ],
        sent=[
            SplitTraffic(
                kind=kind, target=peer, sent_bytes=size, messages=posts.messages[kind, peer]
            )
            for (kind, peer), size in sorted(posts.traffic.items())
        ],
        steps=network.runner.steps,
        samples=network.runner.samples,
        socket_bytes=stream_bytes(),
    )


def _precision(job: JobSpec) -> PrecisionChoice:
    requested: Precision = "bf16" if job.precision == "bf16" else "fp32"
    return choose_precision(requested, step_factory=lambda _: lambda: None)
