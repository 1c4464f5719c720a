"""Describe plans: the front of their candidates, and predictions beside a run that goes on."""

from __future__ import annotations

from typing import Any

from phalanx.dashboard.live_run import LiveRun
from phalanx.dashboard.run_sections import RECENT_S
from phalanx.dashboard.series import add_sums
from phalanx.dashboard.time_axis import finite
from phalanx.plan.explain import machines_label
from phalanx.plan.planfile import Plan, PlanRow
from phalanx.report.charts import Rows, axis, scatter
from phalanx.report.document import (
    Column,
    Figure,
    Panel,
    Swatch,
    Table,
    label,
    number,
    table_of,
    text,
)
from phalanx.report.scope import Style

_STYLES = {
    "chosen": Style("#D55E00", (), "diamond"),
    "other candidate": Style("#0072B2", (), "circle"),
}
_JOULES_PER_KWH = 3.6e6


def front_figure(plan: Plan) -> Figure | None:
    """Draw time against cost, or energy, of all candidates, with the front as a line."""
    priced = any(row.prediction and row.prediction.cost for row in plan.candidates)
    key, title, scale = (
        ("cost", "cost", 1.0) if priced else ("energy_j", "energy, kWh", 1 / _JOULES_PER_KWH)
    )
    good = [_point(row, plan, key, scale) for row in plan.candidates if row.refused is None]
    points = [point for point in good if point]
    if not points:
        return None
    front = [point for row in plan.front if (point := _point(row, plan, key, scale))]
    front = sorted(front, key=lambda one: float(one["seconds"]))
    chosen: Rows = [one for one in points if one["series"] == "chosen"]
    spec = scatter(
        [one for one in points if one["series"] != "chosen"],
        chosen,
        front,
        _STYLES,
        axis("seconds", "predicted time, s"),
        axis("value", title),
    )
    legend = [
        Swatch(label=name, colour=one.colour, shape=one.shape) for name, one in _STYLES.items()
    ]
    caption = (
        f"Predicted time and {title.partition(',')[0]} of the candidates; the line joins those to "
        "which no other is better in every respect."
    )
    return Figure(id="front", caption=caption, panels=[Panel(title="", spec=spec)], legend=legend)


def _point(row: PlanRow, plan: Plan, key: str, scale: float) -> dict[str, Any]:
    prediction = row.prediction
    amount = getattr(prediction, key) if prediction is not None else None
    if prediction is None or amount is None:
        return {}
    return {
        "series": "chosen" if prediction == plan.prediction else "other candidate",
        "seconds": finite(prediction.total_s.value),
        "value": finite(amount.value * scale),
        "strategy": row.strategy,
        "machines": machines_label(row.machines),
    }


def expected_table(plan: Plan, live: LiveRun) -> Table:
    """Compare predictions with what a run that goes on has measured so far."""
    recent, recent_s = live.state.steps.recent(RECENT_S)
    samples = add_sums(list(recent.values())).samples
    speed = samples / recent_s if recent_s else None
    last = max(live.state.epochs.values(), key=lambda one: one.epoch, default=None)
    prediction = plan.prediction
    rows = [
        ("samples per second", prediction.samples_per_s, speed),
        (
            "training time, s",
            prediction.train_s,
            # Of all epochs, at the pace of those that are over.
            last.train_s / (last.epoch + 1) * int(live.manifest.job["epochs"]) if last else None,
        ),
    ]
    return table_of(
        "expected",
        "Predicted, with its 90 % interval, and measured so far.",
        [
            {
                label("measure"): text(name),
                Column("predicted", "predicted"): number(one.value, 1),
                Column("low", "from"): number(one.low, 1),
                Column("high", "to"): number(one.high, 1),
                Column("measured", "measured"): number(measured, 1),
            }
            for name, one, measured in rows
        ],
    )
