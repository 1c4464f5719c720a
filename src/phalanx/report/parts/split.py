"""Make the chapters on the network itself: how it was split, and how fast it answers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from phalanx.records.summary import SplitSummary
from phalanx.report.cells import Cell
from phalanx.report.document import (
    Column,
    Entries,
    Section,
    Table,
    Text,
    Value,
    label,
    number,
    table_of,
    text,
)
from phalanx.report.facts import RunRecord
from phalanx.report.format import group_parts
from phalanx.report.scope import Scope
from phalanx.wire.messages import InferenceFacts

_KINDS = ("activations", "gradients", "parameters", "evaluation")

Shown = Sequence[tuple[Cell, int, SplitSummary]]
"""Cell, seed, and split summary of one run."""


def how_it_was_split(scope: Scope) -> Section | None:
    """Tabulate all split runs, and the typical run of each cell; None without any."""
    runs = [one for cell in scope.cells for one in _split(cell, cell.finished)]
    if not runs:
        return None
    typical = [one for cell in scope.cells if cell.typical for one in _split(cell, [cell.typical])]
    intro = (
        "Imbalance is the busiest worker's computing time over the mean of those that hold parts. "
        "Bytes are what workers handed to their connections, by what it was for: a step sends "
        "activations and gradients, and parameters where a part has several holders. Predictions "
        "were made before the first step, from what the workers had measured."
    )
    tables = [_runs(runs), _links(typical), _workers(typical)]
    return Section(
        id="splitting", title="How the network was split", blocks=[Text(lines=[intro]), *tables]
    )


def _split(cell: Cell, runs: Sequence[RunRecord]) -> Shown:
    return [
        (cell, run.seed, run.summary.split)
        for run in runs
        if run.summary is not None and run.summary.split is not None
    ]


def _runs(runs: Shown) -> Table:
    rows = [
        {
            **_lead(cell, seed),
            Column("step_s", "step", "s"): number(one.step_s, 3),
            Column("predicted_step_s", "predicted", "s"): number(one.predicted_step_s, 3),
            Column("imbalance", "imbalance"): number(one.imbalance, 2),
            Column("predicted_imbalance", "predicted"): number(one.predicted_imbalance, 2),
            Column("bytes_per_step", "sent per step", "MB"): _megabytes(one.bytes_per_step, 3),
            Column("predicted_bytes_per_step", "predicted", "MB"): _megabytes(
                one.predicted_bytes_per_step, 3
            ),
            **{
                Column(f"{kind}_bytes", f"{kind} in all", "MB"): _megabytes(
                    one.bytes_by_kind.get(kind, 0), 1
                )
                for kind in _KINDS
            },
        }
        for cell, seed, one in runs
    ]
    caption = "Every split run: time of a step, balance and bytes, measured and predicted."
    return table_of("split-runs", caption, rows)


def _links(runs: Shown) -> Table:
    rows = [
        {
            **_lead(cell, seed),
            Column("source", "from worker"): number(link.source, 0),
            Column("target", "to worker"): number(link.target, 0),
            label("kind"): text(link.kind),
            Column("sent_bytes", "sent", "MB"): _megabytes(link.sent_bytes, 1),
            Column("messages", "messages"): number(link.messages, 0),
        }
        for cell, seed, one in runs
        for link in one.links
    ]
    caption = "What each worker sent to each other one in the typical run of a cell."
    return table_of("split-links", caption, rows)


def _workers(runs: Shown) -> Table:
    rows = [
        {
            **_lead(cell, seed),
            Column("worker", "worker"): number(worker.rank, 0),
            label("parts"): text(", ".join(group_parts(worker.parts, one.places)) or "none"),
            Column("compute_s", "computing", "s"): number(worker.compute_s, 2),
            Column("communication_s", "communication", "s"): number(worker.communication_s, 2),
            Column("wait_s", "waiting", "s"): number(worker.wait_s, 2),
            Column("cpu_s", "processor time", "s"): number(worker.cpu_s, 1),
        }
        for cell, seed, one in runs
        for worker in one.workers
    ]
    caption = "Parts and work of each worker in the typical run of a cell, training steps together."
    return table_of("split-workers", caption, rows)


def _lead(cell: Cell, seed: int) -> Entries:
    return {label("cell"): text(cell.label), Column("seed", "seed"): text(seed)}


def _megabytes(size_bytes: float | None, digits: int) -> Value:
    return number(size_bytes, digits, scale=1e-6)


def how_fast_it_answers(scope: Scope) -> Section | None:
    """Tabulate means per cell; None if no run measured inference."""
    rows = [_row(cell, found) for cell in scope.cells if (found := _measured(cell))]
    if not rows:
        return None
    intro = (
        "Requests to the trained network at the end of a run: one at a time for latency, in a row "
        "for throughput. A split network answers each request with all of its workers; data-"
        "parallel workers answer requests of their own, and their throughput is added up."
    )
    table = table_of("inference", "Inference, mean over the runs of a cell.", rows)
    return Section(id="answers", title="How fast it answers", blocks=[Text(lines=[intro]), table])


def _measured(cell: Cell) -> list[InferenceFacts]:
    return [
        run.summary.inference
        for run in cell.finished
        if run.summary is not None and run.summary.inference is not None
    ]


def _row(cell: Cell, found: list[InferenceFacts]) -> Entries:
    median, slow, speed = (
        fmean(getattr(one, key) for one in found)
        for key in ("latency_p50_s", "latency_p95_s", "samples_per_s")
    )
    return {
        label("cell"): text(cell.label),
        Column("runs", "n"): number(len(found), 0),
        label("layout"): text(found[0].layout.replace("_", " ")),
        Column("batch", "samples in a request"): number(found[0].batch, 0),
        Column("latency_p50_s", "latency, median", "ms"): number(median, 1, scale=1000),
        Column("latency_p95_s", "latency, 95th per cent", "ms"): number(slow, 1, scale=1000),
        Column("samples_per_s", "throughput", "samples/s"): number(speed, 0),
    }
