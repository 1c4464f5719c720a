"""Implement `phalanx train`: start a run from a job file or a plan, or continue one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.machines import POLICIES, WhereOption
from phalanx.cli.options import (
    DataOption,
    QuietOption,
    RunsOption,
    SetOption,
    WithoutOption,
    argument,
    examples,
    flag,
    option,
    run_names,
    strategy_names,
)
from phalanx.cli.request import (
    MachineOptions,
    Places,
    TrainRequest,
    new_run,
    planned_run,
    refuse_with_resume,
    resumption,
    with_short_options,
)
from phalanx.cli.requeue import requeue_at_sigterm
from phalanx.cli.settings import cache_root, data_root, runs_root
from phalanx.spec.urls import is_url

if TYPE_CHECKING:
    from rich.console import Console

    from phalanx.launch.preflight_host import MachinesUnfit
    from phalanx.records.rundir import RunDir
    from phalanx.records.summary import Summary
    from phalanx.spec.job import JobSpec

EXAMPLES = examples(
    "phalanx train job.yaml",
    "phalanx train job.yaml --workers 4 --set optimizer.lr=0.05",
    "phalanx train job.yaml --strategy local_sgd --set strategy.every=16 --dry-run",
    "phalanx train --resume last --epochs 20",
    "phalanx train job.yaml --pool pool.yaml --select cpu",
    "phalanx train --plan plan.json",
)

JobArgument = Annotated[Path | None, argument("JOB", "Job file in YAML.", show_default=False)]
WorkersOption = Annotated[int | None, option("N", "Short for --set workers=N.")]
EpochsOption = Annotated[int | None, option("N", "Short for --set epochs=N.")]
StrategyOption = Annotated[
    str | None, option("NAME", "Short for --set strategy=NAME.", autocompletion=strategy_names)
]
SeedOption = Annotated[int | None, option("N", "Short for --set seed=N.")]
ResumeOption = Annotated[
    str | None,
    option(
        "RUN",
        "Continue a run: its name, unique prefix, path, or 'last'.",
        autocompletion=run_names,
    ),
]
PlanOption = Annotated[
    Path | None, option("FILE", "Run the plan that `phalanx plan -o FILE` wrote.", "--plan")
]
PoolOption = Annotated[
    Path | None, option("FILE", "Train on the machines of a pool, over ssh or by its scheduler.")
]
SelectOption = Annotated[str | None, option("NAME", f"{POLICIES} of the pool's machines.")]
LaunchOption = Annotated[
    str | None,
    option(
        "NAME",
        "How processes start: local, ssh, another package's launcher or package.module:name "
        "\\[default: ssh with --pool, else local].",
    ),
]
BuildOption = Annotated[
    bool, flag("Build an environment with the local versions on each machine, once.", "--build-env")
]
ForceOption = Annotated[
    bool, flag("Start without checking sizes, memory, network and data first.", "--force")
]
DryRunOption = Annotated[
    bool, flag("Check the job and print it with all settings; start nothing.", "--dry-run")
]
JsonOption = Annotated[
    bool, flag("Print the summary as one JSON object on standard output.", "--json")
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
    launch: LaunchOption = None,
    force: ForceOption = False,
    runs: RunsOption = None,
    data: DataOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train a job on this machine or on the machines of a pool, or continue a run."""
    short = {"strategy": strategy, "workers": workers, "epochs": epochs, "seed": seed}
    overrides = with_short_options(settings or (), short)
    options = MachineOptions(
        pool=pool,
        select=select,
        where=tuple(where or ()),
        without=tuple(without or ()),
        build_env=build_env,
        launch=launch,
        force=force,
    )
    if resume is not None:
        refuse_with_resume(resume, job_path=job, data=data)

    def request_with(options: MachineOptions) -> TrainRequest:
        if resume is not None:
            return resumption(resume, runs_root(runs), overrides, options)
        places = Places(runs=runs_root(runs), data=data_root(data), cache=cache_root())
        if plan is not None:
            return planned_run(plan, places, job_path=job, overrides=overrides, options=options)
        return new_run(job, places, overrides, options)

    run_command(request_with, options, data=data, dry_run=dry_run, as_json=as_json, quiet=quiet)


def run_command(
    request_with: Callable[[MachineOptions], TrainRequest],
    options: MachineOptions,
    *,
    data: Path | None = None,
    dry_run: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Execute the run that a command requests, and print its result.

    Args:
        request_with: Makes the request for these machines, or for fewer if some are unfit.
        options: Of the machines.
        data: Directory of data sets; None: the usual one.
        dry_run: Whether to print the job and start nothing.
        as_json: Whether to print the summary, or the job, as JSON.
        quiet: Whether to print nothing but errors.
    """
    from phalanx.launch.fork_server import warm_workers

    with ExitStack() as warm:
        if not dry_run and options.pool is None and options.launch in (None, "local"):
            # Before the job is read: the imports of workers are most of what a start waits for.
            warm.enter_context(warm_workers())
        request = request_with(options)
        if dry_run:
            _check(request, data_root(data), force=options.force)
            _print_job(request.job, as_json=as_json)
            return
        if not request.can_fork:
            warm.close()
        if request.is_local and not as_json and not quiet:
            _warn_of_crowd(request.job)
            if is_url(request.job.data.name):
                from phalanx.cli.data import fetch_by_url

                fetch_by_url(request.job.data)
        summary = _carry_out_or_ask(request_with, request, options, plain=as_json, quiet=quiet)
    if as_json:
        from phalanx.cli.output import print_json

        print_json(summary)


def follow(request: TrainRequest, console: Console, *, plain: bool = False) -> Summary:
    """Execute a run and show its progress."""
    from phalanx.cli.progress import choose_view

    with requeue_at_sigterm(request.machines), choose_view(console, plain=plain) as view:
        return request.start([view])


def _check(request: TrainRequest, data: Path, *, force: bool) -> None:
    """Refuse what a run would refuse before its first process."""
    if force or not request.is_local:
        return
    from phalanx.data.sources import open_source
    from phalanx.errors import DataError
    from phalanx.launch.job_check import check_fit, check_sizes, usable_cores
    from phalanx.spec.data import SOURCES

    check_sizes(request.job, usable_cores())
    _warn_of_crowd(request.job)
    if request.job.data.name in SOURCES.built_in:
        try:
            open_source(request.job.data, data_root=data, cache_root=cache_root())
        except DataError as error:
            # The job itself may be right: a data set can be fetched later.
            _warn(str(error))
            return
    for note in check_fit(request.job, data_root=data, cache_root=cache_root()):
        _warn(note)


def _warn_of_crowd(job: JobSpec) -> None:
    from phalanx.launch.job_check import crowding_note, usable_cores

    note = crowding_note(job, usable_cores())
    if note is not None:
        _warn(note)


def _warn(note: str) -> None:
    from phalanx.cli.screen import open_console

    open_console(stderr=True).print(f"warning: {note}", soft_wrap=True, markup=False)


def _print_job(job: JobSpec, *, as_json: bool) -> None:
    from phalanx.cli.output import print_json
    from phalanx.spec.render import to_mapping, to_yaml

    if as_json:
        print_json(to_mapping(job))
    else:
        print(to_yaml(job), end="")


def _carry_out_or_ask(
    request_with: Callable[[MachineOptions], TrainRequest],
    request: TrainRequest,
    options: MachineOptions,
    *,
    plain: bool,
    quiet: bool,
) -> Summary:
    """Execute a run; machines that fail the preflight are excluded if the user agrees."""
    # Imported only now, so that it overlaps with the imports of the fork server.
    from phalanx.launch.preflight_host import MachinesUnfit

    while True:
        try:
            return _carry_out(request, plain_stderr=plain, quiet=quiet)
        except MachinesUnfit as error:
            names = list(error.facts["faults"])
            if plain or quiet or not _asks_without(error, names):
                raise
            options = replace(options, without=(*options.without, *names), shrink=True)
            request = request_with(options)


def _asks_without(error: MachinesUnfit, names: Sequence[str]) -> bool:
    """Ask the user, at a terminal, whether to continue without some machines."""
    import sys

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    from phalanx.cli.screen import open_console

    console = open_console(stderr=True)
    for name, reason in error.facts["faults"].items():
        console.print(f"{name}: {reason}", soft_wrap=True, markup=False)
    return typer.confirm(f"train without {' and '.join(names)}?", default=False, err=True)


def _carry_out(request: TrainRequest, *, plain_stderr: bool, quiet: bool) -> Summary:
    if quiet:
        with requeue_at_sigterm(request.machines):
            return request.start([])
    from phalanx.cli.output import print_blocks
    from phalanx.cli.result import collect_warnings, result_blocks
    from phalanx.cli.screen import open_console
    from phalanx.records.rundir import RunDir

    # Standard output belongs to the JSON object when one is asked for.
    console = open_console(stderr=plain_stderr)
    summary = follow(request, console, plain=plain_stderr)
    if not plain_stderr:
        run = RunDir(Path(summary.run_dir))
        print_blocks(console, result_blocks(summary, collect_warnings(run)))
        _show_versus(console, run, summary)
    return summary


def _show_versus(console: Console, run: RunDir, summary: Summary) -> None:
    if not (run.path / "plan.json").exists():
        return
    from phalanx.cli.output import print_blocks
    from phalanx.cli.plan_table import versus_table
    from phalanx.plan.measured import measure_run
    from phalanx.plan.planfile import compare_with_run, plan_of_run

    plan = plan_of_run(run)
    if plan is not None:
        rows = compare_with_run(plan, summary, measure_run(run))
        print_blocks(console, [versus_table(rows)])
