"""Make the chapter `How the network was split`: balance, bytes and work of runs and workers."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.records.summary import SplitSummary
from phalanx.report.cells import Cell
from phalanx.report.document import Column, Section, Table, Text, Value, number, text
from phalanx.report.format import group_parts
from phalanx.report.scope import Scope

_MB = 1e-6
_KINDS = ("activations", "gradients", "parameters", "evaluation")

Shown = Sequence[tuple[Cell, int, SplitSummary]]
"""Cell, seed, and split summary of one run."""


def how_it_was_split(scope: Scope) -> Section | None:
    """Tabulate all split runs, and the typical run of each cell; None without any."""
    runs = [
        (cell, run.seed, run.summary.split)
        for cell in scope.cells
        for run in cell.finished
        if run.summary is not None and run.summary.split is not None
    ]
    if not runs:
        return None
    typical = [
        (cell, run.seed, run.summary.split)
        for cell in scope.cells
        if (run := cell.typical) is not None and run.summary and run.summary.split
    ]
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


def _runs(runs: Shown) -> Table:
    columns = [
        *_leading(),
        Column("step_s", "step", "s"),
        Column("predicted_step_s", "predicted", "s"),
        Column("imbalance", "imbalance"),
        Column("predicted_imbalance", "predicted"),
        Column("bytes_per_step", "sent per step", "MB"),
        Column("predicted_bytes_per_step", "predicted", "MB"),
        *(Column(f"{kind}_bytes", f"{kind} in all", "MB") for kind in _KINDS),
    ]
    rows = [
        [
            *_lead(cell, seed),
            number(one.step_s, 3),
            number(one.predicted_step_s, 3),
            number(one.imbalance, 2),
            number(one.predicted_imbalance, 2),
            number(one.bytes_per_step, 3, scale=_MB),
            number(one.predicted_bytes_per_step, 3, scale=_MB),
            *(number(one.bytes_by_kind.get(kind, 0), 1, scale=_MB) for kind in _KINDS),
        ]
        for cell, seed, one in runs
    ]
    caption = "Every split run: time of a step, balance and bytes, measured and predicted."
    return Table(id="split-runs", caption=caption, columns=columns, rows=rows)


def _links(runs: Shown) -> Table:
    columns = [
        *_leading(),
        Column("source", "from worker"),
        Column("target", "to worker"),
        Column("kind", "kind", is_text=True),
        Column("sent_bytes", "sent", "MB"),
        Column("messages", "messages"),
    ]
    rows = [
        [
            *_lead(cell, seed),
            number(link.source, 0),
            number(link.target, 0),
            text(link.kind),
            number(link.sent_bytes, 1, scale=_MB),
            number(link.messages, 0),
        ]
        for cell, seed, one in runs
        for link in one.links
    ]
    caption = "What each worker sent to each other one in the typical run of a cell."
    return Table(id="split-links", caption=caption, columns=columns, rows=rows)


def _workers(runs: Shown) -> Table:
    columns = [
        *_leading(),
        Column("worker", "worker"),
        Column("parts", "parts", is_text=True),
        Column("compute_s", "computing", "s"),
        Column("communication_s", "communication", "s"),
        Column("wait_s", "waiting", "s"),
        Column("cpu_s", "processor time", "s"),
    ]
    rows = [
        [
            *_lead(cell, seed),
            number(worker.rank, 0),
            text(", ".join(group_parts(worker.parts, one.places)) or "none"),
            number(worker.compute_s, 2),
            number(worker.communication_s, 2),
            number(worker.wait_s, 2),
            number(worker.cpu_s, 1),
        ]
        for cell, seed, one in runs
        for worker in one.workers
    ]
    caption = "Parts and work of each worker in the typical run of a cell, training steps together."
    return Table(id="split-workers", caption=caption, columns=columns, rows=rows)


def _leading() -> list[Column]:
    return [Column("cell", "cell", is_text=True), Column("seed", "seed")]


def _lead(cell: Cell, seed: int) -> list[Value]:
    return [text(cell.label), Value(str(seed), seed)]
