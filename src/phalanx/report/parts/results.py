"""Make the chapter `Results`: means with intervals by method and batch, one table per task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from phalanx.report.cells import Cell
from phalanx.report.document import (
    Column,
    Section,
    Table,
    Text,
    Value,
    number,
    plus_minus,
    text,
)
from phalanx.report.measures import MEASURES, Measure, estimate_cell, shared_digits, value_of
from phalanx.report.scope import Scope, cost_of, quality_keys
from phalanx.report.stats import Estimate, flag_outliers

_SHOWN = (
    "test_accuracy",
    "val_accuracy",
    "train_s",
    "samples_per_s",
    "energy_j",
    "bytes_sent",
    "elapsed_s",
)


def results(scope: Scope) -> Section:
    """Tabulate the results of each task."""
    intro = (
        "Mean over the finished runs of each cell, ± half the t interval. A cell with one run has "
        "no interval. The best mean of a column is bold; that alone does not make it better "
        "than the next, see Head to head."
    )
    tables = [
        _table(f"results-{number_}", task, cells, scope)
        for number_, (task, cells) in enumerate(scope.tasks.items(), start=1)
    ]
    return Section(id="results", title="Results", blocks=[Text(lines=[intro]), *tables])


def add_estimates(table: Table, cells: Sequence[Cell], measures: Iterable[Measure]) -> None:
    """Add two columns for each measure, the mean and its half interval; one row per cell."""
    for measure in measures:
        table.columns += [
            Column(f"{measure.key}_mean", measure.title, measure.unit),
            Column(f"{measure.key}_half_width", "±", joins=True),
        ]
        found = [estimate_cell(cell, measure.key) for cell in cells]
        for row, values in zip(table.rows, _estimate_values(found, measure), strict=True):
            row += values


def _estimate_values(found: Sequence[Estimate | None], measure: Measure) -> list[list[Value]]:
    means = [one.mean if one is not None else None for one in found]
    digits = shared_digits(measure, means)
    known = [mean for mean in means if mean is not None]
    best = (max if measure.high_is_good else min)(known) if len(known) > 1 else None
    return [
        [
            number(
                mean,
                digits,
                scale=measure.scale,
                mark="best" if mean is not None and mean == best else "",
            ),
            plus_minus(one.half_width if one else None, digits, scale=measure.scale),
        ]
        for one, mean in zip(found, means, strict=True)
    ]


def _table(id: str, task: str, cells: Sequence[Cell], scope: Scope) -> Table:
    table = Table(
        id=id,
        caption=f"{task}: results by method and batch.",
        columns=[
            Column("method", "method", is_text=True),
            Column("batch", "batch", is_text=True),
            Column("runs", "n"),
        ],
        rows=[[text(c.method), text(c.batch), number(len(c.finished), 0)] for c in cells],
    )
    add_estimates(table, cells, [MEASURES[key] for key in quality_keys(cells, _SHOWN)])
    if scope.settings.price_per_hour is not None:
        table.columns.append(Column("cost_mean", "cost", scope.settings.currency))
        for row, cell in zip(table.rows, cells, strict=True):
            seconds = estimate_cell(cell, "machine_s")
            row.append(number(cost_of(seconds.mean, scope.settings) if seconds else None, 5))
    return table


def outliers_of(cell: Cell, key: str) -> set[str]:
    """Return the names of the runs of a cell whose value is an outlier."""
    known = [(run.name, value_of(run, key)) for run in cell.finished]
    values = [(name, value) for name, value in known if value is not None]
    flags = flag_outliers([value for _, value in values])
    return {name for (name, _), flag in zip(values, flags, strict=True) if flag}
