"""`phalanx study`: run a matrix of jobs, go on with it, and show how it stands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.errors import ExitCode, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from phalanx.study.runner import StudyObserver, StudyOutcome

app = typer.Typer(help="Run a matrix of jobs with repeats, and compare.", no_args_is_help=True)

RUN_EXAMPLES = """
[bold]Examples[/bold]

phalanx study run study.yaml --dry-run

phalanx study run study.yaml --to results/first --repeats 5

phalanx study run study.yaml --set job.epochs=2 --budget 20min
"""
RESUME_EXAMPLES = """
[bold]Examples[/bold]

phalanx study resume runs/study-digits

phalanx study resume runs/study-digits --retry-failed --budget 2h
"""
SHOW_EXAMPLES = """
[bold]Examples[/bold]

phalanx study show runs/study-digits

phalanx study show runs/study-digits --json
"""

DirArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The study directory.")]
RepeatsOption = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Runs of each cell, each with another seed.")
]
ParallelOption = Annotated[
    str | None,
    typer.Option(metavar="N", help="Runs at the same time, each on cores of its own, or 'auto'."),
]
BudgetOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="Start no run that would end later: 20min, 2h.")
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", metavar="", help="Print nothing but errors.")
]


@app.command("run", epilog=RUN_EXAMPLES)
def run(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="The study file, in YAML.")],
    to: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The study directory \\[default: study-NAME in runs]."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change one setting, such as job.epochs=2."
        ),
    ] = None,
    repeats: RepeatsOption = None,
    parallel: ParallelOption = None,
    budget: BudgetOption = None,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where data sets lie.", show_default=False)
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", metavar="", help="Show the cells and how often each is run."),
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Run a new study; `phalanx study resume` goes on with one that was interrupted."""
    from phalanx import api
    from phalanx.cli.screen import open_console
    from phalanx.cli.settings import cache_root, data_root, runs_root
    from phalanx.spec.study_file import load_study
    from phalanx.study.plan import plan_study

    short = {"repeats": repeats, "parallel": parallel, "budget": budget}
    overrides = [*(settings or ())]
    overrides += [f"{key}={value}" for key, value in short.items() if value is not None]
    file = load_study(study, overrides)
    if dry_run:
        from phalanx.cli.study_table import render_plan

        manifest = plan_study(file, data_root=data_root(data), cache_root=cache_root())
        open_console().print(render_plan(manifest))
        return
    place = to or runs_root() / f"study-{file.spec.study}"

    def start(observers: Sequence[StudyObserver]) -> StudyOutcome:
        return api.run_study(
            file,
            to=place,
            data_root=data_root(data),
            cache_root=cache_root(),
            observers=observers,
        )

    _carry_out(start, quiet=quiet)


@app.command("resume", epilog=RESUME_EXAMPLES)
def resume(
    study: DirArgument,
    retry_failed: Annotated[
        bool,
        typer.Option("--retry-failed", metavar="", help="Run what has failed once more."),
    ] = False,
    repeats: RepeatsOption = None,
    parallel: ParallelOption = None,
    budget: BudgetOption = None,
    quiet: QuietOption = False,
) -> None:
    """Go on with a study after an interruption, or with more repeats or a larger budget."""
    from phalanx import api
    from phalanx.records.study import StudyDir
    from phalanx.study.plan import amend

    directory = StudyDir.open(study)
    if any(option is not None for option in (repeats, parallel, budget)):
        lanes = None if parallel is None else lanes_of(parallel)
        manifest = amend(directory.manifest(), repeats=repeats, parallel=lanes, budget=budget)
        directory.write_manifest(manifest)

    def start(observers: Sequence[StudyObserver]) -> StudyOutcome:
        return api.resume_study(directory, observers=observers, retry_failed=retry_failed)

    _carry_out(start, quiet=quiet)


@app.command("show", epilog=SHOW_EXAMPLES)
def show(
    study: DirArgument,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print one JSON object.")
    ] = False,
) -> None:
    """Show how far a study is, what its cells came to, and whether they may be compared."""
    from phalanx.cli.screen import open_console
    from phalanx.records.study import StudyDir

    directory = StudyDir.open(study)
    if as_json:
        from phalanx.cli.study_table import study_facts
        from phalanx.cli.train import print_json

        print_json(study_facts(directory))
    else:
        _show(open_console(), directory.path)


def lanes_of(text: str) -> int | str:
    """The number of lanes in an option, or `auto`."""
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise SpecError(f"--parallel must be a whole number above 0 or 'auto', not {text!r}")
    return int(text)


def _carry_out(start: Callable[[Sequence[StudyObserver]], StudyOutcome], *, quiet: bool) -> None:
    if quiet:
        outcome = start([])
    else:
        from phalanx.cli.screen import open_console
        from phalanx.cli.study_view import choose_study_view

        console = open_console()
        with choose_study_view(console) as view:
            outcome = start([view])
        _show(console, outcome.study.path)
    if outcome.failed:
        raise typer.Exit(ExitCode.FAILED)


def _show(console: Console, path: Path) -> None:
    from phalanx.cli.study_table import render_study
    from phalanx.records.study import StudyDir

    for part in render_study(StudyDir.open(path)):
        console.print(part)
