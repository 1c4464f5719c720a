"""Prepare the machines of a pool for a job: log in, place, check, stage.

Combines placement and preflight over one session per machine. Called by the launcher of pools
before a run directory is made, so that a run that cannot begin leaves nothing behind.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from phalanx.agent.session import Session
from phalanx.errors import PlanError
from phalanx.launch.base import LaunchRequest, PoolRequest
from phalanx.launch.hosts import HostGroup
from phalanx.launch.placement import (
    HostCapacity,
    ProcessPlacement,
    place,
    place_as_planned,
    slot_for_helper,
    spread_workers,
)
from phalanx.launch.preflight import Preflight, PreflightRequest
from phalanx.launch.preflight_host import PreflightHost, close_sessions, for_each_host
from phalanx.pool.facts import Probe
from phalanx.pool.scheduler import RouteMaker
from phalanx.spec.job import JobSpec
from phalanx.spec.machine import MachineSpec
from phalanx.spec.pool import PoolSpec


@dataclass(frozen=True)
class Provisioned:
    """Machines ready for a job, and the placement of its processes."""

    group: HostGroup
    placement: ProcessPlacement
    capacities: tuple[HostCapacity, ...]


def fill_workers(job: JobSpec, pool: PoolSpec, *, shrink: bool = False) -> JobSpec:
    """Return the job with one worker per slot, unless it sets `workers`.

    Args:
        job: The job to run.
        pool: The machines.
        shrink: Whether to reduce `workers` to the number of slots.
    """
    slots = sum(machine.slots for machine in pool.machines)
    if job.strategy.is_single or ("workers" in job.model_fields_set and not shrink):
        return job
    if "workers" in job.model_fields_set and job.workers <= slots:
        return job
    return JobSpec.model_validate({**job.model_dump(by_alias=True), "workers": slots})


@contextlib.contextmanager
def provision(
    request: LaunchRequest, pool_request: PoolRequest, *, route: RouteMaker
) -> Iterator[Provisioned]:
    """Prepare machines for a job; on leaving the block they are cleaned up.

    Raises:
        MachinesUnfit: A machine cannot take part.
        PlanError: There are more workers than slots, or the plan does not fit the machines.
        SpecError: The job's data is neither here nor there.
    """
    job = request.job
    pool = _machines_of(pool_request)
    if not pool_request.assignments:
        # Fail on more workers than slots before any login.
        spread_workers(job.worker_processes, [_declared(one) for one in pool.machines])
    request.on_progress(f"asking {len(pool.machines)} machines")
    hosts = [PreflightHost(Session(route(one))) for one in pool.machines]
    try:
        probes = for_each_host(hosts, PreflightHost.connect)
        pairs = zip(pool.machines, probes, strict=True)
        is_lent = pool.scheduler is not None
        capacities = {one.title: _capacity(one, probe, is_lent=is_lent) for one, probe in pairs}
        placement = _place(job, pool_request, capacities)
        counts = _count_processes(job, placement, list(capacities.values()))
        close_sessions([one for one in hosts if one.name not in counts])
        used = [one for one in hosts if one.name in counts]
        wanted = PreflightRequest(
            num_processes=counts,
            needs_bytes=pool_request.needs_bytes,
            build_env=pool_request.build_env or pool.build_env,
        )
        group = Preflight(request, wanted, used).run()
    except BaseException:
        # No group owns the sessions yet.
        close_sessions(hosts)
        raise
    # From here on the group closes the sessions, after all processes started over them have ended.
    with group:
        yield Provisioned(group, placement, tuple(capacities[one.name] for one in used))


def _machines_of(request: PoolRequest) -> PoolSpec:
    """Return the pool without machines to which a plan assigns nothing."""
    if not request.assignments:
        return request.pool
    planned = {one.machine for one in request.assignments}
    machines = tuple(one for one in request.pool.machines if one.title in planned)
    missing = planned - {one.title for one in machines}
    if missing:
        raise PlanError(
            f"the plan gives work to {', '.join(sorted(missing))}, which {request.source} does "
            "not have; make a new plan, or name the right pool with --pool"
        )
    return request.pool.model_copy(update={"machines": machines})


def _place(
    job: JobSpec, request: PoolRequest, capacities: Mapping[str, HostCapacity]
) -> ProcessPlacement:
    if request.assignments:
        return place_as_planned(request.assignments, capacities, pin=job.pin)
    hosts = list(capacities.values())
    return place(job.worker_processes, hosts, threads=job.threads, pin=job.pin)


def _count_processes(
    job: JobSpec, placement: ProcessPlacement, hosts: Sequence[HostCapacity]
) -> Counter[str]:
    """Count the processes of each machine, servers and evaluator included."""
    wanted = job.processes
    helpers = [f"server-{rank}" for rank in range(wanted.servers)]
    helpers += [f"evaluator-{rank}" for rank in range(wanted.evaluators)]
    slots = list(placement.workers)
    counts = Counter(slot.machine for slot in slots)
    for name in helpers:
        # Same rule as the allocation's, unless a plan has chosen.
        slot = slot_for_helper(slots, hosts)
        assert slot is not None
        slots.append(slot)
        counts[placement.helpers.get(name, slot.machine)] += 1
    return counts


def _capacity(spec: MachineSpec, probe: Probe, *, is_lent: bool) -> HostCapacity:
    cores = probe.looks.cores if spec.cores is None else min(spec.cores, probe.looks.cores)
    # Of a machine that is lent in part nobody says which cores: others may be bound to the first.
    is_part = is_lent and probe.looks.usable_cores > cores
    limited = is_part or probe.looks.quota_cores is not None
    cpus = () if limited else tuple(range(min(int(cores), probe.looks.usable_cores)))
    return HostCapacity(spec.title, cores=cores, slots=spec.slots, cpus=cpus)


def _declared(spec: MachineSpec) -> HostCapacity:
    return HostCapacity(spec.title, cores=spec.cores or 1.0, slots=spec.slots)
