"""Where the processes of a run live: on this machine, or on those of a fleet.

A site answers for every process which machine it has, how many cores, which directories and which
address. It keeps who sits where, and moves a process whose machine was lost; it starts nothing.
Called by the controller's roster, which makes the specs of processes from it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from phalanx.launch.cores import share_cores
from phalanx.launch.fleet import Fleet
from phalanx.launch.placement import (
    Placement,
    Room,
    Seat,
    seat_for_helper,
    seat_for_worker,
)
from phalanx.spec.data import DataSpec
from phalanx.spec.environment import Endpoint, environment_of
from phalanx.spec.job import JobSpec
from phalanx.spec.worker import LOOPBACK

_PORTS_S = 15.0


@dataclass(frozen=True)
class Berth:
    """What one process is given by the machine that it runs on.

    Attributes:
        machine: Name of the machine.
        address: Where its sockets listen, and where others reach them.
        controller: Where it reaches the controller.
        threads: Compute threads.
        cpus: Cores that it is bound to; empty: any.
        run_dir: Where its records go there.
        shares_run_dir: Whether that is the controller's run directory.
        data: The job's data as it is called there.
        data_root: Where data sets lie there.
        cache_root: Where decoded data is kept there.
        watts: What the machine draws idle and full, if that was declared.
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


class Site(ABC):
    """All machines of one run.

    Attributes:
        listen: Address at which the controller listens.
        worker_threads: Compute threads of a worker, where all have the same; else the fewest.
    """

    listen: str
    worker_threads: int

    def __init__(self) -> None:
        self._endpoints: dict[tuple[str, int], Endpoint] = {}

    @abstractmethod
    def berth(self, role: str, rank: int) -> Berth:
        """Where a process runs."""

    @abstractmethod
    def move(self, role: str, rank: int, *, crowd: bool) -> bool:
        """Find a place for the successor of a lost process, or for a newcomer.

        Args:
            role: Its role.
            rank: Its rank.
            crowd: Take a machine whose slots are full if there is no other.

        Returns:
            Whether there is one; its own if that is still there.
        """

    @abstractmethod
    def free_ports(self, machine: str, count: int) -> list[int]:
        """Ports that nobody uses there at the moment."""

    def announce(self, processes: Sequence[tuple[str, int]]) -> None:
        """Note with whom the run begins: what each finds in its environment about the others."""
        berths = {process: self.berth(*process) for process in processes}
        for machine in dict.fromkeys(berth.machine for berth in berths.values()):
            here = [process for process, berth in berths.items() if berth.machine == machine]
            ports = self.free_ports(machine, len(here))
            for (role, rank), port in zip(here, ports, strict=True):
                address = berths[role, rank].address
                self._endpoints[role, rank] = Endpoint(role, rank, machine, address, port)

    def environment(self, role: str, rank: int, *, run: str) -> dict[str, str]:
        """What a process finds in its environment."""
        berth = self.berth(role, rank)
        known = self._endpoints.get((role, rank))
        port = known.port if known is not None else self.free_ports(berth.machine, 1)[0]
        one = Endpoint(role, rank, berth.machine, berth.address, port)
        self._endpoints[role, rank] = one
        return environment_of(one, list(self._endpoints.values()), run=run)


class LocalSite(Site):
    """This machine alone.

    Args:
        job: What is to be done.
        run_dir: The run directory.
        data_root: Where data sets lie.
        cache_root: Where decoded data is kept.
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
    def berth(self, role: str, rank: int) -> Berth:
        # Servers, the evaluator and late workers go wherever there is room.
        own = role == "worker" and rank < len(self._shares)
        run_dir, data_root, cache_root = self._places
        return Berth(
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
        with contextlib.ExitStack() as stack:
            probes = [stack.enter_context(socket.socket()) for _ in range(count)]
            for probe in probes:
                probe.bind((LOOPBACK, 0))
            return [probe.getsockname()[1] for probe in probes]


class FleetSite(Site):
    """The machines of a fleet.

    Args:
        fleet: The machines, ready and with the directory of the run.
        placement: Where the run begins.
        rooms: What the machines lend, in their order.
    """

    def __init__(self, fleet: Fleet, placement: Placement, rooms: Sequence[Room]) -> None:
        super().__init__()
        self._fleet = fleet
        self._rooms = tuple(rooms)
        self._planned = placement.helpers
        self._seats: dict[tuple[str, int], Seat] = {
            ("worker", rank): seat for rank, seat in enumerate(placement.workers)
        }
        self.listen = fleet.listen
        self.worker_threads = min(seat.threads for seat in placement.workers)

    @override
    def berth(self, role: str, rank: int) -> Berth:
        if (role, rank) not in self._seats:
            self.move(role, rank, crowd=True)
        seat = self._seats[role, rank]
        machine = self._fleet.machines[seat.machine]
        spec = machine.spec
        both = spec.watts_idle is not None and spec.watts_full is not None
        return Berth(
            machine=seat.machine,
            address=machine.address,
            controller=machine.controller,
            threads=seat.threads,
            # A seat counts the cores that a login may run on; they have other numbers there.
            cpus=tuple(machine.cpus[number] for number in seat.cpus),
            run_dir=machine.folder,
            shares_run_dir=False,
            data=machine.data,
            data_root=machine.data_root,
            cache_root=machine.cache_root,
            watts=(spec.watts_idle or 0.0, spec.watts_full or 0.0) if both else None,
        )

    @override
    def move(self, role: str, rank: int, *, crowd: bool) -> bool:
        rooms = self._open_rooms()
        there = {room.machine for room in rooms}
        seat = self._seats.get((role, rank))
        if seat is not None and seat.machine in there:
            return True
        planned = self._planned.get(f"{role}-{rank}")
        if planned in there:
            self._seats[role, rank] = Seat(planned)
            return True
        self._seats.pop((role, rank), None)
        found = self._find(role, rooms, crowd=crowd)
        if found is not None:
            self._seats[role, rank] = found
        return found is not None

    def _find(self, role: str, rooms: Sequence[Room], *, crowd: bool) -> Seat | None:
        seats: Collection[Seat] = self._seats.values()
        if role != "worker":
            return seat_for_helper(seats, rooms)
        workers = [seat for (kind, _), seat in self._seats.items() if kind == "worker"]
        found = seat_for_worker(workers, rooms)
        return seat_for_helper(seats, rooms) if found is None and crowd else found

    def _open_rooms(self) -> list[Room]:
        """Machines that are not lost."""
        machines = self._fleet.machines
        return [room for room in self._rooms if machines[room.machine].session.fault is None]

    @override
    def free_ports(self, machine: str, count: int) -> list[int]:
        ready = self._fleet.machines[machine]
        order = {"do": "ports", "address": ready.address, "count": count}
        ports: list[int] = ready.session.ask(order, _PORTS_S)
        return ports
