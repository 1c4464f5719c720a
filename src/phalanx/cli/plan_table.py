"""How plans are shown: the choice, its reasons, a table of candidates; predicted and measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from phalanx.cli.screen import WARNING_STYLE
from phalanx.plan.label import batches_label, machines_label
from phalanx.plan.planfile import Plan, PlanRow
from phalanx.plan.predicted_vs_measured import PredictedVsMeasured
from phalanx.plan.result import Interval, Prediction
from phalanx.report.format import (
    NOTHING,
    format_bytes,
    format_duration,
    format_percent,
    format_rate,
)

_REFUSED_ROWS = 5
_JOULES_PER_KWH = 3.6e6


def show_plan(console: Console, plan: Plan, *, top: int, written: Path | None) -> None:
    """Print a plan: what to do, why, and what else was looked at."""
    console.print(Text(plan.sentence, "bold"), soft_wrap=True)
    for reason in plan.reasons:
        console.print(Text(f"- {reason}"), soft_wrap=True)
    console.print()
    good = [row for row in plan.candidates if row.refused is None][:top]
    refused = [row for row in plan.candidates if row.refused is not None][:_REFUSED_ROWS]
    console.print(_table(good, plan))
    if refused:
        console.print(Text("refused", "bold"))
        console.print(Padding(_refused(refused), (0, 0, 0, 2)))
    sources = "; ".join(plan.sources)
    console.print(
        Text(f"{plan.num_candidates:,} candidates; facts from {sources}", "dim"), soft_wrap=True
    )
    if written is not None:
        console.print(f"run it: phalanx train --plan {written}", soft_wrap=True)


def show_versus(console: Console, rows: Iterable[PredictedVsMeasured]) -> None:
    """Print predicted and measured side by side."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("", "predicted", "90 % interval", "measured", "off by"):
        table.add_column(title, justify="left" if not title else "right", no_wrap=True)
    for row in rows:
        low, high = _value(row, row.predicted.low), _value(row, row.predicted.high)
        table.add_row(
            row.measure,
            _value(row, row.predicted.value),
            f"{low} to {high}",
            _value(row, row.measured),
            Text(
                f"{100 * row.error:+.0f} %" + ("" if row.is_inside else ", outside"),
                "" if row.is_inside else WARNING_STYLE,
            ),
        )
    console.print(table)


def _value(measure: PredictedVsMeasured, value: float) -> str:
    if measure.unit == "J":
        return f"{value:,.0f} J"
    return f"{value * 1e3:.1f} ms" if measure.measure == "step" else format_duration(value)


def _table(rows: Sequence[PlanRow], plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    priced = any(row.prediction and row.prediction.cost for row in rows)
    metered = any(row.prediction and row.prediction.energy_j for row in rows)
    table.add_column("", no_wrap=True)
    table.add_column("machines")
    table.add_column("strategy")
    table.add_column("servers")
    table.add_column("batch")
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("90 %", justify="right", no_wrap=True)
    table.add_column("speed", justify="right", no_wrap=True)
    if priced:
        table.add_column("cost", justify="right", no_wrap=True)
    if metered:
        table.add_column("kWh", justify="right", no_wrap=True)
    table.add_column("memory", justify="right", no_wrap=True)
    table.add_column("exchange", justify="right", no_wrap=True)
    on_front = {_identity(row) for row in plan.front}
    for row in rows:
        prediction = row.prediction
        assert prediction is not None
        chosen = row.prediction == plan.prediction
        mark = "▶" if chosen else "◇" if _identity(row) in on_front else ""
        cells = [
            mark,
            machines_label(row.machines),
            _strategy(row),
            row.servers,
            batches_label(row.batches),
            format_duration(prediction.total_s.value),
            _range(prediction.total_s),
            format_rate(prediction.samples_per_s.value),
        ]
        if priced:
            cells.append(f"{prediction.cost.value:.3f}" if prediction.cost else NOTHING)
        if metered:
            cells.append(_kwh(prediction.energy_j))
        cells += [format_bytes(max(prediction.memory_bytes.values())), _exchange(prediction)]
        table.add_row(*cells, style="bold" if chosen else "")
    table.caption = "▶ chosen  ◇ no other is better in time, cost and energy at once"
    table.caption_justify = "left"
    return table


def _refused(rows: Sequence[PlanRow]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for row in rows:
        spent = row.prediction.total_s.value if row.prediction is not None else None
        table.add_row(
            machines_label(row.machines), _strategy(row), format_duration(spent), row.refused
        )
    return table


def _identity(row: PlanRow) -> tuple[object, ...]:
    return row.machines, row.strategy, row.servers, row.batches, row.precision


def _strategy(row: PlanRow) -> str:
    return row.strategy + (f" ({row.precision})" if row.precision != "fp32" else "")


def _range(interval: Interval) -> str:
    return f"{format_duration(interval.low)} to {format_duration(interval.high)}"


def _kwh(energy_j: Interval | None) -> str:
    return f"{energy_j.value / _JOULES_PER_KWH:.3f}" if energy_j is not None else NOTHING


def _exchange(prediction: Prediction) -> str:
    parts = prediction.parts
    return format_percent((parts.communication_s + parts.wait_s) / parts.total_s)
