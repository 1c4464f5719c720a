"""Describe plans: the choice, its reasons, a table of candidates; predicted beside measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from phalanx.plan.explain import batches_label, machines_label
from phalanx.plan.planfile import Plan, PlanRow, PredictedVsMeasured
from phalanx.plan.result import Interval, Prediction
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
    format_bytes,
    format_duration,
    format_percent,
    format_rate,
    shown,
)
from phalanx.spec.program import PRECISION

_REFUSED_ROWS = 5
_JOULES_PER_KWH = 3.6e6


def plan_blocks(plan: Plan, *, top: int, written: Path | None) -> list[Block]:
    """Describe a plan: the choice, its reasons, and the alternatives considered."""
    good = [row for row in plan.candidates if row.refused is None][:top]
    refused = [row for row in plan.candidates if row.refused is not None][:_REFUSED_ROWS]
    blocks: list[Block] = [
        line(plan.sentence, "lead"),
        Text(lines=list(plan.reasons), kind="list"),
        line(""),
        _candidate_table(good, plan),
        line("▶ chosen  ◇ no other is better in time, cost and energy at once", "note"),
    ]
    if refused:
        blocks += [line("refused", "lead"), tabulate("refused", refused, _REFUSED)]
    sources = "; ".join(plan.sources)
    blocks.append(line(f"{plan.num_candidates:,} candidates; facts from {sources}", "note"))
    if written is not None:
        command = "launch" if plan.job.get("program") else "train"
        blocks.append(line(f"run it: phalanx {command} --plan {written}"))
    return blocks


def versus_table(rows: Iterable[PredictedVsMeasured]) -> Table:
    """Make one row per predicted measure, with the measured value."""
    return tabulate("predicted", rows, _VERSUS)


def _value(measure: PredictedVsMeasured, value: float) -> str:
    if measure.unit == "J":
        return f"{value:,.0f} J"
    return f"{value * 1e3:.1f} ms" if measure.measure == "step" else format_duration(value)


def _off_by(row: PredictedVsMeasured) -> Value:
    text = f"{100 * row.error:+.0f} %" + ("" if row.is_inside else ", outside")
    return Value(text, row.error, "" if row.is_inside else "doubt")


_VERSUS: list[tuple[Column, CellFormat[PredictedVsMeasured]]] = [
    (Column("measure", "", is_text=True), lambda one: text(one.measure)),
    (
        Column("predicted", "predicted"),
        lambda one: Value(_value(one, one.predicted.value), one.predicted.value),
    ),
    (
        Column("interval", "90 % interval"),
        lambda one: Value(
            f"{_value(one, one.predicted.low)} to {_value(one, one.predicted.high)}",
            (one.predicted.low, one.predicted.high),
        ),
    ),
    (Column("measured", "measured"), lambda one: Value(_value(one, one.measured), one.measured)),
    (Column("error", "off by"), _off_by),
]


def _forecast(
    key: str, title: str, cell: CellFormat[Prediction], keep: int | None = None
) -> tuple[Column, CellFormat[PlanRow]]:
    def predicted(row: PlanRow) -> Value:
        return Value(NOTHING) if row.prediction is None else cell(row.prediction)

    return Column(key, title, keep=keep), predicted


def _candidate_table(rows: Sequence[PlanRow], plan: Plan) -> Table:
    on_front = {_identity(row) for row in plan.front}

    def mark(row: PlanRow) -> Value:
        if row.prediction == plan.prediction:
            return Value("▶", "chosen", "best")
        return Value("◇", "front") if _identity(row) in on_front else Value("")

    def words(content: str, row: PlanRow) -> Value:
        return Value(content, content, "best" if row.prediction == plan.prediction else "")

    predictions = [row.prediction for row in rows if row.prediction is not None]
    columns: list[tuple[Column, CellFormat[PlanRow]]] = [
        (Column("mark", "", is_text=True), mark),
        (_words("machines"), lambda row: words(machines_label(row.machines), row)),
        (_words("strategy"), lambda row: words(_strategy(row), row)),
        (_words("servers"), lambda row: words(row.servers, row)),
        (_words("batch"), lambda row: words(batches_label(row.batches), row)),
        _forecast("total_s", "time", _time),
        _forecast("total_interval_s", "90 %", _range, keep=5),
        _forecast(
            "samples_per_s",
            "speed",
            lambda one: shown(one.samples_per_s.value, format_rate),
            keep=3,
        ),
    ]
    if any(one.cost for one in predictions):
        columns.append(_forecast("cost", "cost", lambda one: _three_digits(one.cost), 6))
    if any(one.energy_j for one in predictions):
        per_kwh = 1 / _JOULES_PER_KWH
        kwh = _forecast("energy_kwh", "kWh", lambda one: _three_digits(one.energy_j, per_kwh), 4)
        columns.append(kwh)
    columns += [
        _forecast("memory_bytes", "memory", _memory, keep=2),
        _forecast("exchange_share", "exchange", _exchange, keep=1),
    ]
    return tabulate("candidates", rows, columns)


def _words(name: str) -> Column:
    return Column(name, name, is_text=True, wraps=True)


def _identity(row: PlanRow) -> tuple[object, ...]:
    return row.machines, row.strategy, row.servers, row.batches, row.precision


def _strategy(row: PlanRow) -> str:
    is_usual = row.precision in ("fp32", PRECISION)
    return row.strategy + ("" if is_usual else f" ({row.precision})")


def _time(prediction: Prediction) -> Value:
    return shown(prediction.total_s.value, format_duration)


def _range(prediction: Prediction) -> Value:
    low, high = prediction.total_s.low, prediction.total_s.high
    return Value(f"{format_duration(low)} to {format_duration(high)}", (low, high))


def _three_digits(interval: Interval | None, scale: float = 1.0) -> Value:
    if interval is None:
        return Value(NOTHING)
    return Value(f"{interval.value * scale:.3f}", interval.value * scale)


def _memory(prediction: Prediction) -> Value:
    most = max(prediction.memory_bytes.values())
    return shown(most, format_bytes)


def _exchange(prediction: Prediction) -> Value:
    parts = prediction.parts
    share = (parts.communication_s + parts.wait_s) / parts.total_s
    return shown(share, format_percent)


_REFUSED: list[tuple[Column, CellFormat[PlanRow]]] = [
    (_words("machines"), lambda row: text(machines_label(row.machines))),
    (_words("strategy"), lambda row: text(_strategy(row))),
    _forecast("total_s", "time", _time),
    (_words("reason"), lambda row: text(row.refused)),
]
