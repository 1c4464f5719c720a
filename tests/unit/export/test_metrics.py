from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from phalanx.export.metrics import flatten, read_metrics
from phalanx.records.events import Epoch, HostSample, ProcessSample
from support.written import started, write_run


def epoch(number: int, wall_s: float, **fields: Any) -> Epoch:
    values: dict[str, Any] = {
        "samples": 100 * (number + 1), "updates": 1, "train_loss": 2.0, "train_accuracy": 0.5,
        "regularisation": 0.0, "val_loss": None, "val_accuracy": None, "lr": 0.1,
        "train_s": 4.0 * (number + 1), "evaluate_s": 0.0,
    }  # fmt: skip
    return Epoch(epoch=number, wall_s=wall_s, **values | fields)


def machine(host: str, mono_s: float, *, cpu_s: float, network: int) -> HostSample:
    return HostSample(
        host=host, cpu_user_s=cpu_s, cpu_system_s=0.0, cpu_idle_s=0.0, core_busy_s=[0.0, 0.0],
        load_1min=0.0, memory_used_bytes=3_000_000, memory_total_bytes=12_000_000,
        received_bytes={"eth0": network}, sent_bytes={"eth0": 2 * network}, mono_s=mono_s,
        wall_s=1e9 + mono_s, read_bytes=0, written_bytes=5_000_000 * int(mono_s), energy_j=mono_s,
    )  # fmt: skip


def own(mono_s: float, cpu_s: float) -> ProcessSample:
    return ProcessSample(
        pid=1, cpu_user_s=cpu_s, cpu_system_s=0.0, memory_bytes=7_000_000, memory_peak_bytes=0,
        threads=1, mono_s=mono_s, wall_s=1e9 + mono_s,
    )  # fmt: skip


def test_an_epoch_has_its_own_speed_and_the_last_attempt_counts(tmp_path: Path) -> None:
    again = epoch(1, 30.0, train_loss=0.5, train_s=12.0, val_loss=0.75, val_accuracy=1.0)
    run = write_run(tmp_path, {"worker-0": [epoch(0, 10.0), epoch(1, 20.0), again]})
    found = {(one.name, one.step): (one.value, one.wall_s) for one in read_metrics(run).epochs}
    assert found["train/loss", 1] == (2.0, 10.0)
    assert found["train/loss", 2] == (0.5, 30.0)
    assert found["samples_per_s", 1] == (25.0, 10.0)
    # 100 samples in the 8 s from the end of the first epoch.
    assert found["samples_per_s", 2] == (12.5, 30.0)
    assert found["val/loss", 2] == (0.75, 30.0)
    assert ("val/loss", 1) not in found


def test_system_figures_are_called_as_mlflow_calls_them(tmp_path: Path) -> None:
    samples = [machine("here", t, cpu_s=t, network=1_000_000 * int(t)) for t in (1.0, 2.0, 3.0)]
    run = write_run(tmp_path, {"controller": samples, "worker-0": [own(1.0, 0.0), own(3.0, 1.0)]})
    found = {(one.name, one.step): one.value for one in read_metrics(run).system}
    assert found == {
        ("system/cpu_utilization_percentage", 0): 50.0,
        ("system/cpu_utilization_percentage", 1): 50.0,
        ("system/system_memory_usage_megabytes", 0): 3.0,
        ("system/system_memory_usage_megabytes", 1): 3.0,
        ("system/system_memory_usage_percentage", 0): 25.0,
        ("system/system_memory_usage_percentage", 1): 25.0,
        ("system/network_receive_megabytes", 0): 1.0,
        ("system/network_receive_megabytes", 1): 2.0,
        ("system/network_transmit_megabytes", 0): 2.0,
        ("system/network_transmit_megabytes", 1): 4.0,
        ("system/disk_read_megabytes", 0): 0.0,
        ("system/disk_read_megabytes", 1): 0.0,
        ("system/disk_write_megabytes", 0): 5.0,
        ("system/disk_write_megabytes", 1): 10.0,
        ("system/power_watts", 0): 1.0,
        ("system/power_watts", 1): 1.0,
        ("process/worker-0/cpu_utilization_percentage", 0): 50.0,
        ("process/worker-0/memory_usage_megabytes", 0): 7.0,
    }


def test_several_machines_are_told_apart_as_mlflow_does(tmp_path: Path) -> None:
    logs = {
        "worker-0": [machine("red", t, cpu_s=t, network=0) for t in (1.0, 2.0)],
        "worker-1": [machine("blue", t, cpu_s=0.0, network=0) for t in (1.0, 2.0)],
    }
    names = {one.name for one in read_metrics(write_run(tmp_path, logs)).system}
    assert "system/red/cpu_utilization_percentage" in names
    assert "system/blue/network_receive_megabytes" in names


def test_the_names_are_those_of_the_installed_package() -> None:
    monitors = pytest.importorskip("mlflow.system_metrics.metrics.cpu_monitor")
    networks = pytest.importorskip("mlflow.system_metrics.metrics.network_monitor")
    cpu, network = monitors.CPUMonitor(), networks.NetworkMonitor()
    cpu.collect_metrics()
    network.collect_metrics()
    assert set(cpu._metrics) | set(network._metrics) == {
        "cpu_utilization_percentage",
        "system_memory_usage_megabytes",
        "system_memory_usage_percentage",
        "network_receive_megabytes",
        "network_transmit_megabytes",
    }


def test_settings_are_flattened_to_paths() -> None:
    job = {"a": {"b": 0.1, "c": [1, "x"]}, "d": None, "e": "text", "f": True, "g": {}}
    assert flatten(job) == {
        "a.b": "0.1", "a.c": '[1,"x"]', "d": "null", "e": "text", "f": "true", "g": "{}",
    }  # fmt: skip


def test_a_run_that_broke_early_has_no_figures(tmp_path: Path) -> None:
    found = read_metrics(write_run(tmp_path, {"worker-0": [started(0, 1.0)]}, state="failed"))
    assert (found.epochs, found.system, found.results, found.state) == ([], [], {}, "failed")
