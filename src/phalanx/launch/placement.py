"""Which process goes to which machine: plain functions over what is known of the machines.

Workers take slots, one on every machine before any gets a second, and their ranks count through
the machines in the order of the pool file. Servers and the evaluator go where they disturb least. A
plan decides both itself. Nothing here starts or asks anything; `site` keeps what was decided.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from phalanx.errors import PlanError
from phalanx.launch.cores import CoreShare, share_cores


@dataclass(frozen=True)
class Room:
    """What a machine lends.

    Attributes:
        machine: Its name.
        cores: Cores that may be used; may be a fraction of one.
        slots: Workers that it takes.
        cpus: Cores that processes may be bound to, counted from 0; empty: they are not bound,
            because the machine is limited by a quota and not by cores.
    """

    machine: str
    cores: float
    slots: int = 1
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class Seat:
    """Where one process runs, and on how many cores."""

    machine: str
    threads: int = 1
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class Assignment:
    """What a plan gives to one machine."""

    machine: str
    workers: int
    threads: int = 1
    servers: int = 0
    evaluator: bool = False


@dataclass(frozen=True)
class Placement:
    """Who sits where.

    Attributes:
        workers: The seat of every worker, by rank.
        helpers: Machines that a plan has chosen for servers and the evaluator, by process.
    """

    workers: tuple[Seat, ...]
    helpers: Mapping[str, str] = field(default_factory=dict)


def spread_workers(num_workers: int, rooms: Sequence[Room]) -> dict[str, int]:
    """How many workers each machine gets: as evenly as the slots allow, in the order given.

    Raises:
        PlanError: There are more workers than slots.
    """
    slots = sum(room.slots for room in rooms)
    if num_workers > slots:
        machines = f"{len(rooms)} machine{'' if len(rooms) == 1 else 's'}"
        raise PlanError(
            f"{num_workers} workers do not fit: {machines} have {slots} slots together; "
            f"set 'workers: {slots}', or more 'slots' in the pool file"
        )
    counts = {room.machine: 0 for room in rooms}
    left = num_workers
    while left:
        for room in rooms:
            if left and counts[room.machine] < room.slots:
                counts[room.machine] += 1
                left -= 1
    return counts


def place(
    num_workers: int,
    rooms: Sequence[Room],
    *,
    threads: int | Literal["auto"] = "auto",
    pin: bool = True,
) -> Placement:
    """Seats for all workers, without a plan.

    Raises:
        PlanError: There are more workers than slots.
    """
    counts = spread_workers(num_workers, rooms)
    seats = [
        Seat(room.machine, share.threads, share.cpus)
        for room in rooms
        for share in _shares(room, counts[room.machine], threads=threads, pin=pin)
    ]
    return Placement(workers=tuple(seats))


def place_as_planned(
    assignments: Sequence[Assignment], rooms: Mapping[str, Room], *, pin: bool = True
) -> Placement:
    """Seats as a plan has them.

    Raises:
        PlanError: A machine of the plan is missing, or lends less than the plan takes.
    """
    workers: list[Seat] = []
    helpers: dict[str, str] = {}
    num_servers = 0
    for one in assignments:
        room = rooms.get(one.machine)
        if room is None:
            raise PlanError(
                f"the plan gives work to '{one.machine}', which is not among the machines "
                f"{', '.join(rooms)}; make a new plan for them"
            )
        if one.workers > room.slots:
            raise PlanError(
                f"the plan puts {one.workers} workers on '{one.machine}', which has "
                f"{room.slots} slots; make a new plan"
            )
        shares = _shares(room, one.workers, threads=one.threads, pin=pin)
        workers += [Seat(one.machine, share.threads, share.cpus) for share in shares]
        for _ in range(one.servers):
            helpers[f"server-{num_servers}"] = one.machine
            num_servers += 1
        if one.evaluator:
            helpers["evaluator-0"] = one.machine
    return Placement(workers=tuple(workers), helpers=helpers)


def seat_for_helper(seated: Collection[Seat], rooms: Sequence[Room]) -> Seat | None:
    """A place for a server or the evaluator, where it disturbs least; None: no machine is left."""
    roomiest = max(rooms, key=lambda room: _spare(room, seated), default=None)
    return None if roomiest is None else Seat(roomiest.machine)


def seat_for_worker(workers: Collection[Seat], rooms: Sequence[Room]) -> Seat | None:
    """A place for one more worker; None: every slot is taken.

    Args:
        workers: Where the other workers sit.
        rooms: The machines that can be used.
    """
    free = [
        room for room in rooms if sum(seat.machine == room.machine for seat in workers) < room.slots
    ]
    roomiest = max(free, key=lambda room: _spare(room, workers), default=None)
    if roomiest is None:
        return None
    # Those that are there keep their cores, so the newcomer is not bound to any.
    return Seat(roomiest.machine, threads=max(1, int(roomiest.cores) // roomiest.slots))


def _shares(
    room: Room, num_workers: int, *, threads: int | Literal["auto"], pin: bool
) -> list[CoreShare]:
    if num_workers == 0:
        return []
    cores = range(max(1, int(room.cores)))
    cpus = room.cpus[: len(cores)] if pin else ()
    if not cpus:
        return share_cores(cores, num_workers, threads=threads, pin=False)
    return share_cores(cpus, num_workers, threads=threads, pin=True)


def _spare(room: Room, seated: Collection[Seat]) -> float:
    """Share of a machine's cores that would be left if one more process came."""
    taken = 1 + sum(seat.threads for seat in seated if seat.machine == room.machine)
    return (room.cores - taken) / room.cores
