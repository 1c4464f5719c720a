"""Show the progress of a run in a notebook: one line and a bar that are drawn over again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from html import escape
from importlib import import_module
from pathlib import Path

from phalanx.control.progress import Observer, ProcessLoss, RunProgress
from phalanx.records.events import Placed, Switched
from phalanx.records.summary import Summary
from phalanx.report.format import format_accuracy, format_duration, format_loss, format_rate
from phalanx.spec.job import JobSpec
from phalanx.wire.messages import EpochFigures

Show = Callable[[str], None]
"""Shows HTML in place of what it showed before."""
_LEAST_S = 0.25


def notebook_view(wanted: bool | None) -> Sequence[Observer]:
    """Return the view of a notebook; none outside of one, or if it is not wanted."""
    show = None if wanted is False else _display()
    return [] if show is None else [NotebookView(show)]


class NotebookView(Observer):
    """Follow a run in the output of a cell."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._drawn_s = 0.0
        self._title = ""
        self._notes: list[str] = []

    def run_started(self, run_dir: Path, job: JobSpec) -> None:
        """Note what is trained, and where its records are."""
        self._title = f"{job.model.name} on {job.data.name}, {job.strategy.name}: {run_dir}"
        self._draw(0.0, "starting")

    def progressed(self, progress: RunProgress) -> None:
        """Draw bar, speed, loss and time left, a few times a second."""
        now = time.monotonic()
        if now - self._drawn_s < _LEAST_S:
            return
        self._drawn_s = now
        done = (progress.epoch + progress.epoch_share) / max(1, progress.epochs)
        parts = [
            progress.activity,
            f"epoch {min(progress.epoch + 1, progress.epochs)}/{progress.epochs}",
            format_rate(progress.samples_per_s),
        ]
        if progress.loss is not None:
            parts.append(f"loss {format_loss(progress.loss)}")
        if progress.accuracy is not None:
            parts.append(f"accuracy {format_accuracy(progress.accuracy)}")
        if progress.eta_s is not None:
            parts.append(f"{format_duration(progress.eta_s)} left")
        self._draw(done, ", ".join(part for part in parts if part))

    def epoch_done(self, report: EpochFigures) -> None:
        """Nothing: the curves of the result hold it."""

    def switched(self, switch: Switched) -> None:
        """Nothing: the result tells of switches."""

    def placed(self, placed: Placed) -> None:
        """Nothing: the result tells where parts were."""

    def process_lost(self, loss: ProcessLoss) -> None:
        """Note the loss below the bar."""
        self._notes.append(f"{loss.process}: {loss.cause}; {loss.remedy}")

    def noted(self, message: str) -> None:
        """Note a message below the bar."""
        self._notes.append(message)

    def run_finished(self, summary: Summary) -> None:
        """Draw the whole bar."""
        self._draw(1.0, f"{summary.state} after {format_duration(summary.elapsed_s)}")

    def _draw(self, share: float, text: str) -> None:
        notes = "".join(f"<br><small>{escape(note)}</small>" for note in self._notes[-5:])
        self._show(
            f"<div>{escape(self._title)}<br>"
            f"<progress value='{min(max(share, 0.0), 1.0):.3f}' max='1' style='width:300px'>"
            f"</progress> {escape(text)}{notes}</div>"
        )


def _display() -> Show | None:
    """Return how this notebook shows HTML; None outside of a notebook."""
    if "ipykernel" not in sys.modules:
        return None
    tools = import_module("IPython.display")
    handle = tools.display(tools.HTML(""), display_id=True)
    return lambda html: handle.update(tools.HTML(html))
