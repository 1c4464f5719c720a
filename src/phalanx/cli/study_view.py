"""Show the progress of a study: live in a terminal, else as plain lines.

Every trial leaves one line when it ends; on a terminal the lines below it show what runs now and
how long the rest will take.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from phalanx.cli.screen import BAR_DONE_STYLE, BAR_STYLE, WARNING_STYLE, open_live
from phalanx.records.study import StudyDir, StudyManifest, Trial
from phalanx.report.format import count_noun, format_duration, format_percent
from phalanx.study.places import TrialPlace
from phalanx.study.runner import RunningTrial, StudyObserver
from phalanx.study.stopping import StudyEstimate

_REDRAW_S = 0.5
_BAR_COLUMNS = 24


class PlainStudyView(StudyObserver, AbstractContextManager["PlainStudyView"]):
    """Writes a line when the study starts and when each trial ends."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __exit__(self, *_: object) -> None:
        """Give the terminal back, if it was taken."""

    def study_started(
        self, study: StudyDir, manifest: StudyManifest, outlook: StudyEstimate
    ) -> None:
        """Write the plan and the study directory."""
        self.write(Text(describe_study(study, manifest, outlook)))

    def moved(self, running: Sequence[RunningTrial], outlook: StudyEstimate) -> None:
        """Do nothing: progress within a trial is only drawn live."""

    def trial_ended(self, trial: Trial, outlook: StudyEstimate) -> None:
        """Write the result and the estimated time of the rest."""
        self.write(describe_trial(trial, outlook))

    def trial_put_off(self, trial: Trial, left: TrialPlace) -> None:
        """Write which machine was lost, and on which the trial begins anew."""
        name = " ".join(f"{axis}={label}" for axis, label in trial.settings.items())
        again = f"begins anew on {', '.join(left.machines)}"
        self.write(Text(f"{name}  seed {trial.seed}  {again}: {trial.cause}", WARNING_STYLE))

    def write(self, line: Text) -> None:
        """Write one line, unwrapped."""
        self._console.print(line, soft_wrap=True)


class LiveStudyView(PlainStudyView):
    """A plain view that also redraws running trials below the lines of ended ones."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = open_live(console, "starting")
        self._drawn_s = 0.0

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def study_started(
        self, study: StudyDir, manifest: StudyManifest, outlook: StudyEstimate
    ) -> None:
        """Write the plan and the study directory, and start drawing."""
        super().study_started(study, manifest, outlook)
        self._live.start(refresh=True)

    def moved(self, running: Sequence[RunningTrial], outlook: StudyEstimate) -> None:
        """Redraw, unless that was done a moment ago."""
        now_s = time.monotonic()
        if now_s - self._drawn_s >= _REDRAW_S:
            self._drawn_s = now_s
            self._live.update(Group(_bars(running, outlook)), refresh=True)


def choose_study_view(console: Console) -> PlainStudyView:
    """Return the view that suits a console."""
    is_plain = not console.is_terminal or console.is_dumb_terminal
    return PlainStudyView(console) if is_plain else LiveStudyView(console)


def describe_study(study: StudyDir, manifest: StudyManifest, outlook: StudyEstimate) -> str:
    """Describe the trials left and the directory of a study in one line."""
    cells, runs = count_noun(len(manifest.cells), "cell"), count_noun(outlook.expected, "run")
    done = f", {outlook.ended} of them done" if outlook.ended else ""
    return f"{manifest.title}: {cells}, {runs}{done}: {study.path}"


def describe_trial(trial: Trial, outlook: StudyEstimate) -> Text:
    """Describe the result of a trial in one line."""
    number = f"{outlook.ended}/{outlook.expected}"
    name = " ".join(f"{axis}={label}" for axis, label in trial.settings.items())
    left = f"  {format_duration(outlook.left_s)} left" if outlook.left_s else ""
    took = format_duration(trial.elapsed_s)
    if trial.state == "finished":
        return Text(f"{number}  {name}  seed {trial.seed}  {took}{left}")
    return Text(f"{number}  {name}  seed {trial.seed}  failed: {trial.cause}{left}", WARNING_STYLE)


def _bars(running: Sequence[RunningTrial], outlook: StudyEstimate) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    total = max(1, outlook.expected)
    done = outlook.ended + sum(trial.share for trial in running)
    failed = f", {outlook.failed} failed" if outlook.failed else ""
    left = f"{format_duration(outlook.left_s)} left" if outlook.left_s is not None else ""
    table.add_row(
        "study",
        _bar(done / total, BAR_DONE_STYLE),
        f"{outlook.ended}/{outlook.expected} runs{failed}",
        left,
    )
    for trial in running:
        place = ", ".join(trial.place.machines[:8]) or (
            f"cores {','.join(str(core) for core in trial.place.cores[:8])}"
        )
        table.add_row(
            Text(f"{trial.planned.cell} r{trial.planned.repeat + 1}", no_wrap=True),
            _bar(trial.share, BAR_STYLE),
            f"{format_percent(trial.share)} {trial.activity}",
            f"{format_duration(trial.elapsed_s)}, {place}",
        )
    return table


def _bar(share: float, style: str) -> ProgressBar:
    return ProgressBar(total=1.0, completed=share, width=_BAR_COLUMNS, complete_style=style)
