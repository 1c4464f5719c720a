"""Make the views of the dashboard: a run, a comparison of runs, a study, a plan.

A view is polled by one thread at a time and yields sections; it reads only what has changed since.
Kinds of views are entries of `VIEWS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from phalanx.dashboard.actions import possible_actions
from phalanx.dashboard.comparison import comparison_sections
from phalanx.dashboard.library import Library, LibraryEntry, file_stamp
from phalanx.dashboard.live_run import LiveRun
from phalanx.dashboard.machine_sections import machine_section, map_section
from phalanx.dashboard.plan_sections import expected_table, front_figure
from phalanx.dashboard.run_sections import (
    event_section,
    fault_section,
    learning_section,
    progress_section,
    server_section,
    speed_section,
    switch_section,
)
from phalanx.dashboard.study_sections import cell_table, metric_figure
from phalanx.errors import SpecError
from phalanx.plan.planfile import (
    PLAN,
    Plan,
    PredictedVsMeasured,
    compare_with_run,
    plan_of_run,
    read_plan,
)
from phalanx.records.rundir import RunDir
from phalanx.records.study import JOURNAL, MANIFEST, StudyDir
from phalanx.records.summary import Summary
from phalanx.report.document import Block, Section, Table, line

_RUN_SECTIONS = (
    progress_section,
    fault_section,
    learning_section,
    speed_section,
    switch_section,
    server_section,
    machine_section,
    map_section,
)


class Describers(msgspec.Struct, frozen=True, kw_only=True):
    """How the commands describe what they share with the dashboard; the caller passes them in."""

    study: Callable[[StudyDir], list[Block]]
    plan: Callable[[Plan], list[Block]]
    versus: Callable[[list[PredictedVsMeasured]], Table]
    result: Callable[[Summary], list[Block]]


class View(ABC):
    """Something to look at, as sections of `report.document`."""

    title: str

    @abstractmethod
    def poll(self) -> bool:
        """Read what is new; tell whether the sections may differ from the last ones."""

    @abstractmethod
    def sections(self) -> list[Section]:
        """Describe the present state."""

    @property
    def is_behind(self) -> bool:
        """Whether there is more to read at once."""
        return False

    @property
    def state(self) -> str:
        """State of the run, if it is one."""
        return ""

    @property
    def actions(self) -> list[str]:
        """Names of `actions.ACTIONS` that may be taken now."""
        return []


class SingleRunView(View):
    """One run, live or over."""

    def __init__(self, run: RunDir, describers: Describers) -> None:
        self.title = run.name
        self.live = LiveRun(run)
        self._describers = describers

    def poll(self) -> bool:
        """Read the new records of all processes."""
        return self.live.poll()

    @property
    def is_behind(self) -> bool:
        """Whether records are left to read."""
        return self.live.num_bytes_left > 0

    @property
    def state(self) -> str:
        """State of the run."""
        return self.live.status.state

    @property
    def actions(self) -> list[str]:
        """Changes that the run can take now."""
        return possible_actions(self.live)

    def sections(self) -> list[Section]:
        """Describe the run from its progress to its events."""
        found = [make(self.live) for make in _RUN_SECTIONS]
        ending = [self._predicted(), self._result(), event_section(self.live)]
        return [one for one in (*found, *ending) if one is not None]

    def _result(self) -> Section | None:
        summary = self._summary()
        if summary is None:
            return None
        blocks = self._describers.result(summary)
        return Section(id="result", title="Result", blocks=blocks)

    def _predicted(self) -> Section | None:
        try:
            plan = plan_of_run(self.live.run)
        except SpecError as error:
            return Section(id="plan", title="Plan", blocks=[line(str(error), "doubt")])
        if plan is None:
            return None
        blocks: list[Block] = [line(plan.sentence, "lead")]
        summary = self._summary()
        if summary is not None:
            blocks.append(self._describers.versus(compare_with_run(plan, summary)))
        else:
            blocks.append(expected_table(plan, self.live))
        return Section(id="plan", title="Predicted and measured", blocks=blocks)

    def _summary(self) -> Summary | None:
        # Written while the controller ends: a live run may have that of an earlier attempt.
        return None if self.live.is_live else self.live.run.read_summary()


class ComparisonView(View):
    """Several runs beside each other."""

    def __init__(self, runs: Sequence[RunDir]) -> None:
        self.title = "comparison"
        self._lives = [LiveRun(run) for run in runs]

    def poll(self) -> bool:
        """Read the new records of all runs."""
        # Every run is read, whether or not one before it has changed.
        changed = [live.poll() for live in self._lives]
        return any(changed)

    @property
    def is_behind(self) -> bool:
        """Whether records of any run are left to read."""
        return any(live.num_bytes_left for live in self._lives)

    def sections(self) -> list[Section]:
        """Describe the runs in tables and charts of their curves."""
        return comparison_sections(self._lives)


class _FileView(View):
    """What follows from a few files that are replaced or appended to."""

    def __init__(self, *files: Path) -> None:
        self._files = files
        self._stamps: list[object] = []

    def poll(self) -> bool:
        """Look whether any of the files has changed."""
        now: list[object] = [file_stamp(path) for path in self._files]
        changed = now != self._stamps
        self._stamps = now
        return changed


class StudyView(_FileView):
    """A study with its running statistics."""

    def __init__(self, path: Path, describers: Describers) -> None:
        self._study = StudyDir.open(path)
        super().__init__(path / MANIFEST, path / JOURNAL)
        self.title = self._study.manifest().title
        self._describe = describers.study

    def sections(self) -> list[Section]:
        """Describe cells, means with intervals, and the equivalence gate so far."""
        manifest = self._study.manifest()
        figure = metric_figure(self._study, manifest)
        progress: list[Block] = [*([figure] if figure else [])]
        progress.append(cell_table(manifest, self._study.trials()))
        return [
            Section(id="progress", title="Progress", blocks=progress),
            Section(id="study", title="Results so far", blocks=self._describe(self._study)),
        ]


class PlanView(_FileView):
    """A plan with its candidates."""

    def __init__(self, path: Path, describers: Describers) -> None:
        super().__init__(path)
        self.title = f"plan {path.name if path.name != PLAN else path.parent.name}"
        self._path = path
        self._describe = describers.plan

    def sections(self) -> list[Section]:
        """Describe the choice, the front, and the alternatives."""
        plan = read_plan(self._path)
        figure = front_figure(plan)
        blocks = [*([figure] if figure else []), *self._describe(plan)]
        return [Section(id="plan", title="Plan", blocks=blocks)]


def open_view(library: Library, kind: str, ids: Sequence[str], describers: Describers) -> View:
    """Open the view of some entries of the library.

    Raises:
        SpecError: There is no such kind or entry.
    """
    entries = [library.find(one) for one in ids]
    make = VIEWS.get(kind)
    if make is None or not entries:
        raise SpecError(f"there is no view '{kind}'")
    return make(entries, describers)


VIEWS: dict[str, Callable[[Sequence[LibraryEntry], Describers], View]] = {
    "run": lambda entries, describe: SingleRunView(RunDir.open(entries[0].path), describe),
    "compare": lambda entries, _: ComparisonView([RunDir.open(one.path) for one in entries]),
    "study": lambda entries, describe: StudyView(entries[0].path, describe),
    "plan": lambda entries, describe: PlanView(entries[0].path, describe),
}
