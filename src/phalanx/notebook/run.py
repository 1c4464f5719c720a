"""Train, resume and open runs from Python: `phalanx.train`, `phalanx.resume`, `phalanx.open_run`.

The same environment variables and defaults as those of the commands hold here. Ctrl-C raises
`KeyboardInterrupt`, so that a loop over runs that catches `Exception` ends too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx import api
from phalanx.cli import settings
from phalanx.control.progress import Observer
from phalanx.errors import Interrupted, SpecError
from phalanx.launch.base import PoolRequest
from phalanx.launch.thread_choice import fit_threads
from phalanx.notebook.cell_code import with_importable_code
from phalanx.notebook.live_view import notebook_view
from phalanx.notebook.run_result import RunResult, as_result
from phalanx.records.rundir import RunDir, find_run
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping, load_job

if TYPE_CHECKING:
    from phalanx.notebook.opened_run import OpenedRun
    from phalanx.plan.planfile import Plan

PathLike = str | os.PathLike[str]


def train(
    job: JobSpec | Mapping[str, object] | PathLike,
    *,
    overrides: Sequence[str] = (),
    runs: PathLike | None = None,
    data_root: PathLike | None = None,
    cache_root: PathLike | None = None,
    observers: Sequence[Observer] = (),
    progress: bool | None = None,
    plan: Plan | None = None,
    machines: PoolRequest | None = None,
    launch: str | None = None,
    force: bool = False,
    on_progress: Callable[[str], None] = lambda _: None,
) -> RunResult:
    """Train a job in a new run directory, and return its summary.

    Args:
        job: A job file, the mapping of one, or a job. In a mapping `model` and `loss` may be
            functions, also those of a notebook's cell.
        overrides: `path=value` settings that win over a file or mapping, such as `epochs=3`.
        runs: Parent of the run directory; None: `PHALANX_RUNS`, else `runs` here.
        data_root: Directory of data sets; None: `PHALANX_DATA`, else the user's cache.
        cache_root: Directory of decoded data; None: `PHALANX_CACHE`, else the user's cache.
        observers: Notified of the run's progress.
        progress: Whether to show it in a notebook; None: where there is one.
        plan: The plan of the job; stored with the results, for comparison.
        machines: The pool to run on; None: this machine.
        launch: Launcher by name or `package.module:name`; None: `ssh` with machines, else `local`.
        force: Start without checking sizes, memory, network and data first.
        on_progress: Called with a short text at each stage of preparing other machines.

    Raises:
        SpecError: The job is wrong; nothing was started.
        KeyboardInterrupt: Ctrl-C; the run can be resumed.
    """
    root = settings.runs_root(_path(runs))
    spec, notes = _as_job(job, overrides, root), tuple[str, ...]()
    is_local = machines is None and launch in (None, "local")
    if is_local and plan is None and settings.fits_to_load():
        spec, notes = fit_threads(spec)
    with _interrupts_as_such():
        summary = api.train(
            spec,
            runs=root,
            data_root=settings.data_root(_path(data_root)),
            cache_root=_path(cache_root) or settings.cache_root(),
            observers=[*observers, *notebook_view(progress)],
            plan=plan,
            machines=machines,
            launch=launch,
            force=force,
            notes=notes,
            on_progress=on_progress,
        )
    return as_result(summary)


def resume(
    run: RunDir | PathLike = "last",
    *,
    overrides: Sequence[str] = (),
    runs: PathLike | None = None,
    observers: Sequence[Observer] = (),
    progress: bool | None = None,
    machines: PoolRequest | None = None,
    launch: str | None = None,
    force: bool = False,
    on_progress: Callable[[str], None] = lambda _: None,
) -> RunResult:
    """Continue a run from its newest checkpoint; arguments as in `train`.

    `run` is a name, a unique prefix of it, a path, or `last`. A run with nothing left to do stays
    as it is, and its summary is returned.

    Raises:
        SpecError: There is no such run, or several.
        StoreError: Another controller owns the run.
    """
    found = run if isinstance(run, RunDir) else _find(run, runs)
    with _interrupts_as_such():
        summary = api.resume(
            found,
            overrides=overrides,
            observers=[*observers, *notebook_view(progress)],
            machines=machines,
            launch=launch,
            force=force,
            on_progress=on_progress,
        )
    return as_result(summary)


def open_run(name: PathLike = "last", *, runs: PathLike | None = None) -> OpenedRun:
    """Open a run to use what it trained: a name, a unique prefix of it, a path, or `last`.

    Raises:
        SpecError: There is no such run, or several.
    """
    from phalanx.notebook.opened_run import OpenedRun

    return OpenedRun(_find(name, runs))


def _as_job(
    job: JobSpec | Mapping[str, object] | PathLike, overrides: Sequence[str], runs: Path
) -> JobSpec:
    if isinstance(job, JobSpec):
        if overrides:
            raise SpecError("overrides change a file or mapping; use job.model_copy(update=...)")
        return job
    if isinstance(job, Mapping):
        return job_from_mapping(with_importable_code(job, runs / "code"), overrides)
    if isinstance(job, str | os.PathLike):
        return load_job(job, overrides)
    raise SpecError(
        f"a job is a file, a mapping or a JobSpec, not {type(job).__name__}; such as "
        "phalanx.train('job.yaml') or phalanx.train({'data': 'digits'})"
    )


def _find(run: PathLike, runs: PathLike | None) -> RunDir:
    return find_run(settings.runs_root(_path(runs)), os.fspath(run))


def _path(given: PathLike | None) -> Path | None:
    return None if given is None else Path(given).expanduser()


@contextlib.contextmanager
def _interrupts_as_such() -> Iterator[None]:
    try:
        yield
    except Interrupted as error:
        place = error.facts.get("run_dir")
        how = f"; continue with phalanx.resume({str(place)!r})" if place is not None else ""
        raise KeyboardInterrupt(f"interrupted{how}") from error
