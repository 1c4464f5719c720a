"""Implement `phalanx plan`: choose machines and strategy, with time, cost and reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from phalanx.cli.options import (
    CalibrateOption,
    DataOption,
    FormatOption,
    JsonOption,
    PoolOption,
    RunsOption,
    SetOption,
    WithoutOption,
    argument,
    examples,
    option,
    wanted,
)
from phalanx.cli.output import show
from phalanx.cli.screen import open_console
from phalanx.cli.settings import cache_root, data_root, runs_root
from phalanx.errors import SpecError
from phalanx.report.format import count_noun

if TYPE_CHECKING:
    from phalanx.pool.inventory import Inventory
    from phalanx.spec.job import JobSpec

EXAMPLES = examples(
    "phalanx plan job.yaml",
    "phalanx plan job.yaml --pool pool.yaml --goal cost --deadline 2h",
    "phalanx plan job.yaml --pool pool.yaml --goal balanced --budget 5 -o plan.json",
    "phalanx plan job.yaml -o plan.json && phalanx train --plan plan.json",
    "phalanx plan train.py --lr 0.1 --pool pool.yaml -o plan.json",
)

SETTINGS = {"ignore_unknown_options": True}
"""Of the command: options that it does not have belong to the script."""

PlannedArgument = Annotated[
    Path, argument("JOB|SCRIPT", "Job file in YAML, or a script with phalanx.session() in it.")
]
ArgsArgument = Annotated[
    list[str] | None,
    argument(
        "ARGS",
        "Arguments of the script; all that follows `--` is, also what `plan` itself would take.",
        show_default=False,
    ),
]

GoalOption = Annotated[Literal["time", "cost", "energy", "balanced"], option(None, "Objective.")]
DeadlineOption = Annotated[
    str | None,
    option(
        "TIME",
        "Deadline, e.g. 90min or 2h; the 95 % upper bound of the predicted time must meet it.",
    ),
]
BudgetOption = Annotated[
    float | None,
    option("MONEY", "Budget; the 95 % upper bound of the predicted cost must meet it.", min=0),
]
AcceptOption = Annotated[
    Literal["exact", "rounded", "lossy", "stale"],
    option(
        None,
        "Permitted effect on the result: exact (none), rounded (bf16 exchange), "
        "lossy (parts of gradients sent later), stale (asynchronous, local SGD).",
    ),
]
TopOption = Annotated[int, option("N", "Number of candidates to show.", min=1)]
OutputOption = Annotated[
    Path | None,
    option("FILE", "Write the plan, for `train --plan` or `launch --plan`.", "--output", "-o"),
]


def plan(
    job: PlannedArgument,
    args: ArgsArgument = None,
    pool: PoolOption = None,
    without: WithoutOption = None,
    goal: GoalOption = "time",
    deadline: DeadlineOption = None,
    budget: BudgetOption = None,
    accept: AcceptOption = "rounded",
    settings: SetOption = None,
    calibrate: CalibrateOption = "auto",
    top: TopOption = 10,
    output: OutputOption = None,
    runs: RunsOption = None,
    data: DataOption = None,
    form: FormatOption = "text",
    as_json: JsonOption = False,
) -> None:
    """Choose machines and strategy for a job; predict time, cost and energy."""
    from phalanx import api
    from phalanx.cli.plan_table import plan_blocks
    from phalanx.plan.planfile import write_plan
    from phalanx.plan.search import Objective
    from phalanx.spec.study import parse_duration

    deadline_s = parse_duration(deadline) if deadline is not None else None
    if deadline is not None and deadline_s is None:
        raise SpecError(f"--deadline takes a time such as 90min or 2h, not '{deadline}'")
    objective = Objective(goal=goal, deadline_s=deadline_s, budget=budget, accept=accept)
    spec = _planned(job, tuple(args or ()), settings or ())
    made = api.plan_job(
        spec,
        pool=inventory_of(pool, without or ()),
        objective=objective,
        calibrate=calibrate,
        runs=runs_root(runs),
        data_root=data_root(data),
        cache_root=cache_root(),
        on_trial=announce(),
    )
    if pool is not None:
        made = msgspec.structs.replace(made, pool=str(pool.resolve()))
    if output is not None:
        write_plan(made, output)
    show(
        lambda: plan_blocks(made, top=top, written=output),
        facts=lambda: made,
        form=wanted(form, as_json),
    )


def _planned(path: Path, args: tuple[str, ...], settings: Sequence[str]) -> JobSpec:
    """Read what is planned: a job file, or a script.

    Raises:
        SpecError: It is not there or wrong, or a job file has arguments.
    """
    if path.suffix == ".py":
        from phalanx.cli.request import ScriptRequest, job_of_script

        return job_of_script(ScriptRequest(path, args), settings)
    from phalanx.spec.loader import load_job

    if args:
        raise SpecError(
            f"`phalanx plan` has no {args[0]}, and only scripts take arguments; see "
            "`phalanx plan --help`"
        )
    return load_job(path, settings)


def inventory_of(pool: Path | None, without: Sequence[str] = ()) -> Inventory | None:
    """Read a pool file with cached probe results; None without a file: this machine."""
    if pool is None:
        return None
    from phalanx.cli.machines import known_inventory, leave_out, read_pool

    machines = read_pool(pool)
    return known_inventory(leave_out(machines, without) if without else machines)


def announce() -> Callable[[JobSpec], None]:
    """Return a function that reports each calibration run on standard error."""
    console = open_console(stderr=True)

    def announce(trial: JobSpec) -> None:
        workers = count_noun(trial.workers, "worker")
        batch = f"batch {trial.global_batch}"
        if trial.program is not None and trial.program.trial is not None:
            part = trial.program.trial.part
            batch = "the script's batch" if part == 1 else f"{100 * part:.0f} % of its batch"
        console.print(f"measuring: {trial.strategy.name}, {workers}, {batch}", style="dim")

    return announce
