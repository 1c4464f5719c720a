"""How one finished run is shown: the few figures that matter, and where the rest is."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from phalanx.cli.placement import split_rows
from phalanx.cli.progress import describe_switch
from phalanx.cli.screen import WARNING_STYLE
from phalanx.records.events import Warned
from phalanx.records.log import read_events
from phalanx.records.rundir import RunDir
from phalanx.records.summary import ServingSummary, Summary
from phalanx.report.compare import time_shares
from phalanx.report.format import (
    count_noun,
    format_accuracy,
    format_bytes,
    format_count,
    format_duration,
    format_loss,
    format_rate,
    format_shares,
)


def show_result(console: Console, summary: Summary, warnings: Iterable[str] = ()) -> None:
    """Print the figures of a finished run, and what was doubtful about it."""
    console.print(render_result(summary))
    for message in warnings:
        console.print(Text(f"warning: {message}", WARNING_STYLE), soft_wrap=True)


def render_result(summary: Summary) -> RenderableType:
    """The figures as two columns."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in _figures(summary):
        grid.add_row(label, value)
    return Group(Text(_headline(summary), "bold"), grid)


def collect_warnings(run: RunDir) -> list[str]:
    """What the processes of a run warned about, each once."""
    found: dict[str, None] = {}
    for path in sorted((run.path / "events").glob("*.jsonl")):
        for event in read_events(path):
            if isinstance(event, Warned):
                found[event.message] = None
    return list(found)


def _judged(metrics: dict[str, float]) -> str:
    """What else the test part was judged by."""
    shown = {name: value for name, value in metrics.items() if name != "accuracy"}
    return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in shown.items())


def _headline(summary: Summary) -> str:
    early = ", stopped early" if summary.stopped_early else ""
    return f"{summary.state} after {count_noun(summary.epochs, 'epoch')}{early}"


def _figures(summary: Summary) -> list[tuple[str, str]]:
    return [
        ("test accuracy", _measured(summary.test_accuracy, summary.test_loss)),
        *([("judged by", _judged(summary.test_metrics))] if summary.test_metrics else []),
        ("validation", _measured(summary.val_accuracy, summary.val_loss)),
        ("training", _measured(summary.train_accuracy, summary.train_loss)),
        ("speed", _speed(summary)),
        ("elapsed", _elapsed(summary)),
        ("time", format_shares(time_shares(summary))),
        ("sent", _sent(summary)),
        *([("servers", _servers(summary.serving))] if summary.serving else []),
        *(split_rows(summary.split) if summary.split else []),
        *(("switched", describe_switch(switch)) for switch in summary.switches),
        ("run", summary.run_dir),
    ]


def _measured(accuracy: float | None, loss: float | None) -> str:
    if loss is None:
        return "not measured"
    return f"{format_accuracy(accuracy)}, loss {format_loss(loss)}"


def _servers(serving: ServingSummary) -> str:
    text = (
        f"{serving.consistency}, {serving.updates_per_s:,.0f} updates/s, staleness "
        f"{serving.staleness_mean:.1f} (max {serving.staleness_max}), "
        f"busy {serving.server_busy_share:.0%}"
    )
    if serving.pushes_dropped:
        text += f", {serving.pushes_dropped:,} pushes dropped"
    if serving.processes_replaced:
        text += (
            f", lost processes replaced: {serving.processes_replaced}, "
            f"{count_noun(serving.updates_lost, 'update')} lost"
        )
    return text


def _speed(summary: Summary) -> str:
    processes = count_noun(summary.workers, "worker")
    threads = count_noun(summary.threads, "thread")
    return f"{format_rate(summary.samples_per_s)} on {processes} x {threads}, {summary.precision}"


def _elapsed(summary: Summary) -> str:
    return (
        f"{format_duration(summary.elapsed_s)}: training {format_duration(summary.train_s)}, "
        f"measuring {format_duration(summary.evaluate_s)}, "
        f"starting {format_duration(summary.startup_s)}"
    )


def _sent(summary: Summary) -> str:
    updates = f"{format_count(summary.updates)} updates of {format_count(summary.parameters)}"
    return f"{format_bytes(summary.bytes_sent)} by all workers, {updates} parameters"
