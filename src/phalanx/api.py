"""Façade for the command line, notebooks and programs: specs and paths in, records out.

Nothing here imports a framework. Modules that only studies and reports need are imported on use,
because every trial starts a process that only trains.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from phalanx.control.controller import Controller
from phalanx.control.process_table import RunRequest
from phalanx.control.progress import Observer
from phalanx.errors import StoreError
from phalanx.launch.base import Launcher, LaunchRequest, PoolRequest
from phalanx.launch.catalogue import default_launcher, make_launcher
from phalanx.launch.fork_server import warm_workers
from phalanx.records.manifest import (
    Manifest,
    describe,
    keep_manifest,
    nothing_left,
    read_manifest,
    write_manifest,
)
from phalanx.records.owner import RunOwner
from phalanx.records.position import CHECKPOINT_PATTERN, checkpoint_bytes, newest_position
from phalanx.records.rundir import RunDir
from phalanx.records.study import PlannedPool, StudyDir
from phalanx.records.summary import Summary
from phalanx.records.weights import write_weights
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.observe import job_to_ask

if TYPE_CHECKING:
    from phalanx.plan.facts import ClusterModel
    from phalanx.plan.planfile import Plan
    from phalanx.plan.search import Objective
    from phalanx.pool.inventory import Inventory
    from phalanx.report.document import Report
    from phalanx.report.scope import Preference
    from phalanx.simulate.scenario import Figures, Scenario, SimulatedStrategy
    from phalanx.spec.strategy import StrategySpec
    from phalanx.spec.study_file import StudyFile
    from phalanx.study.runner import StudyObserver, StudyOutcome
    from phalanx.study.tune.results import TuneResult
    from phalanx.study.tune.search import Listener
    from phalanx.study.tune.search_plan import SearchRequest

DEFAULT_RUNS = Path("runs")
DEFAULT_DATA = Path.home() / ".cache" / "phalanx" / "data"
DEFAULT_CACHE = Path.home() / ".cache" / "phalanx" / "cache"


def train(
    job: JobSpec | dict[str, object],
    *,
    runs: Path = DEFAULT_RUNS,
    data_root: Path = DEFAULT_DATA,
    cache_root: Path = DEFAULT_CACHE,
    observers: Sequence[Observer] = (),
    plan: Plan | None = None,
    machines: PoolRequest | None = None,
    launch: str | None = None,
    force: bool = False,
    notes: Sequence[str] = (),
    on_progress: Callable[[str], None] = lambda _: None,
) -> Summary:
    """Train a job in a new run directory, which also receives the returned summary.

    Args:
        job: A job, or the mapping of a job file.
        runs: Parent of the run directory.
        data_root: Directory of data sets.
        cache_root: Directory of decoded data.
        observers: Notified of the run's progress.
        plan: The plan of the job; stored with the results, for comparison.
        machines: The pool to run on; None: this machine.
        launch: Launcher by name or `package.module:name`; None: `ssh` with machines, else `local`.
        force: Start although the memory of this machine does not suffice for so many workers.
        notes: What the caller has changed in the job, to be told with the results.
        on_progress: Called with a short text at each stage of preparing other machines.

    Raises:
        MachinesUnfit: A machine of the pool cannot take part; nothing was started.
    """
    if isinstance(job, dict):
        job = job_from_mapping(job)
    wanted = LaunchRequest(job, data_root, cache_root, machines, on_progress, force=force)
    with _ready_launcher(launch, wanted) as launcher:
        launcher.notes = (*launcher.notes, *notes)
        run = RunDir.create(runs, job.name)
        with RunOwner(run.path) as owner:
            write_manifest(run, _describe(wanted, launch))
            if plan is not None:
                from phalanx.plan.planfile import PLAN, write_plan

                write_plan(plan, run.path / PLAN)
            request = RunRequest(job, run, data_root, cache_root, check_owner=owner.check)
            return _carry_out(request, launcher, observers)


def resume(
    run: RunDir,
    *,
    overrides: Sequence[str] = (),
    observers: Sequence[Observer] = (),
    machines: PoolRequest | None = None,
    launch: str | None = None,
    force: bool = False,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Summary:
    """Continue a run from its newest checkpoint in the same run directory; arguments as in `train`.

    `overrides` are `path=value` changes to the job, such as `workers=3`; `launch` defaults to the
    run's launcher. A run with nothing left to do stays as it is, and its summary is returned.

    Raises:
        StoreError: Another controller owns the run.
    """
    # Before the preflight, which takes minutes with many machines: nobody else may begin meanwhile.
    with RunOwner(run.path) as owner:
        if nothing_left(run, overrides) and (done := run.read_summary()) is not None:
            return done
        status = run.read_status()
        manifest = read_manifest(run)
        job = job_from_mapping(manifest.job, overrides)
        data_root, cache_root = Path(manifest.data_root), Path(manifest.cache_root)
        launch = launch or manifest.launch
        size = checkpoint_bytes(run.checkpoints)
        wanted = LaunchRequest(job, data_root, cache_root, machines, on_progress, size, force)
        with _ready_launcher(launch, wanted) as launcher:
            # The manifest must describe the origin of new results; the former is kept beside it.
            moved = machines is not None and not machines.are_those_of(manifest)
            if overrides or moved:
                keep_manifest(run, status.attempt)
                write_manifest(run, _describe(wanted, launch))
            attempt, points = status.attempt + 1, run.checkpoints
            request = RunRequest(
                job, run, data_root, cache_root, attempt, resume=points, check_owner=owner.check
            )
            return _carry_out(request, launcher, observers)


def bench_inference(
    run: RunDir,
    *,
    runs: Path = DEFAULT_RUNS,
    layout: Literal["own", "split", "data"] = "own",
    workers: int | None = None,
    batch: int = 1,
    requests: int = 50,
    observers: Sequence[Observer] = (),
) -> Summary:
    """Measure the inference speed of a run's newest checkpoint; raises `StoreError` without one.

    `layout` selects the run's own layout, the network split over workers, or a copy on each. Sends
    `requests` requests of `batch` samples in sequence, recorded in a new run directory.
    """
    manifest = read_manifest(run)
    position = newest_position(run.checkpoints)
    newest = sorted(run.checkpoints.glob(CHECKPOINT_PATTERN))
    if position is None or not newest:
        raise StoreError(f"run {run.name} has no checkpoint to ask")
    job = job_from_mapping(
        job_to_ask(manifest.job, layout, workers)
        | {
            "infer": {"batch": batch, "requests": requests},
            "epochs": max(1, position.epoch),
            "profile": None,
            "early_stop": None,
            "inject": [],
        }
    )
    data_root, cache_root = Path(manifest.data_root), Path(manifest.cache_root)
    wanted = LaunchRequest(job, data_root, cache_root)
    with _ready_launcher(None, wanted) as launcher:
        fresh = RunDir.create(runs, f"{job.name}-infer")
        with RunOwner(fresh.path) as owner:
            fresh.checkpoints.mkdir(exist_ok=True)
            shutil.copyfile(newest[-1], fresh.checkpoints / newest[-1].name)
            write_manifest(fresh, _describe(wanted, None))
            points, own = fresh.checkpoints, owner.check
            request = RunRequest(job, fresh, data_root, cache_root, resume=points, check_owner=own)
            return _carry_out(request, launcher, observers)


def plan_job(
    job: JobSpec | dict[str, object],
    *,
    pool: Inventory | None = None,
    objective: Objective | None = None,
    calibrate: Literal["auto", "never", "fresh"] = "auto",
    runs: Path = DEFAULT_RUNS,
    data_root: Path = DEFAULT_DATA,
    cache_root: Path = DEFAULT_CACHE,
    on_trial: Callable[[JobSpec], object] = lambda job: None,
) -> Plan:
    """Choose machines and strategy for a job, and predict time, cost and energy.

    Args:
        job: A job, or the mapping of a job file.
        pool: The machines; None: this one, with one to as many workers as it has cores.
        objective: The goal and its limits; None: shortest time.
        calibrate: auto: trial runs here if earlier runs do not suffice; never: earlier runs only;
            fresh: trial runs only.
        runs: Parent of earlier runs; trial runs go to `calibration` below it.
        data_root: Directory of data sets.
        cache_root: Directory of decoded data.
        on_trial: Called with each trial job before it starts.

    Raises:
        PlanError: The speed is unknown, or nothing meets the limits.
    """
    from phalanx.plan.planfile import record_plan
    from phalanx.plan.search import Objective, search

    if isinstance(job, dict):
        job = job_from_mapping(job)
    world = survey(
        job,
        pool=pool,
        calibrate=calibrate,
        runs=runs,
        data_root=data_root,
        cache_root=cache_root,
        on_trial=on_trial,
    )
    return record_plan(job, search(job, world, objective or Objective()), world)


def survey(
    job: JobSpec,
    *,
    pool: Inventory | None = None,
    calibrate: Literal["auto", "never", "fresh"] = "auto",
    runs: Path = DEFAULT_RUNS,
    data_root: Path = DEFAULT_DATA,
    cache_root: Path = DEFAULT_CACHE,
    on_trial: Callable[[JobSpec], object] = lambda job: None,
) -> ClusterModel:
    """Build the cluster model of a job; arguments and errors as in `plan_job`."""
    from phalanx import calibration

    def run_trial(trial: JobSpec) -> Summary:
        on_trial(trial)
        trials = runs / calibration.TRIALS
        return train(trial, runs=trials, data_root=data_root, cache_root=cache_root)

    sizes = calibration.data_sizes(job, data_root=data_root, cache_root=cache_root)
    return calibration.survey(
        job, sizes, pool=pool, calibrate=calibrate, runs=runs, run_trial=run_trial
    )


def simulate(
    job: JobSpec | dict[str, object],
    scenario: Scenario,
    *,
    strategies: Sequence[StrategySpec] | None = None,
    figures: Figures | None = None,
    pool: Inventory | None = None,
    calibrate: Literal["auto", "never", "fresh"] = "auto",
    runs: Path = DEFAULT_RUNS,
    data_root: Path = DEFAULT_DATA,
    cache_root: Path = DEFAULT_CACHE,
    on_trial: Callable[[JobSpec], object] = lambda job: None,
) -> list[SimulatedStrategy]:
    """Simulate strategies in a scenario without training; other arguments as in `plan_job`.

    `strategies` defaults to five common ones and the job's own. `figures` are explicit speeds of
    equal machines; without them, calibrated machines are replicated. Errors as in `plan_job`.
    """
    from phalanx.simulate.scenario import DEFAULT_STRATEGIES, run_scenario

    if isinstance(job, dict):
        job = job_from_mapping(job)
    if strategies is None:
        mine = job.strategy
        # One worker alone, one process, and a split network are not simulated.
        own = [] if mine.is_single or mine.in_process or mine.splits_model else [mine]
        strategies = [*own, *(one for one in DEFAULT_STRATEGIES if one not in own)]
    if figures is not None:
        return run_scenario(scenario, strategies, figures)
    world = survey(
        job,
        pool=pool,
        calibrate=calibrate,
        runs=runs,
        data_root=data_root,
        cache_root=cache_root,
        on_trial=on_trial,
    )
    return run_scenario(scenario, strategies, world)


def run_study(
    study: StudyFile | dict[str, object],
    *,
    to: Path | None = None,
    data_root: Path = DEFAULT_DATA,
    cache_root: Path = DEFAULT_CACHE,
    observers: Sequence[StudyObserver] = (),
    pool: PlannedPool | None = None,
) -> StudyOutcome:
    """Run a new study unattended; a failed trial raises nothing.

    `study` comes from `load_study` or is the mapping of a study file; `to` defaults to
    `study-<name>` below `runs`; `pool` to the study's own, else this machine. Rest as in `train`.
    """
    from phalanx.spec.study_file import study_from_mapping
    from phalanx.study.plan import plan_study, report_files
    from phalanx.study.runner import check_plan

    study = study_from_mapping(study) if isinstance(study, dict) else study
    manifest = plan_study(study, data_root=data_root, cache_root=cache_root, pool=pool)
    check_plan(manifest, sorted(os.sched_getaffinity(0)))
    directory = StudyDir.create(to or DEFAULT_RUNS / f"study-{manifest.name}", manifest)
    for file in report_files(study):
        shutil.copyfile(file, directory.path / file.name)
    return resume_study(directory, observers=observers)


def resume_study(
    study: StudyDir, *, observers: Sequence[StudyObserver] = (), retry_failed: bool = False
) -> StudyOutcome:
    """Run the remaining trials of a study that nobody runs, with `retry_failed` failed ones too."""
    from phalanx.study.runner import StudyRunner

    cores = sorted(os.sched_getaffinity(0))
    return StudyRunner(study, cores=cores, observers=observers, retry_failed=retry_failed).run()


def tune_switch(
    request: SearchRequest,
    *,
    to: Path,
    observers: Sequence[StudyObserver] = (),
    listen: Listener | None = None,
) -> TuneResult:
    """Search the synchronous share of a recurring job, in the new study directory `to`.

    `listen` is called after every decision. The directory's `job.yaml` is the job with that share.
    """
    from phalanx.study.tune.search import create_search

    study = create_search(to, request, cores=sorted(os.sched_getaffinity(0)))
    return resume_tune(study, observers=observers, listen=listen)


def resume_tune(
    study: StudyDir,
    *,
    observers: Sequence[StudyObserver] = (),
    listen: Listener | None = None,
    retry_failed: bool = False,
) -> TuneResult:
    """Continue a search without repeating its runs, except failed ones with `retry_failed`.

    No other process may be running it. Other arguments as in `tune_switch`.
    """
    from phalanx.study.tune.search import SwitchSearch

    search = SwitchSearch(
        study,
        cores=sorted(os.sched_getaffinity(0)),
        observers=observers,
        listen=listen or (lambda findings: None),
        retry_failed=retry_failed,
    )
    with warm_workers():
        return search.run()


def make_report(
    sources: Sequence[Path],
    *,
    page: Path | None = None,
    markdown: Path | None = None,
    csv: Path | None = None,
    tolerance: float | None = None,
    prefer: Preference | None = None,
    target: tuple[str, float] | None = None,
    baseline: str | None = None,
    parts: Sequence[str] = (),
) -> Report:
    """Compare studies and runs; the same records give the same bytes.

    Args:
        sources: Study directories, run directories, or directories that hold run directories.
        page: Path of a self-contained HTML file to write.
        markdown: Path of a Markdown file to write.
        csv: Directory for every table as CSV.
        tolerance: Loss of accuracy, as a share of 1, that counts as none.
        prefer: The quantity that the recommendation saves.
        target: Metric and value, for the time to reach it.
        baseline: Reference of the comparison, such as `single`.
        parts: Further parts: names of installed ones, or `package.module:name`.
    """
    from phalanx.report.make import make_document, write_markdown, write_page, write_tables
    from phalanx.report.scope import Options

    options = Options(
        tolerance=tolerance, prefer=prefer, target=target, baseline=baseline, parts=tuple(parts)
    )
    document = make_document(sources, options)
    if page is not None:
        write_page(document, page)
    if markdown is not None:
        write_markdown(document, markdown)
    if csv is not None:
        write_tables(document, csv)
    return document


@contextlib.contextmanager
def _ready_launcher(name: str | None, wanted: LaunchRequest) -> Iterator[Launcher]:
    """Check a job with its launcher; on leaving the block its machines are cleaned up."""
    with contextlib.closing(make_launcher(name, wanted)) as launcher:
        launcher.check()
        yield launcher


def _describe(wanted: LaunchRequest, launch: str | None) -> Manifest:
    pool = wanted.pool
    return describe(
        wanted.job,
        data_root=wanted.data_root,
        cache_root=wanted.cache_root,
        pool=pool.source if pool is not None else None,
        machines=pool.machines if pool is not None else (),
        lease=pool.lease if pool is not None else None,
        build_env=pool is not None and pool.build_env,
        launch=None if launch == default_launcher(has_pool=pool is not None) else launch,
    )


def _carry_out(request: RunRequest, launcher: Launcher, observers: Sequence[Observer]) -> Summary:
    allocation = launcher.allocate(request.run)
    controller = Controller(request, launcher=launcher, allocation=allocation, observers=observers)
    summary = controller.run()
    write_weights(request.run)
    return summary
