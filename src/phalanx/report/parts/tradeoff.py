"""Make the chapters `Time against accuracy` and `Time to accuracy`; of values, the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.report.cells import Cell
from phalanx.report.charts import axis, scatter, shorten
from phalanx.report.document import (
    Block,
    Column,
    Figure,
    Panel,
    Section,
    Swatch,
    Table,
    Text,
    label,
    number,
    plus_minus,
    table_of,
    text,
)
from phalanx.report.measures import (
    MEASURES,
    Measure,
    estimate_cell,
    shared_digits,
    time_to,
    value_of,
)
from phalanx.report.scope import Scope
from phalanx.report.stats import estimate

Point = tuple[float, float]
"""Time, of which less is better, and quality, of which more is better."""


def tradeoff(scope: Scope) -> Section | None:
    """Draw quality against time, with the Pareto front."""
    blocks: list[Block] = []
    nouns: dict[str, None] = {}
    for index, (task, cells) in enumerate(scope.tasks.items(), start=1):
        quality = scope.qualities[task]
        if quality is None:
            continue
        nouns[_noun(quality)] = None
        points = _points(cells, quality)
        if points:
            blocks.append(_figure(f"tradeoff-{index}", task, cells, points, scope, quality))
            blocks.append(_table(f"front-{index}", task, cells, points, quality))
    title = f"Time against {' and '.join(nouns)}"
    return Section(id="time-accuracy", title=title, blocks=blocks) if blocks else None


def _points(cells: Sequence[Cell], quality: Measure) -> dict[str, Point]:
    """Return mean time, and mean quality signed so that more is better."""
    sign = 1 if quality.high_is_good else -1
    found = {}
    for cell in cells:
        time, value = estimate_cell(cell, "train_s"), estimate_cell(cell, quality.key)
        if time is not None and value is not None:
            found[cell.label] = (time.mean, sign * value.mean)
    return found


def _figure(
    id: str,
    task: str,
    cells: Sequence[Cell],
    points: dict[str, Point],
    scope: Scope,
    quality: Measure,
) -> Figure:
    scale = quality.scale * (1 if quality.high_is_good else -1)
    shown = [cell for cell in cells if cell.label in points]
    styles = {cell.label: scope.styles[cell.id] for cell in shown}
    runs = [
        {"series": cell.label, "seconds": shorten(time), "value": shorten(value * quality.scale)}
        for cell in shown
        for run in cell.finished
        if (time := value_of(run, "train_s")) is not None
        and (value := value_of(run, quality.key)) is not None
    ]

    def row(name: str) -> dict[str, object]:
        time, value = points[name]
        return {"series": name, "seconds": shorten(time), "value": shorten(value * scale)}

    spec = scatter(
        runs,
        [row(cell.label) for cell in shown],
        [row(name) for name in front(points)],
        styles,
        axis("seconds", "training time, s", scale={"zero": True, "nice": True}),
        axis("value", f"{quality.title}, {quality.unit}".rstrip(", ")),
    )
    caption = (
        f"{task}: {quality.title} against training time. Large points are means, small ones single "
        "runs; the dashed line is the Pareto front: no mean lies to the left of it and "
        f"{'above' if quality.high_is_good else 'below'}."
    )
    legend = [
        *scope.swatches(shown, points=True),
        Swatch(label="Pareto front", colour="#767676", dash=(5, 3)),
    ]
    return Figure(id=id, caption=caption, panels=[Panel(title="", spec=spec)], legend=legend)


def _table(
    id: str, task: str, cells: Sequence[Cell], points: dict[str, Point], quality: Measure
) -> Table:
    over = dominators(points)
    time = MEASURES["train_s"]
    digits = shared_digits(time, [point[0] for point in points.values()])
    sign = 1 if quality.high_is_good else -1
    rows = [
        {
            label("cell"): text(name),
            Column("train_s_mean", "training time", "s"): number(points[name][0], digits),
            Column(f"{quality.key}_mean", quality.title, quality.unit): number(
                sign * points[name][1], quality.digits or 4, scale=quality.scale
            ),
            label("on_front", "on the front"): text("yes" if over[name] is None else "no"),
            label("beaten_by", "beaten in both by"): text(over[name] or ""),
        }
        for name in (cell.label for cell in cells)
        if name in points
    ]
    return table_of(id, f"{task}: the Pareto front over the means.", rows)


def time_to_accuracy(scope: Scope) -> Section | None:
    """Tabulate the training time of each cell until it reaches the target."""
    if scope.target is None:
        return None
    key, value = scope.target
    measure = MEASURES[key]
    shown = f"{measure.title} {value * measure.scale:g} {measure.unit}".strip()
    origin = (
        "as asked"
        if scope.target_was_asked
        else "the highest whole per cent that every finished run reached, for want of another"
    )
    when = (
        "Test data is measured once, at the end, so the time is that of the whole training."
        if key == "test_accuracy"
        else "The time is that of the first epoch end at which the target is met; nothing is "
        "interpolated, so it is late by up to one epoch."
    )
    intro = f"Target: {shown} ({origin}). {when} Start-up and evaluation are not counted."
    blocks: list[Block] = [Text(lines=[intro]), _reach_table(scope, key, value)]
    return Section(id="time-to-accuracy", title=f"Time to {_noun(measure)}", blocks=blocks)


def _noun(measure: Measure) -> str:
    """Return what a measure is, whatever part it was taken on."""
    return measure.title.rsplit(" ", maxsplit=1)[-1]


def _reach_table(scope: Scope, key: str, target: float) -> Table:
    times = {
        cell.id: [time for run in cell.finished if (time := time_to(run, key, target)) is not None]
        for cell in scope.cells
    }
    digits = shared_digits(MEASURES["train_s"], [t for own in times.values() for t in own])
    rows = []
    for cell in scope.cells:
        own, total = times[cell.id], len(cell.finished)
        found = estimate(own) if own else None
        some = bool(own) and len(own) < total
        row = {
            **scope.place_of(cell),
            label("reached", "runs that reached it"): text(
                f"{len(own)} of {total}", "doubt" if len(own) < total else ""
            ),
            Column("seconds_mean", "time", "s"): number(
                found.mean if found else None, digits, mark="weak" if some else ""
            ),
            Column("seconds_half_width", "±", joins=True): plus_minus(
                found.half_width if found else None, digits
            ),
            Column("seconds_min", "quickest run", "s"): number(min(own, default=None), digits),
            Column("seconds_max", "slowest run", "s"): number(max(own, default=None), digits),
        }
        rows.append(row)
    caption = (
        "Training time to the target. Where not all runs reached it, the mean is over those that "
        "did and flatters the cell."
    )
    return table_of("time-to-target", caption, rows)


def dominators(points: Mapping[str, Point]) -> dict[str, str | None]:
    """Name for each point the best one that dominates it, or None: it is on the Pareto front.

    Of several the one with the highest quality is named, then the fastest.
    """
    found: dict[str, str | None] = {}
    for name, point in points.items():
        better = [
            other
            for other, (time, quality) in points.items()
            if time <= point[0] and quality >= point[1] and points[other] != point
        ]
        best = min(
            better, key=lambda other: (-points[other][1], points[other][0], other), default=None
        )
        found[name] = best
    return found


def front(points: Mapping[str, Point]) -> list[str]:
    """Return the names on the Pareto front, fastest first."""
    on = [name for name, other in dominators(points).items() if other is None]
    return sorted(on, key=lambda name: (points[name], name))
