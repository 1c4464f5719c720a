"""Who is chosen: the published selections, and what holds for every pool."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import SpecError
from phalanx.pool.inventory import Inventory, merge
from phalanx.pool.selection import select
from phalanx.spec.machine import GpuSpec, MachineSpec
from phalanx.spec.pool import PoolSpec
from phalanx.spec.selection import POLICIES, Filter, Policy, parse_filters, parse_policy
from support.pools import pool_from_mapping

LAB = "147.102.19."
PUBLISHED = [
    {"host": LAB + "131", "gpu": 0, "energy_efficient": True, "memory": "8GB"},
    {"host": LAB + "132", "gpu": 0, "energy_efficient": True, "memory": "8GB"},
    {"host": LAB + "133", "gpu": 0, "energy_efficient": False, "memory": "32GB", "cores": 8},
    {"host": LAB + "4", "gpu": 1, "energy_efficient": False, "memory": "12GB", "cores": 6},
    {"host": LAB + "7", "gpu": 1, "energy_efficient": False, "memory": "32GB", "cores": 4},
]


def inventory(machines: list[dict[str, object]]) -> Inventory:
    return merge(pool_from_mapping({"pool": "lab", "machines": machines}).spec, {})


def chosen(pool: Inventory, policy: str = "all", *filters: str) -> list[str]:
    selection = select(pool, parse_policy(policy), parse_filters(filters))
    return [member.title.removeprefix(LAB) for member in selection.chosen]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("-gpus", ["4", "7"]),
        ("-cpus", ["131", "132", "133"]),
        ("-energy", ["131", "132"]),
        ("-all", ["131", "132", "133", "4", "7"]),
    ],
)
def test_the_published_selections(policy: str, expected: list[str]) -> None:
    assert chosen(inventory(PUBLISHED), policy) == expected


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["memory: 10GB+"], ["133", "4", "7"]),
        (["memory: 10GB+", "cpus: 6+"], ["133", "4"]),
        (["gpus: 1", "memory: 12GB-"], ["4"]),
        (["name=147.102.19.7"], ["7"]),
    ],
)
def test_filters(filters: list[str], expected: list[str]) -> None:
    assert chosen(inventory(PUBLISHED), "all", *filters) == expected


def test_policy_and_filter_together() -> None:
    assert chosen(inventory(PUBLISHED), "gpu", "memory: 32GB+") == ["7"]


def test_labels() -> None:
    pool = inventory([{"host": "a", "labels": ["rack-a"]}, {"host": "b"}])
    assert chosen(pool, "all", "label=rack-a") == ["a"]


def test_ranked_policies_keep_the_order_of_the_file() -> None:
    pool = inventory(
        [
            {"host": "a", "cores": 2, "price_per_hour": 0.3},
            {"host": "b", "cores": 8, "price_per_hour": 0.1},
            {"host": "c", "cores": 8, "price_per_hour": 0.2},
            {"host": "d", "cores": 16, "price_per_hour": 0.9},
        ]
    )
    assert chosen(pool, "fastest") == ["d"]
    assert chosen(pool, "fastest:2") == ["b", "d"]
    assert chosen(pool, "cheapest") == ["b"]
    assert chosen(pool, "cheapest:3") == ["a", "b", "c"]
    assert chosen(pool, "cheapest:9") == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("policy", "filters", "expected"),
    [
        ("gpu", [], "no machine of pool 'lab' is left by policy 'gpu': a has no graphics card"),
        ("all", ["cpus: 64+"], "is left by 'cpus: 64+': a has cpus 2, wanted cpus: 64+"),
        ("all", ["memory: 1GB+"], "a memory is not known"),
        ("cheapest", [], "policy 'cheapest' needs the price of a"),
    ],
)
def test_nobody_left_is_one_sentence(policy: str, filters: list[str], expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        chosen(inventory([{"host": "a", "cores": 2}]), policy, *filters)
    assert expected in str(caught.value)


def test_speed_that_nobody_knows() -> None:
    with pytest.raises(SpecError, match="run `phalanx pool probe`"):
        chosen(inventory([{"host": "a", "cores": 2}, {"host": "b"}]), "fastest")


machines = st.builds(
    MachineSpec,
    host=st.uuids().map(lambda one: f"h{one.hex}"),
    gpu=st.builds(GpuSpec, count=st.integers(0, 2)),
    cores=st.none() | st.floats(0.5, 64),
    memory=st.none() | st.integers(1, 10**12),
    price_per_hour=st.floats(0, 10),
    energy_efficient=st.none() | st.booleans(),
    labels=st.lists(st.sampled_from("abc"), unique=True).map(tuple),
)
pools = st.lists(machines, min_size=1, max_size=8, unique_by=lambda one: one.host).map(
    lambda found: merge(PoolSpec(machines=tuple(found)), {})
)
filters = st.sampled_from(
    ["cpus: 4+", "cpus: 8-", "memory: 1GB+", "label=a", "gpus: 1+", "price: 0..5", "slots: 1"]
)


def names(pool: Inventory, policy: Policy, conditions: tuple[Filter, ...]) -> list[str]:
    try:
        return [one.title for one in select(pool, policy, conditions).chosen]
    except SpecError:
        return []


@given(pools, st.sampled_from(POLICIES), st.lists(filters, max_size=3))
def test_what_holds_for_every_selection(
    pool: Inventory, policy_name: str, texts: list[str]
) -> None:
    policy = parse_policy(policy_name)
    conditions = parse_filters(texts)
    found = names(pool, policy, conditions)
    order = [one.title for one in pool.members]
    assert found == [title for title in order if title in found]
    assert found == names(pool, policy, conditions[::-1]), "the order of filters does not matter"
    assert found == names(pool, policy, conditions * 2), "a filter twice is a filter once"
    if policy.name not in ("fastest", "cheapest", "energy"):
        assert set(found) <= set(names(pool, policy, conditions[1:])), "a filter never adds"
    if found:
        refused = select(pool, policy, conditions).refused
        assert set(refused) == set(order) - set(found), "every other one has a reason"


@given(pools, st.lists(filters, max_size=2))
def test_cpu_and_gpu_part_the_pool(pool: Inventory, texts: list[str]) -> None:
    conditions = parse_filters(texts)
    everyone = names(pool, Policy("all"), conditions)
    cpu, gpu = (names(pool, parse_policy(name), conditions) for name in ("cpu", "gpu"))
    assert sorted(cpu + gpu) == sorted(everyone)
    assert not set(cpu) & set(gpu)


@given(pools, st.integers(1, 9))
def test_cheapest_takes_nobody_dearer_than_who_is_left_out(pool: Inventory, count: int) -> None:
    found = set(names(pool, Policy("cheapest", count), ()))
    prices = {one.title: one.spec.price_per_hour or 0.0 for one in pool.members}
    assert len(found) == min(count, len(prices))
    left_out = [price for title, price in prices.items() if title not in found]
    assert all(prices[title] <= price for title in found for price in left_out)
