"""Read run directories for `phalanx runs`, as facts and as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from phalanx.cli.result import collect_warnings, result_blocks
from phalanx.records.bounded_samples import read_samples
from phalanx.records.events import Epoch, Failure
from phalanx.records.log import read_events
from phalanx.records.manifest import Manifest, read_manifest
from phalanx.records.rundir import RunDir, Status
from phalanx.records.summary import Summary
from phalanx.records.usage import ResourceUse, host_uses, process_uses, training_windows
from phalanx.report.document import (
    Block,
    CellFormat,
    Column,
    Table,
    Text,
    Value,
    line,
    tabulate,
    text,
)
from phalanx.report.format import (
    NOTHING,
    format_accuracy,
    format_bytes,
    format_count,
    format_duration,
    format_loss,
    number_field,
    shown,
    text_field,
)
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.render import to_yaml


class RunFacts(msgspec.Struct, kw_only=True):
    """Hold one line of `phalanx runs list`."""

    name: str
    state: str
    strategy: str
    workers: int
    epochs: int
    test_accuracy: float | None
    samples_per_s: float | None
    elapsed_s: float | None
    started: str


class CheckpointFile(msgspec.Struct, kw_only=True):
    """A checkpoint that can be resumed from."""

    name: str
    size_bytes: int


class RunResources(msgspec.Struct, kw_only=True):
    """Hold resource use of the processes and machines of a run while it trained; no series."""

    processes: list[ResourceUse]
    machines: list[ResourceUse]


class RunDetails(msgspec.Struct, kw_only=True):
    """Hold what `phalanx runs show` shows."""

    run_dir: str
    status: Status
    manifest: Manifest
    summary: Summary | None
    epochs: list[Epoch]
    checkpoints: list[CheckpointFile]
    failure: Failure | None
    warnings: list[str]
    resources: RunResources


def read_facts(run: RunDir) -> RunFacts:
    """Read the facts of one run for the list."""
    manifest = read_manifest(run)
    summary = run.read_summary()
    job: dict[str, Any] = manifest.job
    started = datetime.fromtimestamp((run.path / "manifest.json").stat().st_mtime)
    return RunFacts(
        name=run.name,
        state=run.read_status().state,
        strategy=job["strategy"]["name"],
        workers=job["workers"],
        epochs=summary.epochs if summary else job["epochs"],
        test_accuracy=summary.test_accuracy if summary else None,
        samples_per_s=summary.samples_per_s if summary else None,
        elapsed_s=summary.elapsed_s if summary else None,
        started=started.isoformat(sep=" ", timespec="minutes"),
    )


def read_details(run: RunDir) -> RunDetails:
    """Read everything that its directory records about one run."""
    failures = [
        event for event in read_events(run.events_path("controller")) if isinstance(event, Failure)
    ]
    # A resumed run repeats an epoch whose checkpoint was not written; the last repeat counts.
    epochs = {
        event.epoch: event
        # The chief writes those of synchronous strategies, the controller those with servers.
        for process in ("worker-0", "controller")
        for event in read_events(run.events_path(process))
        if isinstance(event, Epoch)
    }
    return RunDetails(
        run_dir=str(run.path),
        status=run.read_status(),
        manifest=read_manifest(run),
        summary=run.read_summary(),
        epochs=[epochs[number] for number in sorted(epochs)],
        checkpoints=[
            CheckpointFile(name=path.name, size_bytes=path.stat().st_size)
            for path in sorted(run.checkpoints.glob("*.safetensors"))
        ],
        failure=failures[-1] if failures else None,
        warnings=collect_warnings(run),
        resources=read_resources(run),
    )


def read_resources(run: RunDir) -> RunResources:
    """Read the resource measurements of a run; empty if there are none."""
    logs = read_samples(run.path / "events")
    windows = training_windows(logs)
    return RunResources(
        processes=_without_series(process_uses(logs, windows)),
        machines=_without_series(host_uses(logs, windows)),
    )


def _without_series(uses: Mapping[str, ResourceUse]) -> list[ResourceUse]:
    return [msgspec.structs.replace(use, series=[]) for use in uses.values()]


_LIST: list[tuple[Column, CellFormat[RunFacts]]] = [
    text_field("name", "name"),
    text_field("state", "state", keep=8),
    text_field("strategy", "strategy", keep=6),
    number_field("workers", "workers", keep=4),
    number_field("epochs", "epochs", keep=3),
    number_field("test_accuracy", "test accuracy", format_accuracy, keep=7),
    number_field("samples_per_s", "samples/s", format_count, keep=5),
    number_field("elapsed_s", "elapsed", format_duration, keep=2),
    number_field("started", "started", keep=1),
]


def list_table(found: Sequence[RunFacts]) -> Table:
    """Make one row per run."""
    return tabulate("runs", found, _LIST)


def details_blocks(details: RunDetails) -> list[Block]:
    """Describe one run from top to bottom: state, machine, job, epochs, resources, result."""
    status, manifest = details.status, details.manifest
    attempt = f", attempt {status.attempt}" if status.attempt > 1 else ""
    blocks: list[Block] = [line(f"{details.run_dir}: {status.state}{attempt}", "lead")]
    if status.cause is not None:
        blocks.append(line(f"cause: {status.cause}", "doubt"))
    if details.failure is not None and details.failure.detail and status.state == "failed":
        blocks.append(Text(lines=_last_lines(details.failure.detail), kind="note"))
    blocks += [line(f"warning: {message}", "doubt") for message in details.warnings]
    blocks += _machine_blocks(manifest)
    job = to_yaml(job_from_mapping(manifest.job)).rstrip()
    blocks += [line("job", "heading"), Text(lines=job.splitlines())]
    if details.epochs:
        blocks += [line("epochs", "heading"), _epoch_table(details.epochs)]
    if details.checkpoints:
        files = [f"{file.name}  {format_bytes(file.size_bytes)}" for file in details.checkpoints]
        blocks += [line("checkpoints", "heading"), Text(lines=files)]
    if details.resources.processes:
        blocks += [line("resources while training", "heading"), resource_table(details.resources)]
    if details.summary is not None:
        blocks += [line("result", "heading"), *result_blocks(details.summary)]
    return blocks


def _machine_blocks(manifest: Manifest) -> list[Block]:
    packages = [f"{name} {version}" for name, version in manifest.packages.items()]
    lines = [
        f"{manifest.host}, {manifest.cpu}, {manifest.cores} cores, {manifest.system}",
        ", ".join([f"phalanx {manifest.phalanx}", f"Python {manifest.python}", *packages]),
    ]
    if manifest.source:
        lines.append(f"source {manifest.source['commit'][:12]}, {manifest.source['state']}")
    return [line("machine", "heading"), Text(lines=lines)]


def _epoch_table(epochs: Sequence[Epoch]) -> Table:
    # The log holds running totals.
    rates: dict[int, float | None] = {}
    before_s, before_samples = 0.0, 0
    for event in epochs:
        seconds, samples = event.train_s - before_s, event.samples - before_samples
        before_s, before_samples = event.train_s, event.samples
        rates[event.epoch] = samples / seconds if seconds > 0 else None
    columns: list[tuple[Column, CellFormat[Epoch]]] = [
        (Column("epoch", "epoch"), lambda one: Value(str(one.epoch + 1), one.epoch + 1)),
        number_field("train_loss", "train loss", format_loss),
        number_field("train_accuracy", "accuracy", format_accuracy),
        number_field("val_loss", "val loss", format_loss),
        number_field("val_accuracy", "accuracy", format_accuracy),
        number_field("lr", "lr", "{:.4g}".format),
        (Column("samples_per_s", "samples/s"), lambda one: shown(rates[one.epoch], format_count)),
    ]
    if all(one.train_accuracy is None for one in epochs):
        columns = [one for one in columns if not one[0].key.endswith("accuracy")]
    return tabulate("epochs", epochs, columns)


def resource_table(resources: RunResources) -> Table:
    """Make one row per process in cores, then one per machine as a share of its cores."""
    processes = tabulate("resources", resources.processes, _RESOURCES)
    machines = tabulate("resources", resources.machines, _RESOURCES)
    for use, row in zip(resources.machines, machines.rows, strict=True):
        cpu = NOTHING if use.cpu_share is None else f"{use.cpu_share:.0%} of {use.cores}"
        row[:2] = [text(f"machine {use.name}"), Value(cpu, use.cpu_share)]
    processes.rows += machines.rows
    return processes


def _sum(by_interface: Mapping[str, int]) -> Value:
    return shown(sum(by_interface.values()) if by_interface else None, format_bytes)


def _energy(use: ResourceUse) -> Value:
    joules = use.energy_j
    if joules is None:
        return Value(NOTHING)
    amount = f"{joules:.0f} J" if joules < 9999.5 else f"{joules / 1000:,.1f} kJ"
    return Value(f"{amount} ({use.energy_source})", joules)


_RESOURCES: list[tuple[Column, CellFormat[ResourceUse]]] = [
    (Column("process", "", is_text=True), lambda use: text(use.name)),
    (Column("cpu", "CPU"), lambda use: shown(use.cpu_cores, "{:.0%}".format)),
    number_field("cpu_s", "CPU time", format_duration),
    number_field("memory_peak_bytes", "memory peak", format_bytes),
    (Column("received_bytes", "received"), lambda use: _sum(use.received_bytes)),
    (Column("sent_bytes", "sent"), lambda use: _sum(use.sent_bytes)),
    number_field("written_bytes", "written", format_bytes),
    (Column("energy_j", "energy"), _energy),
]


def _last_lines(detail: str, count: int = 15) -> list[str]:
    return [f"  {line}" for line in detail.rstrip().splitlines()[-count:]]
