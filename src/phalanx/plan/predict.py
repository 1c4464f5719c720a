"""Predict time, cost, energy and memory of a candidate with 90 % intervals, or why it cannot run.

Combines the models of the families. T_total = start-up + warm-up + epochs (samples / speed + the
tail of the epoch) + evaluation; a switch mixes its phases by their shares of the samples. The
interval is that of a log-normal error: the family's residual on earlier runs and the fit error of
the slowest worker, which are independent. Reference for the mix: Li et al. 2021 (Sync-Switch).

Cost: a machine is billed by the second for the whole run. Energy: it draws W = idle + (full - idle)
u, u being the mean share of its busy cores. Memory: a worker holds the process itself, parameters,
gradients and optimiser state, a communication buffer, and its batch; a server its shard with
optimiser state, and twice the pushes that workers can have in flight; the evaluator a model without
gradients.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, cast

import msgspec

from phalanx.plan.facts import ClusterModel
from phalanx.plan.placement import Candidate, Seat
from phalanx.plan.result import Interval, Prediction, StepParts, Throughput, around
from phalanx.plan.workers import WorkerModels, worker_models
from phalanx.spec.kinds import kind_of
from phalanx.spec.lockstep import SingleSpec
from phalanx.spec.registry import load
from phalanx.spec.strategy import StrategySpec

Predictor = Callable[[WorkerModels, Any, ClusterModel], Throughput | str]
"""Target of `StrategyKind.predictor`; the strategy is an instance of the kind's class."""

# Assumed share of a switch that chooses its moment itself: the first decay of common schedules.
_AUTO_SHARE = 0.5
# Relative standard deviation of start-up and evaluation: other programs, disks, file caches.
_BESIDES_ERROR = 0.2


class Phase(msgspec.Struct, frozen=True):
    """One strategy of a run, and its share of all samples."""

    strategy: StrategySpec
    share: float


def predict(candidate: Candidate, cluster: ClusterModel) -> Prediction | str:
    """Predict a candidate, or say why it cannot run."""
    group = worker_models(candidate, cluster)
    if isinstance(group, str):
        return group
    idle = [worker for worker in group.workers if worker.batch == 0]
    if idle:
        return f"a batch of {group.batch} leaves {idle[0].machine} without a sample in each step"
    needs = memory_needs(candidate, cluster)
    fault = memory_fault(needs, cluster)
    if fault is not None:
        return fault
    phases = phases_of(candidate, cluster)
    throughputs: list[Throughput] = []
    for phase in phases:
        throughput = throughput_of(phase.strategy, group, cluster)
        if isinstance(throughput, str):
            return throughput
        throughputs.append(corrected(throughput, cluster))
    return _total(candidate, cluster, needs, phases, throughputs, group)


def throughput_of(
    strategy: StrategySpec, group: WorkerModels, cluster: ClusterModel
) -> Throughput | str:
    """Return the throughput of a strategy before corrections, or why it is unknown."""
    # A single worker has no communication, unless parameters are on a server.
    alone = (
        len(group.workers) == 1 and not strategy.updates_on_servers and not strategy.splits_model
    )
    path = kind_of(SingleSpec() if alone else strategy).predictor
    if not path:
        return f"strategy '{strategy.label()}' brings no predictor, so its speed is not known"
    return _predictor(path)(group, strategy, cluster)


@cache
def _predictor(path: str) -> Predictor:
    # Cached: a search predicts thousands of candidates.
    return cast(Predictor, load(path))


def corrected(throughput: Throughput, cluster: ClusterModel) -> Throughput:
    """Return the throughput with the family's correction from earlier runs."""
    known = cluster.costs.correction(throughput.family)
    parts = throughput.parts.scaled(known.factor, exchange=known.exchange)
    factor = parts.total_s / throughput.parts.total_s
    return msgspec.structs.replace(
        throughput,
        samples_per_s=throughput.samples_per_s / factor,
        parts=parts,
        tail_s=throughput.tail_s * factor,
    )


def phases_of(candidate: Candidate, cluster: ClusterModel) -> list[Phase]:
    """Return the strategies of a run with their shares of the samples."""
    strategy = candidate.strategy
    assert not strategy.in_process, "plans are made for the native backend"
    resolved = strategy.resolved
    if not resolved:
        return [Phase(strategy, 1.0)]
    begins = [0.0]
    for phase in resolved[1:]:
        if isinstance(phase.at, float):
            begins.append(phase.at)
        elif phase.epoch is not None:
            begins.append(min(1.0, phase.epoch / cluster.job.epochs))
        else:
            begins.append(_AUTO_SHARE)
    ends = [*begins[1:], 1.0]
    return [
        Phase(phase.strategy, max(0.0, end - begin))
        for phase, begin, end in zip(resolved, begins, ends, strict=True)
    ]


def _total(
    candidate: Candidate,
    cluster: ClusterModel,
    needs: dict[str, int],
    phases: list[Phase],
    throughputs: list[Throughput],
    group: WorkerModels,
) -> Prediction:
    job, costs = cluster.job, cluster.costs
    samples = job.samples_per_epoch * job.epochs
    train_s, error, tail_s = 0.0, 0.0, 0.0
    for phase, throughput in zip(phases, throughputs, strict=True):
        part_s = phase.share * samples / throughput.samples_per_s
        train_s += part_s
        tail_s += phase.share * job.epochs * throughput.tail_s
        error += part_s * costs.correction(throughput.family).error
    error = math.hypot(error / train_s, max(worker.fit.error for worker in group.workers))
    train_s += tail_s
    batches = samples / group.batch
    step_s = around(train_s / batches, error)
    warm_s = around(costs.warm_up_s, _BESIDES_ERROR)
    # Evaluation is forward only, and divided among the workers.
    forwards = sum(
        (1 - worker.fit.backward_share) * worker.fit.per_sample_s for worker in group.workers
    )
    evaluate_s = job.evaluated_samples * forwards / len(group.workers) ** 2
    besides_s = costs.startup_s + job.epochs * costs.checkpoint_s + evaluate_s + job.script_s
    besides_s += (len(phases) - 1) * costs.switch_s
    training_s = step_s * batches + warm_s
    total_s = training_s + around(besides_s, _BESIDES_ERROR)
    return Prediction(
        step_s=step_s,
        samples_per_s=around(samples / train_s, error),
        train_s=training_s,
        total_s=total_s,
        parts=_mixed(phases, throughputs),
        memory_bytes=needs,
        sent_bytes_per_step=sum(
            phase.share * throughput.sent_bytes
            for phase, throughput in zip(phases, throughputs, strict=True)
        ),
        cost=cost_of(candidate, total_s, cluster),
        energy_j=energy_of(candidate, throughputs, group, total_s, cluster),
        staleness=max(throughput.staleness for throughput in throughputs),
        family=throughputs[0].family if len(throughputs) == 1 else "switch",
    )


def _mixed(phases: list[Phase], throughputs: list[Throughput]) -> StepParts:
    pairs = list(zip(phases, throughputs, strict=True))
    return StepParts(
        **{
            name: sum(phase.share * getattr(one.parts, name) for phase, one in pairs)
            for name in StepParts.__struct_fields__
        }
    )


_SECONDS_PER_HOUR = 3600


def cost_of(candidate: Candidate, total_s: Interval, cluster: ClusterModel) -> Interval | None:
    """Return the cost of all machines; None if a price is unknown."""
    prices = [cluster.machines[seat.machine].price_per_hour for seat in candidate.seats]
    known = [price for price in prices if price is not None]
    if len(known) < len(prices):
        return None
    return total_s * (sum(known) / _SECONDS_PER_HOUR)


def energy_of(
    candidate: Candidate,
    throughputs: Sequence[Throughput],
    group: WorkerModels,
    total_s: Interval,
    cluster: ClusterModel,
) -> Interval | None:
    """Return the joules of all machines; None if the power of one is unknown.

    Workers and servers are busy as in the phases' throughputs; phases count alike.
    """
    watts = 0.0
    shares = [_busy_cores(throughput, group) for throughput in throughputs]
    for seat in candidate.seats:
        machine = cluster.machines[seat.machine]
        if machine.watts_idle is None or machine.watts_full is None:
            return None
        busy = sum(share[seat.machine] for share in shares) / len(throughputs)
        used = min(1.0, busy / machine.cores)
        watts += machine.watts_idle + (machine.watts_full - machine.watts_idle) * used
    return total_s * watts


def _busy_cores(throughput: Throughput, group: WorkerModels) -> Mapping[str, float]:
    """Return the mean number of busy cores by machine."""
    busy: defaultdict[str, float] = defaultdict(float)
    for share, worker in zip(throughput.busy, group.workers, strict=True):
        busy[worker.machine] += share * worker.fit.threads
    for machine in group.servers:
        busy[machine] += throughput.server_busy
    return busy


# Share reserved for the system and other programs.
_RESERVE = 0.05


def memory_needs(candidate: Candidate, cluster: ClusterModel) -> dict[str, int]:
    """Return the bytes that each machine needs."""
    num_servers = sum(seat.servers for seat in candidate.seats)
    # A worker may have one push in flight and the next one begun.
    coming = 2 * candidate.num_workers * cluster.model.size_bytes / max(1, num_servers)
    own = cluster.model.size_bytes * (1 + cluster.model.num_moments) / max(1, num_servers)
    return {
        seat.machine: _seat_bytes(seat, candidate, cluster, server_bytes=own + coming)
        for seat in candidate.seats
    }


def memory_fault(needs: dict[str, int], cluster: ClusterModel) -> str | None:
    """Return why a candidate does not fit into memory, or None."""
    for name, need in needs.items():
        room = cluster.machines[name].memory_bytes * (1 - _RESERVE)
        if need > room:
            return f"needs {need / 2**30:.1f} GiB on {name}, which has {room / 2**30:.1f} GiB free"
    return None


def _seat_bytes(
    seat: Seat, candidate: Candidate, cluster: ClusterModel, *, server_bytes: float
) -> int:
    model = cluster.model
    strategies = candidate.strategy.strategies()
    # Parameters, gradients, communication buffer; optimiser state where the worker updates.
    updates = any(not one.updates_on_servers for one in strategies)
    tensors = 3 + (model.num_moments if updates else 0)
    # A split is checked per part when placed; here each worker counts its share of the whole.
    share = candidate.num_workers if candidate.strategy.splits_model else 1
    need = sum(
        int(model.process_bytes + tensors * model.size_bytes / share) + batch * model.sample_bytes
        for batch in seat.batches
    )
    if seat.servers:
        # Colocated servers are threads of their workers.
        processes = max(0, seat.servers - seat.workers) * model.process_bytes
        need += int(processes + seat.servers * server_bytes)
    if seat.evaluator:
        need += model.process_bytes + model.size_bytes
    return int(need)
