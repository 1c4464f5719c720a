"""Implement `phalanx study`: run a matrix of jobs, resume it, and show its progress."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli import output
from phalanx.cli.machines import planned_pool
from phalanx.cli.options import (
    DataOption,
    FormatOption,
    JsonOption,
    QuietOption,
    RetryOption,
    RunsOption,
    StudyArgument,
    WithoutOption,
    argument,
    examples,
    flag,
    option,
    wanted,
)
from phalanx.cli.request import MachineOptions
from phalanx.cli.screen import open_console
from phalanx.cli.settings import cache_root, data_root, runs_root
from phalanx.cli.train import BuildOption, SelectOption
from phalanx.errors import ExitCode, SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from phalanx.study.runner import StudyOutcome

app = typer.Typer(no_args_is_help=True)

RUN_EXAMPLES = examples(
    "phalanx study run study.yaml --dry-run",
    "phalanx study run study.yaml --to results/first --repeats 5",
    "phalanx study run study.yaml --set job.epochs=2 --budget 20min",
    "phalanx study run study.yaml --pool pool.yaml",
)
RESUME_EXAMPLES = examples(
    "phalanx study resume digits",
    "phalanx study resume runs/study-digits --retry-failed --budget 2h",
)
LIST_EXAMPLES = examples("phalanx study list", "phalanx study list --runs /scratch/runs --json")
SHOW_EXAMPLES = examples(
    "phalanx study show digits",
    "phalanx study show runs/study-digits --json",
)

RepeatsOption = Annotated[int | None, option("N", "Runs per cell, each with another seed.", min=1)]
ParallelOption = Annotated[
    str | None, option("N", "Concurrent runs, each on its own cores, or 'auto'.")
]
PoolOption = Annotated[
    Path | None, option("FILE", "Run on the machines of a pool \\[default: the study's].")
]
BudgetOption = Annotated[
    str | None, option("TIME", "Time budget: start no run that would end later, e.g. 20min, 2h.")
]


@app.command("run", epilog=RUN_EXAMPLES)
def run(
    study: Annotated[Path, argument("STUDY", "Study file in YAML.")],
    to: Annotated[
        Path | None, option("DIR", "Study directory \\[default: study-NAME in runs].")
    ] = None,
    settings: Annotated[
        list[str] | None,
        option("KEY=VALUE", "Override one setting, such as job.epochs=2.", "--set"),
    ] = None,
    repeats: RepeatsOption = None,
    parallel: ParallelOption = None,
    budget: BudgetOption = None,
    pool: PoolOption = None,
    select: SelectOption = None,
    without: WithoutOption = None,
    build_env: BuildOption = False,
    data: DataOption = None,
    dry_run: Annotated[
        bool, flag("Show cells and number of runs; start nothing.", "--dry-run")
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Run a new study; `phalanx study resume` continues an interrupted one."""
    from phalanx import api
    from phalanx.spec.study_file import load_study
    from phalanx.study.plan import plan_study

    short = {"repeats": repeats, "parallel": parallel, "budget": budget}
    overrides = [*(settings or ())]
    overrides += [f"{key}={value}" for key, value in short.items() if value is not None]
    file = load_study(study, overrides)
    machines = planned_pool(
        MachineOptions(pool=pool, select=select, without=tuple(without or ()), build_env=build_env)
    )
    if dry_run:
        from phalanx.cli.study_table import plan_blocks

        manifest = plan_study(
            file, data_root=data_root(data), cache_root=cache_root(), pool=machines
        )
        output.print_blocks(open_console(), plan_blocks(manifest))
        return
    place = to or runs_root() / f"study-{file.spec.study}"
    start = partial(
        api.run_study,
        file,
        to=place,
        data_root=data_root(data),
        cache_root=cache_root(),
        pool=machines,
    )
    _carry_out(start, quiet=quiet)


@app.command("resume", epilog=RESUME_EXAMPLES)
def resume(
    study: StudyArgument,
    retry_failed: RetryOption = False,
    repeats: RepeatsOption = None,
    parallel: ParallelOption = None,
    budget: BudgetOption = None,
    runs: RunsOption = None,
    quiet: QuietOption = False,
) -> None:
    """Continue an interrupted study, or extend one by more repeats or a larger budget."""
    from phalanx import api
    from phalanx.records.study import find_study
    from phalanx.study.plan import amend

    directory = find_study(runs_root(runs), study)
    if any(option is not None for option in (repeats, parallel, budget)):
        core_sets = None if parallel is None else core_sets_of(parallel)
        manifest = amend(directory.manifest(), repeats=repeats, parallel=core_sets, budget=budget)
        directory.write_manifest(manifest)
    _carry_out(partial(api.resume_study, directory, retry_failed=retry_failed), quiet=quiet)


@app.command("list", epilog=LIST_EXAMPLES)
def list_(
    runs: RunsOption = None, form: FormatOption = "text", as_json: JsonOption = False
) -> None:
    """List all studies, oldest first."""
    from phalanx.cli.study_table import list_facts, list_table
    from phalanx.records.study import list_studies

    root = runs_root(runs)
    found = [list_facts(study) for study in list_studies(root)]
    hint = f"no studies in {root} yet; `phalanx study run STUDY` makes one"
    output.show_list(found, list_table, form=wanted(form, as_json), if_none=hint)


@app.command("show", epilog=SHOW_EXAMPLES)
def show(
    study: StudyArgument,
    runs: RunsOption = None,
    form: FormatOption = "text",
    as_json: JsonOption = False,
) -> None:
    """Show progress, results by cell and the equivalence gate of a study."""
    from phalanx.cli.study_table import study_blocks, study_facts
    from phalanx.records.study import find_study

    directory = find_study(runs_root(runs), study)
    output.show(
        lambda: study_blocks(directory),
        facts=lambda: study_facts(directory),
        form=wanted(form, as_json),
    )


def core_sets_of(text: str) -> int | str:
    """Parse the option `--parallel`: a number of core sets, or `auto`."""
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise SpecError(f"--parallel must be a whole number above 0 or 'auto', not {text!r}")
    return int(text)


def _carry_out(start: Callable[..., StudyOutcome], *, quiet: bool) -> None:
    """Run a study, all of whose arguments but the observers are bound."""
    if quiet:
        outcome = start(observers=[])
    else:
        from phalanx.cli.study_table import budget_line, study_blocks
        from phalanx.cli.study_view import choose_study_view

        console = open_console()
        with choose_study_view(console) as view:
            outcome = start(observers=[view])
        output.print_blocks(console, study_blocks(outcome.study))
        budget_s = outcome.study.manifest().budget_s
        if outcome.unfinished > 0 and budget_s is not None:
            path = outcome.study.path
            output.print_blocks(console, [budget_line(outcome.unfinished, budget_s, path)])
    if outcome.failed:
        raise typer.Exit(ExitCode.FAILED)
