"""Read and write the study directory: the plan, the journal and the runs of one matrix.

    <study>/
      study.json       the plan: axes, cells, gate, target, parts of the report
      journal.jsonl    one line per ended trial, in the order in which they ended
      runs/            an ordinary run directory per trial
      abandoned/       run directories of trials that were interrupted or run again; never counted
      logs/            output of the process of each trial
      lock             held by the process that runs the study

A trial counts when its line is in the journal and not before, so an interrupted study is continued
by running what has no line. Written by `study`, read by `report` and `cli`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from phalanx.errors import SpecError, StoreError
from phalanx.records.log import ends_torn
from phalanx.records.rundir import RunDir, encode_pretty, read_record
from phalanx.store.atomic import write_atomically

_PREFIXES = ("study-", "tune-")
MANIFEST = "study.json"
JOURNAL = "journal.jsonl"


class PlannedCell(msgspec.Struct, kw_only=True):
    """One combination of the axes."""

    id: str
    """Short, unique, fit for a directory name."""
    settings: dict[str, str]
    """Axis to label."""
    job: dict[str, Any] = {}
    """The whole job, all defaults filled in; its seed is replaced in each trial."""
    runs: int | None = None
    """Repeats of this cell; None: those of the study."""


class PlannedRepeats(msgspec.Struct, kw_only=True):
    """Number of repeats of each cell."""

    min: int
    max: int
    metric: str | None = None
    """Metric whose interval must be narrow enough; None: the number is fixed."""
    half_width: float | None = None
    relative: bool = True
    """Whether `half_width` is a share of the mean rather than in the metric's unit."""
    confidence: float = 0.95


class PlannedGate(msgspec.Struct, kw_only=True):
    """Metric and tolerance of the equivalence test before speeds are compared."""

    metric: str
    tolerance: float
    axis: str
    """The axis on which the baseline lies."""
    baseline: str
    """Its label; each cell is compared with the cell that differs in this axis only."""
    confidence: float = 0.95


class RecommendSettings(msgspec.Struct, kw_only=True):
    """Tolerance and goal of the recommendation."""

    accuracy_loss: float = 0.005
    """Loss of accuracy, as a share of 1, that counts as none."""
    prefer: str = "time"
    """time, cost or energy."""
    price_per_hour: float | None = None
    """Price of one machine for an hour, for cost."""
    currency: str = "EUR"


class PlannedPart(msgspec.Struct, kw_only=True):
    """A further part of the report."""

    name: str
    """Name of an installed one, or import path."""
    file: str | None = None
    """File in this directory that it shows."""


class PlannedPool(msgspec.Struct, kw_only=True):
    """The machines of a study."""

    file: str
    """The pool file."""
    machines: list[str]
    """Names of the machines that may be used."""
    build_env: bool = False
    """Whether to build an environment on the machines."""


class StudyManifest(msgspec.Struct, kw_only=True):
    """The plan of a study."""

    name: str
    title: str
    axes: dict[str, list[str]]
    """Labels of each axis in the order of the file."""
    cells: list[PlannedCell]
    """Every combination that is run, in the order of the file."""
    metric: str
    """Metric compared between cells, such as train_s."""
    repeats: PlannedRepeats
    seeds: list[int]
    """Seed of repeat 0, 1, ...; the same in every cell, so that differences are paired."""
    gate: PlannedGate | None = None
    target: dict[str, float] = {}
    """Metric to value, for the time that it takes to get there."""
    report_parts: list[PlannedPart] = []
    """Further parts of the report."""
    recommend: RecommendSettings = msgspec.field(default_factory=RecommendSettings)
    budget_s: float | None = None
    trial_limit_s: float | None = 3600.0
    """A trial that has not moved for so long is ended; None: never."""
    parallel: int | str = 1
    pool: PlannedPool | None = None
    """None: trials run on this machine."""
    wall_s: float = 0.0
    """When the study was created."""
    versions: dict[str, str] = {}
    data_root: str = ""
    cache_root: str = ""

    def cell(self, cell_id: str) -> PlannedCell:
        """Return the cell with this id."""
        return next(cell for cell in self.cells if cell.id == cell_id)

    def repeats_of(self, cell_id: str) -> PlannedRepeats:
        """Return how often a cell is run."""
        runs = self.cell(cell_id).runs
        return self.repeats if runs is None else PlannedRepeats(min=runs, max=runs)


class Trial(msgspec.Struct, kw_only=True):
    """One run of one cell that finished or failed."""

    cell: str
    settings: dict[str, str]
    seed: int
    repeat: int
    state: str  # finished, failed
    run: str | None
    """Name below runs/; None if it failed before there was a run directory."""
    elapsed_s: float
    cores: list[int]
    cause: str | None = None
    wall_s: float = 0.0
    """When it was started."""
    exit_code: int = 0
    machines: list[str] = []
    """Machines of the pool that it had to its end; empty: it ran on this machine."""

    @property
    def span(self) -> tuple[float, float]:
        """Start and end, in wall time."""
        return self.wall_s, self.wall_s + self.elapsed_s


def usual_number(numbers: Iterable[int]) -> int:
    """Return how many machines most runs of a study had, the greater number if two are as frequent.

    Places of trials are alike when a study begins; afterwards they only lose machines, so that the
    number tells which runs can be compared.
    """
    counts = Counter(numbers)
    return max(counts, key=lambda number: (counts[number], number), default=0)


def on_other_machines(trials: Sequence[Trial]) -> list[Trial]:
    """Return the finished trials that had another number of machines than most."""
    finished = [trial for trial in trials if trial.state == "finished"]
    usual = usual_number(len(trial.machines) for trial in finished)
    return [trial for trial in finished if len(trial.machines) != usual]


class StudyDir:
    """Paths and files of one study."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, manifest: StudyManifest) -> StudyDir:
        """Create a new study directory.

        Raises:
            SpecError: It already holds a study.
            StoreError: It cannot be written.
        """
        study = cls(path)
        if is_study(path):
            raise SpecError(
                f"{path} already holds a study; go on with `phalanx study resume {path}` or choose "
                "another directory with --to",
                path=str(path),
            )
        try:
            for part in (study.runs, study.abandoned, study.logs):
                part.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot create the study directory {path}: {error.strerror}; "
                "choose another place with --to",
                path=str(path),
            ) from error
        study.write_manifest(manifest)
        return study

    @classmethod
    def open(cls, path: Path) -> StudyDir:
        """Open an existing study directory."""
        if not is_study(path):
            raise SpecError(f"{path} is not a study directory: it has no {MANIFEST}")
        return cls(path)

    @property
    def runs(self) -> Path:
        """Directory of the runs of trials."""
        return self.path / "runs"

    @property
    def abandoned(self) -> Path:
        """Directory of the runs of interrupted trials."""
        return self.path / "abandoned"

    @property
    def logs(self) -> Path:
        """Directory of the output of trials."""
        return self.path / "logs"

    def manifest(self) -> StudyManifest:
        """Read the plan."""
        return read_record(self.path / MANIFEST, StudyManifest)

    def write_manifest(self, manifest: StudyManifest) -> None:
        """Replace the plan atomically."""
        write_atomically(self.path / MANIFEST, encode_pretty(manifest))

    def trials(self) -> list[Trial]:
        """Read all ended trials, oldest first; of a repeated trial, the last.

        A line that a crash cut off is ignored: its trial did not end.
        """
        latest: dict[tuple[str, int], Trial] = {}
        for trial in self._lines():
            key = (trial.cell, trial.repeat)
            latest.pop(key, None)
            latest[key] = trial
        return list(latest.values())

    def run(self, trial: Trial) -> RunDir:
        """Return the run directory of a trial that has one."""
        if trial.run is None:
            raise StoreError(f"trial {trial.repeat} of {trial.cell} ended before it had a run")
        return RunDir.open(self.runs / trial.run)

    def append(self, trial: Trial) -> None:
        """Append an ended trial to the journal; it is on disk when this returns."""
        path = self.path / JOURNAL
        line = msgspec.json.encode(trial) + b"\n"
        try:
            with path.open("ab") as file:
                if ends_torn(path):
                    # A killed study left a partial line; this one must not become part of it.
                    line = b"\n" + line
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StoreError(
                f"cannot write {path}: {error.strerror}; free some space and go on with "
                f"`phalanx study resume {self.path}`",
                path=str(path),
            ) from error

    def _lines(self) -> list[Trial]:
        path = self.path / JOURNAL
        if not path.exists():
            return []
        decoder = msgspec.json.Decoder(Trial)
        found = []
        for line in path.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                continue
            try:
                found.append(decoder.decode(line))
            except msgspec.DecodeError:
                continue
        return found


def list_studies(root: Path) -> list[StudyDir]:
    """List all study directories below `root`, oldest first."""
    if not root.is_dir():
        return []
    found = [StudyDir(path) for path in root.iterdir() if is_study(path)]
    return sorted(found, key=lambda study: (study.path / MANIFEST).stat().st_mtime)


def find_study(root: Path, name: str) -> StudyDir:
    """Find a study by path, by name with or without `study-`, by unique prefix, or `last`.

    Raises:
        SpecError: There is none, or several could be meant.
    """
    given = name
    if is_study(Path(given)):
        return StudyDir(Path(given))
    studies = list_studies(root)
    # Documents write `runs/study-digits`, whatever the directory of runs is.
    name = name.removeprefix("runs/").rstrip("/")
    if name == "last" and studies:
        return studies[-1]
    named = (name, *(f"{prefix}{name}" for prefix in _PREFIXES))
    found = [one for one in studies if one.path.name in named] or [
        one for one in studies if one.path.name.startswith(named)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(one.path.name for one in found[:5])
        raise SpecError(f"study '{name}' could be any of {names}; write more of the name")
    if Path(given).is_dir():
        raise SpecError(f"{given} is not a study directory: it has no {MANIFEST}")
    raise SpecError(f"no study '{name}' in {root}; `phalanx study list` shows what is there")


def is_study(path: Path) -> bool:
    """Tell whether a directory holds a study."""
    return (path / MANIFEST).is_file()
