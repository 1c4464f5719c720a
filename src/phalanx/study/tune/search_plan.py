"""Plan a search as a study: its manifest, and cells with their labels; pure.

Cells are added as a search proceeds. Each is the user's job with another share, and in a first
trial with a bar; `policy` decides which come next. Only the strategy is changed, so that the
resulting job file resembles the given one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from phalanx._version import __version__
from phalanx.errors import SpecError
from phalanx.records.study import (
    PlannedCell,
    PlannedGate,
    PlannedPool,
    PlannedRepeats,
    RecommendSettings,
    StudyManifest,
    Trial,
)
from phalanx.records.tune import TuneManifest
from phalanx.spec.flow import flow
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.render import to_mapping
from phalanx.spec.strategy import StrategySpec
from phalanx.spec.switch import spelled_out
from phalanx.study.tune.policy import (
    SYNCHRONOUS,
    Method,
    TuneGoal,
    WantedTrial,
    bar_epoch,
    bar_value,
    decide,
)

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
    pool: PlannedPool | None = None
    """None: on this machine."""


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
        pool=request.pool,
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


Mapped = Mapping[str, object]
_MOMENTS = ("at", "epoch", "lr_drop")


def check_tunable(given: Mapped, method: Method) -> JobSpec:
    """Refuse jobs whose switch share cannot be searched; returns the job.

    Raises:
        SpecError: The job cannot be searched; names the reason and a remedy.
    """
    job = job_from_mapping(given)
    if job.workers < 2:
        raise SpecError("tune switch needs at least 2 workers: a single one never waits")
    if job.loss.name != "cross-entropy":
        raise SpecError("tune switch compares accuracy, which a job with loss 'mse' has not")
    if job.evaluate == "never":
        raise SpecError("tune switch needs evaluation; set 'evaluate: epoch' or 'end'")
    strategy = job.strategy
    phases = strategy.resolved
    if phases:
        if len(phases) != 2:
            raise SpecError(
                f"tune switch searches one moment, but the job has {len(phases) - 1} switches"
            )
        if not phases[0].strategy.synchronous:
            raise SpecError("tune switch needs a synchronous first phase, such as allreduce")
    if method == "halving":
        _check_for_bars(job)
    # With every strategy of the search, not only the one in the file.
    job_from_mapping(with_share(given, 0.5))
    job_from_mapping(with_share(given, SYNCHRONOUS))
    return job


def accuracy_of(job: JobSpec) -> str:
    """Return the key of the summary that a search compares.

    The test set must not choose a setting, so it is used only without validation data.
    """
    return "test_accuracy" if job.data.validation == 0 else "val_accuracy"


def with_share(given: Mapped, share: float) -> dict[str, object]:
    """Return the job with another switch share; a share of 1: without a switch."""
    strategy = job_from_mapping(given).strategy
    raw = given.get("strategy", "allreduce")
    if share == SYNCHRONOUS:
        return {**given, "strategy": _first(strategy, raw)}
    if not strategy.resolved:
        return {**given, "strategy": _switch_of(strategy, raw, share)}
    settings: dict[str, Any] = spelled_out(raw) if isinstance(raw, Mapping) else {"name": "switch"}
    if not settings.get("phases"):
        short = {key: value for key, value in settings.items() if key not in _MOMENTS}
        return {**given, "strategy": {**short, "at": share}}
    first, second = settings["phases"]
    second = {key: value for key, value in second.items() if key not in _MOMENTS}
    return {**given, "strategy": {**settings, "phases": [first, {**second, "at": share}]}}


def with_bar(given: Mapped, epoch: int, value: float) -> dict[str, object]:
    """Return the job, ended after an epoch unless it has reached a validation accuracy."""
    bar = {"epoch": epoch, "value": value}
    return {
        **given,
        "early_stop": {"monitor": "val_accuracy", "patience": None, "bar": bar},
    }


def as_file(given: Mapped, heading: str) -> str:
    """Format the job as a file, a setting per line."""
    lines = [f"# {line}" for line in heading.splitlines()]
    return "\n".join([*lines, *(f"{key}: {flow(value)}" for key, value in given.items())]) + "\n"


def _first(strategy: StrategySpec, raw: object) -> object:
    """Return the synchronous strategy, as the user wrote it."""
    if not strategy.resolved:
        return raw if strategy.synchronous else "allreduce"
    settings: dict[str, Any] = spelled_out(raw) if isinstance(raw, Mapping) else {}
    return settings["phases"][0]["strategy"] if settings.get("phases") else "allreduce"


def _switch_of(strategy: StrategySpec, raw: object, share: float) -> dict[str, object]:
    """Make the switch strategy of a job that has none yet."""
    if not strategy.synchronous:
        return {
            "name": "switch",
            "phases": [{"strategy": "allreduce"}, {"strategy": raw, "at": share}],
        }
    if raw in ("allreduce", {"name": "allreduce"}):
        return {"name": "switch", "at": share}
    servers = {"name": "parameter_server", "servers": "colocated", "dispatch": "dynamic"}
    return {"name": "switch", "phases": [{"strategy": raw}, {"strategy": servers, "at": share}]}


def _check_for_bars(job: JobSpec) -> None:
    if job.data.validation == 0:
        raise SpecError(
            "method halving reads validation during the run, but data.validation is 0; hold "
            "some samples out or use --method binary"
        )
    if job.early_stop is not None:
        raise SpecError(
            "method halving ends runs at bars of its own; leave early_stop out or use --method "
            "binary"
        )
    if bar_epoch(job, 0.0) is None:
        raise SpecError(
            f"method halving needs epochs after the first decay of the rate, but the job has only "
            f"{job.epochs}; use --method binary"
        )
