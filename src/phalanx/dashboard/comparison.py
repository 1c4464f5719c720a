"""Compare several runs, finished or not: their figures in a table, their curves in charts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from phalanx.dashboard.live_run import LiveRun
from phalanx.dashboard.series import add_sums
from phalanx.dashboard.time_axis import finite
from phalanx.records.events import Epoch
from phalanx.report.charts import Rows, axis, epoch_axis, lines
from phalanx.report.document import (
    Block,
    Column,
    Entries,
    Figure,
    Panel,
    Section,
    Swatch,
    label,
    number,
    table_of,
    text,
)
from phalanx.report.scope import series_styles

_CURVES = (
    ("validation accuracy", "val_accuracy", 100.0, ", %"),
    ("training accuracy", "train_accuracy", 100.0, ", %"),
    ("validation loss", "val_loss", 1.0, ""),
    ("training loss", "train_loss", 1.0, ""),
)


def comparison_sections(lives: Sequence[LiveRun]) -> list[Section]:
    """Tabulate the runs, and draw their curves by epoch and by training time."""
    names = _names(lives)
    styles = series_styles(list(names.values()))
    legend = [Swatch(label=name, colour=one.colour, dash=one.dash) for name, one in styles.items()]
    seconds = axis("seconds", "training time, s", scale={"zero": True})
    counted = [
        axis("updates", "updates", scale={"zero": True}),
        axis("samples", "samples seen", scale={"zero": True}),
    ]
    panels = []
    for title, key, scale, unit in _CURVES:
        rows = _rows(lives, names, key, scale)
        own = {name: one for name, one in styles.items() if any(r["series"] == name for r in rows)}
        if rows:
            y, epochs = axis("value", f"{title}{unit}"), epoch_axis(rows)
            choices = [epochs, *counted, seconds]
            panels += [
                Panel(title=f"{title} by {words}", spec=lines(rows, own, x, y, choices=choices))
                for words, x in {"epoch": epochs, "training time": seconds}.items()
            ]
    blocks: list[Block] = [
        table_of("compared", "", [_row(live, names[live.run.path]) for live in lives])
    ]
    if panels:
        caption = "Accuracy and loss at the end of every epoch."
        blocks.append(Figure(id="curves", caption=caption, panels=panels, legend=legend))
    return [Section(id="comparison", title="Comparison", blocks=blocks)]


def _names(lives: Sequence[LiveRun]) -> dict[Path, str]:
    """Return a name for each run; runs of one name are told apart by their folders."""
    counts = Counter(live.run.name for live in lives)
    return {
        live.run.path: live.run.name if counts[live.run.name] == 1 else str(live.run.path)
        for live in lives
    }


def _rows(lives: Sequence[LiveRun], names: dict[Path, str], key: str, scale: float) -> Rows:
    return [
        {
            "series": names[live.run.path],
            "epoch": one.epoch + 1,
            "seconds": finite(one.train_s),
            "updates": one.updates,
            "samples": one.samples,
            "value": finite(value * scale),
        }
        for live in lives
        for one in _epochs(live)
        if (value := getattr(one, key)) is not None
    ]


def _epochs(live: LiveRun) -> list[Epoch]:
    return [live.state.epochs[number_] for number_ in sorted(live.state.epochs)]


def _row(live: LiveRun, name: str) -> Entries:
    job, epochs = live.manifest.job, _epochs(live)
    last = epochs[-1] if epochs else None
    summary = None if live.is_live else live.run.read_summary()
    seconds = add_sums(list(live.state.steps.totals.values())).seconds
    spent_s = sum(seconds.values())
    train_s = summary.train_s if summary else last.train_s if last else None
    samples = summary.samples if summary else last.samples if last else None
    return {
        label("run"): text(name),
        label("state"): text(live.status.state),
        label("strategy"): text(job["strategy"]["name"]),
        Column("workers", "workers"): number(job["workers"], 0),
        Column("epochs", "epochs"): number(len(epochs), 0),
        Column("val_accuracy", "validation", "%"): number(
            last.val_accuracy if last else None, 2, scale=100
        ),
        Column("test_accuracy", "test", "%"): number(
            summary.test_accuracy if summary else None, 2, scale=100
        ),
        Column("train_loss", "training loss"): number(last.train_loss if last else None, 4),
        Column("train_s", "training time", "s"): number(train_s, 1),
        Column("samples_per_s", "speed", "samples/s"): number(
            samples / train_s if samples and train_s else None, 0
        ),
        **{
            Column(f"{name}_share", name, "%"): number(
                one / spent_s if spent_s else None, 0, scale=100
            )
            for name, one in seconds.items()
        },
    }
