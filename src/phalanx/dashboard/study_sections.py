"""Describe a study while it runs: how far it is, and its metric in each cell so far."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.dashboard.time_axis import finite
from phalanx.records.study import StudyDir, StudyManifest, Trial
from phalanx.report.charts import Rows, axis, bar_axis, chart
from phalanx.report.document import Column, Figure, Panel, Table, label, number, table_of, text
from phalanx.report.stats import estimate
from phalanx.study.measure import values_by_seed

_ROW_PIXELS = 30


def cell_table(manifest: StudyManifest, trials: Sequence[Trial]) -> Table:
    """Tabulate finished and failed runs of each cell, and how many it needs."""
    rows = []
    for cell in manifest.cells:
        own = [trial for trial in trials if trial.cell == cell.id]
        failed = sum(trial.state == "failed" for trial in own)
        wanted = manifest.repeats_of(cell.id)
        rows.append(
            {
                label("cell"): text(cell.id),
                Column("finished", "finished"): number(len(own) - failed, 0),
                Column("failed", "failed"): number(failed, 0, mark="doubt" if failed else ""),
                Column("least", "at least"): number(wanted.min, 0),
                Column("most", "at most"): number(wanted.max, 0),
                Column("elapsed_s", "time so far", "s"): number(
                    sum(trial.elapsed_s for trial in own), 1
                ),
            }
        )
    done, least = len(trials), sum(manifest.repeats_of(cell.id).min for cell in manifest.cells)
    caption = f"{done} of at least {least} runs have ended."
    return table_of("cells", caption, rows)


def metric_figure(study: StudyDir, manifest: StudyManifest) -> Figure | None:
    """Draw the metric of each cell: every run, the mean, and its interval."""
    values = values_by_seed(study, manifest.metric)
    runs: Rows = []
    means: Rows = []
    for cell in manifest.cells:
        found = list(values.get(cell.id, {}).values())
        if not found:
            continue
        one = estimate(found, confidence=manifest.repeats.confidence)
        runs += [{"bar": cell.id, "amount": finite(value)} for value in found]
        means.append(
            {
                "bar": cell.id,
                "amount": finite(one.mean),
                "low": finite(one.low if one.low is not None else one.mean),
                "high": finite(one.high if one.high is not None else one.mean),
            }
        )
    if not means:
        return None
    y = bar_axis([str(row["bar"]) for row in means])
    x = axis("amount", manifest.metric)
    colour = "#0072B2"
    layers = [
        {
            "data": {"values": means},
            "mark": {"type": "rule", "strokeWidth": 2, "color": colour},
            "encoding": {"y": y, "x": {**x, "field": "low"}, "x2": {"field": "high"}},
        },
        {
            "data": {"values": runs},
            "mark": {"type": "point", "filled": True, "size": 30, "opacity": 0.5, "color": colour},
            "encoding": {"y": y, "x": x},
        },
        {
            "data": {"values": means},
            "mark": {"type": "point", "filled": True, "size": 110, "color": colour, "opacity": 1},
            "encoding": {"y": y, "x": x},
        },
    ]
    spec = chart(None, _ROW_PIXELS * len(means), layer=layers)
    share = f"{100 * manifest.repeats.confidence:g} %"
    caption = (
        f"{manifest.metric} by cell: small points are runs, large ones means, with "
        f"{share} intervals."
    )
    return Figure(id="metric", caption=caption, panels=[Panel(title="", spec=spec)])
