"""Machines of a pool: as measured there, or scaled by probed speed; links as probed."""

from __future__ import annotations

import msgspec
import pytest

from phalanx.errors import PlanError
from phalanx.plan.calibrate import Calibration
from phalanx.plan.facts import LOOPBACK, ModelFacts, SystemCosts
from phalanx.plan.machines import (
    DataSizes,
    Reference,
    ThisMachine,
    is_enough,
    job_facts,
    local_cluster,
    pool_cluster,
)
from phalanx.pool.facts import ClockOffset, HostFacts, HostLink, HostSpeed, Probe
from phalanx.pool.inventory import Inventory, Member
from phalanx.records.script_trained import ScriptTrained
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.machine import MachineSpec
from support.worlds import fit, job

SIZES = DataSizes(train=1000, validation=100, test=50)


def speed(gflops: float, *, bf16: float = 1.0) -> HostSpeed:
    return HostSpeed(
        threads=4,
        gemm_1_gflops=gflops / 4,
        conv_1_gflops=gflops / 4,
        gemm_all_gflops=gflops,
        conv_all_gflops=gflops / 2,
        bf16_gemm_all_gflops=gflops * bf16,
        cores_delivered=4.0,
    )


def member(
    name: str, gflops: float | None, links: dict[str, HostLink] | None = None, **spec: object
) -> Member:
    looks = HostFacts(
        host=f"{name}.local",
        system="Linux",
        kernel="6",
        cpu="a processor",
        flags=["avx512_bf16"],
        logical_cores=4,
        usable_cores=4,
        quota_cores=None,
        memory_total_bytes=8 << 30,
        memory_free_bytes=6 << 30,
        memory_limit_bytes=None,
        disk_free_bytes=1 << 40,
        disk_write_bytes_per_s=None,
        python="3.11",
        torch="2.6",
        phalanx=None,
        gpus=[],
        load_1min=0.0,
        addresses=[],
    )
    probe = Probe(
        measured_at="2026-01-01T00:00:00Z",
        looks=looks,
        clock=ClockOffset(offset_s=0.0, error_s=0.001),
        speed=speed(gflops, bf16=2.0) if gflops is not None else None,
        links=links or {},
    )
    return Member(MachineSpec(host=name, **spec), name, probe)  # type: ignore[arg-type]


def link(bytes_per_s: float) -> HostLink:
    return HostLink(
        address="",
        bytes_per_s=bytes_per_s,
        round_trip_s=4e-4,
        round_trip_min_s=3e-4,
        measured_at="",
    )


CALIBRATION = Calibration(
    model=ModelFacts(num_parameters=1000),
    fits={"ada.local": (fit(1e-3),)},
    costs=SystemCosts(),
    within=LOOPBACK,
    runs=("one",),
)


def test_half_the_speed_takes_twice_the_time() -> None:
    inventory = Inventory("pool", (member("ada", 100.0), member("bob", 50.0, price_per_hour=2.0)))
    where = pool_cluster(job(), SIZES, CALIBRATION, inventory, None)
    ada, bob = where.machines["ada"], where.machines["bob"]
    assert ada.fits == CALIBRATION.fits["ada.local"]
    assert bob.fits[0].per_sample_s == pytest.approx(2e-3)
    assert bob.fits[0].error > ada.fits[0].error
    assert bob.price_per_hour == 2.0
    assert "probed speed against ada.local for bob" in where.sources


def test_bf16_is_offered_where_the_processor_has_it() -> None:
    inventory = Inventory("pool", (member("ada", 100.0), member("bob", 100.0)))
    fits = pool_cluster(job(), SIZES, CALIBRATION, inventory, None).machines["bob"].fits
    assert [one.precision for one in fits] == ["fp32", "bf16"]
    assert fits[1].per_sample_s == pytest.approx(fits[0].per_sample_s / 1.5)


def test_lent_cores_count_not_owned_ones() -> None:
    inventory = Inventory("pool", (member("ada", 100.0), member("bob", 100.0, cores=2.0)))
    bob = pool_cluster(job(), SIZES, CALIBRATION, inventory, None).machines["bob"]
    assert bob.cores == 2
    assert bob.fits[0].per_sample_s == pytest.approx(2e-3)


def test_this_machine_can_stand_for_a_pool_that_never_ran() -> None:
    inventory = Inventory("pool", (member("bob", 25.0),))
    own = Reference(host="ada.local", speed=speed(100.0))
    bob = pool_cluster(job(), SIZES, CALIBRATION, inventory, own).machines["bob"]
    assert bob.fits[0].per_sample_s == pytest.approx(4e-3)


def test_machines_that_nobody_measured_are_left_out_and_named() -> None:
    inventory = Inventory("pool", (member("ada", 100.0), member("eve", None)))
    where = pool_cluster(job(), SIZES, CALIBRATION, inventory, None)
    assert list(where.machines) == ["ada"]
    assert any("eve left out: its speed is not known" in text for text in where.sources)
    with pytest.raises(PlanError, match="phalanx pool probe"):
        pool_cluster(job(), SIZES, CALIBRATION, Inventory("pool", (member("eve", None),)), None)


def test_the_slower_direction_of_a_link_counts() -> None:
    inventory = Inventory(
        "pool",
        (member("ada", 100.0, {"bob": link(1e9)}), member("bob", 100.0, {"ada": link(1e7)})),
    )
    network = pool_cluster(job(), SIZES, CALIBRATION, inventory, None).network
    assert network.link("ada", "bob").bandwidth_bytes_per_s == 1e7
    assert network.link("bob", "ada").latency_s == pytest.approx(2e-4)
    assert network.link("ada", "ada") == LOOPBACK


def test_how_much_there_is_to_do() -> None:
    facts = job_facts(job(epochs=3), SIZES)
    assert facts.evaluated_samples == 3 * 100 + 50
    assert job_facts(job(epochs=3, evaluate="never"), SIZES).evaluated_samples == 0
    each = job_facts(job(batch={"per_worker": 32}), SIZES)
    assert (each.batch(1), each.batch(4)) == (32, 128)
    assert (facts.batch(1), facts.batch(4)) == (256, 256)


def test_this_machine_offers_a_worker_for_each_core() -> None:
    here = ThisMachine(host="ada.local", cores=4, memory_bytes=8 << 30)
    where = local_cluster(job(), SIZES, CALIBRATION, here)
    assert where.machines["ada.local"].slots == 4
    assert not is_enough(CALIBRATION, here)
    assert is_enough(CALIBRATION, ThisMachine(host="ada.local", cores=1, memory_bytes=1))


def test_a_script_is_known_by_its_runs() -> None:
    script = ScriptTrained(
        digest="",
        epochs=3,
        global_batch=64,
        num_samples=1000,
        num_moments=2,
        has_convolutions=True,
        own_streams=True,
        between_s=4.0,
    )
    calibration = msgspec.structs.replace(CALIBRATION, script=script)
    inventory = Inventory("pool", (member("ada", 100.0), member("bob", 50.0)))
    spec = job_from_mapping({"program": {"script": "train.py"}})
    where = pool_cluster(spec, None, calibration, inventory, None)
    facts = where.job
    assert (facts.global_batch, facts.samples_per_epoch, facts.epochs) == (64, 1000, 3)
    assert (facts.splits_evenly, facts.script_s) == (True, 4.0)
    assert where.model == calibration.model
    assert "of the script" in where.sources[0]
