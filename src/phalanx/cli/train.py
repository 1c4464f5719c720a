"""`phalanx train`: a job file and a few overrides in, a run out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.machines import POLICIES, WhereOption
from phalanx.errors import SpecError

if TYPE_CHECKING:
    from rich.console import Console

    from phalanx.control.progress import Observer
    from phalanx.launch.camp import PoolOrder
    from phalanx.launch.preflight import MachinesUnfit
    from phalanx.plan.planfile import Plan
    from phalanx.records.manifest import Manifest
    from phalanx.records.rundir import RunDir
    from phalanx.records.summary import Summary
    from phalanx.spec.job import JobSpec
    from phalanx.spec.pool import PoolSpec

EXAMPLES = """
[bold]Examples[/bold]

phalanx train job.yaml

phalanx train job.yaml --workers 4 --set optimizer.lr=0.05

phalanx train job.yaml --strategy local_sgd --set strategy.every=16 --dry-run

phalanx train --resume last --epochs 20

phalanx train job.yaml --pool pool.yaml --select cpu

phalanx train --plan plan.json
"""

JobArgument = Annotated[
    Path | None,
    typer.Argument(metavar="JOB", help="The job file, in YAML.", show_default=False),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one setting; may be repeated."),
]
WorkersOption = Annotated[int | None, typer.Option(metavar="N", help="Short for --set workers=N.")]
EpochsOption = Annotated[int | None, typer.Option(metavar="N", help="Short for --set epochs=N.")]
StrategyOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Short for --set strategy=NAME.")
]
SeedOption = Annotated[int | None, typer.Option(metavar="N", help="Short for --set seed=N.")]
ResumeOption = Annotated[
    str | None,
    typer.Option(metavar="RUN", help="Continue a run: its name, a beginning, a path or 'last'."),
]
PlanOption = Annotated[
    Path | None,
    typer.Option("--plan", metavar="FILE", help="Run what `phalanx plan -o FILE` has chosen."),
]
PoolOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Train on these machines, over ssh, instead of here."),
]
SelectOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help=f"{POLICIES} of the pool's machines."),
]
WithoutOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Leave a machine of the pool out; may be repeated."),
]
BuildOption = Annotated[
    bool,
    typer.Option(
        "--build-env",
        metavar="",
        help="Build an environment with the versions in use here on each machine, once.",
    ),
]
RunsOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where runs are kept \\[default: $PHALANX_RUNS, else runs]."),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Where data sets lie \\[default: $PHALANX_DATA, else the user's cache]."
    ),
]
DryRunOption = Annotated[
    bool,
    typer.Option(
        "--dry-run", metavar="", help="Print the job with all its settings; start nothing."
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json", metavar="", help="Print the summary as one JSON object on standard output."
    ),
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", metavar="", help="Print nothing but errors.")
]


def train(
    job: JobArgument = None,
    settings: SetOption = None,
    workers: WorkersOption = None,
    epochs: EpochsOption = None,
    strategy: StrategyOption = None,
    seed: SeedOption = None,
    resume: ResumeOption = None,
    plan: PlanOption = None,
    pool: PoolOption = None,
    select: SelectOption = None,
    where: WhereOption = None,
    without: WithoutOption = None,
    build_env: BuildOption = False,
    runs: RunsOption = None,
    data: DataOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train a job on this machine or on those of a pool, or continue a run."""
    from phalanx.cli.settings import cache_root, data_root, runs_root

    short = {"strategy": strategy, "workers": workers, "epochs": epochs, "seed": seed}
    overrides = [*(settings or ())]
    overrides += [f"{key}={value}" for key, value in short.items() if value is not None]
    crew = Crew(
        pool=pool,
        select=select,
        where=tuple(where or ()),
        without=tuple(without or ()),
        build_env=build_env,
    )
    if resume is not None:
        _refuse_with_resume(resume, job_path=job, data=data)

    def request_with(crew: Crew) -> Request:
        if resume is not None:
            return _resumption(resume, runs_root(runs), overrides, crew)
        places = Places(runs=runs_root(runs), data=data_root(data), cache=cache_root())
        if plan is not None:
            return _planned_run(plan, places, job_path=job, overrides=overrides, crew=crew)
        return _new_run(job, places, overrides, crew)

    request = request_with(crew)
    if dry_run:
        _print_job(request.job, as_json=as_json)
        return
    may_ask = not (quiet or as_json)
    summary = _carry_out_or_ask(request_with, request, crew, plain=as_json, may_ask=may_ask)
    if as_json:
        print_json(summary)


@dataclass(frozen=True)
class Crew:
    """Which machines a command line asks for.

    Attributes:
        pool: The pool file; None: this machine, or what a plan or an earlier start says.
        select: A policy.
        where: Filters.
        without: Machines to leave out.
        build_env: Whether an environment is built there.
        shrink: Whether the job may have fewer workers than it asks for, because machines are out.
    """

    pool: Path | None = None
    select: str | None = None
    where: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    build_env: bool = False
    shrink: bool = False

    def choose(self, path: Path, names: Sequence[str] | None = None) -> PoolSpec:
        """The machines of a pool file that are asked for, maybe only those of a plan or a run."""
        from phalanx.cli.machines import leave_out, read_pool, reduce_pool, select_machines

        spec = read_pool(path)
        if names is not None:
            spec = reduce_pool(spec, names)
        if self.without:
            spec = leave_out(spec, self.without)
        if self.select is None and not self.where:
            return spec
        _, selection = select_machines(spec, self.select or "all", self.where)
        return reduce_pool(spec, [one.title for one in selection.chosen])

    def refuse_without_pool(self) -> None:
        """Say that an option has no effect without a pool."""
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
    """Where a run finds its data and leaves its records."""

    runs: Path
    data: Path
    cache: Path


@dataclass(frozen=True)
class Request:
    """A job, and what starts it."""

    job: JobSpec
    start: Callable[[Sequence[Observer]], Summary]


def request_run(
    job: JobSpec, places: Places, plan: Plan | None = None, machines: PoolOrder | None = None
) -> Request:
    """A new run of a job, on this machine or on those of a pool."""
    from phalanx import api

    def start(observers: Sequence[Observer]) -> Summary:
        return api.train(
            job,
            runs=places.runs,
            data_root=places.data,
            cache_root=places.cache,
            observers=observers,
            plan=plan,
            machines=machines,
            on_progress=_tell(observers),
        )

    return Request(job, start)


def follow(request: Request, console: Console, *, plain: bool = False) -> Summary:
    """Carry out a run and show how it goes."""
    from phalanx.cli.progress import choose_view

    with choose_view(console, plain=plain) as view:
        return request.start([view])


def print_json(value: object) -> None:
    """One JSON object on one line of standard output."""
    import msgspec

    print(msgspec.json.encode(value).decode())


def _new_run(path: Path | None, places: Places, overrides: Sequence[str], crew: Crew) -> Request:
    from phalanx.spec.loader import load_job

    if path is None:
        raise SpecError(
            "there is no job to train; name a job file, as in `phalanx train job.yaml`, or a run "
            "to continue with --resume; `phalanx demo` needs neither"
        )
    job = load_job(path, overrides)
    if crew.pool is None:
        crew.refuse_without_pool()
        return request_run(job, places)
    from phalanx.launch.camp import PoolOrder, fill_workers

    spec = crew.choose(crew.pool)
    job = fill_workers(job, spec, shrink=crew.shrink)
    order = PoolOrder(pool=spec, source=str(crew.pool.resolve()), build_env=crew.build_env)
    return request_run(job, places, machines=order)


def _planned_run(
    path: Path,
    places: Places,
    *,
    job_path: Path | None,
    overrides: Sequence[str],
    crew: Crew,
) -> Request:
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
    pool = crew.pool or (Path(plan.pool) if plan.pool is not None else None)
    if pool is None:
        crew.refuse_without_pool()
        return request_run(planned_job(plan, socket.gethostname()), places, plan)
    if crew.select or crew.where:
        raise SpecError(f"--plan {path} has chosen its machines; leave out --select and --where")
    from phalanx.cli.machines import order_of_plan

    spec = crew.choose(pool, plan.machines)
    plan = msgspec.structs.replace(plan_without(plan, crew.without), pool=str(pool.resolve()))
    order = order_of_plan(plan, spec, pool, build_env=crew.build_env)
    return request_run(planned_job(plan, socket.gethostname()), places, plan, order)


def _resumption(name: str, runs: Path, overrides: Sequence[str], crew: Crew) -> Request:
    from phalanx import api
    from phalanx.records.manifest import read_manifest
    from phalanx.records.rundir import find_run
    from phalanx.spec.loader import job_from_mapping

    run = find_run(runs, name)
    manifest = read_manifest(run)
    job = job_from_mapping(manifest.job, overrides)
    machines = None
    if crew.pool is not None or manifest.pool is not None:
        machines, overrides = _where_to_go_on(run, manifest, job, overrides, crew)
        job = job_from_mapping(manifest.job, overrides)
    else:
        crew.refuse_without_pool()

    def start(observers: Sequence[Observer]) -> Summary:
        return api.resume(
            run,
            overrides=overrides,
            observers=observers,
            machines=machines,
            on_progress=_tell(observers),
        )

    return Request(job, start)


def _where_to_go_on(
    run: RunDir, manifest: Manifest, job: JobSpec, overrides: Sequence[str], crew: Crew
) -> tuple[PoolOrder, Sequence[str]]:
    """The machines of a run that is continued: those that it had, unless others are named."""
    from phalanx.cli.machines import order_of_plan
    from phalanx.launch.camp import PoolOrder
    from phalanx.plan.planfile import plan_of_run

    path = crew.pool or Path(str(manifest.pool))
    names = None if crew.pool is not None else manifest.machines
    spec = crew.choose(path, names)
    build_env = crew.build_env or manifest.build_env
    plan = plan_of_run(run)
    titles = {one.title for one in spec.machines}
    if plan is not None and set(plan.machines) <= titles and not overrides:
        return order_of_plan(plan, spec, path, build_env=build_env), overrides
    slots = sum(one.slots for one in spec.machines)
    if crew.shrink and job.workers > slots:
        overrides = [*overrides, f"workers={slots}"]
    return PoolOrder(pool=spec, source=str(path.resolve()), build_env=build_env), overrides


def _refuse_with_resume(name: str, *, job_path: Path | None, data: Path | None) -> None:
    if job_path is not None:
        raise SpecError(
            f"--resume {name} continues a run with its own job; leave out {job_path}, "
            "and change settings with --set"
        )
    if data is not None:
        raise SpecError("--data has no use with --resume: a run keeps its data directory")


def _print_job(job: JobSpec, *, as_json: bool) -> None:
    from phalanx.spec.render import to_mapping, to_yaml

    if as_json:
        print_json(to_mapping(job))
    else:
        print(to_yaml(job), end="")


def _carry_out_or_ask(
    request_with: Callable[[Crew], Request],
    request: Request,
    crew: Crew,
    *,
    plain: bool,
    may_ask: bool,
) -> Summary:
    """Carry out a run; machines that cannot take part are left out if the user says so."""
    from phalanx.launch.preflight import MachinesUnfit

    while True:
        try:
            return _carry_out(request, plain_stderr=plain, quiet=not may_ask and not plain)
        except MachinesUnfit as error:
            names = list(error.facts["faults"])
            if not may_ask or not _asks_without(error, names):
                raise
            crew = replace(crew, without=(*crew.without, *names), shrink=True)
            request = request_with(crew)


def _asks_without(error: MachinesUnfit, names: Sequence[str]) -> bool:
    """Whether the user, at a terminal, wants to go on without some machines."""
    import sys

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    from phalanx.cli.screen import open_console

    console = open_console(stderr=True)
    for name, reason in error.facts["faults"].items():
        console.print(f"{name}: {reason}", soft_wrap=True, markup=False)
    return typer.confirm(f"train without {' and '.join(names)}?", default=False, err=True)


def _tell(observers: Sequence[Observer]) -> Callable[[str], None]:
    """Says how machines are made ready, as long as nothing else is on the screen."""
    if not observers:
        return lambda text: None
    from phalanx.cli.screen import open_console

    console = open_console(stderr=True)
    return lambda text: console.print(f"{text} ...", style="dim", soft_wrap=True, markup=False)


def _carry_out(request: Request, *, plain_stderr: bool, quiet: bool) -> Summary:
    if quiet:
        return request.start([])
    from phalanx.cli.result import collect_warnings, show_result
    from phalanx.cli.screen import open_console
    from phalanx.records.rundir import RunDir

    # Standard output belongs to the JSON object when one is asked for.
    console = open_console(stderr=plain_stderr)
    summary = follow(request, console, plain=plain_stderr)
    if not plain_stderr:
        run = RunDir(Path(summary.run_dir))
        show_result(console, summary, collect_warnings(run))
        _show_versus(console, run, summary)
    return summary


def _show_versus(console: Console, run: RunDir, summary: Summary) -> None:
    """After a planned run: what was predicted, and what it came to."""
    if not (run.path / "plan.json").exists():
        return
    from phalanx.cli.plan_table import show_versus
    from phalanx.plan.measured import measure_run
    from phalanx.plan.planfile import plan_of_run
    from phalanx.plan.versus import compare_with_run

    plan = plan_of_run(run)
    if plan is not None:
        show_versus(console, compare_with_run(plan, summary, measure_run(run)))
