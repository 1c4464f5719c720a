from __future__ import annotations

import os
from pathlib import Path

import msgspec

from phalanx.observe.machine import Machine, inspect_machine


def test_this_machine_makes_sense(tmp_path: Path) -> None:
    machine = inspect_machine(tmp_path / "not" / "there" / "yet")
    assert machine.disk_path == str(tmp_path)
    assert 1 <= machine.physical_cores <= machine.logical_cores
    assert machine.usable_cores == len(os.sched_getaffinity(0))
    assert 0 < machine.memory_free_bytes <= machine.memory_total_bytes
    assert machine.disk_free_bytes > 0
    assert machine.loopback_works
    assert any(one.loopback and "127.0.0.1" in one.addresses for one in machine.interfaces)
    assert machine.packages["torch"] is not None


def test_facts_survive_json(tmp_path: Path) -> None:
    machine = inspect_machine(tmp_path)
    assert msgspec.json.decode(msgspec.json.encode(machine), type=Machine) == machine
