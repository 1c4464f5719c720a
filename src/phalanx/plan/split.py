"""Predict the throughput of a split network from the part costs measured by an earlier split run.

Notation: t_p the time of part p for n rows where it was measured, T = Σ t_p; C_k(B) what machine k
needs for a batch of B by its fit. Part p then takes t_p · C_k(B) / T on machine k. Placement and
step time come from the functions that the run itself uses (`protocol.splitting`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from phalanx.errors import PlanError, SpecError, StoreError
from phalanx.plan.facts import ClusterModel, PartsFacts
from phalanx.plan.network_model import ring_link
from phalanx.plan.result import StepParts, Throughput
from phalanx.plan.workers import WorkerModels
from phalanx.records.events import Placed
from phalanx.records.log import read_logs
from phalanx.records.manifest import read_manifest
from phalanx.records.rundir import RunDir, list_runs
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.split import SplitSpec
from phalanx.split.graph import NetworkGraph, NetworkPart
from phalanx.split.op_order import SplitCosts
from phalanx.split.placement import PlacementChoice, choose
from phalanx.split.placement_search import PlacementProblem

# Number of newest runs to read.
_MOST_RUNS = 40
UNKNOWN = (
    "nothing is known of the network's parts yet; train it once with 'strategy: split' for an epoch"
)


def read_parts(roots: Iterable[Path], job: JobSpec) -> PartsFacts | None:
    """Return the part costs of the newest split run of the same network on the same data."""
    for root in roots:
        for run in reversed(list_runs(root)[-_MOST_RUNS:]):
            found = _parts_of(run, job)
            if found is not None:
                return found
    return None


def _parts_of(run: RunDir, job: JobSpec) -> PartsFacts | None:
    try:
        other = job_from_mapping(read_manifest(run).job)
    except (SpecError, StoreError):
        # Written by another version of Phalanx, or half copied.
        return None
    if (
        not other.strategy.splits_model
        or other.model != job.model
        or other.data.name != job.data.name
    ):
        return None
    events = read_logs(run.path / "events", Placed).get("controller", [])
    placed = [event for event in events if isinstance(event, Placed)]
    return facts_of(placed[-1], run.name) if placed else None


def facts_of(placed: Placed, run: str) -> PartsFacts:
    """Return the part costs recorded in a run's placement."""
    names = [part.name for part in placed.parts]
    graph = NetworkGraph(
        tuple(
            NetworkPart(
                name=part.name,
                reads=tuple(names.index(source) for source in part.reads),
                out_bytes=part.out_bytes,
                parameters=part.parameters,
                state_bytes=part.state_bytes,
                sample_bytes=part.sample_bytes,
                needs_gradient=part.needs_gradient,
            )
            for part in placed.parts
        ),
        tied=tuple(tuple(names.index(name) for name in group) for group in placed.tied),
    )
    return PartsFacts(
        graph=graph,
        forward_s=tuple(part.chief_forward_s for part in placed.parts),
        backward_s=tuple(part.chief_backward_s for part in placed.parts),
        run=run,
    )


def predict_split(group: WorkerModels, spec: SplitSpec, cluster: ClusterModel) -> Throughput | str:
    """Predict the throughput of a split, or explain why it is unknown."""
    choice = placement_for(group, spec, cluster)
    if isinstance(choice, str):
        return choice
    forecast = choice.forecast
    mean_s = sum(forecast.busy_s) / len(group.workers)
    link = ring_link(group.machines, cluster.network)
    wire_s = forecast.sent_bytes / len(group.workers) / link.bandwidth_bytes_per_s
    exposed_s = max(0.0, min(wire_s, forecast.step_s - mean_s))
    return Throughput(
        family="split",
        samples_per_s=group.batch / forecast.step_s,
        parts=StepParts(
            compute_s=mean_s,
            communication_s=exposed_s,
            wait_s=max(0.0, forecast.step_s - mean_s - exposed_s),
        ),
        busy=tuple(seconds / forecast.step_s for seconds in forecast.busy_s),
        sent_bytes=forecast.sent_bytes / len(group.workers),
    )


def placement_for(
    group: WorkerModels, spec: SplitSpec, cluster: ClusterModel
) -> PlacementChoice | str:
    """Return the placement of the parts on these machines, or why there is none."""
    parts = cluster.parts
    if parts is None:
        return UNKNOWN
    whole_s = sum(parts.forward_s) + sum(parts.backward_s)
    factors = [worker.fit.seconds(group.batch) / whole_s for worker in group.workers]
    link = ring_link(group.machines, cluster.network)
    room = [
        cluster.machines[worker.machine].memory_bytes / group.machines.count(worker.machine)
        - cluster.model.process_bytes
        for worker in group.workers
    ]
    question = PlacementProblem(
        graph=parts.graph,
        costs=SplitCosts(
            forward_s=tuple(tuple(one * f for one in parts.forward_s) for f in factors),
            backward_s=tuple(tuple(one * f for one in parts.backward_s) for f in factors),
            latency_s=link.latency_s,
            bytes_per_s=link.bandwidth_bytes_per_s,
        ),
        num_rows=group.batch,
        micro_batches=spec.micro_batches,
        schedule=spec.schedule,
        memory_bytes=tuple(spec.memory or room),
    )
    try:
        return choose(spec, question)
    except (SpecError, PlanError) as error:
        return str(error)
