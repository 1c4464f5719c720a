"""Implement `phalanx tune`: search a setting of a recurring job; resume and show a search."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from phalanx.cli import output
from phalanx.cli.machines import planned_pool
from phalanx.cli.options import (
    DataOption,
    FormatOption,
    JobArgument,
    JsonOption,
    QuietOption,
    RetryOption,
    SetOption,
    StudyArgument,
    WithoutOption,
    examples,
    option,
    wanted,
)
from phalanx.cli.request import MachineOptions
from phalanx.cli.screen import open_console
from phalanx.cli.settings import cache_root, data_root, runs_root
from phalanx.cli.study import ParallelOption, PoolOption, core_sets_of
from phalanx.cli.train import BuildOption, SelectOption
from phalanx.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from phalanx.study.tune.results import TuneResult

app = typer.Typer(no_args_is_help=True)

SWITCH_EXAMPLES = examples(
    "phalanx tune switch job.yaml",
    "phalanx tune switch job.yaml --method halving --tolerance 0.005",
    "phalanx tune switch job.yaml --runs 3 --seeds 7,8,9 --to results/share",
)
RESUME_EXAMPLES = examples(
    "phalanx tune resume runs/tune-job",
    "phalanx tune resume runs/tune-job --retry-failed",
)
SHOW_EXAMPLES = examples(
    "phalanx tune show runs/tune-job",
    "phalanx tune show runs/tune-job --json",
)
# Published for the binary search; halving is meant to be cheap.
_DEFAULT_RUNS = {"binary": 5, "halving": 1}


@app.command("switch", epilog=SWITCH_EXAMPLES)
def switch(
    job: JobArgument,
    method: Annotated[
        Literal["binary", "halving"],
        option(None, "binary: binary search as published; halving: one seed, early stopping."),
    ] = "binary",
    runs: Annotated[
        int | None, option("R", "Runs per setting \\[default: 5 for binary, 1 for halving].", min=1)
    ] = None,
    tolerance: Annotated[float, option("X", "Accuracy tolerance, as a fraction.", min=0.0)] = 0.01,
    max_settings: Annotated[int, option("N", "Shares to try.", min=1, max=10)] = 5,
    seeds: Annotated[
        str | None, option("A,B,...", "Seed of each run \\[default: the job's and on].")
    ] = None,
    to: Annotated[
        Path | None, option("DIR", "Directory of the search \\[default: tune-NAME in runs].")
    ] = None,
    settings: SetOption = None,
    parallel: ParallelOption = None,
    pool: PoolOption = None,
    select: SelectOption = None,
    without: WithoutOption = None,
    build_env: BuildOption = False,
    data: DataOption = None,
    quiet: QuietOption = False,
) -> None:
    """Find the smallest synchronous share that keeps the accuracy, and write a job file with it.

    The target is the accuracy of the synchronous job less --tolerance. All runs are kept as a
    study, so `phalanx report` compares them.
    """
    from phalanx import api
    from phalanx.spec.loader import read_job, validate_job
    from phalanx.study.tune.policy import TuneGoal
    from phalanx.study.tune.search_plan import SearchRequest

    document = read_job(job)
    spec = validate_job(document, settings or ())
    assert isinstance(document.data, dict)
    given = _seeds(seeds)
    number = runs or (len(given) if given else _DEFAULT_RUNS[method])
    request = SearchRequest(
        job=document.data,
        aim=TuneGoal(method=method, runs=number, tolerance=tolerance, max_settings=max_settings),
        seeds=given or tuple((spec.seed + repeat) % 2**32 for repeat in range(number)),
        data_root=data_root(data),
        cache_root=cache_root(),
        parallel=1 if parallel is None else core_sets_of(parallel),
        pool=planned_pool(
            MachineOptions(
                pool=pool, select=select, without=tuple(without or ()), build_env=build_env
            )
        ),
    )
    place = to or runs_root() / f"tune-{spec.name}"
    _carry_out(partial(api.tune_switch, request, to=place), quiet=quiet)


@app.command("resume", epilog=RESUME_EXAMPLES)
def resume(
    search: StudyArgument,
    retry_failed: RetryOption = False,
    quiet: QuietOption = False,
) -> None:
    """Continue an interrupted search."""
    from phalanx import api
    from phalanx.records.study import find_study

    start = partial(api.resume_tune, find_study(runs_root(), search), retry_failed=retry_failed)
    _carry_out(start, quiet=quiet)


@app.command("show", epilog=SHOW_EXAMPLES)
def show(
    search: StudyArgument,
    form: FormatOption = "text",
    as_json: JsonOption = False,
) -> None:
    """Show the tried settings of a search, its cost, and when it pays off."""
    from phalanx.cli.tune_table import search_blocks, search_facts
    from phalanx.records.study import find_study
    from phalanx.study.tune.results import read_results

    findings = read_results(find_study(runs_root(), search))
    output.show(
        lambda: search_blocks(findings),
        facts=lambda: search_facts(findings),
        form=wanted(form, as_json),
    )


def _seeds(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) < 2**32 for part in parts):
        raise SpecError(f"--seeds takes whole numbers with commas, such as 1,2,3, not {text!r}")
    return tuple(int(part) for part in parts)


def _carry_out(start: Callable[..., TuneResult], *, quiet: bool) -> None:
    """Run a search, all of whose arguments but observers and listener are bound."""
    if quiet:
        start()
        return
    from rich.text import Text

    from phalanx.cli.study_view import choose_study_view
    from phalanx.cli.tune_table import describe_step, search_blocks

    console = open_console()
    with choose_study_view(console) as view:
        findings = start(
            observers=[view], listen=lambda found: view.write(Text(describe_step(found), "dim"))
        )
    output.print_blocks(console, search_blocks(findings))
