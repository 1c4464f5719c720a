"""From a job and a pool to machines that are ready for it: who is needed, who sits where.

Joins placement and preflight; called by the façade before a run directory is made, so that nothing
is left of a run that cannot begin.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.errors import PlanError
from phalanx.launch.fleet import Fleet
from phalanx.launch.placement import (
    Assignment,
    Placement,
    Room,
    place,
    place_as_planned,
    seat_for_helper,
)
from phalanx.launch.preflight import Muster, look_at, muster
from phalanx.launch.site import FleetSite
from phalanx.launch.ssh import SshLauncher
from phalanx.pool.facts import Probe
from phalanx.records.rundir import RunDir
from phalanx.spec.job import JobSpec
from phalanx.spec.machine import MachineSpec
from phalanx.spec.pool import PoolSpec

# A machine is lost before its workers count as frozen, so that the machine is named as the cause.
_SILENCE_SHARE = 0.75


@dataclass(frozen=True)
class PoolOrder:
    """On which machines a job is to run.

    Attributes:
        pool: The machines that may be used, in the order of ranks.
        source: The file that they come from.
        assignments: What a plan gives to each; none: shared out by slots.
        needs_bytes: Memory that each needs, as a plan has predicted.
        build_env: Whether an environment is built there.
    """

    pool: PoolSpec
    source: str
    assignments: tuple[Assignment, ...] = ()
    needs_bytes: Mapping[str, int] = field(default_factory=dict)
    build_env: bool = False

    @property
    def machines(self) -> list[str]:
        """Names of the machines that may be used."""
        return [one.title for one in self.pool.machines]


@dataclass(frozen=True)
class Camp:
    """Machines that are ready for a job, and who sits where."""

    fleet: Fleet
    placement: Placement
    rooms: tuple[Room, ...]

    def settle(self, run: RunDir, job: JobSpec) -> tuple[SshLauncher, FleetSite]:
        """Make the directory of a run on every machine.

        Raises:
            LaunchError: A machine is gone, or cannot make it.
        """
        limit_s = job.deadlines.heartbeat_s
        self.fleet.begin(run.name, limit_s=limit_s)
        launcher = SshLauncher(self.fleet, run.path, silence_s=limit_s * _SILENCE_SHARE)
        return launcher, FleetSite(self.fleet, self.placement, self.rooms)


def fill_workers(job: JobSpec, pool: PoolSpec, *, shrink: bool = False) -> JobSpec:
    """The job with a worker for every slot, unless it says how many it wants.

    Args:
        job: What is to be done.
        pool: The machines.
        shrink: Whether it may get fewer than it wants.
    """
    slots = sum(machine.slots for machine in pool.machines)
    if job.strategy.is_single or ("workers" in job.model_fields_set and not shrink):
        return job
    if "workers" in job.model_fields_set and job.workers <= slots:
        return job
    return JobSpec.model_validate({**job.model_dump(by_alias=True), "workers": slots})


@contextlib.contextmanager
def camp(
    job: JobSpec,
    order: PoolOrder,
    *,
    data_root: Path,
    cache_root: Path,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Camp]:
    """Make machines ready for a job; when the block ends, nothing of it is left on them.

    Raises:
        MachinesUnfit: A machine cannot take part.
        PlanError: There are more workers than slots, or the plan does not fit the machines.
    """
    wanted = {one.machine for one in order.assignments}
    pool = _keep(order.pool, wanted) if wanted else order.pool
    missing = wanted - {one.title for one in pool.machines}
    if missing:
        raise PlanError(
            f"the plan gives work to {', '.join(sorted(missing))}, which {order.source} does not "
            "have; make a new plan, or name the right pool with --pool"
        )
    if not order.assignments:
        # More workers than slots is known without asking anybody.
        _place(job, order, {one.title: _declared_room(one) for one in pool.machines})
    on_progress(f"asking {len(pool.machines)} machines")
    probes = look_at(pool)
    rooms = {one.title: _room(one, probes[one.title]) for one in pool.machines}
    placement = _place(job, order, rooms)
    helpers = _helpers(job, placement, list(rooms.values()))
    counts = Counter([seat.machine for seat in placement.workers] + helpers)
    used = _keep(pool, set(counts))
    request = Muster(
        pool=used,
        num_processes=counts,
        needs_bytes=order.needs_bytes,
        build_env=order.build_env or pool.build_env,
    )
    with muster(
        job, request, probes, data_root=data_root, cache_root=cache_root, on_progress=on_progress
    ) as fleet:
        kept = tuple(rooms[one.title] for one in used.machines)
        yield Camp(fleet, placement, kept)


def _place(job: JobSpec, order: PoolOrder, rooms: Mapping[str, Room]) -> Placement:
    if order.assignments:
        return place_as_planned(order.assignments, rooms, pin=job.pin)
    return place(job.worker_processes, list(rooms.values()), threads=job.threads, pin=job.pin)


def _helpers(job: JobSpec, placement: Placement, rooms: Sequence[Room]) -> list[str]:
    """The machines on which servers and the evaluator will be, one entry each."""
    counts = job.processes
    names = [f"server-{rank}" for rank in range(counts.servers)]
    names += [f"evaluator-{rank}" for rank in range(counts.evaluators)]
    seats = list(placement.workers)
    machines = []
    for name in names:
        planned = placement.helpers.get(name)
        seat = seat_for_helper(seats, rooms)
        assert seat is not None
        seats.append(seat)
        machines.append(planned or seat.machine)
    return machines


def _room(spec: MachineSpec, probe: Probe) -> Room:
    cores = probe.looks.cores if spec.cores is None else min(spec.cores, probe.looks.cores)
    limited = probe.looks.quota_cores is not None
    cpus = () if limited else tuple(range(min(int(cores), probe.looks.usable_cores)))
    return Room(spec.title, cores=cores, slots=spec.slots, cpus=cpus)


def _declared_room(spec: MachineSpec) -> Room:
    return Room(spec.title, cores=spec.cores or 1.0, slots=spec.slots)


def _keep(pool: PoolSpec, names: set[str]) -> PoolSpec:
    machines = tuple(one for one in pool.machines if one.title in names)
    return pool.model_copy(update={"machines": machines})
