"""How fast workers go that step together: alone, by all-reduce, averaging every H steps.

Notation: C_i the computation of worker i, N workers. All-reduce: T = E[max C_i] + exposed exchange
+ update. Local SGD: the slowest of N sums of H steps, whose variation is that of one step over √H,
then an average that nothing hides: T = (E[max Σ C_i] + exchange) / H + update.
"""

from __future__ import annotations

import math

import msgspec

from phalanx.plan.crew import Crew
from phalanx.plan.facts import ModelFacts, World
from phalanx.plan.jitter import expected_max
from phalanx.plan.result import Pace, StepParts
from phalanx.plan.ring import exposed_s, ring_link, ring_s
from phalanx.spec.lockstep import AllreduceSpec, LocalSgdSpec
from phalanx.spec.strategy import StrategySpec


def single_pace(crew: Crew, spec: StrategySpec, world: World) -> Pace:
    """One worker."""
    (hand,) = crew.hands
    parts = StepParts(
        compute_s=hand.compute_s, communication_s=0.0, wait_s=0.0, apply_s=hand.fit.apply_s
    )
    return Pace(family="single", samples_per_s=hand.batch / parts.total_s, parts=parts, busy=(1.0,))


def allreduce_pace(crew: Crew, spec: AllreduceSpec, world: World) -> Pace:
    """Gradients are summed in every step, in buckets while backward goes on."""
    num_workers, costs = len(crew.hands), world.costs
    shorter = 2 if spec.compression == "bf16" else 1
    link = ring_link(crew.machines, world.network)
    model = world.model
    if spec.bucket_bytes != "auto":
        model = _with_buckets(world, spec.bucket_bytes)
    exchanges_s = [ring_s(size / shorter, num_workers, link, costs) for size in model.buckets()]
    # The last to arrive decides when a bucket can go, so its backward is the one that hides.
    slowest = max(crew.hands, key=lambda hand: hand.compute_s)
    left_s = exposed_s(exchanges_s, slowest.backward_s)
    if shorter > 1:
        # All cores compute, so that casting is not hidden.
        left_s += 2 * world.model.size_bytes * costs.cast_s_per_byte
    apply_s = max(hand.fit.apply_s for hand in crew.hands)
    sent = 2 * (num_workers - 1) / num_workers * model.size_bytes / shorter
    return _together("allreduce", crew, crew.jitters, left_s, apply_s, sent)


def local_sgd_pace(crew: Crew, spec: LocalSgdSpec, world: World) -> Pace:
    """Workers step alone and average parameters, and perhaps moments, every H steps."""
    num_workers = len(crew.hands)
    tensors = 1 + (world.model.num_moments if spec.average_moments else 0)
    link = ring_link(crew.machines, world.network)
    average_s = tensors * ring_s(world.model.size_bytes, num_workers, link, world.costs)
    jitters = [jitter / math.sqrt(spec.every) for jitter in crew.jitters]
    apply_s = max(hand.fit.apply_s for hand in crew.hands)
    sent = 2 * (num_workers - 1) / num_workers * world.model.size_bytes * tensors / spec.every
    return _together("local_sgd", crew, jitters, average_s / spec.every, apply_s, sent)


def _with_buckets(world: World, bucket_bytes: int) -> ModelFacts:
    return msgspec.structs.replace(world.model, bucket_bytes=bucket_bytes)


def _together(
    family: str, crew: Crew, jitters: list[float], left_s: float, apply_s: float, sent: float
) -> Pace:
    slowest_s = expected_max(crew.means_s, jitters)
    mean_s = sum(crew.means_s) / len(crew.hands)
    parts = StepParts(
        compute_s=mean_s,
        communication_s=left_s,
        wait_s=max(0.0, slowest_s - mean_s),
        apply_s=apply_s,
    )
    step_s = slowest_s + left_s + apply_s
    return Pace(
        family=family,
        samples_per_s=crew.batch / step_s,
        parts=parts,
        busy=tuple((hand.compute_s + apply_s) / step_s for hand in crew.hands),
        sent_bytes=sent,
    )
