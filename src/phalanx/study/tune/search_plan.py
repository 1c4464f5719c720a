"""Plan a search as a study: its manifest, and cells with their labels; pure.

Cells are added as a search proceeds. Each is the job with another share, and in a first trial with
a bar; `policy` decides which come next.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from phalanx._version import __version__
from phalanx.errors import SpecError
from phalanx.records.study import (
    PlannedCell,
    PlannedGate,
    PlannedRepeats,
    RecommendSettings,
    StudyManifest,
    Trial,
)
from phalanx.records.tune import TuneManifest
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.render import to_mapping
from phalanx.study.tune.policy import (
    SYNCHRONOUS,
    TuneGoal,
    WantedTrial,
    bar_epoch,
    bar_value,
    decide,
)
from phalanx.study.tune.switch_jobs import accuracy_of, check_tunable, with_bar, with_share

AXIS = "switch"
# Shares are written in per cent with ten digits; more halvings than this would not fit.
MAX_SETTINGS = 10
_NEVER = "synchronous"


@dataclass(frozen=True)
class SearchRequest:
    """Job, settings and directories of a search."""

    job: dict[str, object]
    """The content of the job file."""
    aim: TuneGoal
    seeds: tuple[int, ...]
    """One for each of `aim.runs`."""
    data_root: Path
    cache_root: Path
    parallel: int | str = 1


def plan_search(request: SearchRequest) -> tuple[StudyManifest, TuneManifest]:
    """Make the manifests of a new search.

    Raises:
        SpecError: The job's switch cannot be searched, or not with these settings.
    """
    aim = request.aim
    if len(request.seeds) != aim.runs or len(set(request.seeds)) != aim.runs:
        raise SpecError(f"a search with {aim.runs} runs takes {aim.runs} different seeds")
    if not 1 <= aim.max_settings <= MAX_SETTINGS:
        raise SpecError(f"a search tries from 1 to {MAX_SETTINGS} settings, not {aim.max_settings}")
    job = check_tunable(request.job, aim.method)
    tune = TuneManifest(
        job=request.job,
        method=aim.method,
        runs=aim.runs,
        tolerance=aim.tolerance,
        max_settings=aim.max_settings,
        metric=accuracy_of(job),
    )
    manifest = StudyManifest(
        name=f"tune-{job.name}",
        title=f"Switch share of {job.name}",
        axes={AXIS: []},
        cells=[],
        metric="elapsed_s",
        repeats=PlannedRepeats(min=aim.runs, max=aim.runs),
        seeds=list(request.seeds),
        gate=PlannedGate(metric=tune.metric, tolerance=aim.tolerance, axis=AXIS, baseline=_NEVER),
        recommend=RecommendSettings(accuracy_loss=aim.tolerance),
        parallel=request.parallel,
        wall_s=time.time(),
        versions={"phalanx": __version__},
        data_root=str(request.data_root.resolve()),
        cache_root=str(request.cache_root.resolve()),
    )
    return with_cells(manifest, tune, decide(aim, []).wanted, curve={}), tune


def with_cells(
    manifest: StudyManifest,
    tune: TuneManifest,
    wanted: Sequence[WantedTrial],
    *,
    curve: Mapping[int, float],
) -> StudyManifest:
    """Return the plan with cells for the wanted settings, the synchronous job first.

    Bars follow from `curve`: the first synchronous run's validation accuracy by epochs done.
    """
    cells = {cell.id: cell for cell in manifest.cells}
    for one in wanted:
        label = share_label(one.share)
        name = label.removesuffix(" %") if one.share == SYNCHRONOUS else f"at-{label[:-2]}"
        cells[name] = PlannedCell(
            id=name,
            settings={AXIS: label},
            job=_job_of(tune, one, curve),
            runs=one.runs,
        )
    ordered = sorted(
        cells.values(),
        key=lambda cell: -1.0 if cell.settings[AXIS] == _NEVER else _percent(cell),
    )
    axes = {AXIS: [cell.settings[AXIS] for cell in ordered]}
    return msgspec.structs.replace(manifest, cells=ordered, axes=axes)


def _percent(cell: PlannedCell) -> float:
    return float(cell.settings[AXIS].removesuffix(" %"))


def _job_of(
    tune: TuneManifest, wanted: WantedTrial, curve: Mapping[int, float]
) -> dict[str, object]:
    given = with_share(tune.job, wanted.share)
    if tune.method == "halving":
        given["evaluate"] = "epoch"
    epoch = bar_epoch(job_from_mapping(given), wanted.share) if wanted.barred else None
    if epoch is not None:
        value = bar_value(curve, epoch, tolerance=tune.tolerance)
        if value is not None:
            given = with_bar(given, epoch, value)
    return dict(to_mapping(job_from_mapping(given)))


def share_label(share: float) -> str:
    """Format a share for tables."""
    return _NEVER if share == SYNCHRONOUS else f"{100 * share:.10g} %"


def share_of(trial: Trial) -> float:
    """Return the share at which a trial switched."""
    label = trial.settings[AXIS]
    return SYNCHRONOUS if label == _NEVER else float(label.removesuffix(" %")) / 100
