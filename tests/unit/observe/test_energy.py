from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.observe.energy import ModelMeter, find_domains, find_meter
from phalanx.spec.observe import ObserveSpec


def make_domain(powercap: Path, folder: str, name: str, uj: int, *, size: int = 1000_000) -> Path:
    place = powercap / folder
    place.mkdir(parents=True)
    (place / "name").write_text(f"{name}\n")
    (place / "max_energy_range_uj").write_text(f"{size}\n")
    (place / "energy_uj").write_text(f"{uj}\n")
    return place / "energy_uj"


def test_packages_and_their_memory_count_once_and_their_parts_not_again(tmp_path: Path) -> None:
    make_domain(tmp_path, "intel-rapl:0", "package-0", 0)
    make_domain(tmp_path, "intel-rapl:0:0", "core", 0)
    make_domain(tmp_path, "intel-rapl:0:1", "dram", 0)
    make_domain(tmp_path, "intel-rapl:1", "package-1", 0)
    make_domain(tmp_path, "intel-rapl:1:0", "dram", 0)
    make_domain(tmp_path, "intel-rapl:2", "psys", 0)
    assert [domain.name for domain in find_domains(tmp_path)] == [
        "package-0",
        "dram of 0",
        "package-1",
        "dram of 1",
    ]


def test_a_counter_that_wraps_goes_on(tmp_path: Path) -> None:
    counter = make_domain(tmp_path, "intel-rapl:0", "package-0", 900_000, size=999_999)
    meter = find_meter(ObserveSpec(), powercap=tmp_path)
    assert meter.source == "rapl"
    assert meter.read(0.0, 0.0, 0.0) == 0.0
    counter.write_text("950000\n")
    assert meter.read(1.0, 0.0, 0.0) == pytest.approx(0.05)
    counter.write_text("20000\n")
    assert meter.read(2.0, 0.0, 0.0) == pytest.approx(0.12)


def test_a_counter_that_vanishes_stands_still(tmp_path: Path) -> None:
    counter = make_domain(tmp_path, "intel-rapl:0", "package-0", 0)
    meter = find_meter(ObserveSpec(), powercap=tmp_path)
    counter.write_text("500000\n")
    assert meter.read(1.0, 0.0, 0.0) == pytest.approx(0.5)
    counter.unlink()
    assert meter.read(2.0, 0.0, 0.0) == pytest.approx(0.5)


def test_the_model_follows_the_busy_share() -> None:
    meter = ModelMeter(40.0, 100.0)
    assert meter.read(10.0, 100.0, 1000.0) == 0.0
    # Two seconds on two cores, a quarter of them busy.
    assert meter.read(12.0, 101.0, 1004.0) == pytest.approx(2 * (40 + 0.25 * 60))
    # No tick since: what passes is counted with the next one.
    assert meter.read(12.001, 101.0, 1004.0) == pytest.approx(110.0)
    assert meter.read(14.0, 105.0, 1008.0) == pytest.approx(110.0 + 200.0)


@pytest.mark.parametrize(
    ("spec", "source"),
    [
        (ObserveSpec(), ""),
        (ObserveSpec(energy="rapl", watts_idle=1.0, watts_full=2.0), ""),
        (ObserveSpec(watts_idle=1.0, watts_full=2.0), "model"),
        (ObserveSpec(energy="off", watts_idle=1.0, watts_full=2.0), ""),
    ],
)
def test_without_counters_only_a_declared_model_gives_energy(
    tmp_path: Path, spec: ObserveSpec, source: str
) -> None:
    meter = find_meter(spec, powercap=tmp_path)
    assert meter.source == source
    assert meter.reason
    assert (meter.read(1.0, 0.0, 0.0) is None) == (source == "")


def test_the_model_is_preferred_where_it_is_asked_for(tmp_path: Path) -> None:
    make_domain(tmp_path, "intel-rapl:0", "package-0", 0)
    spec = ObserveSpec(energy="model", watts_idle=1.0, watts_full=2.0)
    assert find_meter(spec, powercap=tmp_path).source == "model"
