"""Describe the state of a run: progress, learning, speed, servers, switches, events.

Pure: the state in, sections of `report.document` out, with the charts of the reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from phalanx.dashboard.event_lines import Line, describe_switch
from phalanx.dashboard.live_run import LiveRun
from phalanx.dashboard.observed_run import ObservedRun
from phalanx.dashboard.series import add_sums
from phalanx.dashboard.time_axis import TimeAxis, finite
from phalanx.records.events import Epoch
from phalanx.report.charts import Rows, Spec, axis, epoch_axis, histogram, lines, stacked_bars
from phalanx.report.document import (
    Block,
    Column,
    Figure,
    Panel,
    Raw,
    Section,
    Swatch,
    Table,
    Value,
    label,
    line,
    number,
    pairs_table,
    table_of,
    tabulate,
    text,
)
from phalanx.report.format import (
    format_accuracy,
    format_clock,
    format_duration,
    format_loss,
    format_percent,
    format_rate,
    text_field,
)
from phalanx.report.parts.staleness import bins_of, histogram_rows
from phalanx.report.scope import Style, series_styles

RECENT_S = 30.0
MAX_SHOWN_LINES = 120
SHARES = {
    "input": "#999999",
    "compute": "#0072B2",
    "communication": "#E69F00",
    "waiting": "#D55E00",
}
"""Share of a worker's time to its colour, as in reports."""
_FROM_ZERO = {"scale": {"zero": True, "nice": True}}


def progress_section(live: LiveRun) -> Section:
    """Say how far the run is, how fast, and what is wrong with it."""
    state, status, job = live.state, live.status, live.manifest.job
    blocks: list[Block] = []
    if status.cause:
        blocks.append(line(status.cause, "doubt"))
    blocks += [line(message, "doubt") for message in list(state.warnings)[:5]]
    if live.num_bytes_left:
        share = live.num_bytes_read / (live.num_bytes_read + live.num_bytes_left)
        blocks.append(line(f"reading the records of this run: {format_percent(share)}", "note"))
    recent, recent_s = state.steps.recent(RECENT_S)
    sums = add_sums(list(recent.values()))
    last = state.epochs[max(state.epochs)] if state.epochs else None
    rate = state.steps.rates[max(state.steps.rates)] if state.steps.rates else None
    total = add_sums(list(state.steps.totals.values()))
    facts: dict[str, Raw] = {
        "state": status.state + (f", attempt {status.attempt}" if status.attempt > 1 else ""),
        "job": f"{job['model']['name']} on {job['data']['name']}, {job['strategy']['name']}, "
        f"{job['workers']} workers",
        "epochs finished": f"{len(state.epochs) and max(state.epochs) + 1} of {job['epochs']}",
        "samples": f"{total.samples:,.0f}",
        "running for": format_clock(state.end_s),
    }
    if recent_s and live.is_live:
        facts["speed now"] = format_rate(sums.samples / recent_s)
    if live.is_live and sums.samples:
        facts["training loss now"] = format_loss(sums.loss_sum / sums.samples)
    if rate is not None:
        facts["learning rate"] = f"{rate:.4g}"
    if last is not None:
        facts["last epoch"] = _epoch_words(last)
    if live.is_live and (left_s := _time_left(live)) is not None:
        facts["left at this pace"] = format_duration(left_s)
    blocks.append(pairs_table("progress", "", facts, has_header=False))
    return Section(id="progress", title="Progress", blocks=blocks)


def _epoch_words(last: Epoch) -> str:
    words = [f"training loss {format_loss(last.train_loss)}"]
    if last.val_loss is not None:
        words.append(f"validation loss {format_loss(last.val_loss)}")
    if last.val_accuracy is not None:
        words.append(f"validation accuracy {format_accuracy(last.val_accuracy)}")
    elif last.train_accuracy is not None:
        words.append(f"training accuracy {format_accuracy(last.train_accuracy)}")
    return ", ".join(words)


def _time_left(live: LiveRun) -> float | None:
    """Return the time of the epochs that are left, at the mean pace of those that are over."""
    epochs = live.state.epochs
    if not epochs:
        return None
    done = max(epochs) + 1
    last = epochs[max(epochs)]
    spent_s = last.train_s + last.evaluate_s
    return spent_s / done * max(0, int(live.manifest.job["epochs"]) - done)


def fault_section(live: LiveRun) -> Section | None:
    """List what went wrong."""
    faults = list(live.state.faults)
    if not faults:
        return None
    return Section(id="faults", title="Faults", blocks=[_line_table("faults", faults)])


def learning_section(live: LiveRun) -> Section | None:
    """Draw loss and accuracy by epoch, and training loss and learning rate over time."""
    state = live.state
    epochs = [state.epochs[key] for key in sorted(state.epochs)]
    times = TimeAxis(state.end_s)
    panels: list[Panel] = []
    for title, keys in (
        ("loss", {"training": "train_loss", "validation": "val_loss"}),
        ("accuracy, %", {"training": "train_accuracy", "validation": "val_accuracy"}),
    ):
        rows = _epoch_rows(state, epochs, keys, scale=100 if "%" in title else 1)
        if rows:
            panels.append(
                Panel(title=f"{title} by epoch", spec=_lines(rows, epoch_axis(rows), title))
            )
    losses: Rows = [
        {"series": "training", "time": times.at(time_s), "value": loss}
        for time_s, sums in state.steps.over_time()
        if sums.samples and (loss := finite(sums.loss_sum / sums.samples)) is not None
    ]
    rates: Rows = [
        {
            "series": "learning rate",
            "time": times.at((key + 0.5) * state.steps.width_s),
            "value": finite(state.steps.rates[key]),
        }
        for key in sorted(state.steps.rates)
    ]
    if losses:
        panels.append(
            Panel(title="training loss over time", spec=_lines(losses, times.channel, "loss"))
        )
    if rates:
        panels.append(
            Panel(
                title="learning rate over time",
                spec=_lines(rates, times.channel, "rate", from_zero=True),
            )
        )
    if not panels:
        return None
    caption = (
        "Loss and accuracy at the end of every epoch, the test part included where it is "
        "measured; training loss and learning rate of the steps over time."
    )
    figure = Figure(id="learning", caption=caption, panels=panels, legend=_legend(_CURVES))
    return Section(id="learning", title="Learning", blocks=[figure])


_CURVES = series_styles(["training", "validation", "test"])


def _epoch_rows(
    state: ObservedRun, epochs: Sequence[Epoch], keys: dict[str, str], *, scale: float
) -> Rows:
    rows: Rows = [
        {"series": series, "epoch": one.epoch + 1, "value": finite(value * scale)}
        for series, key in keys.items()
        for one in epochs
        if (value := getattr(one, key)) is not None
    ]
    # Evaluations count epochs that are over; the test part is measured at the end, or at each.
    name = "loss" if "train_loss" in keys.values() else "accuracy"
    rows += [
        {"series": "test", "epoch": max(1, one.epoch), "value": finite(value * scale)}
        for (part, _), one in state.evaluations.items()
        if part == "test" and (value := getattr(one, name)) is not None
    ]
    return [row for row in rows if row["value"] is not None]


def _lines(rows: Rows, x: Spec, title: str, *, from_zero: bool = False) -> Spec:
    present = list(dict.fromkeys(row["series"] for row in rows))
    styles = {name: _CURVES.get(name) or _CURVES["training"] for name in present}
    y = axis("value", title, **(_FROM_ZERO if from_zero else {}))
    return lines(rows, styles, x, y, points="epoch" in rows[0])


def _legend(styles: dict[str, Style]) -> list[Swatch]:
    return [Swatch(label=name, colour=one.colour, dash=one.dash) for name, one in styles.items()]


def speed_section(live: LiveRun) -> Section | None:
    """Draw samples per second over time, and the shares of every worker's time."""
    state = live.state
    if not state.steps.totals:
        return None
    times = TimeAxis(state.end_s)
    points = list(state.steps.over_time())
    # The last stretch of a live run is not over, and would look like a fall.
    whole = points[:-1] if live.is_live and len(points) > 1 else points
    rows: Rows = [
        {
            "series": "all workers",
            "time": times.at(time_s),
            "value": finite(sums.samples / state.steps.width_s),
        }
        for time_s, sums in whole
    ]
    styles = series_styles(["all workers"])
    speed = lines(
        rows, styles, times.channel, axis("value", "samples/s", **_FROM_ZERO), points=False
    )
    blocks: list[Block] = [
        Figure(
            id="speed",
            caption="Samples per second over all workers.",
            panels=[Panel(title="samples per second", spec=speed)],
        ),
        _share_figure(state),
        _worker_table(state),
    ]
    return Section(id="speed", title="Speed and where the time goes", blocks=blocks)


def _share_figure(state: ObservedRun) -> Figure:
    rows: Rows = []
    for worker, sums in sorted(state.steps.totals.items(), key=lambda one: _natural(one[0])):
        seconds = sums.seconds
        total = sum(seconds.values()) or 1.0
        rows += [
            {"bar": worker, "part": name, "rank": rank, "amount": finite(100 * spent / total)}
            for rank, (name, spent) in enumerate(seconds.items())
        ]
    swatches = [Swatch(label=name, colour=tint, is_field=True) for name, tint in SHARES.items()]
    spec = stacked_bars(rows, list(SHARES), swatches, "share of the worker's time, %")
    return Figure(
        id="shares",
        caption="Where the time of each worker went so far: reading input, computing (forward, "
        "backward, update), communicating, and waiting for others.",
        panels=[Panel(title="shares of time by worker", spec=spec)],
        legend=swatches,
    )


def _natural(name: str) -> tuple[str, int]:
    kind, _, digits = name.rpartition("-")
    return (kind, int(digits)) if digits.isdigit() else (name, 0)


def _worker_table(state: ObservedRun) -> Table:
    recent, recent_s = state.steps.recent(RECENT_S)
    every = add_sums(list(recent.values())).samples
    rows = []
    for worker, sums in sorted(state.steps.totals.items(), key=lambda one: _natural(one[0])):
        now = recent.get(worker)
        samples = now.samples if now is not None else 0.0
        spent = sum(sums.seconds.values()) or 1.0
        started = state.processes.get(worker)
        rows.append(
            {
                label("worker"): text(worker),
                label("machine"): text(started.host if started else None),
                Column("samples", "samples"): number(sums.samples, 0),
                Column("now", "now", "samples/s"): number(
                    samples / recent_s if recent_s else None, 0
                ),
                Column("batch_share", "share of samples", "% now"): number(
                    samples / every if every else None, 1, scale=100
                ),
                **{
                    Column(f"{name}_share", name, "%"): number(one / spent, 0, scale=100)
                    for name, one in sums.seconds.items()
                },
            }
        )
    caption = f"Workers: present figures are means over the last {RECENT_S:.0f} seconds or so."
    return table_of("workers", caption, rows)


def server_section(live: LiveRun) -> Section | None:
    """Show staleness, and the load of the servers."""
    servers = [live.state.servers[key] for key in sorted(live.state.servers)]
    counts: dict[str, Counter[int]] = {}
    for server in servers:
        for worker, stats in server.staleness.items():
            counts.setdefault(f"worker-{worker}", Counter()).update(stats.histogram)
    blocks: list[Block] = []
    together = sum(counts.values(), Counter())
    if together:
        styles = series_styles(["all workers"])
        rows = histogram_rows("all workers", together, bins_of([together]))
        spec = histogram(rows, styles, "staleness, updates", "share of gradients, %")
        panel = Panel(title="staleness of applied gradients", spec=spec)
        caption = "Updates between a worker's read and the application of its gradient."
        blocks.append(Figure(id="staleness", caption=caption, panels=[panel]))
    if not servers:
        return None
    blocks.append(
        table_of(
            "servers",
            "Parameter servers since they began to serve.",
            [
                {
                    label("server"): text(f"server-{one.server}"),
                    Column("version", "updates"): number(one.version, 0),
                    Column("updates_per_s", "updates/s"): number(one.updates_per_s, 1),
                    Column("busy_share", "busy", "%"): number(one.busy_share, 0, scale=100),
                    Column("queue_max", "longest queue"): number(one.queue_max, 0),
                    Column("dropped", "gradients dropped"): number(one.dropped, 0),
                }
                for one in servers
            ],
        )
    )
    return Section(id="servers", title="Servers and staleness", blocks=blocks)


def switch_section(live: LiveRun) -> Section | None:
    """List changes of strategy with their reasons."""
    if not live.state.switches:
        return None
    found = [
        Line(time_s, "controller", event.handover, describe_switch(event))
        for time_s, event in live.state.switches
    ]
    return Section(id="switches", title="Switches", blocks=[_line_table("switches", found)])


def event_section(live: LiveRun) -> Section | None:
    """List the latest events of all processes, newest first."""
    found = sorted(live.state.lines, key=lambda one: -one.time_s)
    if not found:
        return None
    return Section(
        id="events", title="Events", blocks=[_line_table("events", found[:MAX_SHOWN_LINES])]
    )


def _line_table(id: str, found: Sequence[Line]) -> Table:
    return tabulate(
        id,
        found,
        [
            (Column("time_s", "time"), lambda one: Value(format_clock(one.time_s), one.time_s)),
            text_field("process", "process"),
            text_field("kind", "kind"),
            (
                Column("text", "event", is_text=True, wraps=True),
                lambda one: Value(one.text, one.text, one.mark),
            ),
        ],
    )
