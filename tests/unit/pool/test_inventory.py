"""Declared and measured laid together, and kept between commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from phalanx.pool.cache import ProbeCache
from phalanx.pool.facts import ClockOffset, HostFacts, HostLink, HostSpeed, Probe
from phalanx.pool.inventory import Inventory, differences, identity, merge
from phalanx.pool.selection import select
from phalanx.spec.machine import MachineSpec
from phalanx.spec.pool import PoolSpec
from phalanx.spec.selection import parse_policy
from support.pools import pool_from_mapping

GB = 10**9


def probe_of(*, gflops: float = 100.0, offset_s: float = 0.0, **facts: Any) -> Probe:
    looks: dict[str, Any] = {
        "host": "h",
        "system": "Debian",
        "kernel": "6.1",
        "cpu": "Xeon",
        "flags": ["avx2"],
        "logical_cores": 8,
        "usable_cores": 8,
        "quota_cores": None,
        "memory_total_bytes": 16 * GB,
        "memory_free_bytes": 12 * GB,
        "memory_limit_bytes": None,
        "disk_free_bytes": 100 * GB,
        "disk_write_bytes_per_s": 1e8,
        "python": "3.11.7",
        "torch": "2.6.0",
        "phalanx": "0.1.0",
        "gpus": [],
        "load_1min": 0.1,
        "addresses": ["192.0.2.1"],
    }
    speed = HostSpeed(
        threads=8,
        gemm_1_gflops=gflops / 8,
        conv_1_gflops=gflops / 10,
        gemm_all_gflops=gflops,
        conv_all_gflops=gflops,
        bf16_gemm_all_gflops=gflops,
        cores_delivered=8.0,
    )
    return Probe(
        measured_at="2026-01-01T00:00:00+00:00",
        looks=msgspec.convert(looks | facts, HostFacts),
        clock=ClockOffset(offset_s=offset_s, error_s=0.001),
        speed=speed,
    )


def inventory(machines: list[dict[str, object]], probes: list[Probe | None]) -> Inventory:
    pool = pool_from_mapping({"machines": machines}).spec
    keys = [identity(one, None) for one in pool.machines]
    found = {key: one for key, one in zip(keys, probes, strict=True) if one is not None}
    return merge(pool, found)


def test_a_declaration_limits_and_a_measurement_corrects() -> None:
    (lent,) = inventory([{"host": "a", "cores": 4, "memory": "8GB"}], [probe_of()]).members
    assert (lent.cores, lent.memory_bytes, lent.gflops) == (4, 8 * GB, 50.0)
    (claimed,) = inventory([{"host": "a", "cores": 64, "gpu": 1}], [probe_of()]).members
    assert (claimed.cores, claimed.num_gpus, claimed.gflops) == (8, 0, 100.0)
    (limited,) = inventory(
        [{"host": "a"}], [probe_of(quota_cores=0.5, memory_limit_bytes=GB)]
    ).members
    assert (limited.cores, limited.memory_bytes) == (0.5, GB)
    (unknown,) = inventory([{"host": "a", "gpu": 2}], [None]).members
    assert (unknown.cores, unknown.memory_bytes, unknown.num_gpus) == (None, None, 2)


def test_where_they_disagree_a_sentence_says_so() -> None:
    pool = inventory(
        [
            {"host": "a", "cores": 16, "memory": "64GB", "gpu": 1},
            {"host": "b", "cores": 4, "memory": "16.5GB"},
            {"host": "c"},
        ],
        [probe_of(), probe_of(torch="2.7.0", offset_s=-5.0), None],
    )
    assert differences(pool) == [
        "a: 16 cores are declared, 8 were found",
        "a: 64.0 GB of memory are declared, 16.0 GB were found",
        "a: 1 graphics cards are declared, 0 can be computed on",
        "b: its clock is -5.0 s off",
        "versions of torch differ (2.6.0: a; 2.7.0: b)",
    ]


def test_fastest_goes_by_measurement_and_energy_by_work_per_joule() -> None:
    pool = inventory(
        [
            {"host": "a", "watts_full": 100},
            {"host": "b", "watts_full": 400},
            {"host": "c", "watts_full": 50},
        ],
        [probe_of(gflops=100), probe_of(gflops=300), probe_of(gflops=20)],
    )
    chosen = {
        policy: [one.title for one in select(pool, parse_policy(policy)).chosen]
        for policy in ("fastest", "fastest:2", "energy")
    }
    assert chosen == {"fastest": ["b"], "fastest:2": ["a", "b"], "energy": ["a", "b"]}


def test_a_probe_is_found_again_by_the_machine_and_not_by_its_name(tmp_path: Path) -> None:
    cache = ProbeCache(tmp_path / "pool")
    key = identity(MachineSpec(host="A", user="ada", name="x"), None)
    assert cache.read(key) is None
    cache.keep(key, probe_of())
    renamed = MachineSpec(host="a", user="ada", name="y", price_per_hour=1)
    assert cache.read(identity(renamed, None)) == probe_of()
    assert cache.read(identity(MachineSpec(host="a", user="bob"), None)) is None


def test_a_later_probe_keeps_links_that_it_did_not_measure(tmp_path: Path) -> None:
    cache = ProbeCache(tmp_path)
    link = HostLink(
        address="192.0.2.2",
        bytes_per_s=1e7,
        round_trip_s=1e-4,
        round_trip_min_s=1e-4,
        measured_at="2026-01-01T00:00:00+00:00",
    )
    first = msgspec.structs.replace(probe_of(), links={"b": link, "c": link})
    cache.keep("a", first)
    cache.keep("a", msgspec.structs.replace(probe_of(), speed=None, link_faults={"c": "gone"}))
    found = cache.read("a")
    assert found is not None
    assert (set(found.links), found.speed) == ({"b"}, first.speed)


def test_what_an_older_version_kept_counts_as_nothing(tmp_path: Path) -> None:
    cache = ProbeCache(tmp_path)
    cache.keep("a", probe_of())
    (file,) = tmp_path.iterdir()
    file.write_text('{"measured_at": "x"}')
    assert cache.read("a") is None


def test_links_are_looked_up_by_machine() -> None:
    pool = PoolSpec(machines=(MachineSpec(host="a"), MachineSpec(host="b")))
    keys = [identity(one, None) for one in pool.machines]
    link = HostLink(
        address="b", bytes_per_s=1.0, round_trip_s=1.0, round_trip_min_s=1.0, measured_at=""
    )
    probes = {keys[0]: msgspec.structs.replace(probe_of(), links={keys[1]: link})}
    found = merge(pool, probes)
    a, b = found.members
    assert (found.link(a, b), found.link(b, a)) == (link, None)


@pytest.mark.parametrize("flag", ["avx512_bf16", "amx_bf16", "bf16"])
def test_bf16_is_known_by_its_flags(flag: str) -> None:
    assert probe_of(flags=[flag]).looks.has_bf16
    assert not probe_of().looks.has_bf16
