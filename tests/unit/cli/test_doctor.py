from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from phalanx.cli.doctor import (
    Finding,
    Load,
    assess_data,
    assess_load,
    assess_machine,
    assess_precision,
)
from phalanx.cli.main import app
from phalanx.observe.machine import Interface, Machine

GOOD = Machine(
    host="box",
    system="Linux",
    kernel="6.1",
    cpu="A processor",
    physical_cores=4,
    logical_cores=8,
    usable_cores=8,
    quota_cores=None,
    isa=["avx2"],
    memory_total_bytes=16 << 30,
    memory_free_bytes=8 << 30,
    memory_limit_bytes=None,
    disk_path="/runs",
    disk_free_bytes=100 << 30,
    interfaces=[
        Interface(name="lo", addresses=["127.0.0.1"], loopback=True, speed_bits_per_s=None),
        Interface(
            name="eth0", addresses=["10.0.0.2"], loopback=False, speed_bits_per_s=1_000_000_000
        ),
    ],
    loopback_works=True,
    python="3.12.1",
    packages={"torch": "2.6.0", "numpy": "2.0.0"},
    open_files_limit=1024,
    clock_source="tsc",
)


def finding(topic: str, **changes: object) -> Finding:
    machine = msgspec.structs.replace(GOOD, **changes)
    (found,) = [one for one in assess_machine(machine) if one.topic == topic]
    return found


def test_a_good_machine_needs_nothing() -> None:
    assert [one.topic for one in assess_machine(GOOD) if not one.ok] == []
    assert finding("network").found == "lo 127.0.0.1, eth0 10.0.0.2 at 1 Gbit/s"
    assert finding("memory").found == "16.0 GiB, 8.0 GiB free"


@pytest.mark.parametrize(
    ("topic", "changes", "advice"),
    [
        ("cores", {"quota_cores": 2.5}, "at or below 2"),
        ("cores", {"usable_cores": 1}, "share one core"),
        ("instructions", {"isa": []}, "slow"),
        ("memory", {"memory_free_bytes": 1 << 29}, "few workers"),
        ("memory", {"memory_limit_bytes": 1 << 29}, "few workers"),
        ("disk", {"disk_free_bytes": 1 << 20}, "--runs"),
        ("network", {"loopback_works": False}, "127.0.0.1"),
        ("versions", {"packages": {"torch": None}}, "install torch"),
        ("open files", {"open_files_limit": 64}, "ulimit"),
        ("clock", {"clock_source": "hpet"}, "clocksource=tsc"),
    ],
)
def test_what_is_missing_comes_with_advice(
    topic: str, changes: dict[str, object], advice: str
) -> None:
    assert advice in (finding(topic, **changes).advice or "")


@pytest.mark.parametrize(
    ("topic", "changes"),
    [
        ("cores", {"quota_cores": 8.0}),
        ("open files", {"open_files_limit": -1}),
        ("instructions", {"isa": ["asimd"]}),
    ],
)
def test_what_suffices_is_not_complained_about(topic: str, changes: dict[str, object]) -> None:
    assert finding(topic, **changes).ok


def test_without_bf16_nothing_is_measured() -> None:
    assert assess_precision(GOOD).found == "fp32: this CPU has no bf16 instructions"


def test_the_probe_answers_in_json() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "phalanx.worker.precision_probe"],
        capture_output=True,
        timeout=100,
        check=True,
    )
    choice = json.loads(done.stdout)
    assert choice["name"] in ("fp32", "bf16")
    assert choice["reason"]


def test_with_bf16_the_probe_is_asked() -> None:
    found = assess_precision(msgspec.structs.replace(GOOD, isa=["avx2", "amx_bf16"])).found
    assert found.startswith(("auto chooses fp32: ", "auto chooses bf16: "))


def test_data_sets_are_listed(tmp_path: Path) -> None:
    found = assess_data(tmp_path)
    assert found.ok
    assert found.found.startswith(f"digits in {tmp_path}; not here: mnist")


def test_the_command_in_both_forms(tmp_path: Path) -> None:
    text = CliRunner().invoke(app, ["doctor", "--runs", str(tmp_path)])
    assert text.exit_code == 0
    for topic in ("cores", "memory", "disk", "network", "versions", "precision", "data sets"):
        assert topic in text.output
    facts = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    assert facts["machine"]["usable_cores"] >= 1
    assert all(one["topic"] and one["found"] for one in facts["findings"])


def test_a_busy_machine_is_no_machine_that_is_well() -> None:
    calm = assess_load(2, Load(waiting=0.3, busy_cores=0.2, busiest=[]))
    assert calm.ok
    busy = assess_load(2, Load(waiting=46.0, busy_cores=2.0, busiest=["python (97 %)"]))
    assert busy.found == "2.0 of 2 cores busy, load 46.0: python (97 %)"
    assert "times of runs cannot be compared" in str(busy.advice)
