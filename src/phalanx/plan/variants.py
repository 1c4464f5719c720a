"""Enumerate the variants on given machines: strategies, servers, batch splits, precisions. Pure.

Every variant declares its effect on the result: `exact` equals one machine up to summation order,
`rounded` sends or computes in fewer bits, `lossy` sends a part of each gradient later, `stale` uses
gradients of older parameters or replicas that diverge. The job's own strategy counts as exact: it
was requested.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from phalanx.plan.facts import ClusterModel, MachineFacts
from phalanx.plan.placement import Candidate, Seat, equal_split, split_batch
from phalanx.spec.compression import Bf16Spec, PowerSgdSpec
from phalanx.spec.job import JobSpec
from phalanx.spec.lockstep import AllreduceSpec, LocalSgdSpec, SingleSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.program import PRECISION
from phalanx.spec.split import SplitSpec
from phalanx.spec.strategy import Effect, StrategySpec
from phalanx.spec.switch import SwitchSpec

EFFECTS: tuple[Effect, ...] = ("exact", "rounded", "lossy", "stale")


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate and its effect on the result."""

    candidate: Candidate
    effect: Effect


def variants(
    names: Sequence[str],
    job: JobSpec,
    cluster: ClusterModel,
    *,
    effects: Sequence[Effect] = EFFECTS,
) -> Iterator[Variant]:
    """Return all variants on a machine set, in a fixed order.

    The first machine holds a single server and the evaluator.
    """
    machines = [cluster.machines[name] for name in names]
    for counts in _worker_counts(machines):
        for precision in _precisions(job):
            for strategy in _strategies(sum(counts), job, cluster):
                effect = _effect(strategy, precision, job)
                if effect not in effects:
                    continue
                seats = _seats(machines, counts, strategy, precision, cluster)
                if seats is not None:
                    candidate = Candidate(seats=seats, strategy=strategy, precision=precision)
                    yield Variant(candidate=candidate, effect=effect)
    yield from _dedicated(machines, job, cluster, effects)


def _worker_counts(machines: Sequence[MachineFacts]) -> list[tuple[int, ...]]:
    """Return workers per machine: one, two, four and so on, up to the slots."""
    most = max(machine.slots for machine in machines)
    sizes = sorted({min(most, 1 << power) for power in range(most.bit_length())} | {most})
    return list(
        dict.fromkeys(tuple(min(size, machine.slots) for machine in machines) for size in sizes)
    )


def _precisions(job: JobSpec) -> tuple[str, ...]:
    if job.program is not None:
        return (PRECISION,)
    return ("fp32", "bf16") if job.precision == "auto" else (job.precision,)


def _strategies(num_workers: int, job: JobSpec, cluster: ClusterModel) -> list[StrategySpec]:
    own = job.strategy
    if num_workers == 1:
        return [SingleSpec()]
    served = ParameterServerSpec
    found: list[StrategySpec] = [
        AllreduceSpec(),
        AllreduceSpec(compression=Bf16Spec()),
        AllreduceSpec(compression=PowerSgdSpec()),
        served(consistency="bsp", servers="colocated"),
        served(consistency="bsp"),
        served(servers="colocated", dispatch="dynamic"),
        served(dispatch="dynamic"),
        served(
            servers="colocated",
            dispatch="dynamic",
            compression=Bf16Spec(),
            pull_compression="bf16",
        ),
        served(consistency="ssp", servers="colocated"),
        LocalSgdSpec(),
        SwitchSpec(),
    ]
    if cluster.parts is not None:
        found.append(SplitSpec())
    if not own.is_single and own not in found:
        found.insert(0, own)
    if cluster.job.in_step_only:
        return [one for one in found if not one.uses_servers and len(one.strategies()) == 1]
    return found


def _effect(strategy: StrategySpec, precision: str, job: JobSpec) -> Effect:
    own = strategy.equals_but_for_placement(job.strategy)
    worst: Effect = "exact" if own else strategy.effect
    if precision == "bf16" and job.precision == "fp32" and worst == "exact":
        return "rounded"
    return worst


def _seats(
    machines: Sequence[MachineFacts],
    counts: Sequence[int],
    strategy: StrategySpec,
    precision: str,
    cluster: ClusterModel,
) -> tuple[Seat, ...] | None:
    batches = _batches(machines, counts, strategy, precision, cluster)
    needed = strategy.processes(sum(counts))
    colocated = strategy.uses_servers and needed.servers == 0
    seats = []
    rest = iter(batches)
    for number, (machine, count) in enumerate(zip(machines, counts, strict=True)):
        beside = needed.servers if number == 0 else 0
        seats.append(
            Seat(
                machine=machine.name,
                batches=tuple(islice(rest, count)),
                threads=machine.threads(count),
                servers=count if colocated else beside,
                evaluator=number == 0 and needed.evaluators > 0,
            )
        )
    return tuple(seats)


def _batches(
    machines: Sequence[MachineFacts],
    counts: Sequence[int],
    strategy: StrategySpec,
    precision: str,
    cluster: ClusterModel,
) -> tuple[int, ...]:
    num_workers = sum(counts)
    global_batch = cluster.job.batch(num_workers)
    fits = [
        machine.compute(workers=count, threads=machine.threads(count), precision=precision)
        for machine, count in zip(machines, counts, strict=True)
    ]
    known = [fit for fit in fits if fit is not None]
    # With dynamic dispatch, fast workers take more batches by themselves.
    even = strategy.hands_out_batches or cluster.job.splits_evenly
    # Every worker of a split receives the whole batch, so the split of the batch does not matter.
    if even or strategy.splits_model or len(known) < len(fits):
        return equal_split(global_batch, num_workers)
    each = [fit for fit, count in zip(known, counts, strict=True) for _ in range(count)]
    return split_batch(global_batch, each)


def _dedicated(
    machines: Sequence[MachineFacts], job: JobSpec, cluster: ClusterModel, effects: Sequence[Effect]
) -> Iterator[Variant]:
    """Dedicate the last machine to servers; it is the slowest, as machines are sorted by speed."""
    if len(machines) < 3:
        return
    *working, serving = machines
    counts = [1] * len(working)
    for precision in _precisions(job):
        for strategy in (
            ParameterServerSpec(consistency="bsp"),
            ParameterServerSpec(dispatch="dynamic"),
        ):
            effect = _effect(strategy, precision, job)
            if effect not in effects:
                continue
            batches = _batches(working, counts, strategy, precision, cluster)
            seats = [
                Seat(machine=one.name, batches=(batch,), threads=one.threads(1))
                for one, batch in zip(working, batches, strict=True)
            ]
            seats.append(Seat(machine=serving.name, servers=1, evaluator=True))
            candidate = Candidate(seats=tuple(seats), strategy=strategy, precision=precision)
            yield Variant(candidate=candidate, effect=effect)
