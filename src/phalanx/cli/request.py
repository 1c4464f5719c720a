"""Turn command-line options into a run that can be started: new, planned or resumed.

Reads files and refuses options that exclude each other; `train` starts the run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.cli.settings import fits_to_load
from phalanx.errors import SpecError

if TYPE_CHECKING:
    from phalanx.control.progress import Observer
    from phalanx.launch.base import PoolRequest
    from phalanx.plan.planfile import Plan
    from phalanx.records.manifest import Manifest
    from phalanx.records.rundir import RunDir
    from phalanx.records.summary import Summary
    from phalanx.spec.job import JobSpec
    from phalanx.spec.pool import PoolSpec


def with_short_options(settings: Sequence[str], short: Mapping[str, object]) -> list[str]:
    """Add options such as `--workers 4` to those of `--set`, in the order in which they apply.

    A short option wins over `--set`, but `--set strategy.every=2` refines what it sets.
    """
    given = {key: value for key, value in short.items() if value is not None}
    parts = tuple(f"{key}." for key in given)
    return [
        *(one for one in settings if not one.startswith(parts)),
        *(f"{key}={value}" for key, value in given.items()),
        *(one for one in settings if one.startswith(parts)),
    ]


@dataclass(frozen=True)
class MachineOptions:
    """Machines that a command line asks for."""

    pool: Path | None = None
    """None: this machine, or those of the plan or the resumed run."""
    select: str | None = None
    where: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    build_env: bool = False
    shrink: bool = False
    """Whether the job may have fewer workers than it asks for, because machines are out."""
    launch: str | None = None
    force: bool = False
    """Whether too little memory on this machine is no obstacle."""

    def choose(self, path: Path, names: Sequence[str] | None = None) -> PoolSpec:
        """Return the requested machines of a pool file, optionally only those named."""
        from phalanx.cli.machines import leave_out, read_pool, reduce_pool, select_machines

        spec = read_pool(path)
        if names is not None:
            missing = set(names) - {one.title for one in spec.machines}
            if missing:
                raise SpecError(f"{path} has no machine {', '.join(sorted(missing))} any more")
            spec = reduce_pool(spec, names)
        if self.without:
            spec = leave_out(spec, self.without)
        if self.select is None and not self.where:
            return spec
        _, selection = select_machines(spec, self.select or "all", self.where)
        return reduce_pool(spec, [one.title for one in selection.chosen])

    def refuse_without_pool(self) -> None:
        """Refuse options that have no effect without a pool."""
        given = {
            "--select": self.select,
            "--where": self.where,
            "--without": self.without,
            "--build-env": self.build_env,
        }
        for name, value in given.items():
            if value:
                raise SpecError(f"{name} is about the machines of a pool; name one with --pool")


@dataclass(frozen=True)
class Places:
    """Directories of data, cache and runs."""

    runs: Path
    data: Path
    cache: Path


@dataclass(frozen=True)
class TrainRequest:
    """A job, and the machines and directories that it is started with."""

    job: JobSpec
    start: Callable[[Sequence[Observer]], Summary]
    machines: PoolRequest | None = None
    launch: str | None = None

    @property
    def can_fork(self) -> bool:
        """Whether local processes can be forked from one that has imported the framework."""
        from phalanx.records.job_check import needs_check
        from phalanx.spec.backend import BACKENDS

        can_fork = BACKENDS.find(self.job.backend).can_fork
        # The check of a job is a process too, so one worker alone is warm with it.
        several = self.job.workers > 1 or needs_check(self.job)
        return self.is_local and several and can_fork

    @property
    def is_local(self) -> bool:
        """Whether all processes run on this machine."""
        return self.machines is None and self.launch in (None, "local")


def request_run(
    job: JobSpec,
    places: Places,
    plan: Plan | None = None,
    machines: PoolRequest | None = None,
    launch: str | None = None,
    force: bool = False,
) -> TrainRequest:
    """Request a new run of a job, on this machine or on those of a pool."""

    def start(observers: Sequence[Observer]) -> Summary:
        # Takes a third of a second, during which a fork server imports too.
        from phalanx import api
        from phalanx.launch.thread_choice import fit_threads

        is_local = machines is None and launch in (None, "local")
        # A plan has predicted its own threads.
        fits = is_local and plan is None and fits_to_load()
        fitted, notes = fit_threads(job) if fits else (job, ())
        return api.train(
            fitted,
            runs=places.runs,
            data_root=places.data,
            cache_root=places.cache,
            observers=observers,
            plan=plan,
            machines=machines,
            launch=launch,
            force=force,
            notes=notes,
            on_progress=_tell(observers),
        )

    return TrainRequest(job, start, machines, launch)


def new_run(
    path: Path | None, places: Places, overrides: Sequence[str], options: MachineOptions
) -> TrainRequest:
    """Request a new run of a job file.

    Raises:
        SpecError: There is no job file, or it is wrong.
    """
    from phalanx.spec.loader import load_job

    if path is None:
        raise SpecError(
            "there is no job to train; name a job file, as in `phalanx train job.yaml`, or a run "
            "to continue with --resume; `phalanx demo` needs neither"
        )
    return run_of_job(load_job(path, overrides), places, options)


@dataclass(frozen=True)
class ScriptRequest:
    """A script that a command line names, with its arguments and the name of its run."""

    script: Path | None
    args: tuple[str, ...]
    name: str | None = None

    def check_plan(self, path: Path, plan: Plan) -> None:
        """Refuse to run another script, or other arguments, than a plan was made for.

        Raises:
            SpecError: It was.
        """
        program = plan.job.get("program")
        if not program:
            raise SpecError(f"{path} is the plan of a job file; run it by `phalanx train --plan`")
        script, args = Path(program["script"]), tuple(program["args"])
        if self.script is None:
            return
        if self.script.resolve() != script.resolve() or (self.args and self.args != args):
            planned = " ".join([str(script), *args])
            raise SpecError(
                f"{path} was made for `{planned}`; leave out the script, or make another plan"
            )


def new_script_run(
    wanted: ScriptRequest, places: Places, overrides: Sequence[str], options: MachineOptions
) -> TrainRequest:
    """Request a new run of the user's own script.

    Raises:
        SpecError: There is no such script, or a setting is wrong.
    """
    return run_of_job(job_of_script(wanted, overrides), places, options)


def job_of_script(wanted: ScriptRequest, overrides: Sequence[str]) -> JobSpec:
    """Return the job that runs the user's own script.

    Raises:
        SpecError: There is no such script, or a setting is wrong.
    """
    from phalanx.spec.loader import job_from_mapping

    script = wanted.script
    if script is None:
        raise SpecError(
            "there is no script to run; name one, as in `phalanx launch --workers 2 train.py`, or "
            "a run to continue with --resume"
        )
    if not script.is_file():
        raise SpecError(f"there is no script {script}")
    if script.suffix in (".yaml", ".yml"):
        raise SpecError(
            f"{script} is a job file, not a script; train it with `phalanx train {script}`"
        )
    usual = re.sub(r"[^A-Za-z0-9_.-]", "-", script.stem).lstrip(".-")[:80] or "script"
    program = {"script": str(script), "args": list(wanted.args)}
    mapping = {"name": wanted.name or usual, "program": program}
    return job_from_mapping(mapping, overrides)


def run_of_job(job: JobSpec, places: Places, options: MachineOptions) -> TrainRequest:
    """Request a new run of a job, on this machine or on those of a pool."""
    if options.pool is None:
        options.refuse_without_pool()
        return request_run(job, places, launch=options.launch, force=options.force)
    from phalanx.cli.requeue import restarted_run
    from phalanx.launch.base import PoolRequest
    from phalanx.launch.provision import fill_workers
    from phalanx.pool.scheduler import lease_of

    spec = options.choose(options.pool)
    lease = lease_of(spec)
    if (before := restarted_run(lease, places.runs)) is not None:
        return resumption(before, places.runs, (), options)
    job = fill_workers(job, spec, shrink=options.shrink)
    machines = PoolRequest(
        pool=spec,
        source=str(options.pool.resolve()),
        build_env=options.build_env,
        lease=lease.name if lease is not None else None,
    )
    return request_run(job, places, machines=machines, launch=options.launch)


def planned_run(
    path: Path,
    places: Places,
    *,
    job_path: Path | None = None,
    script: ScriptRequest | None = None,
    overrides: Sequence[str],
    options: MachineOptions,
) -> TrainRequest:
    """Request the run that a plan has chosen; of a script, it may be named once more.

    Raises:
        SpecError: The file is not a plan, or contradicts the other options.
    """
    import socket

    import msgspec

    from phalanx.plan.planfile import plan_without, planned_job, read_plan

    if job_path is not None:
        raise SpecError(f"--plan {path} holds its job; leave out {job_path}")
    if overrides:
        raise SpecError(
            f"--plan {path} was predicted for its own settings; leave out {overrides[0]}, or make "
            "a new plan with --set"
        )
    plan = read_plan(path)
    if script is not None:
        script.check_plan(path, plan)
    pool = options.pool or (Path(plan.pool) if plan.pool is not None else None)
    if pool is None:
        options.refuse_without_pool()
        job = planned_job(plan, socket.gethostname())
        return request_run(job, places, plan, launch=options.launch, force=options.force)
    if options.select or options.where:
        raise SpecError(f"--plan {path} has chosen its machines; leave out --select and --where")
    from phalanx.cli.machines import request_of_plan

    spec = options.choose(pool, plan.machines)
    plan = msgspec.structs.replace(plan_without(plan, options.without), pool=str(pool.resolve()))
    machines = request_of_plan(plan, spec, pool, build_env=options.build_env)
    job = planned_job(plan, socket.gethostname())
    return request_run(job, places, plan, machines, options.launch)


def resumption(
    name: str, runs: Path, overrides: Sequence[str], options: MachineOptions
) -> TrainRequest:
    """Request the continuation of a run.

    Raises:
        SpecError: There is no such run, or it cannot be resumed with these options.
    """
    from phalanx import api
    from phalanx.records.manifest import nothing_left, read_manifest
    from phalanx.records.rundir import find_run
    from phalanx.spec.loader import job_from_mapping
    from phalanx.spec.urls import is_url

    run = find_run(runs, name) if not is_url(name) else fetch_run_by_url(name, runs)
    manifest = read_manifest(run)
    job = job_from_mapping(manifest.job, overrides)
    machines = None
    if options.pool is not None or manifest.pool is not None:
        machines, overrides = _where_to_go_on(run, manifest, job, overrides, options)
        job = job_from_mapping(manifest.job, overrides)
    else:
        options.refuse_without_pool()

    def start(observers: Sequence[Observer]) -> Summary:
        if nothing_left(run, overrides):
            _say(
                observers,
                f"run {run.name} has finished its {job.epochs} epochs; nothing was changed (train "
                f"on with --epochs {job.epochs + 1})",
            )
        return api.resume(
            run,
            overrides=overrides,
            observers=observers,
            machines=machines,
            launch=options.launch,
            force=options.force,
            on_progress=_tell(observers),
        )

    return TrainRequest(job, start, machines, options.launch or manifest.launch)


def fetch_run_by_url(url: str, runs: Path) -> RunDir:
    """Copy a run from a store into a directory of runs, with a progress bar."""
    from phalanx.cli.screen import open_console
    from phalanx.cli.transfer import transfer_bars
    from phalanx.records.run_copy import fetch_run
    from phalanx.spec.urls import refuse_secrets

    refuse_secrets(url)
    with transfer_bars(open_console(stderr=True)) as on_progress:
        return fetch_run(url, runs, on_progress)


def _where_to_go_on(
    run: RunDir, manifest: Manifest, job: JobSpec, overrides: Sequence[str], options: MachineOptions
) -> tuple[PoolRequest, Sequence[str]]:
    """Return the machines of a resumed run: those it had, unless others are named."""
    from phalanx.cli.machines import request_of_plan
    from phalanx.launch.base import PoolRequest
    from phalanx.plan.planfile import plan_of_run
    from phalanx.pool.scheduler import lease_of

    path = options.pool or Path(str(manifest.pool))
    # A scheduler may lend others this time.
    is_same = options.pool is None and manifest.lease is None
    spec = options.choose(path, manifest.machines if is_same else None)
    lease = lease_of(spec)
    build_env = options.build_env or manifest.build_env
    plan = plan_of_run(run)
    titles = {one.title for one in spec.machines}
    if plan is not None and set(plan.machines) <= titles and not overrides:
        return request_of_plan(plan, spec, path, build_env=build_env), overrides
    slots = sum(one.slots for one in spec.machines)
    if options.shrink and job.workers > slots:
        overrides = [*overrides, f"workers={slots}"]
    machines = PoolRequest(
        pool=spec,
        source=str(path.resolve()),
        build_env=build_env,
        lease=lease.name if lease is not None else None,
    )
    return machines, overrides


def refuse_with_resume(name: str, *, job_path: Path | None, data: Path | None) -> None:
    """Refuse options that contradict resuming a run."""
    if job_path is not None:
        raise SpecError(
            f"--resume {name} continues a run with its own job; leave out {job_path}, "
            "and change settings with --set"
        )
    if data is not None:
        raise SpecError("--data has no use with --resume: a run keeps its data directory")


def _tell(observers: Sequence[Observer]) -> Callable[[str], None]:
    """Return a function that reports provisioning, as long as no view is drawn."""
    return lambda text: _say(observers, f"{text} ...")


def _say(observers: Sequence[Observer], text: str) -> None:
    if observers:
        from phalanx.cli.screen import open_console

        open_console(stderr=True).print(text, style="dim", soft_wrap=True, markup=False)
