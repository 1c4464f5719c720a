"""Whether a candidate fits into its machines' memory: pure arithmetic.

A worker holds the process itself, parameters, gradients and the optimiser's numbers, a buffer for
what travels, and its batch. A server holds its slice with the optimiser's numbers, and twice what
the workers can have on the way to it. The evaluator holds a model without gradients.
"""

from __future__ import annotations

from phalanx.plan.facts import World
from phalanx.plan.placement import Candidate, Seat

# What the system and other programs keep for themselves.
_RESERVE = 0.05


def memory_needs(candidate: Candidate, world: World) -> dict[str, int]:
    """Bytes that each machine needs."""
    num_servers = sum(seat.servers for seat in candidate.seats)
    # A worker may have a push on its way and the next one begun.
    coming = 2 * candidate.num_workers * world.model.size_bytes / max(1, num_servers)
    own = world.model.size_bytes * (1 + world.model.num_moments) / max(1, num_servers)
    return {
        seat.machine: _seat_bytes(seat, candidate, world, server_bytes=own + coming)
        for seat in candidate.seats
    }


def memory_fault(needs: dict[str, int], world: World) -> str | None:
    """Why a candidate does not fit, or None."""
    for name, need in needs.items():
        room = world.machines[name].memory_bytes * (1 - _RESERVE)
        if need > room:
            return f"needs {need / 2**30:.1f} GiB on {name}, which has {room / 2**30:.1f} GiB free"
    return None


def _seat_bytes(seat: Seat, candidate: Candidate, world: World, *, server_bytes: float) -> int:
    model = world.model
    strategies = candidate.strategy.strategies()
    # Parameters, gradients, what travels; moments where the worker updates by itself.
    updates = any(not one.updates_on_servers for one in strategies)
    tensors = 3 + (model.num_moments if updates else 0)
    # A split is checked part by part where it is placed; on the whole each has its share.
    share = candidate.num_workers if candidate.strategy.splits_model else 1
    need = sum(
        int(model.process_bytes + tensors * model.size_bytes / share) + batch * model.sample_bytes
        for batch in seat.batches
    )
    if seat.servers:
        # Servers inside workers are threads of theirs.
        processes = max(0, seat.servers - seat.workers) * model.process_bytes
        need += int(processes + seat.servers * server_bytes)
    if seat.evaluator:
        need += model.process_bytes + model.size_bytes
    return int(need)
