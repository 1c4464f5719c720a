"""Turn a run into named metrics over time, for TensorBoard and MLflow.

Names of system metrics are MLflow's where it has one: `system/cpu_utilization_percentage`,
with the machine's name after `system/` when there are several, as its multi-node logging does. Its
megabytes are millions of bytes, and its network metrics count from the start of the run. Metrics of
single processes, of the disk and of power follow the same pattern.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import msgspec

from phalanx.errors import SpecError
from phalanx.export.counters import between, by_interface
from phalanx.records.events import Epoch, HostSample, ProcessSample
from phalanx.records.log import epoch_rates, read_logs
from phalanx.records.manifest import Manifest, read_manifest
from phalanx.records.points import RECEIVED, SENT
from phalanx.records.rundir import RunDir
from phalanx.records.tracks import Stretch

_MEGABYTE = 1e6
_RESULTS = (
    "test_loss",
    "test_accuracy",
    "samples_per_s",
    "train_s",
    "elapsed_s",
    "bytes_sent",
    "input_s",
    "compute_s",
    "communication_s",
    "wait_s",
    "apply_s",
)


class Scalar(msgspec.Struct, frozen=True):
    """One value of a metric at one time."""

    name: str
    value: float
    step: int
    """The epoch counted from 1, or the number of the sample from 0."""
    wall_s: float


class RunMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of a run that is exported."""

    name: str
    state: str
    manifest: Manifest
    params: dict[str, str]
    """The job's settings by dotted path."""
    epochs: list[Scalar]
    system: list[Scalar]
    results: dict[str, float]
    """Results of the run; empty if it has not finished."""
    begin_s: float
    """Wall time of the first record, and of the last."""
    end_s: float


def read_metrics(run: RunDir) -> RunMetrics:
    """Read the metrics of a run from its records."""
    logs = read_logs(run.path / "events", Epoch, ProcessSample, HostSample)
    events = [event for log in logs.values() for event in log]
    # A resumed run repeats an epoch whose checkpoint was not written; the last one counts.
    epochs = sorted((e for e in events if isinstance(e, Epoch)), key=lambda event: event.wall_s)
    last = {event.epoch: event for event in epochs}
    hosts = {event.host for event in events if isinstance(event, HostSample)}
    system = [
        scalar for process, log in logs.items() for scalar in _system(process, log, len(hosts) > 1)
    ]
    manifest, summary = read_manifest(run), run.read_summary()
    results = {} if summary is None else msgspec.structs.asdict(summary)
    made_s = (run.path / "manifest.json").stat().st_mtime
    stamps = [event.wall_s for event in events] or [made_s]
    return RunMetrics(
        name=run.name,
        state=run.read_status().state,
        manifest=manifest,
        params=flatten(manifest.job),
        epochs=list(_epochs([last[number] for number in sorted(last)])),
        system=system,
        results={key: float(results[key]) for key in _RESULTS if results.get(key) is not None},
        begin_s=min(stamps),
        end_s=max(stamps),
    )


def flatten(value: object, path: str = "") -> dict[str, str]:
    """Flatten settings: `{"optimizer": {"lr": 0.1}}` gives `{"optimizer.lr": "0.1"}`."""
    if isinstance(value, dict) and value:
        parts = [flatten(v, f"{path}.{k}" if path else str(k)) for k, v in value.items()]
        return {key: text for part in parts for key, text in part.items()}
    if isinstance(value, str):
        return {path: value}
    return {path: msgspec.json.encode(value).decode()}


def _epochs(epochs: list[Epoch]) -> Iterator[Scalar]:
    for event, rate in zip(epochs, epoch_rates(epochs), strict=True):
        figures = {
            "train/loss": event.train_loss,
            "train/accuracy": event.train_accuracy,
            "val/loss": event.val_loss,
            "val/accuracy": event.val_accuracy,
            "lr": event.lr,
            "samples_per_s": rate,
        }
        for name, value in figures.items():
            if value is not None:
                yield Scalar(name, value, event.epoch + 1, event.wall_s)


def _system(process: str, log: list[Any], several: bool) -> Iterator[Scalar]:
    before: dict[str, ProcessSample | HostSample] = {}
    steps: dict[str, int] = {}
    network: dict[str, float] = {}
    for event in log:
        if isinstance(event, HostSample):
            owner = f"system/{event.host}/" if several else "system/"
        elif isinstance(event, ProcessSample):
            owner = f"process/{process}/"
        else:
            continue
        former, before[owner] = before.get(owner), event
        for stretch in between(former, event):
            step = steps[owner] = steps.get(owner, -1) + 1
            figures = (
                _host(stretch, event, owner, network)
                if isinstance(event, HostSample)
                else _process(stretch)
            )
            for name, value in figures.items():
                yield Scalar(owner + name, value, step, event.wall_s)


def _process(stretch: Stretch) -> dict[str, float]:
    busy = stretch.used["user"] + stretch.used["system"]
    return {
        "cpu_utilization_percentage": 100 * busy / stretch.duration_s,
        "memory_usage_megabytes": stretch.levels["memory"] / _MEGABYTE,
    }


def _host(
    stretch: Stretch, sample: HostSample, owner: str, totals: dict[str, float]
) -> dict[str, float]:
    """Yield metrics of a machine; `totals` accumulates those that count from the run's start."""
    busy = stretch.used["user"] + stretch.used["system"]
    used_bytes = stretch.levels["memory"]
    figures = {
        "cpu_utilization_percentage": 100
        * busy
        / stretch.duration_s
        / max(1, len(sample.core_busy_s)),
        "system_memory_usage_megabytes": used_bytes / _MEGABYTE,
        "system_memory_usage_percentage": 100 * used_bytes / max(1, sample.memory_total_bytes),
    }
    counted = {
        "network_receive_megabytes": sum(used for _, used in by_interface(stretch, RECEIVED)),
        "network_transmit_megabytes": sum(used for _, used in by_interface(stretch, SENT)),
        "disk_read_megabytes": stretch.used.get("read"),
        "disk_write_megabytes": stretch.used.get("written"),
    }
    for name, used in counted.items():
        if used is not None:
            totals[owner + name] = totals.get(owner + name, 0.0) + used / _MEGABYTE
            figures[name] = totals[owner + name]
    if "energy" in stretch.used:
        figures["power_watts"] = stretch.used["energy"] / stretch.duration_s
    return figures


def require(module: str, *, extra: str, use: str) -> ModuleType:
    """Import a module of an optional package.

    Raises:
        SpecError: It is not installed; names the extra to install.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise SpecError(
            f"{use} needs a package that is not installed ({error.name}); "
            f"get it with: pip install 'phalanx[{extra}]'"
        ) from error
