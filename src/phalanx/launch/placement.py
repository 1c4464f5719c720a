"""Place processes on machines and cores; pure functions over known facts.

Workers take slots, one per machine before any machine gets a second; ranks follow the order of the
pool file. Servers and the evaluator go to the machines with most spare cores. A plan overrides
both. Nothing here starts or asks anything; `allocation` holds the result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from phalanx.errors import PlanError


@dataclass(frozen=True)
class CoreShare:
    """Compute threads of one worker and the cores it is bound to (empty: any)."""

    threads: int
    cpus: tuple[int, ...]


def share_cores(
    cores: Sequence[int], num_workers: int, *, threads: int | Literal["auto"], pin: bool
) -> list[CoreShare]:
    """Divide cores over workers.

    Each worker gets exclusive cores if there are enough. With more workers than cores they are
    bound round-robin, but only if the cores divide the workers evenly: otherwise the system's
    scheduler is fairer than any fixed binding.
    """
    per_worker = max(1, len(cores) // num_workers) if threads == "auto" else threads
    shares = []
    for worker in range(num_workers):
        cpus: tuple[int, ...] = ()
        if pin and per_worker * num_workers <= len(cores):
            cpus = tuple(cores[worker * per_worker : (worker + 1) * per_worker])
        elif pin and per_worker == 1 and num_workers % len(cores) == 0:
            cpus = (cores[worker % len(cores)],)
        shares.append(CoreShare(threads=per_worker, cpus=cpus))
    return shares


@dataclass(frozen=True)
class HostCapacity:
    """Capacity of a machine.

    Attributes:
        machine: Its name.
        cores: Cores that may be used; may be a fraction of one.
        slots: Maximum number of workers.
        cpus: Cores that processes may be bound to, counted from 0; empty: no binding, because the
        machine is limited by a CPU quota instead of cores.
    """

    machine: str
    cores: float
    slots: int = 1
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class SlotInfo:
    """Machine and cores of one process."""

    machine: str
    threads: int = 1
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class HostAssignment:
    """Assignment of a plan to one machine."""

    machine: str
    workers: int
    threads: int = 1
    servers: int = 0
    evaluator: bool = False


@dataclass(frozen=True)
class ProcessPlacement:
    """Machine of every process.

    Attributes:
        workers: The slot of every worker, by rank.
        helpers: Machines chosen by a plan for servers and the evaluator, by process.
    """

    workers: tuple[SlotInfo, ...]
    helpers: Mapping[str, str] = field(default_factory=dict)


def spread_workers(num_workers: int, hosts: Sequence[HostCapacity]) -> dict[str, int]:
    """Count the workers per machine: as evenly as the slots allow, in the given order.

    Raises:
        PlanError: There are more workers than slots.
    """
    slots = sum(host.slots for host in hosts)
    if num_workers > slots:
        machines = f"{len(hosts)} machine{'' if len(hosts) == 1 else 's'}"
        raise PlanError(
            f"{num_workers} workers do not fit: {machines} have {slots} slots together; "
            f"set 'workers: {slots}', or more 'slots' in the pool file"
        )
    counts = {host.machine: 0 for host in hosts}
    left = num_workers
    while left:
        for host in hosts:
            if left and counts[host.machine] < host.slots:
                counts[host.machine] += 1
                left -= 1
    return counts


def place(
    num_workers: int,
    hosts: Sequence[HostCapacity],
    *,
    threads: int | Literal["auto"] = "auto",
    pin: bool = True,
) -> ProcessPlacement:
    """Assign a slot to every worker, without a plan.

    Raises:
        PlanError: There are more workers than slots.
    """
    counts = spread_workers(num_workers, hosts)
    slots = [
        SlotInfo(host.machine, share.threads, share.cpus)
        for host in hosts
        for share in _shares(host, counts[host.machine], threads=threads, pin=pin)
    ]
    return ProcessPlacement(workers=tuple(slots))


def place_as_planned(
    assignments: Sequence[HostAssignment], hosts: Mapping[str, HostCapacity], *, pin: bool = True
) -> ProcessPlacement:
    """Assign to every process the slot that a plan has chosen.

    Raises:
        PlanError: A machine of the plan is missing or too small.
    """
    workers: list[SlotInfo] = []
    helpers: dict[str, str] = {}
    num_servers = 0
    for one in assignments:
        host = hosts.get(one.machine)
        if host is None:
            raise PlanError(
                f"the plan gives work to '{one.machine}', which is not among the machines "
                f"{', '.join(hosts)}; make a new plan for them"
            )
        if one.workers > host.slots:
            raise PlanError(
                f"the plan puts {one.workers} workers on '{one.machine}', which has "
                f"{host.slots} slots; make a new plan"
            )
        shares = _shares(host, one.workers, threads=one.threads, pin=pin)
        workers += [SlotInfo(one.machine, share.threads, share.cpus) for share in shares]
        for _ in range(one.servers):
            helpers[f"server-{num_servers}"] = one.machine
            num_servers += 1
        if one.evaluator:
            helpers["evaluator-0"] = one.machine
    return ProcessPlacement(workers=tuple(workers), helpers=helpers)


def slot_for_helper(taken: Collection[SlotInfo], hosts: Sequence[HostCapacity]) -> SlotInfo | None:
    """Find the machine with most spare cores for a server or the evaluator; None: no machine."""
    emptiest = max(hosts, key=lambda host: _spare(host, taken), default=None)
    return None if emptiest is None else SlotInfo(emptiest.machine)


def slot_for_worker(
    workers: Collection[SlotInfo], hosts: Sequence[HostCapacity]
) -> SlotInfo | None:
    """Find a slot for another worker; None: every slot is taken.

    Args:
        workers: Slots of the other workers.
        hosts: The usable machines.
    """
    free = [
        host for host in hosts if sum(slot.machine == host.machine for slot in workers) < host.slots
    ]
    emptiest = max(free, key=lambda host: _spare(host, workers), default=None)
    if emptiest is None:
        return None
    # Running workers keep their cores, so the new one is not bound.
    return SlotInfo(emptiest.machine, threads=max(1, int(emptiest.cores) // emptiest.slots))


def _shares(
    host: HostCapacity, num_workers: int, *, threads: int | Literal["auto"], pin: bool
) -> list[CoreShare]:
    if num_workers == 0:
        return []
    cores = range(max(1, int(host.cores)))
    cpus = host.cpus[: len(cores)] if pin else ()
    if not cpus:
        return share_cores(cores, num_workers, threads=threads, pin=False)
    return share_cores(cpus, num_workers, threads=threads, pin=True)


def _spare(host: HostCapacity, taken: Collection[SlotInfo]) -> float:
    """Return the share of a machine's cores that would be free with one more process."""
    threads = 1 + sum(slot.threads for slot in taken if slot.machine == host.machine)
    return (host.cores - threads) / host.cores
