"""What a candidate costs, in money and in energy: pure arithmetic.

A machine is paid for as long as the run takes, by the second. It draws W = idle + (full - idle) u,
u being the share of its cores that is busy on average.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from phalanx.plan.crew import Crew
from phalanx.plan.facts import World
from phalanx.plan.placement import Candidate
from phalanx.plan.result import Interval, Pace

_SECONDS_PER_HOUR = 3600


def cost_of(candidate: Candidate, total_s: Interval, world: World) -> Interval | None:
    """Money for all machines; None if the price of one is not known."""
    prices = [world.machines[seat.machine].price_per_hour for seat in candidate.seats]
    known = [price for price in prices if price is not None]
    if len(known) < len(prices):
        return None
    return total_s * (sum(known) / _SECONDS_PER_HOUR)


def energy_of(
    candidate: Candidate, paces: Sequence[tuple[Pace, Crew]], total_s: Interval, world: World
) -> Interval | None:
    """Joules of all machines; None if one does not say what it draws.

    Args:
        candidate: Whose machines.
        paces: How busy workers and servers are, for each phase with its crew; phases count alike.
        total_s: How long.
        world: What the machines draw.
    """
    watts = 0.0
    shares = [_busy_cores(pace, crew) for pace, crew in paces]
    for seat in candidate.seats:
        machine = world.machines[seat.machine]
        if machine.watts_idle is None or machine.watts_full is None:
            return None
        busy = sum(share[seat.machine] for share in shares) / len(paces)
        used = min(1.0, busy / machine.cores)
        watts += machine.watts_idle + (machine.watts_full - machine.watts_idle) * used
    return total_s * watts


def _busy_cores(pace: Pace, crew: Crew) -> Mapping[str, float]:
    """Cores that are busy on average, by machine."""
    busy: defaultdict[str, float] = defaultdict(float)
    for share, hand in zip(pace.busy, crew.hands, strict=True):
        busy[hand.machine] += share * hand.fit.threads
    for machine in crew.servers:
        busy[machine] += pace.server_busy
    return busy
