"""Assign machine, cores, directories and address to every process of a run.

An allocation also moves a process whose machine was lost; it starts nothing. Launchers create it;
the controller derives process specs from it.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from phalanx.agent.remote.host import free_ports
from phalanx.errors import LaunchError
from phalanx.launch.placement import (
    HostCapacity,
    ProcessPlacement,
    SlotInfo,
    share_cores,
    slot_for_helper,
    slot_for_worker,
)
from phalanx.spec.data import DataSpec
from phalanx.spec.environment import Endpoint, environment_of
from phalanx.spec.job import JobSpec
from phalanx.spec.worker import LOOPBACK

if TYPE_CHECKING:
    from phalanx.launch.hosts import HostGroup

PROCESS_BYTES = 250 << 20
"""Minimum memory of a process, with its framework and without any model."""
_PORTS_S = 15.0


@dataclass(frozen=True)
class ProcessSlot:
    """Resources that a machine provides to one process.

    Attributes:
        machine: Name of the machine.
        address: Address that its sockets bind to and that other processes connect to.
        controller: Address of the controller as seen from this machine.
        threads: Compute threads.
        cpus: Cores that it is bound to; empty: any.
        run_dir: Directory for its records on that machine.
        shares_run_dir: Whether that is the controller's run directory.
        data: The job's data under its path on that machine.
        data_root: Directory of data sets on that machine.
        cache_root: Directory of decoded data on that machine.
        watts: Idle and full power draw of the machine, if declared.
    """

    machine: str
    address: str
    controller: str
    threads: int
    cpus: tuple[int, ...]
    run_dir: str
    shares_run_dir: bool
    data: DataSpec
    data_root: str
    cache_root: str
    watts: tuple[float, float] | None = None


class Allocation(ABC):
    """Placement of all processes of one run.

    Attributes:
        listen: Address that the controller listens on.
        worker_threads: Compute threads per worker; the minimum if workers differ.
    """

    listen: str
    worker_threads: int

    def __init__(self) -> None:
        self._endpoints: dict[tuple[str, int], Endpoint] = {}

    @abstractmethod
    def slot(self, role: str, rank: int) -> ProcessSlot:
        """Return the resources of a process; a process without a slot is assigned one first."""

    @abstractmethod
    def move(self, role: str, rank: int, *, crowd: bool) -> bool:
        """Find a slot for a new process or for the successor of a lost one.

        Args:
            role: Its role.
            rank: Its rank.
            crowd: Allow a machine whose slots are full if there is no other; never one without
                memory for the process.

        Returns:
            Whether a slot was found; the process keeps its former slot if that is still available.
        """

    @abstractmethod
    def free_ports(self, machine: str, count: int) -> list[int]:
        """Return ports of a machine that are free now."""

    def announce(self, processes: Sequence[tuple[str, int]]) -> None:
        """Fix the endpoints of the initial processes, which are passed in their environment."""
        slots = {process: self.slot(*process) for process in processes}
        for machine in dict.fromkeys(slot.machine for slot in slots.values()):
            here = [process for process, slot in slots.items() if slot.machine == machine]
            ports = self.free_ports(machine, len(here))
            for (role, rank), port in zip(here, ports, strict=True):
                address = slots[role, rank].address
                self._endpoints[role, rank] = Endpoint(role, rank, machine, address, port)

    def environment(self, role: str, rank: int, *, run: str) -> dict[str, str]:
        """Return the environment variables of a process."""
        slot = self.slot(role, rank)
        known = self._endpoints.get((role, rank))
        port = known.port if known is not None else self.free_ports(slot.machine, 1)[0]
        one = Endpoint(role, rank, slot.machine, slot.address, port)
        self._endpoints[role, rank] = one
        return environment_of(one, list(self._endpoints.values()), run=run)


class LocalAllocation(Allocation):
    """Allocation of this machine alone.

    Args:
        job: The job to run.
        run_dir: The run directory.
        data_root: Directory of data sets.
        cache_root: Directory of decoded data.
    """

    listen = LOOPBACK

    def __init__(self, job: JobSpec, *, run_dir: Path, data_root: Path, cache_root: Path) -> None:
        super().__init__()
        self._job = job
        self._places = (str(run_dir.resolve()), str(data_root.resolve()), str(cache_root.resolve()))
        cores = sorted(os.sched_getaffinity(0))
        self._shares = share_cores(cores, job.worker_processes, threads=job.threads, pin=job.pin)
        self.worker_threads = self._shares[0].threads

    @override
    def slot(self, role: str, rank: int) -> ProcessSlot:
        # Servers, the evaluator and workers that join later are not bound to cores.
        own = role == "worker" and rank < len(self._shares)
        run_dir, data_root, cache_root = self._places
        return ProcessSlot(
            machine=socket.gethostname(),
            address=LOOPBACK,
            controller=LOOPBACK,
            threads=self._shares[rank].threads if own else 1,
            cpus=self._shares[rank].cpus if own else (),
            run_dir=run_dir,
            shares_run_dir=True,
            data=self._job.data,
            data_root=data_root,
            cache_root=cache_root,
        )

    @override
    def move(self, role: str, rank: int, *, crowd: bool) -> bool:
        return True

    @override
    def free_ports(self, machine: str, count: int) -> list[int]:
        return free_ports(LOOPBACK, count)


class PoolAllocation(Allocation):
    """Allocation of slots on the machines of a pool.

    Args:
        group: The machines, ready and with their run directories.
        placement: Initial placement of the processes.
        capacities: Capacity of each machine, in pool order.
    """

    def __init__(
        self, group: HostGroup, placement: ProcessPlacement, capacities: Sequence[HostCapacity]
    ) -> None:
        super().__init__()
        self._group = group
        self._capacities = tuple(capacities)
        self._planned = placement.helpers
        self._slots: dict[tuple[str, int], SlotInfo] = {
            ("worker", rank): place for rank, place in enumerate(placement.workers)
        }
        self.listen = group.listen
        self.worker_threads = min(place.threads for place in placement.workers)

    @override
    def slot(self, role: str, rank: int) -> ProcessSlot:
        if (role, rank) not in self._slots and not self.move(role, rank, crowd=True):
            # Before the first start: the preflight has counted its memory.
            found = self._find(role, self._usable(), crowd=True)
            if found is None:
                raise LaunchError(f"no machine is left for {role}-{rank}")
            self._slots[role, rank] = found
        place = self._slots[role, rank]
        host = self._group.by_name[place.machine]
        spec = host.spec
        both = spec.watts_idle is not None and spec.watts_full is not None
        return ProcessSlot(
            machine=place.machine,
            address=host.address,
            controller=host.controller,
            threads=place.threads,
            # Slots index the cores that a login may run on; the kernel numbers all cores.
            cpus=tuple(host.cpus[number] for number in place.cpus),
            run_dir=host.folder,
            shares_run_dir=False,
            data=host.data,
            data_root=host.data_root,
            cache_root=host.cache_root,
            watts=(spec.watts_idle or 0.0, spec.watts_full or 0.0) if both else None,
        )

    @override
    def move(self, role: str, rank: int, *, crowd: bool) -> bool:
        capacities = self._usable()
        there = {one.machine for one in capacities}
        place = self._slots.get((role, rank))
        if place is not None and place.machine in there:
            return True
        planned = self._planned.get(f"{role}-{rank}")
        if planned in there:
            self._slots[role, rank] = SlotInfo(planned)
            return True
        self._slots.pop((role, rank), None)
        # A machine without memory for one more process would lose those that it has.
        roomy = [one for one in capacities if self._has_memory(one.machine)]
        found = self._find(role, roomy, crowd=crowd)
        if found is not None:
            self._slots[role, rank] = found
        return found is not None

    def _find(
        self, role: str, capacities: Sequence[HostCapacity], *, crowd: bool
    ) -> SlotInfo | None:
        taken: Collection[SlotInfo] = self._slots.values()
        if role != "worker":
            return slot_for_helper(taken, capacities)
        workers = [place for (kind, _), place in self._slots.items() if kind == "worker"]
        found = slot_for_worker(workers, capacities)
        return slot_for_helper(taken, capacities) if found is None and crowd else found

    def _has_memory(self, machine: str) -> bool:
        session = self._group.by_name[machine].session
        try:
            free_bytes: int = session.ask({"do": "memory"}, _PORTS_S)
        except LaunchError:
            return False  # lost just now, or too busy to answer
        return free_bytes >= PROCESS_BYTES

    def _usable(self) -> list[HostCapacity]:
        """Return the machines that are not lost."""
        hosts = self._group.by_name
        return [one for one in self._capacities if hosts[one.machine].session.fault is None]

    @override
    def free_ports(self, machine: str, count: int) -> list[int]:
        host = self._group.by_name[machine]
        order = {"do": "ports", "address": host.address, "count": count}
        ports: list[int] = host.session.ask(order, _PORTS_S)
        return ports
