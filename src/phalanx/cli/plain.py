"""Show a run as plain lines, for files, pipes and terminals that cannot redraw.

One line per epoch and one every ten seconds in between, so that a log of hours stays readable.
"""

from __future__ import annotations

from pathlib import Path

from phalanx.cli.progress import (
    RunView,
    current_epoch,
    describe_run,
    describe_switch,
    step_of_epoch,
)
from phalanx.control.progress import RunProgress
from phalanx.records.events import Switched
from phalanx.report.format import (
    format_accuracy,
    format_clock,
    format_duration,
    format_loss,
    format_percent,
    format_rate,
    format_shares,
)
from phalanx.spec.job import JobSpec
from phalanx.wire.messages import EpochFigures

INTERVAL_S = 10.0


class PlainView(RunView):
    """A view that writes lines and never moves the cursor."""

    _elapsed_s = 0.0
    _next_s = INTERVAL_S

    def run_started(self, run_dir: Path, job: JobSpec) -> None:
        """Write the job and the run directory."""
        super().run_started(run_dir, job)
        self._elapsed_s, self._next_s = 0.0, INTERVAL_S
        self._write(f"{describe_run(job)}: {run_dir}")

    def progressed(self, progress: RunProgress) -> None:
        """Write a line, unless one was written within ten seconds."""
        self._elapsed_s = progress.elapsed_s
        if progress.elapsed_s >= self._next_s:
            self._next_s = progress.elapsed_s + INTERVAL_S
            self._write(f"{format_clock(progress.elapsed_s)}  {self._progress_line(progress)}")

    def epoch_done(self, report: EpochFigures) -> None:
        """Write the figures of the epoch."""
        self._next_s = self._elapsed_s + INTERVAL_S
        seconds, rate = self._rate.take(report)
        parts = [
            format_clock(self._elapsed_s),
            f"epoch {report.epoch + 1}/{self._job.epochs} done",
            *([format_duration(seconds)] if seconds is not None else []),
            *([format_rate(rate)] if rate is not None else []),
            f"train loss {format_loss(report.train_loss)}",
            *_accuracy(report.train_accuracy),
        ]
        if report.val_loss is not None:
            parts += [f"validation loss {format_loss(report.val_loss)}"]
            parts += _accuracy(report.val_accuracy)
        elif report.val_accuracy is not None:
            # A script may report one without the other.
            parts += [f"validation accuracy {format_accuracy(report.val_accuracy)}"]
        self._write("  ".join(parts))

    def switched(self, switch: Switched) -> None:
        """Write that the strategy has changed."""
        self._write(f"{format_clock(self._elapsed_s)}  switched: {describe_switch(switch)}")

    def noted(self, message: str) -> None:
        """Write a line."""
        self._write(f"{format_clock(self._elapsed_s)}  {message}")

    def _progress_line(self, progress: RunProgress) -> str:
        if progress.loss is None:
            return progress.activity
        step, steps = step_of_epoch(progress, self._job.global_batch)
        parts = [
            f"epoch {current_epoch(progress)}/{progress.epochs}",
            format_percent(progress.epoch_share),
            f"step {step}/{steps}",
            format_rate(progress.samples_per_s),
            f"loss {format_loss(progress.loss)}",
            *_accuracy(progress.accuracy),
            f"lr {progress.lr:.4g}",
            f"ETA {format_duration(progress.eta_s)}",
        ]
        return "  ".join([*parts, format_shares(progress.time_shares)])

    def _write(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)


def _accuracy(accuracy: float | None) -> list[str]:
    """Return the figure, if the targets are classes."""
    return [] if accuracy is None else [f"accuracy {format_accuracy(accuracy)}"]
