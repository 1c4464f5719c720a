"""Make the chapter `How fast it answers`: latency and throughput of the trained networks."""

from __future__ import annotations

from statistics import fmean

from phalanx.report.cells import Cell
from phalanx.report.document import (
    Column,
    Entries,
    Section,
    Text,
    label,
    number,
    table_of,
    text,
)
from phalanx.report.scope import Scope
from phalanx.wire.messages import InferenceFacts


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
