"""Choose how progress of a run is shown (live, plain lines), and compute what both show.

A view is a context manager around the run, so the terminal is restored however the run ends.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from pathlib import Path

from rich.console import Console

from phalanx.cli.placement import placement_lines
from phalanx.control.progress import Observer, RunProgress
from phalanx.records.events import Placed, Switched
from phalanx.records.summary import Summary, SwitchSummary
from phalanx.report.format import count_noun, format_duration
from phalanx.spec.job import JobSpec
from phalanx.wire.messages import EpochFigures


class RunView(Observer, AbstractContextManager["RunView"]):
    """An observer that holds a terminal during the run."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._job = JobSpec()
        self._rate = EpochRate()

    def __exit__(self, *_: object) -> None:
        """Give the terminal back, if it was taken."""

    def run_started(self, run_dir: Path, job: JobSpec) -> None:
        """Show the job; the same view may follow several runs."""
        self._job = job
        self._rate = EpochRate()

    def placed(self, placed: Placed) -> None:
        """Show the placement of a split network, and its forecast."""
        for line in placement_lines(placed):
            self._console.print(line, soft_wrap=True, markup=False)

    def run_finished(self, summary: Summary) -> None:
        """Stop drawing; the command shows the summary."""


def choose_view(console: Console, *, plain: bool = False) -> RunView:
    """Return the view that suits a console, or plain lines even on a terminal."""
    if plain or not console.is_terminal or console.is_dumb_terminal:
        from phalanx.cli.plain import PlainView

        return PlainView(console)
    from phalanx.cli.live import LiveView

    return LiveView(console)


class EpochRate:
    """Turns the running totals of epoch reports into time and throughput of each epoch."""

    def __init__(self) -> None:
        self._before: EpochFigures | None = None

    def take(self, report: EpochFigures) -> tuple[float | None, float | None]:
        """Return seconds of training and samples per second of this epoch.

        Both are None for the first report of a resumed run: the totals before it are unknown here.
        """
        before, self._before = self._before, report
        if before is None and report.epoch > 0:
            return None, None
        seconds = report.train_s - (before.train_s if before else 0.0)
        samples = report.samples - (before.samples if before else 0)
        return seconds, samples / seconds if seconds > 0 else None


def describe_run(job: JobSpec) -> str:
    """Describe a job in one line."""
    return (
        f"{job.model.name} on {job.data.name}, {job.strategy.name}, "
        f"{count_noun(job.workers, 'worker')}, global batch {job.global_batch}, "
        f"{count_noun(job.epochs, 'epoch')}"
    )


def describe_switch(switch: Switched | SwitchSummary) -> str:
    """Describe a switch in one line: both strategies, position, cause and pause."""
    same = switch.before == switch.after
    what = f"{switch.after} goes on" if same else f"{switch.before} → {switch.after}"
    pause = format_duration(switch.pause_s)
    return f"{what} after {switch.samples:,} samples ({switch.cause}), {pause} pause"


def step_of_epoch(progress: RunProgress, global_batch: int) -> tuple[int, int]:
    """Return the steps done in the present epoch, and the steps of an epoch."""
    return (
        math.ceil(progress.epoch_samples / global_batch),
        math.ceil(progress.epoch_total / global_batch),
    )


def current_epoch(progress: RunProgress) -> int:
    """Return the present epoch, counted from one."""
    return min(progress.epoch + 1, progress.epochs)
