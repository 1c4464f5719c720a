"""Predict the throughput of synchronous training: single, all-reduce, local SGD.

Notation: C_i the computation of worker i, N workers. All-reduce: T = E[max C_i] + exposed
communication + update. Local SGD: the slowest of N sums of H steps, whose variation is that of one
step over √H, then an average without overlap: T = (E[max Σ C_i] + exchange) / H + update. Of M
bytes a worker exchanges 2 M / N in either direction with each other one, or M / S with each
neighbour in each of the S trees of its topology; between machines each of them is encrypted and
decrypted. Under `topology: auto` the fastest by these formulas counts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import lru_cache

import msgspec

from phalanx.plan.compute_model import expected_max
from phalanx.plan.facts import ClusterModel, ModelFacts
from phalanx.plan.network_model import along_trees_s, exposed_s, ring_link, ring_s
from phalanx.plan.result import StepParts, Throughput
from phalanx.plan.workers import WorkerModels
from phalanx.spec.compression import CompressionSpec
from phalanx.spec.lockstep import AllreduceSpec, LocalSgdSpec
from phalanx.spec.strategy import StrategySpec
from phalanx.topology.sum_tree import distinct_topologies, plan_trees


def predict_single(group: WorkerModels, spec: StrategySpec, cluster: ClusterModel) -> Throughput:
    """Predict one worker."""
    (worker,) = group.workers
    parts = StepParts(
        compute_s=worker.compute_s, communication_s=0.0, wait_s=0.0, apply_s=worker.fit.apply_s
    )
    return Throughput(
        family="single", samples_per_s=worker.batch / parts.total_s, parts=parts, busy=(1.0,)
    )


def predict_allreduce(
    group: WorkerModels, spec: AllreduceSpec, cluster: ClusterModel
) -> Throughput:
    """Predict the sum of gradients in every step, in buckets that overlap with backward."""
    num_workers, costs = len(group.workers), cluster.costs
    summed_bytes = _summed_bytes(spec.compression, cluster.model, num_workers)
    shorter = cluster.model.size_bytes / max(summed_bytes, 1.0)
    model = cluster.model
    if spec.bucket_bytes != "auto":
        model = msgspec.structs.replace(model, bucket_bytes=spec.bucket_bytes)
    time_s = sum_time(group, spec, spec.topology, cluster)
    exchanges_s = [time_s(size / shorter) for size in model.buckets()]
    # The last worker to arrive starts each bucket, so its backward is the one that overlaps.
    slowest = max(group.workers, key=lambda worker: worker.compute_s)
    left_s = exposed_s(exchanges_s, slowest.backward_s)
    # All cores compute, so packing does not overlap.
    left_s += spec.compression.passes * model.size_bytes * costs.cast_s_per_byte
    apply_s = max(worker.fit.apply_s for worker in group.workers)
    sent = 2 * (num_workers - 1) / num_workers * summed_bytes
    return _together("allreduce", group, group.jitters, left_s, apply_s, sent)


def _summed_bytes(spec: CompressionSpec, model: ModelFacts, num_workers: int) -> float:
    """Return the bytes that are summed per step; shapes that are not known count as one row."""
    shapes = model.shapes or ((model.num_parameters,),)
    return spec.summed_bytes(shapes, num_workers)


def predict_local_sgd(group: WorkerModels, spec: LocalSgdSpec, cluster: ClusterModel) -> Throughput:
    """Predict local steps with an average of parameters, and perhaps moments, every H steps."""
    num_workers = len(group.workers)
    model = cluster.model
    moments = model.num_moments if spec.average_moments else 0
    summed_bytes = _summed_bytes(spec.compression, model, num_workers)
    time_s = sum_time(group, spec, spec.topology, cluster)
    average_s = time_s(summed_bytes) + moments * time_s(model.size_bytes)
    average_s += spec.compression.passes * model.size_bytes * cluster.costs.cast_s_per_byte
    jitters = [jitter / math.sqrt(spec.every) for jitter in group.jitters]
    apply_s = max(worker.fit.apply_s for worker in group.workers)
    exchanged = (summed_bytes + moments * model.size_bytes) / spec.every
    sent = 2 * (num_workers - 1) / num_workers * exchanged
    return _together("local_sgd", group, jitters, average_s / spec.every, apply_s, sent)


def sum_time(
    group: WorkerModels, spec: StrategySpec, topology: str, cluster: ClusterModel
) -> Callable[[float], float]:
    """Return what tells the time of one all-reduce, encryption included, by its bytes."""
    machines, network, costs = group.machines, cluster.network, cluster.costs
    numbers = {machine: number for number, machine in enumerate(sorted(set(machines)))}
    layout = tuple(numbers[machine] for machine in machines)
    if topology == "auto":
        ways = [sum_time(group, spec, name, cluster) for name in distinct_topologies(layout)]
        return lambda size: min(way(size) for way in ways)
    sealing_s_per_byte = frame_sealing_s(
        group, spec, cluster, 1.0, crossing_edges(topology, layout)
    )
    if topology == "direct" or len(machines) == 1:
        # As by a ring, which Gloo's is on one machine: the same bytes.
        link = ring_link(machines, network)
        return lambda size: ring_s(size, len(machines), link, costs) + size * sealing_s_per_byte
    trees = plan_trees(topology, layout)
    return lambda size: (
        along_trees_s(size, trees, machines, network, costs) + size * sealing_s_per_byte
    )


# A search asks for the same groups again and again.
@lru_cache(64)
def crossing_edges(topology: str, layout: tuple[int, ...]) -> Mapping[int, float]:
    """Return with how many neighbours on other machines each worker exchanges a whole tensor.

    Args:
        topology: Its name.
        layout: The machine of each worker, as numbers from 0.
    """
    if topology == "direct":
        # Everybody with everybody: not worth the trees of hundreds of workers.
        here = Counter(layout)
        size = len(layout)
        return {rank: 2 * (size - here[machine]) / size for rank, machine in enumerate(layout)}
    trees = plan_trees(topology, layout)
    ends = (
        rank
        for tree in trees
        for edge in tree.edges
        if layout[edge[0]] != layout[edge[1]]
        for rank in edge
    )
    return {rank: count / len(trees) for rank, count in Counter(ends).items()}


def frame_sealing_s(
    group: WorkerModels,
    spec: StrategySpec,
    cluster: ClusterModel,
    size_bytes: float,
    crossing: Mapping[int, float],
) -> float:
    """Return the time that the busiest worker takes to encrypt and decrypt one all-reduce."""
    if not spec.encrypts(beyond_this_machine=True):
        return 0.0
    # Up an edge and down again: each end seals the one and opens the other.
    edge_s = 2 * size_bytes * cluster.costs.seal_frame_s_per_byte
    cores = [cluster.machines[machine].cores for machine in group.machines]
    return max(
        (count * edge_s / min(1.0, cores[rank]) for rank, count in crossing.items()), default=0.0
    )


def _together(
    family: str,
    group: WorkerModels,
    jitters: list[float],
    left_s: float,
    apply_s: float,
    sent: float,
) -> Throughput:
    slowest_s = expected_max(group.means_s, jitters)
    mean_s = sum(group.means_s) / len(group.workers)
    parts = StepParts(
        compute_s=mean_s,
        communication_s=left_s,
        wait_s=max(0.0, slowest_s - mean_s),
        apply_s=apply_s,
    )
    step_s = slowest_s + left_s + apply_s
    return Throughput(
        family=family,
        samples_per_s=group.batch / step_s,
        parts=parts,
        busy=tuple((worker.compute_s + apply_s) / step_s for worker in group.workers),
        sent_bytes=sent,
    )
