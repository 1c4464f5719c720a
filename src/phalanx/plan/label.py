"""Format short names of strategies and placements for tables and sentences. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.plan.placement import Candidate

_NAMED_MACHINES = 4


def servers_label(candidate: Candidate) -> str:
    """Format the placement of servers: `-`, `colocated`, or how many on which machine."""
    strategy = candidate.strategy
    if not strategy.uses_servers:
        return "-"
    if strategy.processes(candidate.num_workers).servers == 0:
        return "colocated"
    where = [f"{seat.servers} on {seat.machine}" for seat in candidate.seats if seat.servers]
    return ", ".join(where)


def machines_label(names: Sequence[str]) -> str:
    """Format machine names, or their number: `ada, bob`, `ada and 11 more`."""
    if len(names) <= _NAMED_MACHINES:
        return ", ".join(names)
    return f"{names[0]} and {len(names) - 1} more"


def batches_label(sizes: Sequence[int]) -> str:
    """Format the batch size per worker: `128`, `4 x 32`, `80 + 48`, `2 to 40`."""
    if len(sizes) == 1:
        return str(sizes[0])
    if max(sizes) - min(sizes) <= 1:
        return f"{len(sizes)} x {max(sizes)}"
    if len(sizes) <= _NAMED_MACHINES:
        return " + ".join(str(size) for size in sizes)
    return f"{min(sizes)} to {max(sizes)}"
