"""`phalanx train`: a job file and a few overrides in, a run out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.errors import SpecError

if TYPE_CHECKING:
    from rich.console import Console

    from phalanx.control.progress import Observer
    from phalanx.plan.planfile import Plan
    from phalanx.records.rundir import RunDir
    from phalanx.records.summary import Summary
    from phalanx.spec.job import JobSpec

EXAMPLES = """
[bold]Examples[/bold]

phalanx train job.yaml

phalanx train job.yaml --workers 4 --set optimizer.lr=0.05

phalanx train job.yaml --strategy local_sgd --set strategy.every=16 --dry-run

phalanx train --resume last --epochs 20

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
    runs: RunsOption = None,
    data: DataOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train a job on this machine, or continue a run."""
    from phalanx.cli.settings import cache_root, data_root, runs_root

    short = {"strategy": strategy, "workers": workers, "epochs": epochs, "seed": seed}
    overrides = [*(settings or ())]
    overrides += [f"{key}={value}" for key, value in short.items() if value is not None]
    if resume is not None:
        _refuse_with_resume(resume, job_path=job, data=data)
        request = _resumption(resume, runs_root(runs), overrides)
    else:
        places = Places(runs=runs_root(runs), data=data_root(data), cache=cache_root())
        request = (
            _new_run(job, places, overrides)
            if plan is None
            else _planned_run(plan, places, job_path=job, overrides=overrides)
        )
    if dry_run:
        _print_job(request.job, as_json=as_json)
        return
    summary = _carry_out(request, plain_stderr=as_json, quiet=quiet)
    if as_json:
        print_json(summary)


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


def request_run(job: JobSpec, places: Places, plan: Plan | None = None) -> Request:
    """A new run of a job."""
    from phalanx import api

    def start(observers: Sequence[Observer]) -> Summary:
        return api.train(
            job,
            runs=places.runs,
            data_root=places.data,
            cache_root=places.cache,
            observers=observers,
            plan=plan,
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


def _new_run(path: Path | None, places: Places, overrides: Sequence[str]) -> Request:
    from phalanx.spec.loader import load_job

    if path is None:
        raise SpecError(
            "there is no job to train; name a job file, as in `phalanx train job.yaml`, or a run "
            "to continue with --resume; `phalanx demo` needs neither"
        )
    return request_run(load_job(path, overrides), places)


def _planned_run(
    path: Path, places: Places, *, job_path: Path | None, overrides: Sequence[str]
) -> Request:
    import socket

    from phalanx.plan.planfile import planned_job, read_plan

    if job_path is not None:
        raise SpecError(f"--plan {path} holds its job; leave out {job_path}")
    if overrides:
        raise SpecError(
            f"--plan {path} was predicted for its own settings; leave out {overrides[0]}, or make "
            "a new plan with --set"
        )
    plan = read_plan(path)
    return request_run(planned_job(plan, socket.gethostname()), places, plan)


def _resumption(name: str, runs: Path, overrides: Sequence[str]) -> Request:
    from phalanx import api
    from phalanx.records.manifest import read_manifest
    from phalanx.records.rundir import find_run
    from phalanx.spec.loader import job_from_mapping

    run = find_run(runs, name)
    job = job_from_mapping(read_manifest(run).job, overrides)

    def start(observers: Sequence[Observer]) -> Summary:
        return api.resume(run, overrides=overrides, observers=observers)

    return Request(job, start)


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
