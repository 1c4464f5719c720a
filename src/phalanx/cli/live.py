"""Show a run live in a terminal: five lines that redraw, and one permanent line per epoch.

Drawn by the controller's thread whenever it reports, so nothing of this view can outlive the run.
Everything fits 80 columns and never wraps; wider terminals get longer bars.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from phalanx.cli.progress import (
    RunView,
    current_epoch,
    describe_run,
    describe_switch,
    step_of_epoch,
)
from phalanx.cli.screen import (
    BAR_DONE_STYLE,
    BAR_STYLE,
    TIME_GLYPHS,
    TIME_STYLES,
    open_live,
    time_bar,
)
from phalanx.control.progress import RunProgress
from phalanx.records.events import Switched
from phalanx.records.summary import Summary
from phalanx.report.format import (
    NOTHING,
    count_noun,
    format_accuracy,
    format_clock,
    format_count,
    format_duration,
    format_loss,
    format_percent,
    format_rate,
)
from phalanx.spec.job import JobSpec
from phalanx.wire.messages import EpochFigures

# The eye does not read faster, and redrawing costs the workers' cores.
_REDRAW_S = 0.2
_LABEL_COLUMNS = 7
_EPOCH_COLUMNS = {
    "epoch": 9,
    "train loss": 12,
    "accuracy": 11,
    "val loss": 11,
    "val accuracy": 11,
    "samples/s": 12,
    "time": 12,
}
# Without classes there is no accuracy.
_ACCURACIES = {"accuracy", "val accuracy"}


class LiveView(RunView):
    """A view that redraws the state of the run in place."""

    _live: Live | None = None
    _drawn_s = 0.0
    _header_due = True

    def __exit__(self, *_: object) -> None:
        self._close()

    def run_started(self, run_dir: Path, job: JobSpec) -> None:
        """Print the job and the run directory, and start drawing."""
        super().run_started(run_dir, job)
        self._drawn_s = 0.0
        self._header_due = True
        self._print(Text(describe_run(job), "bold"))
        words = f"starting {count_noun(job.workers, 'worker')}"
        self._live = open_live(self._console, words)
        self._live.start(refresh=True)

    def progressed(self, progress: RunProgress) -> None:
        """Redraw, unless that was done a moment ago."""
        if self._live is None or progress.elapsed_s - self._drawn_s < _REDRAW_S:
            return
        self._drawn_s = progress.elapsed_s
        self._live.update(ProgressPanel(progress, self._job.global_batch), refresh=True)

    def epoch_done(self, report: EpochFigures) -> None:
        """Print a permanent line above the live part."""
        has_accuracy = (report.train_accuracy, report.val_accuracy) != (None, None)
        hidden = set() if has_accuracy else _ACCURACIES
        if self._header_due:
            self._header_due = False
            titles = {name: name for name in _EPOCH_COLUMNS} | {"val accuracy": "accuracy"}
            self._print(Text(_columns(titles, hidden), "dim"))
        seconds, rate = self._rate.take(report)
        cells = {
            "epoch": f"{report.epoch + 1}/{self._job.epochs}",
            "train loss": format_loss(report.train_loss),
            "accuracy": format_accuracy(report.train_accuracy),
            "val loss": format_loss(report.val_loss),
            "val accuracy": format_accuracy(report.val_accuracy),
            "samples/s": format_count(rate) if rate is not None else NOTHING,
            "time": format_duration(seconds),
        }
        self._print(Text(_columns(cells, hidden)))

    def switched(self, switch: Switched) -> None:
        """Print a permanent line above the live part."""
        self._print(Text(f"switched: {describe_switch(switch)}"))

    def run_finished(self, summary: Summary) -> None:
        """Stop drawing; the command shows the summary."""
        self._close()

    def _print(self, line: Text) -> None:
        self._console.print(line, no_wrap=True, overflow="ellipsis", crop=True)

    def _close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


class ProgressPanel:
    """The lines that redraw, laid out for the present width of the terminal."""

    def __init__(self, progress: RunProgress, global_batch: int) -> None:
        self._progress = progress
        self._step, self._steps = step_of_epoch(progress, global_batch)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        progress = self._progress
        if not progress.epoch_total:
            waited = format_clock(progress.elapsed_s)
            yield Text(f"{progress.activity}  {waited}", "dim", no_wrap=True, overflow="ellipsis")
            return
        yield self._bars()
        yield _line("now", self._figures())
        if progress.time_shares:
            yield _line("time", _time_shares(progress))
            # Room for the ^C that a terminal writes here: wrapped, it would shift the redrawing.
            width = max(0, options.max_width - _LABEL_COLUMNS - 4)
            yield _line("", time_bar(progress.time_shares, width))

    def _bars(self) -> Table:
        progress = self._progress
        done = min(1.0, (progress.epoch + progress.epoch_share) / progress.epochs)
        clock = format_clock(progress.elapsed_s)
        eta = format_clock(progress.eta_s) if progress.eta_s is not None else NOTHING
        epoch = f"epoch {current_epoch(progress)}/{progress.epochs}"
        step = f"step {self._step}/{self._steps}"
        grid = Table.grid(expand=True, padding=(0, 1, 0, 0))
        grid.add_column(width=_LABEL_COLUMNS - 1, no_wrap=True)
        grid.add_column(ratio=1)
        grid.add_column(width=5, justify="right", no_wrap=True)
        # Longer texts take from the bars, which they seldom do.
        grid.add_column(min_width=31, no_wrap=True, overflow="ellipsis")
        grid.add_row(
            "run", _bar(done), format_percent(done), f"{epoch}  {clock}  ETA {eta}", style="bold"
        )
        share = progress.epoch_share
        grid.add_row("epoch", _bar(share), format_percent(share), f"{step}  {progress.activity}")
        return grid

    def _figures(self) -> Text:
        progress = self._progress
        parts = [
            format_rate(progress.samples_per_s),
            f"loss {format_loss(progress.loss)}",
            *(
                [f"accuracy {format_accuracy(progress.accuracy)}"]
                if progress.accuracy is not None
                else []
            ),
            f"lr {progress.lr:.4g}",
        ]
        return Text("   ".join(parts))


def _columns(cells: Mapping[str, str], hidden: Set[str]) -> str:
    shown = ((cells[name], width) for name, width in _EPOCH_COLUMNS.items() if name not in hidden)
    return "".join(f"{cell:>{width}}" for cell, width in shown)


def _bar(share: float) -> ProgressBar:
    return ProgressBar(
        total=1.0,
        completed=share,
        complete_style=BAR_STYLE,
        finished_style=BAR_DONE_STYLE,
    )


def _time_shares(progress: RunProgress) -> Text:
    return Text("   ").join(
        Text(f"{TIME_GLYPHS[name]} {name} {format_percent(share)}", TIME_STYLES[name])
        for name, share in progress.time_shares.items()
    )


def _line(label: str, content: Text) -> Text:
    line = Text(f"{label:<{_LABEL_COLUMNS}}", no_wrap=True, overflow="ellipsis")
    return line.append_text(content)
