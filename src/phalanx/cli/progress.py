"""Choose how a run is shown (live, plain lines), and compute and describe what both show.

A view is a context manager around the run, so the terminal is restored however the run ends.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from pathlib import Path

from rich.console import Console

from phalanx.control.progress import Observer, ProcessLoss, RunProgress
from phalanx.records.events import Placed, Switched
from phalanx.records.summary import SplitSummary, Summary, SwitchSummary
from phalanx.report.format import count_noun, format_bytes, format_duration, format_places
from phalanx.spec.job import JobSpec
from phalanx.split.placement import DATA_PARALLEL, SplitForecast
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

    def declared(self, job: JobSpec) -> None:
        """Take the numbers of epochs and samples from the script."""
        self._job = job

    def printed(self, text: str) -> None:
        """Show what the chief's script prints."""
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)

    def placed(self, placed: Placed) -> None:
        """Show the placement of a split network, and its forecast."""
        for line in placement_lines(placed):
            self._console.print(line, soft_wrap=True, markup=False)

    def process_lost(self, loss: ProcessLoss) -> None:
        """Show which process was lost, and what becomes of it."""
        self.noted(describe_loss(loss))

    def noted(self, message: str) -> None:
        """Show a permanent line."""
        self._console.print(message, soft_wrap=True, markup=False)

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
    """Describe a job in one line; what a script decides is not known before it runs."""
    if job.program is not None:
        workers = count_noun(job.workers, "worker")
        return f"{job.program.name}, {job.strategy.name}, {workers}"
    return (
        f"{job.model.name} on {job.data.name}, {job.strategy.name}, "
        f"{count_noun(job.workers, 'worker')}, global batch {job.global_batch}, "
        f"{count_noun(job.epochs, 'epoch')}"
    )


def describe_loss(loss: ProcessLoss) -> str:
    """Describe a lost process in one line: the cause, and what becomes of it."""
    return f"lost: {loss.cause}; {loss.remedy}"


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


def placement_lines(placed: Placed) -> list[str]:
    """Describe the placement with its forecast beside those of naive placements."""
    forecast = placed.forecast
    best = ", the best of all" if placed.proven else ""
    lines = [f"placement {forecast.placement}{best}: {format_places(forecast.places)}"]
    lines.append(f"predicted: {_figures(forecast)}")
    lines += [f"  {other.placement} would be: {_figures(other)}" for other in placed.others]
    return lines + [f"  {reason}" for reason in data_parallel_reasons(placed)]


def data_parallel_reasons(placed: Placed) -> list[str]:
    """Compare the forecast of the split with that of data parallelism."""
    other = next((one for one in placed.others if one.placement == DATA_PARALLEL), None)
    if other is None:
        return []
    own = placed.forecast
    faster, slower = ("split", "data parallelism")
    factor = other.step_s / own.step_s
    if factor < 1:
        faster, slower, factor = slower, faster, 1 / factor
    sent = other.sent_bytes / max(1, own.sent_bytes)
    traffic = f"sends {sent:,.0f} times less" if sent >= 1 else f"sends {1 / sent:,.1f} times more"
    return [
        f"{faster} is expected to be {factor:.1f} times as fast as {slower}: splitting {traffic}, "
        f"and its busiest worker computes {format_duration(max(own.busy_s))} of each step, against "
        f"{format_duration(max(other.busy_s))}"
    ]


def _figures(forecast: SplitForecast) -> str:
    return (
        f"step {format_duration(forecast.step_s)}, imbalance {forecast.imbalance:.2f}, "
        f"{format_bytes(forecast.sent_bytes)} per step"
    )


def split_rows(split: SplitSummary) -> list[tuple[str, str]]:
    """Return predicted beside measured figures, for the result of a run."""
    kinds = ", ".join(f"{kind} {format_bytes(size)}" for kind, size in split.bytes_by_kind.items())
    return [
        ("split", f"{split.placement}: {format_places(split.places)}"),
        (
            "",
            f"step {format_duration(split.step_s)} (predicted "
            f"{format_duration(split.predicted_step_s)}), imbalance {split.imbalance:.2f} "
            f"({split.predicted_imbalance:.2f}), per step {format_bytes(split.bytes_per_step)} "
            f"({format_bytes(split.predicted_bytes_per_step)})",
        ),
        ("", f"sent in all: {kinds or 'nothing'}"),
    ]
