"""Make the chapter `How fast it answers`: latency and throughput of the trained networks."""

from __future__ import annotations

from statistics import fmean

from phalanx.report.cells import Cell
from phalanx.report.document import Column, Section, Table, Text, Value, number, text
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
    columns = [
        Column("cell", "cell", is_text=True),
        Column("runs", "n"),
        Column("layout", "layout", is_text=True),
        Column("batch", "samples in a request"),
        Column("latency_p50_s", "latency, median", "ms"),
        Column("latency_p95_s", "latency, 95th per cent", "ms"),
        Column("samples_per_s", "throughput", "samples/s"),
    ]
    caption = "Inference, mean over the runs of a cell."
    table = Table(id="inference", caption=caption, columns=columns, rows=rows)
    return Section(id="answers", title="How fast it answers", blocks=[Text(lines=[intro]), table])


def _measured(cell: Cell) -> list[InferenceFacts]:
    return [
        run.summary.inference
        for run in cell.finished
        if run.summary is not None and run.summary.inference is not None
    ]


def _row(cell: Cell, found: list[InferenceFacts]) -> list[Value]:
    return [
        text(cell.label),
        number(len(found), 0),
        text(found[0].layout.replace("_", " ")),
        number(found[0].batch, 0),
        number(fmean(one.latency_p50_s for one in found), 1, scale=1000),
        number(fmean(one.latency_p95_s for one in found), 1, scale=1000),
        number(fmean(one.samples_per_s for one in found), 0),
    ]
