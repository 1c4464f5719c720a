"""What run directories say, put together for `phalanx runs`, as facts and as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from phalanx.cli.resources import Resources, read_resources, render_resources
from phalanx.cli.result import collect_warnings, render_result
from phalanx.cli.screen import WARNING_STYLE
from phalanx.records.events import Epoch, Failure
from phalanx.records.log import read_events
from phalanx.records.manifest import Manifest, read_manifest
from phalanx.records.rundir import RunDir, Status
from phalanx.records.summary import Summary
from phalanx.report.format import (
    NOTHING,
    format_accuracy,
    format_bytes,
    format_count,
    format_duration,
    format_loss,
)
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.render import to_yaml


class RunFacts(msgspec.Struct, kw_only=True):
    """One line of `phalanx runs list`."""

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


class RunDetails(msgspec.Struct, kw_only=True):
    """What `phalanx runs show` shows."""

    run_dir: str
    status: Status
    manifest: Manifest
    summary: Summary | None
    epochs: list[Epoch]
    checkpoints: list[CheckpointFile]
    failure: Failure | None
    warnings: list[str]
    resources: Resources


def read_facts(run: RunDir) -> RunFacts:
    """The facts of one run for the list."""
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
    """Everything that is known of one run."""
    failures = [
        event for event in read_events(run.events_path("controller")) if isinstance(event, Failure)
    ]
    # A resumed run repeats an epoch whose checkpoint was not written; the last time counts.
    epochs = {
        event.epoch: event
        # The chief writes those of lockstep strategies, the controller those with servers.
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


# Title, and how dear the column is when the terminal is too narrow for all: 0 goes first.
_LIST_COLUMNS = (
    ("name", 9),
    ("state", 8),
    ("strategy", 6),
    ("workers", 4),
    ("epochs", 3),
    ("test accuracy", 7),
    ("samples/s", 5),
    ("elapsed", 2),
    ("started", 1),
)


def render_list(found: Sequence[RunFacts], *, width: int) -> Table:
    """All runs as a table that fits the width; the least important columns go first."""
    rows = [_list_row(facts) for facts in found]
    widths = [
        max(len(title), *(len(row[column]) for row in rows))
        for column, (title, _) in enumerate(_LIST_COLUMNS)
    ]
    kept = list(range(len(_LIST_COLUMNS)))
    while len(kept) > 1 and sum(widths[column] + 2 for column in kept) > width:
        kept.remove(min(kept, key=lambda column: _LIST_COLUMNS[column][1]))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in kept:
        text = column < 3
        table.add_column(
            _LIST_COLUMNS[column][0], justify="left" if text else "right", no_wrap=True
        )
    for row in rows:
        table.add_row(*(row[column] for column in kept))
    return table


def _list_row(facts: RunFacts) -> tuple[str, ...]:
    rate = facts.samples_per_s
    return (
        facts.name,
        facts.state,
        facts.strategy,
        str(facts.workers),
        str(facts.epochs),
        format_accuracy(facts.test_accuracy),
        format_count(rate) if rate is not None else NOTHING,
        format_duration(facts.elapsed_s),
        facts.started,
    )


def render_details(details: RunDetails) -> Iterator[RenderableType]:
    """One run from top to bottom: how it stands, where it ran, what it did."""
    status, manifest = details.status, details.manifest
    attempt = f", attempt {status.attempt}" if status.attempt > 1 else ""
    yield Text(f"{details.run_dir}: {status.state}{attempt}", "bold")
    if status.cause is not None:
        yield Text(f"cause: {status.cause}", WARNING_STYLE)
    if details.failure is not None and details.failure.detail and status.state == "failed":
        yield Text(_last_lines(details.failure.detail), "dim")
    for message in details.warnings:
        yield Text(f"warning: {message}", WARNING_STYLE)
    yield _title("machine")
    yield Text(f"{manifest.host}, {manifest.cpu}, {manifest.cores} cores, {manifest.system}")
    packages = [f"{name} {version}" for name, version in manifest.packages.items()]
    versions = [f"phalanx {manifest.phalanx}", f"Python {manifest.python}", *packages]
    yield Text(", ".join(versions))
    if manifest.source:
        yield Text(f"source {manifest.source['commit'][:12]}, {manifest.source['state']}")
    yield _title("job")
    yield Text(to_yaml(job_from_mapping(manifest.job)).rstrip())
    if details.epochs:
        yield _title("epochs")
        yield _epoch_table(details.epochs)
    if details.checkpoints:
        yield _title("checkpoints")
        for file in details.checkpoints:
            yield Text(f"{file.name}  {format_bytes(file.size_bytes)}")
    if details.resources.processes:
        yield _title("resources while training")
        yield render_resources(details.resources)
    if details.summary is not None:
        yield _title("result")
        yield render_result(details.summary)


def _epoch_table(epochs: Sequence[Epoch]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("epoch", "train loss", "accuracy", "val loss", "accuracy", "lr", "samples/s"):
        table.add_column(title, justify="right", no_wrap=True)
    # The log holds running totals; an epoch's own time and samples are differences.
    before_s, before_samples = 0.0, 0
    for event in epochs:
        seconds, samples = event.train_s - before_s, event.samples - before_samples
        before_s, before_samples = event.train_s, event.samples
        table.add_row(
            str(event.epoch + 1),
            format_loss(event.train_loss),
            format_accuracy(event.train_accuracy),
            format_loss(event.val_loss),
            format_accuracy(event.val_accuracy),
            f"{event.lr:.4g}",
            format_count(samples / seconds) if seconds > 0 else NOTHING,
        )
    return table


def _title(text: str) -> Text:
    return Text(f"\n{text}", "bold")


def _last_lines(text: str, count: int = 15) -> str:
    return "\n".join(f"  {line}" for line in text.rstrip().splitlines()[-count:])
