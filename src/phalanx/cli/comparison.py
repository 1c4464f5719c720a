"""Describe runs side by side: a table, a chart of time shares, and an interpretation."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table as BarTable

from phalanx.cli.screen import TIME_GLYPHS, TIME_STYLES, time_bar, time_legend
from phalanx.report.compare import RunComparison
from phalanx.report.document import CellFormat, Column, Table, tabulate
from phalanx.report.format import (
    count_noun,
    format_accuracy,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_ratio,
    number_field,
    text_field,
)

# Two runs of the same job with different seeds differ by about this much on a small test set.
_SAME_ACCURACY = 0.02
_BAR_COLUMNS = 36
_NEXT = (
    "Next: `phalanx runs show last` shows a run in detail, `phalanx doctor` this machine, and "
    "`phalanx train --help` how to train a job of your own."
)
_COLUMNS: list[tuple[Column, CellFormat[RunComparison]]] = [
    text_field("strategy", "strategy"),
    number_field("workers", "workers"),
    number_field("test_accuracy", "test\naccuracy", format_accuracy),
    number_field("samples_per_s", "samples/s", format_count),
    number_field("speed", "speed", format_ratio),
    number_field("elapsed_s", "elapsed", format_duration),
    number_field("bytes_sent", "sent by\nall workers", format_bytes),
]


def comparison_table(rows: Sequence[RunComparison]) -> Table:
    """Make one row per run: accuracy, speed and traffic."""
    return tabulate("comparison", rows, _COLUMNS)


def render_times(rows: Sequence[RunComparison]) -> RenderableType:
    """Draw shares of training time as bars, for terminals only."""
    table = BarTable(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("time of training", no_wrap=True)
    table.add_column("", no_wrap=True)
    for name, glyph in TIME_GLYPHS.items():
        table.add_column(glyph, justify="right", no_wrap=True, header_style=TIME_STYLES[name])
    for row in rows:
        shares = (format_percent(row.time_shares.get(name, 0.0)) for name in TIME_GLYPHS)
        table.add_row(row.strategy, time_bar(row.time_shares, _BAR_COLUMNS), *shares)
    return Group(table, time_legend())


def interpret(rows: Sequence[RunComparison], *, cores: int) -> list[str]:
    """Interpret the comparison in sentences; the first row is the reference."""
    return [_accuracy_sentence(rows), _speed_sentence(rows, cores), *_traffic(rows), _NEXT]


def _accuracy_sentence(rows: Sequence[RunComparison]) -> str:
    reached = {row.strategy: row.test_accuracy for row in rows if row.test_accuracy is not None}
    if not reached:
        return "Accuracy was not measured."
    best, worst = max(reached.values()), min(reached.values())
    span = f"{format_accuracy(worst)} to {format_accuracy(best)}"
    if best - worst <= _SAME_ACCURACY:
        return f"Accuracy: all reach about the same, {span}."
    last = min(reached, key=lambda name: reached[name])
    return f"Accuracy: {span}; {last} is behind and needs more epochs or more frequent exchange."


def _speed_sentence(rows: Sequence[RunComparison], cores: int) -> str:
    others = [row for row in rows[1:] if row.speed is not None]
    if not others:
        return "Speed: there is nothing to compare."
    speeds = " and ".join(f"{row.strategy} {format_ratio(row.speed)}" for row in others)
    workers = max(row.workers for row in others)
    found = f"Speed relative to {rows[0].strategy}: {speeds}."
    if cores < workers and max(row.speed or 0.0 for row in others) >= 1:
        return (
            f"{found} Do not trust this gain: {workers} workers share "
            f"{count_noun(cores, 'core')} here, so it cannot come from more hardware. Probably "
            f"other work on this machine slowed {rows[0].strategy} down: its "
            f"{count_noun(rows[0].threads, 'thread')} work in lock-step and lose most when they "
            "are interrupted. Repeat the demo when the machine is idle."
        )
    if cores < workers:
        return (
            f"{found} {workers} workers share {count_noun(cores, 'core')} here, so they cannot do "
            "more work in total than one worker that uses them all; what exchange and waiting take "
            "is lost. Distribution pays when every worker has its own cores or machine."
        )
    if max(row.speed or 0.0 for row in others) < 1:
        return (
            f"{found} The model is so small that exchange takes longer than it saves; "
            "distribution pays when a step computes for longer."
        )
    return f"{found} Each worker has its own cores, and exchange takes less than they add."


def _traffic(rows: Sequence[RunComparison]) -> list[str]:
    sent = {row.strategy: row.bytes_sent for row in rows if row.bytes_sent > 0}
    much, little = sent.get("allreduce"), sent.get("local_sgd")
    if not much or not little:
        return []
    return [
        f"Traffic: allreduce sent {format_bytes(much)} because it exchanges gradients in every "
        f"step; local_sgd averages every few steps and sent {format_bytes(little)}, "
        f"{much / little:.1f} times less. On a slow network that decides."
    ]
