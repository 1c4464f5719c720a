"""Select machines of an inventory by a policy and filters; pure.

Policies, over the machines M that pass all filters, in file order:
    all       M
    gpu       those with a graphics card;  cpu  those without: a partition of M
    energy    those marked energy_efficient; without a mark, those that do at least as much work
              per joule (measured GFLOP/s by watts_full) as the median of all that are known
    fastest   the n with the greatest measured speed, or declared cores where nothing is measured
    cheapest  the n with the lowest price per hour
The first four and their names are those of the published resource optimiser; tests check the same
selections. The result keeps file order, so ranks do not depend on measurements.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phalanx.errors import SpecError
from phalanx.pool.inventory import Inventory, Member
from phalanx.spec.selection import Filter, Policy

ALL = Policy("all")


@dataclass(frozen=True)
class Selection:
    """Selected machines, and the reason for each excluded one."""

    chosen: tuple[Member, ...]
    refused: dict[str, str]
    """Reason by name of the machine."""


def select(inventory: Inventory, policy: Policy = ALL, filters: Sequence[Filter] = ()) -> Selection:
    """Select machines.

    Raises:
        SpecError: No machine is left, or the policy needs a fact that is unknown for all machines.
    """
    refused: dict[str, str] = {}
    left = []
    for member in inventory.members:
        why = next((why for one in filters if (why := _refusal(one, member))), None)
        if why is None:
            left.append(member)
        else:
            refused[member.title] = why
    chosen = []
    if left:
        keeps, reason = _POLICIES[policy.name](left, policy)
        chosen = [one for one in left if keeps(one)]
        refused |= {one.title: reason for one in left if one not in chosen}
    if not chosen:
        raise SpecError(_none_left(inventory, policy, filters, refused))
    return Selection(tuple(chosen), refused)


def _refusal(condition: Filter, member: Member) -> str | None:
    if condition.word is not None:
        passes = _WORDS[condition.key](member, condition.word)
        return None if passes else f"not {condition.text}"
    value = _NUMBERS[condition.key](member)
    if value is None:
        return f"{condition.key} is not known"
    if condition.low <= value <= condition.high:
        return None
    shown = f"{value / 1e9:.1f} GB" if condition.key in ("memory", "disk") else f"{value:g}"
    return f"has {condition.key} {shown}, wanted {condition.text}"


_NUMBERS: dict[str, Callable[[Member], float | None]] = {
    "cpus": lambda one: one.cores,
    "gpus": lambda one: one.num_gpus,
    "slots": lambda one: one.spec.slots,
    "speed": lambda one: one.gflops,
    "price": lambda one: one.spec.price_per_hour,
    "watts": lambda one: one.spec.watts_full,
    "memory": lambda one: one.memory_bytes,
    "disk": lambda one: one.disk_free_bytes,
}
_WORDS: dict[str, Callable[[Member, str], bool]] = {
    "label": lambda one, word: word in one.spec.labels,
    "name": lambda one, word: word == one.title,
    "model": lambda one, word: (
        one.probe is not None and word.lower() in one.probe.looks.cpu.lower()
    ),
}


_Choice = tuple[Callable[[Member], bool], str]
"""Which machines a policy keeps, and why not the others."""


def _energy(members: list[Member], policy: Policy) -> _Choice:
    known = [value for one in members if (value := _work_per_joule(one)) is not None]
    bar = statistics.median(known) if known else None

    def is_efficient(one: Member) -> bool:
        if one.spec.energy_efficient is not None:
            return one.spec.energy_efficient
        value = _work_per_joule(one)
        return value is not None and bar is not None and value >= bar

    return is_efficient, "is not energy efficient"


def _work_per_joule(one: Member) -> float | None:
    if not one.spec.watts_full or one.gflops is None:
        return None
    return one.gflops / one.spec.watts_full


def _fastest(members: list[Member], policy: Policy) -> _Choice:
    # Cores and GFLOP/s do not compare, so all are ranked by a measure known for all.
    if all(one.gflops is not None for one in members):
        return _first(members, policy, lambda one: -(one.gflops or 0)), "is slower"
    if all(one.cores is not None for one in members):
        return _first(members, policy, lambda one: -(one.cores or 0)), "has fewer cores"
    unknown = [one.title for one in members if one.gflops is None]
    raise SpecError(
        f"policy 'fastest' needs the speed of {', '.join(unknown)}; "
        "run `phalanx pool probe`, or declare 'cores' of all machines"
    )


def _cheapest(members: list[Member], policy: Policy) -> _Choice:
    unknown = [one.title for one in members if one.spec.price_per_hour is None]
    if unknown:
        raise SpecError(
            f"policy 'cheapest' needs the price of {', '.join(unknown)}; "
            "add 'price_per_hour', 0 for a machine that costs nothing extra"
        )
    return _first(members, policy, lambda one: one.spec.price_per_hour or 0), "costs more"


def _first(
    members: list[Member], policy: Policy, by: Callable[[Member], float]
) -> Callable[[Member], bool]:
    # Stable sort: ties keep file order.
    first = {one.title for one in sorted(members, key=by)[: policy.count]}
    return lambda one: one.title in first


_POLICIES: dict[str, Callable[[list[Member], Policy], _Choice]] = {
    "all": lambda *_: (lambda one: True, ""),
    "gpu": lambda *_: (lambda one: one.num_gpus > 0, "has no graphics card"),
    "cpu": lambda *_: (lambda one: one.num_gpus == 0, "has a graphics card"),
    "energy": _energy,
    "fastest": _fastest,
    "cheapest": _cheapest,
}


def _none_left(
    inventory: Inventory, policy: Policy, filters: Sequence[Filter], refused: dict[str, str]
) -> str:
    asked = [f"policy '{policy}'"] if policy.name != "all" else []
    asked += [f"'{one.text}'" for one in filters]
    reasons = [f"{title} {reason}" for title, reason in refused.items()]
    more = f" and {len(reasons) - 4} more" if len(reasons) > 4 else ""
    return (
        f"no machine of pool '{inventory.name}' is left by {' and '.join(asked)}: "
        f"{'; '.join(reasons[:4])}{more}"
    )
