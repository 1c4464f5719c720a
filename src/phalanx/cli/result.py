"""Describe one finished run: the figures that matter, and where its records are."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.cli.progress import describe_switch, split_rows
from phalanx.records.events import Warned
from phalanx.records.log import read_events
from phalanx.records.rundir import RunDir
from phalanx.records.summary import ServingSummary, Summary
from phalanx.report.compare import time_shares
from phalanx.report.document import Block, Column, Table, Value, line
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


def result_blocks(summary: Summary, warnings: Iterable[str] = ()) -> list[Block]:
    """Describe the figures of a finished run, and the warnings of its processes."""
    columns = [
        Column("figure", "figure", is_text=True),
        Column("value", "value", is_text=True, wraps=True),
    ]
    rows = [[Value(label, label), Value(value, value)] for label, value in _figures(summary)]
    table = Table(id="result", caption="", columns=columns, rows=rows, has_header=False)
    doubts = [line(f"warning: {message}", "doubt") for message in warnings]
    return [line(_headline(summary), "lead"), table, *doubts]


def collect_warnings(run: RunDir) -> list[str]:
    """Read the warnings of a run's processes, each once."""
    found: dict[str, None] = {}
    for path in sorted((run.path / "events").glob("*.jsonl")):
        for event in read_events(path):
            if isinstance(event, Warned):
                found[event.message] = None
    return list(found)


def _metrics(metrics: dict[str, float]) -> str:
    shown = {name: value for name, value in metrics.items() if name != "accuracy"}
    return ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in shown.items())


def _headline(summary: Summary) -> str:
    early = ", stopped early" if summary.stopped_early else ""
    return f"{summary.state} after {count_noun(summary.epochs, 'epoch')}{early}"


def _figures(summary: Summary) -> list[tuple[str, str]]:
    tested = "test accuracy" if summary.test_accuracy is not None else "test"
    return [
        (tested, _measured(summary.test_accuracy, summary.test_loss)),
        *([("metrics", _metrics(summary.test_metrics))] if summary.test_metrics else []),
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
        # A script may report one without the other.
        return "not measured" if accuracy is None else format_accuracy(accuracy)
    if accuracy is None:
        return f"loss {format_loss(loss)}"
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
    parts = {
        "training": summary.train_s,
        "measuring": summary.evaluate_s,
        "starting": summary.startup_s,
    }
    # Checkpoints, ending, and what was trained again after a failure.
    parts["other"] = max(0.0, summary.elapsed_s - sum(parts.values()))
    shown = ", ".join(f"{name} {format_duration(spent)}" for name, spent in parts.items())
    attempts = f" in {summary.attempts} attempts" if summary.attempts > 1 else ""
    return f"{format_duration(summary.elapsed_s)}{attempts}: {shown}"


def _sent(summary: Summary) -> str:
    updates = f"{format_count(summary.updates)} updates of {format_count(summary.parameters)}"
    return f"{format_bytes(summary.bytes_sent)} by all workers, {updates} parameters"
