"""Make the chapter `Data distribution`: partition of the samples in each cell, if any."""

from __future__ import annotations

from phalanx.records.distribution import Distribution
from phalanx.report.document import Column, Section, Table, Text, Value, number, text
from phalanx.report.scope import Scope


def show_data_distribution(scope: Scope) -> Section | None:
    """Tabulate the cells whose workers owned samples; None if there are none."""
    rows: list[list[Value]] = []
    for cell in scope.cells:
        dealt = next((run.distribution for run in cell.runs if run.distribution), None)
        if dealt is not None:
            rows.append([text(cell.task), text(cell.label), *_values(dealt)])
    if not rows:
        return None
    intro = (
        "Of the first run of each cell. Skew is the mean over workers of the distance between a "
        "worker's mix of classes and that of all (0: the same, 1: nothing in common); ratio is "
        "the largest part over the smallest. Where an epoch has other than the divided samples, "
        "workers hold copies, drop some or begin again: compare by samples or updates, not by "
        "epochs. Batch normalisation uses each worker's own batch, and running statistics are "
        "averaged over workers at the end of an epoch."
    )
    columns = [
        Column("task", "task", is_text=True),
        Column("cell", "cell", is_text=True),
        Column("scheme", "scheme", is_text=True),
        Column("workers", "workers"),
        Column("skew", "skew"),
        Column("size_ratio", "ratio"),
        Column("num_samples", "samples divided"),
        Column("samples_per_epoch", "samples per epoch"),
        Column("num_steps", "steps per epoch"),
    ]
    table = Table(
        id="data-spread", caption="How samples were partitioned.", columns=columns, rows=rows
    )
    return Section(
        id="data-distribution", title="Data distribution", blocks=[Text(lines=[intro]), table]
    )


def _values(dealt: Distribution) -> list[Value]:
    named = ", ".join(f"{key} {value}" for key, value in dealt.settings.items())
    return [
        text(f"{dealt.scheme} ({named})" if named else dealt.scheme),
        number(len(dealt.workers), 0),
        number(dealt.skew, 3),
        number(dealt.size_ratio, 2),
        number(dealt.num_samples, 0),
        number(dealt.samples_per_epoch, 0),
        number(dealt.num_steps, 0),
    ]
