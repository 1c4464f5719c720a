"""Enumerate the machine sets to search: all of them if possible, else promising ones.

Equal machines are interchangeable, so sets are counted by kind. Up to a limit every set is
enumerated. Beyond it, machines are sorted by several measures (speed, speed per price, per watt,
bandwidth) and the first n of each order are taken, for n growing by about a tenth; `neighbours`
then improves the best of them one machine at a time. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

import msgspec

from phalanx.plan.facts import ClusterModel, MachineFacts, NetworkFacts

Names = tuple[str, ...]
ALL_SETS_UP_TO = 600


def machine_sets(cluster: ClusterModel, *, limit: int = ALL_SETS_UP_TO) -> tuple[list[Names], bool]:
    """Return machine sets, fastest machine first in each, and whether these are all."""
    ordered = by_speed(cluster)
    kinds = _kinds(ordered, cluster.network)
    if prod(len(kind) + 1 for kind in kinds) - 1 <= limit:
        return [_in_order(chosen, ordered) for chosen in _all_sets(kinds)], True
    found: dict[Names, None] = {}
    for order in _orders(ordered, cluster.network):
        for size in _sizes(len(order)):
            found[_in_order(order[:size], ordered)] = None
    for machine in ordered[:1] + [kind[0] for kind in kinds[:32]]:
        found[(machine.name,)] = None
    return list(found), False


def neighbours(chosen: Names, cluster: ClusterModel, *, most: int = 16) -> Iterator[Names]:
    """Yield sets that differ by one machine: one less, one more, or one replaced."""
    ordered = by_speed(cluster)
    kinds = {kind[0].name: kind for kind in _kinds(ordered, cluster.network)}
    inside = set(chosen)
    addable = [
        next(one.name for one in kind if one.name not in inside)
        for kind in kinds.values()
        if any(one.name not in inside for one in kind)
    ][:most]
    droppable = chosen[-most:]
    changed = [inside - {name} for name in droppable] if len(chosen) > 1 else []
    changed += [inside | {new} for new in addable]
    changed += [inside - {name} | {new} for new in addable[:6] for name in droppable[-6:]]
    for names in changed:
        yield tuple(machine.name for machine in ordered if machine.name in names)


def by_speed(cluster: ClusterModel) -> list[MachineFacts]:
    """Return all machines, fastest first."""
    return sorted(cluster.machines.values(), key=lambda one: (-speed(one), one.name))


def speed(machine: MachineFacts) -> float:
    """Return the samples per second of the whole machine, without fixed parts."""
    return max(1 / fit.scaled(1.0).per_sample_s * fit.workers for fit in machine.fits)


def _kinds(ordered: Sequence[MachineFacts], network: NetworkFacts) -> list[list[MachineFacts]]:
    """Group machines that differ only in name; a probed link makes one distinct."""
    kinds: dict[MachineFacts, list[MachineFacts]] = {}
    for machine in ordered:
        linked = machine.name in network.pairs or any(
            machine.name in others for others in network.pairs.values()
        )
        key = machine if linked else msgspec.structs.replace(machine, name="")
        kinds.setdefault(key, []).append(machine)
    return list(kinds.values())


def _all_sets(kinds: Sequence[Sequence[MachineFacts]]) -> Iterator[list[MachineFacts]]:
    for counts in product(*(range(len(kind) + 1) for kind in kinds)):
        chosen = [one for kind, count in zip(kinds, counts, strict=True) for one in kind[:count]]
        if chosen:
            yield chosen


def _orders(
    ordered: Sequence[MachineFacts], network: NetworkFacts
) -> Iterator[Sequence[MachineFacts]]:
    yield ordered
    if any(machine.price_per_hour for machine in ordered):
        yield sorted(ordered, key=lambda one: (one.price_per_hour or 0.0) / speed(one))
    if any(machine.watts_full for machine in ordered):
        yield sorted(ordered, key=lambda one: (one.watts_full or 0.0) / speed(one))
    if network.pairs:
        yield sorted(ordered, key=lambda one: (-_bandwidth(one.name, network), -speed(one)))


def _bandwidth(name: str, network: NetworkFacts) -> float:
    """Return the median link bandwidth of a machine: one slow neighbour must not dominate."""
    own = sorted(link.bandwidth_bytes_per_s for link in network.pairs.get(name, {}).values())
    return own[len(own) // 2] if own else network.between.bandwidth_bytes_per_s


def _sizes(most: int) -> list[int]:
    sizes = {1, most}
    size = 1
    while size < most:
        sizes.add(size)
        size = max(size + 1, round(size * 1.1))
    return sorted(sizes)


def _in_order(chosen: Sequence[MachineFacts], ordered: Sequence[MachineFacts]) -> Names:
    inside = {machine.name for machine in chosen}
    return tuple(machine.name for machine in ordered if machine.name in inside)
