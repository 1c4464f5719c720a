"""Predict the throughput of synchronous training: single, all-reduce, local SGD.

Notation: C_i the computation of worker i, N workers. All-reduce: T = E[max C_i] + exposed
communication + update. Local SGD: the slowest of N sums of H steps, whose variation is that of one
step over √H, then an average without overlap: T = (E[max Σ C_i] + exchange) / H + update. Of M
bytes a worker exchanges 2 M / N in either direction with each other one; between machines each of
them is encrypted and decrypted.
"""

from __future__ import annotations

import math

import msgspec

from phalanx.plan.compute_model import expected_max
from phalanx.plan.facts import ClusterModel, ModelFacts
from phalanx.plan.network_model import exposed_s, ring_link, ring_s
from phalanx.plan.result import StepParts, Throughput
from phalanx.plan.workers import WorkerModels
from phalanx.spec.compression import CompressionSpec
from phalanx.spec.lockstep import AllreduceSpec, LocalSgdSpec
from phalanx.spec.strategy import StrategySpec


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
    link = ring_link(group.machines, cluster.network)
    model = cluster.model
    if spec.bucket_bytes != "auto":
        model = msgspec.structs.replace(model, bucket_bytes=spec.bucket_bytes)
    exchanges_s = [
        ring_s(size / shorter, num_workers, link, costs)
        + frame_sealing_s(group, spec, cluster, size / shorter)
        for size in model.buckets()
    ]
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
    model, costs = cluster.model, cluster.costs
    moments = model.num_moments if spec.average_moments else 0
    link = ring_link(group.machines, cluster.network)
    summed_bytes = _summed_bytes(spec.compression, model, num_workers)
    average_s = ring_s(summed_bytes, num_workers, link, costs)
    average_s += moments * ring_s(model.size_bytes, num_workers, link, costs)
    average_s += spec.compression.passes * model.size_bytes * costs.cast_s_per_byte
    exchanged_bytes = summed_bytes + moments * model.size_bytes
    average_s += frame_sealing_s(group, spec, cluster, exchanged_bytes)
    jitters = [jitter / math.sqrt(spec.every) for jitter in group.jitters]
    apply_s = max(worker.fit.apply_s for worker in group.workers)
    exchanged = (summed_bytes + moments * model.size_bytes) / spec.every
    sent = 2 * (num_workers - 1) / num_workers * exchanged
    return _together("local_sgd", group, jitters, average_s / spec.every, apply_s, sent)


def frame_sealing_s(
    group: WorkerModels, spec: StrategySpec, cluster: ClusterModel, size_bytes: float
) -> float:
    """Return the time that the busiest worker takes to encrypt and decrypt one all-reduce."""
    if not spec.encrypts(beyond_this_machine=True):
        return 0.0
    machines = group.machines
    part_s = 4 * size_bytes / len(machines) * cluster.costs.seal_frame_s_per_byte
    return max(
        part_s * sum(other != own for other in machines) / min(1.0, cluster.machines[own].cores)
        for own in set(machines)
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
