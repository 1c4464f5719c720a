"""The façade: what the command line, notebooks and programs call.

Everything here takes specs and paths and returns records; nothing imports a framework. What only
studies and reports need is imported when they run: every trial starts a process that only trains.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.control.controller import Controller
from phalanx.control.progress import Observer
from phalanx.control.roster import RunRequest
from phalanx.data.sources import open_source
from phalanx.errors import StoreError
from phalanx.launch.local import LocalLauncher
from phalanx.records.manifest import describe, keep_manifest, read_manifest, write_manifest
from phalanx.records.rundir import RunDir
from phalanx.records.study import StudyDir
from phalanx.records.summary import Summary
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping

if TYPE_CHECKING:
    from phalanx.report.document import Document
    from phalanx.report.scope import Preference
    from phalanx.spec.study_file import StudyFile
    from phalanx.study.findings import Findings
    from phalanx.study.runner import StudyObserver, StudyOutcome
    from phalanx.study.search import Listener
    from phalanx.study.search_plan import Request

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
) -> Summary:
    """Train a job on this machine in a new run directory.

    Args:
        job: A job, or the mapping that a job file would hold.
        runs: Where the run directory is made.
        data_root: Where data sets lie.
        cache_root: Where decoded data is kept.
        observers: Who follows the run while it goes.

    Returns:
        The summary, which is also in the run directory.
    """
    if isinstance(job, dict):
        job = job_from_mapping(job)
    # Names missing files before anything is started.
    open_source(job.data, data_root=data_root)
    run = RunDir.create(runs, job.name)
    write_manifest(run, describe(job, data_root=data_root, cache_root=cache_root))
    request = RunRequest(job=job, run=run, data_root=data_root, cache_root=cache_root)
    return _carry_out(request, observers)


def resume(
    run: RunDir, *, overrides: Sequence[str] = (), observers: Sequence[Observer] = ()
) -> Summary:
    """Continue a run from its newest checkpoint, in the same run directory.

    Args:
        run: The run to continue; it must not be running now.
        overrides: `path=value` changes to the job, such as `workers=3` or `epochs=10`.
        observers: Who follows the run while it goes.
    """
    status = run.read_status()
    if status.state == "running":
        raise StoreError(f"run {run.name} is still running (pid {status.pid}); end it first")
    manifest = read_manifest(run)
    job = job_from_mapping(manifest.job, overrides)
    if overrides:
        # The manifest says what the results come from, so it follows; the former one stays beside.
        keep_manifest(run, status.attempt)
        data_root, cache_root = Path(manifest.data_root), Path(manifest.cache_root)
        write_manifest(run, describe(job, data_root=data_root, cache_root=cache_root))
    request = RunRequest(
        job=job,
        run=run,
        data_root=Path(manifest.data_root),
        cache_root=Path(manifest.cache_root),
        attempt=status.attempt + 1,
        resume=run.checkpoints,
    )
    return _carry_out(request, observers)


def run_study(
    study: StudyFile | dict[str, object],
    *,
    to: Path | None = None,
    data_root: Path = DEFAULT_DATA,
    cache_root: Path = DEFAULT_CACHE,
    observers: Sequence[StudyObserver] = (),
) -> StudyOutcome:
    """Run a new study on this machine, unattended.

    Args:
        study: From `load_study`, or the mapping that a study file would hold.
        to: The study directory; default: `study-<name>` below `runs`.
        data_root: Where data sets lie.
        cache_root: Where decoded data is kept.
        observers: Who follows the study while it goes.

    Returns:
        Every trial, finished or failed; a failed one raises nothing.
    """
    from phalanx.spec.study_file import study_from_mapping
    from phalanx.study.plan import PUBLISHED, plan_study, published_path
    from phalanx.study.runner import check_plan

    if isinstance(study, dict):
        study = study_from_mapping(study)
    manifest = plan_study(study, data_root=data_root, cache_root=cache_root)
    check_plan(manifest, sorted(os.sched_getaffinity(0)))
    directory = StudyDir.create(to or DEFAULT_RUNS / f"study-{manifest.name}", manifest)
    published = published_path(study)
    if published is not None:
        shutil.copyfile(published, directory.path / PUBLISHED)
    return resume_study(directory, observers=observers)


def resume_study(
    study: StudyDir, *, observers: Sequence[StudyObserver] = (), retry_failed: bool = False
) -> StudyOutcome:
    """Run what a study has not run yet.

    Args:
        study: Its directory; nobody else may be running it now.
        observers: Who follows the study while it goes.
        retry_failed: Run trials that have failed once more.
    """
    from phalanx.study.runner import StudyRunner

    cores = sorted(os.sched_getaffinity(0))
    return StudyRunner(study, cores=cores, observers=observers, retry_failed=retry_failed).run()


def tune_switch(
    request: Request,
    *,
    to: Path,
    observers: Sequence[StudyObserver] = (),
    listen: Listener | None = None,
) -> Findings:
    """Search the share of a recurring job that has to be synchronous.

    Args:
        request: The job, and how to search.
        to: The directory of the search, which is a study directory too.
        observers: Who follows the runs.
        listen: Told after every decision.

    Returns:
        What was found; `job.yaml` in the directory is the job with that share.
    """
    from phalanx.study.search import create_search

    study = create_search(to, request, cores=sorted(os.sched_getaffinity(0)))
    return resume_tune(study, observers=observers, listen=listen)


def resume_tune(
    study: StudyDir,
    *,
    observers: Sequence[StudyObserver] = (),
    listen: Listener | None = None,
    retry_failed: bool = False,
) -> Findings:
    """Go on with a search; what it has run already is not run again.

    Args:
        study: Its directory; nobody else may be running it now.
        observers: Who follows the runs.
        listen: Told after every decision.
        retry_failed: Run what has failed once more.
    """
    from phalanx.study.search import SwitchSearch

    search = SwitchSearch(
        study,
        cores=sorted(os.sched_getaffinity(0)),
        observers=observers,
        listen=listen or (lambda findings: None),
        retry_failed=retry_failed,
    )
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
) -> Document:
    """Compare studies and runs; made again from the same records, it has the same bytes.

    Args:
        sources: Study directories, run directories, or directories that hold run directories.
        page: Where one self-contained HTML file is written.
        markdown: Where the same is written as Markdown.
        csv: The directory in which every table is written as CSV.
        tolerance: Loss of accuracy, as a share of 1, that counts as none.
        prefer: What the recommendation saves.
        target: Measure and value, for the time that it takes to get there.
        baseline: What the others are held against, such as `single`.

    Returns:
        The report as data; `advice` holds the recommendation.
    """
    from phalanx.report.make import make_document, write_markdown, write_page, write_sheets
    from phalanx.report.scope import Options

    options = Options(tolerance=tolerance, prefer=prefer, target=target, baseline=baseline)
    document = make_document(sources, options)
    if page is not None:
        write_page(document, page)
    if markdown is not None:
        write_markdown(document, markdown)
    if csv is not None:
        write_sheets(document, csv)
    return document


def _carry_out(request: RunRequest, observers: Sequence[Observer]) -> Summary:
    launcher = LocalLauncher(request.run.path / "logs")
    return Controller(request, launcher=launcher, observers=observers).run()
