"""Read from run and study directories the facts that a report needs.

A log consists almost wholly of step lines. Of those only the times are decoded, into sums; kinds
that no report shows are skipped by their first bytes. So hundreds of runs are read in seconds and
never kept whole. Only `make` calls this; all other modules work on the facts returned. Series of
resource use are averaged over stretches of time, so a chart and the mean beside it agree; memory
keeps the highest value of each stretch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from phalanx.errors import SpecError
from phalanx.records.bounded_samples import BoundedSamples, SampleEvent
from phalanx.records.cluster_use import ClusterUse, cluster_use
from phalanx.records.distribution import Distribution
from phalanx.records.events import (
    AnyEvent,
    Clock,
    Epoch,
    HostSample,
    ProcessSample,
    Started,
    Warned,
)
from phalanx.records.manifest import Manifest, read_manifest
from phalanx.records.predictions import PartPredictions
from phalanx.records.rundir import RunDir, list_runs
from phalanx.records.study import StudyDir, StudyManifest, Trial, is_study
from phalanx.records.summary import Summary
from phalanx.records.usage import ResourceUse, UsePoint, host_uses, process_uses, training_windows
from phalanx.spec.loader import job_from_mapping

MAX_POINTS = 120
"""Per line: more than a chart of this width can show."""
# The system counts processor time in hundredths of a second: shorter intervals show its ticks.
_SHORTEST_S = 0.25

_Timed = tuple[float, UsePoint]


class Resources(msgspec.Struct, frozen=True):
    """Resource use of one machine or process while a run trained, with a series for charts."""

    use: ResourceUse
    is_machine: bool

    @property
    def label(self) -> str:
        """Name in tables and legends."""
        return f"machine {self.use.name}" if self.is_machine else self.use.name

    def figure(self, key: str) -> float | None:
        """Return a total or mean by its name; traffic is known for machines, over all links."""
        value: float | dict[str, int] | None = getattr(self.use, key)
        if not isinstance(value, dict):
            return value
        return sum(value.values()) if self.is_machine else None


def thin(use: ResourceUse, *, is_machine: bool, max_points: int = MAX_POINTS) -> Resources:
    """Keep the totals, and downsample the series to at most so many points."""
    series = [_joined(part) for part in _stretches(use.series, max_points)]
    return Resources(msgspec.structs.replace(use, series=series), is_machine)


def _joined(part: Sequence[_Timed]) -> UsePoint:
    known = all(point.watts is not None for _, point in part)
    received = _mean(part, lambda point: sum(point.received_bytes_per_s.values()))
    sent = _mean(part, lambda point: sum(point.sent_bytes_per_s.values()))
    return msgspec.structs.replace(
        part[-1][1],
        cpu_cores=_mean(part, lambda point: point.cpu_cores),
        memory_bytes=max(point.memory_bytes for _, point in part),
        received_bytes_per_s={"all": received},
        sent_bytes_per_s={"all": sent},
        watts=_mean(part, lambda point: point.watts or 0.0) if known else None,
    )


def _stretches(points: Sequence[UsePoint], max_points: int) -> Iterator[list[_Timed]]:
    """Group points with their durations until each group is long enough."""
    if not points:
        return
    least_s = max(points[-1].t_s / max_points, _SHORTEST_S)
    before_s, group_s = 0.0, 0.0
    group: list[_Timed] = []
    for point in points:
        duration_s = max(0.0, point.t_s - before_s)
        before_s = point.t_s
        group.append((duration_s, point))
        group_s += duration_s
        if group_s >= least_s:
            yield group
            group, group_s = [], 0.0
    # The remainder is too short to be meaningful, unless it is the only group.
    if group and before_s < least_s:
        yield group


def _mean(part: Sequence[_Timed], value: Callable[[UsePoint], float]) -> float:
    total_s = sum(duration_s for duration_s, _ in part)
    if total_s == 0:
        return fmean(value(point) for _, point in part)
    return sum(duration_s * value(point) for duration_s, point in part) / total_s


_STEP = b'{"kind":"step"'
_KINDS = (Started, Clock, Epoch, Warned, ProcessSample, HostSample)
_WANTED = tuple(b'{"kind":"%s"' % kind.__name__.lower().encode() for kind in _KINDS)


class _StepTimes(msgspec.Struct):
    """The times of a step line that are summed here; the summary has the others."""

    forward_s: float
    backward_s: float


class StepSums(msgspec.Struct, kw_only=True):
    """Seconds of one worker over all its steps."""

    steps: int = 0
    forward_s: float = 0.0
    backward_s: float = 0.0


class ProcessRecord(msgspec.Struct, kw_only=True):
    """Facts that one process of a run recorded about itself."""

    name: str
    host: str = ""
    threads: int = 0
    sums: StepSums = msgspec.field(default_factory=StepSums)


class RunRecord(msgspec.Struct, kw_only=True):
    """One run as the report sees it."""

    name: str
    path: Path
    manifest: Manifest
    state: str
    cause: str | None
    summary: Summary | None
    epochs: list[Epoch]
    processes: list[ProcessRecord]
    warnings: list[str]
    job: dict[str, Any]
    """The job, with today's defaults for settings that did not exist when it ran."""
    resources: list[Resources]
    """Of each machine, then of each process."""
    cluster: ClusterUse | None = None
    """Of all machines together."""
    cell: str | None = None
    """The study's cell that the run is a trial of."""
    pool_machines: list[str] = []
    """Machines that the trial had to its end, where its study runs on a pool."""
    verdicts: PartPredictions | None = None
    """Predicted class of each test sample, where it was kept."""
    distribution: Distribution | None = None
    """Partition of the samples, where the job distributes them."""

    @property
    def is_finished(self) -> bool:
        """Whether its figures count; those of unfinished runs are listed, never averaged."""
        return self.state == "finished" and self.summary is not None

    @property
    def seed(self) -> int:
        """The seed of the job."""
        return int(self.job["seed"])

    @property
    def machines(self) -> list[str]:
        """The machines that its processes ran on."""
        hosts = {process.host for process in self.processes if process.host}
        return sorted(hosts) or [self.manifest.host]


class Material(msgspec.Struct, kw_only=True):
    """All facts that a report is made from."""

    runs: list[RunRecord]
    study: StudyManifest | None = None
    study_path: Path | None = None
    stillborn: list[Trial] = []
    """Trials that failed before they had a run directory."""


def read_material(sources: Sequence[Path]) -> Material:
    """Read studies, run directories, and directories that hold run directories.

    Raises:
        SpecError: There is no run in one of them.
    """
    runs: dict[Path, RunRecord] = {}
    studies: list[StudyDir] = []
    stillborn: list[Trial] = []
    for source in sources:
        if is_study(source):
            study = StudyDir.open(source)
            studies.append(study)
            for trial in study.trials():
                if trial.run is None:
                    stillborn.append(trial)
                else:
                    record = read_run(study.run(trial), trial)
                    runs[record.path.resolve()] = record
        else:
            for run in _runs_in(source):
                runs.setdefault(run.path.resolve(), read_run(run))
    if not runs and not stillborn:
        named = ", ".join(map(str, sources))
        raise SpecError(f"nothing has ended in {named} yet, so there is nothing to report")
    ordered = sorted(runs.values(), key=lambda record: (record.name, str(record.path)))
    # Two studies have no common plan: their runs are compared by what their jobs say.
    whole = len(studies) == len(sources) == 1
    return Material(
        runs=ordered,
        study=studies[0].manifest() if whole else None,
        study_path=studies[0].path if whole else None,
        stillborn=sorted(stillborn, key=lambda trial: (trial.cell, trial.repeat)),
    )


def read_run(run: RunDir, trial: Trial | None = None) -> RunRecord:
    """Read the facts of one run; the state of a trial is that of the study's journal."""
    status = run.read_status()
    reader = _LogReader()
    processes = []
    for path in sorted((run.path / "events").glob("*.jsonl")):
        process = ProcessRecord(name=path.stem)
        reader.read(path, process)
        processes.append(process)
    failed = trial is not None and trial.state != "finished"
    manifest = read_manifest(run)
    resources, cluster = reader.resources()
    return RunRecord(
        name=run.name,
        path=run.path,
        manifest=manifest,
        state=trial.state if trial is not None and failed else status.state,
        cause=trial.cause if trial is not None and failed else status.cause,
        summary=run.read_summary(),
        epochs=[reader.epochs[number] for number in sorted(reader.epochs)],
        processes=processes,
        warnings=list(reader.warnings),
        job=_completed(manifest.job),
        resources=resources,
        cluster=cluster,
        cell=trial.cell if trial is not None else None,
        pool_machines=trial.machines if trial is not None else [],
        verdicts=run.read_predictions(),
        distribution=run.read_distribution(),
    )


def _completed(job: dict[str, Any]) -> dict[str, Any]:
    try:
        return job_from_mapping(job).model_dump(mode="json", by_alias=True)
    except SpecError:
        # Written by another version: shown as recorded.
        return job


class _LogReader:
    """Collects facts over the logs of one run."""

    def __init__(self) -> None:
        self.epochs: dict[int, Epoch] = {}
        self.warnings: dict[str, None] = {}
        self._samples: dict[str, BoundedSamples] = {}
        self._events = msgspec.json.Decoder(AnyEvent)
        self._times = msgspec.json.Decoder(_StepTimes)

    def resources(self) -> tuple[list[Resources], ClusterUse | None]:
        """Return use of machines and processes during training, and of all machines together."""
        logs = {process: samples.events() for process, samples in self._samples.items()}
        windows = training_windows(logs)
        machines = host_uses(logs, windows)
        processes = process_uses(logs, windows)
        resources = [thin(use, is_machine=True) for use in machines.values()]
        resources += [thin(use, is_machine=False) for use in processes.values()]
        return resources, cluster_use(list(machines.values()))

    def read(self, path: Path, process: ProcessRecord) -> None:
        sums = process.sums
        for line in _whole_lines(path):
            if line.startswith(_STEP):
                try:
                    times = self._times.decode(line)
                except msgspec.DecodeError:
                    continue
                sums.steps += 1
                sums.forward_s += times.forward_s
                sums.backward_s += times.backward_s
            elif line.startswith(_WANTED):
                try:
                    self._take(self._events.decode(line), process)
                except msgspec.DecodeError:
                    # A crash leaves a partial line in the middle when a resumed process appends.
                    continue

    def _take(self, event: AnyEvent, process: ProcessRecord) -> None:
        if isinstance(event, SampleEvent):
            self._samples.setdefault(process.name, BoundedSamples()).add(event)
        elif isinstance(event, Started):
            process.host, process.threads = event.host, event.threads
        elif isinstance(event, Warned):
            self.warnings[event.message] = None
        elif isinstance(event, Epoch):
            # A resumed run repeats an epoch whose checkpoint was not written; the last one counts.
            known = self.epochs.get(event.epoch)
            if known is None or event.wall_s >= known.wall_s:
                self.epochs[event.epoch] = event


def _whole_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=1 << 18) as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


def _runs_in(source: Path) -> list[RunDir]:
    if (source / "manifest.json").is_file():
        return [RunDir.open(source)]
    runs = list_runs(source)
    if not runs:
        raise SpecError(
            f"{source} is neither a study nor a run, and holds no runs; "
            "`phalanx runs list` shows where runs are"
        )
    return runs
