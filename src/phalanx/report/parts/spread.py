"""Make the chapter `Data distribution`: partition of the samples in each cell, if any."""

from __future__ import annotations

from phalanx.records.distribution import Distribution
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


def show_data_distribution(scope: Scope) -> Section | None:
    """Tabulate the cells whose workers owned samples; None if there are none."""
    rows = [
        {label("task"): text(cell.task), label("cell"): text(cell.label), **_values(dealt)}
        for cell in scope.cells
        for dealt in [run.distribution for run in cell.runs if run.distribution][:1]
    ]
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
    table = table_of("data-spread", "How samples were partitioned.", rows)
    return Section(
        id="data-distribution", title="Data distribution", blocks=[Text(lines=[intro]), table]
    )


def _values(dealt: Distribution) -> Entries:
    named = ", ".join(f"{key} {value}" for key, value in dealt.settings.items())
    return {
        label("scheme"): text(f"{dealt.scheme} ({named})" if named else dealt.scheme),
        Column("workers", "workers"): number(len(dealt.workers), 0),
        Column("skew", "skew"): number(dealt.skew, 3),
        Column("size_ratio", "ratio"): number(dealt.size_ratio, 2),
        Column("num_samples", "samples divided"): number(dealt.num_samples, 0),
        Column("samples_per_epoch", "samples per epoch"): number(dealt.samples_per_epoch, 0),
        Column("num_steps", "steps per epoch"): number(dealt.num_steps, 0),
    }
