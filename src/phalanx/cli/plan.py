"""`phalanx plan`: which machines, which strategy, how long, at what cost; and why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phalanx.cli.train import DataOption, RunsOption, SetOption, WithoutOption
from phalanx.errors import SpecError

if TYPE_CHECKING:
    from phalanx.plan.search import Objective
    from phalanx.spec.job import JobSpec

EXAMPLES = """
[bold]Examples[/bold]

phalanx plan job.yaml

phalanx plan job.yaml --pool pool.yaml --goal cost --deadline 2h

phalanx plan job.yaml --pool pool.yaml --goal balanced --budget 5 -o plan.json

phalanx plan job.yaml -o plan.json && phalanx train --plan plan.json
"""

JobArgument = Annotated[Path, typer.Argument(metavar="JOB", help="The job file, in YAML.")]
PoolOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The machines; without it this machine alone."),
]
GoalOption = Annotated[
    str, typer.Option(metavar="GOAL", help="What counts: time, cost, energy or balanced.")
]
DeadlineOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="It must be done by then in 19 of 20 cases: 90min, 2h."),
]
BudgetOption = Annotated[
    float | None,
    typer.Option(metavar="MONEY", min=0, help="It must cost no more in 19 of 20 cases."),
]
AcceptOption = Annotated[
    str,
    typer.Option(
        metavar="EFFECT",
        help="What may be done to the result: exact (nothing), rounded (bf16 on the way), "
        "stale (asynchronous, local SGD).",
    ),
]
CalibrateOption = Annotated[
    str,
    typer.Option(
        metavar="HOW",
        help="auto: short runs here if earlier ones do not tell enough; never; fresh.",
    ),
]
TopOption = Annotated[int, typer.Option(metavar="N", min=1, help="Candidates to show.")]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the plan, for train --plan."),
]
JsonOption = Annotated[
    bool, typer.Option("--json", metavar="", help="Print the plan as one JSON object.")
]


def plan(
    job: JobArgument,
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
    as_json: JsonOption = False,
) -> None:
    """Choose machines and strategy for a job, with predicted time, cost and energy."""
    import msgspec

    from phalanx import api
    from phalanx.cli.machines import known_inventory, leave_out, read_pool
    from phalanx.cli.plan_table import show_plan
    from phalanx.cli.screen import open_console
    from phalanx.cli.settings import cache_root, data_root, runs_root
    from phalanx.cli.train import print_json
    from phalanx.plan.planfile import write_plan
    from phalanx.spec.loader import load_job

    objective = _objective(goal, deadline, budget, accept)
    if calibrate not in ("auto", "never", "fresh"):
        raise SpecError(f"--calibrate takes auto, never or fresh, not '{calibrate}'")
    spec = load_job(job, settings or ())
    inventory = None
    if pool is not None:
        machines = read_pool(pool)
        inventory = known_inventory(leave_out(machines, without) if without else machines)
    made = api.plan_job(
        spec,
        pool=inventory,
        objective=objective,
        calibrate=calibrate,  # type: ignore[arg-type]  # checked above
        runs=runs_root(runs),
        data_root=data_root(data),
        cache_root=cache_root(),
        on_trial=_announce(),
    )
    if pool is not None:
        made = msgspec.structs.replace(made, pool=str(pool.resolve()))
    if output is not None:
        write_plan(made, output)
    if as_json:
        print_json(made)
        return
    show_plan(open_console(), made, top=top, written=output)


def _objective(goal: str, deadline: str | None, budget: float | None, accept: str) -> Objective:
    from phalanx.plan.search import GOALS, Objective
    from phalanx.plan.variants import EFFECTS
    from phalanx.spec.study import parse_duration

    found_goal = next((one for one in GOALS if one == goal), None)
    if found_goal is None:
        raise SpecError(f"--goal takes {', '.join(GOALS)}, not '{goal}'")
    effect = next((one for one in EFFECTS if one == accept), None)
    if effect is None:
        raise SpecError(f"--accept takes {', '.join(EFFECTS)}, not '{accept}'")
    deadline_s = parse_duration(deadline) if deadline is not None else None
    if deadline is not None and deadline_s is None:
        raise SpecError(f"--deadline takes a time such as 90min or 2h, not '{deadline}'")
    return Objective(goal=found_goal, deadline_s=deadline_s, budget=budget, accept=effect)


def _announce() -> Callable[[JobSpec], None]:
    """Say on standard error what each short run is for, because they take a while."""
    from phalanx.cli.screen import open_console

    console = open_console(stderr=True)

    def announce(trial: JobSpec) -> None:
        workers = f"{trial.workers} worker{'' if trial.workers == 1 else 's'}"
        console.print(
            f"measuring: {trial.strategy.name}, {workers}, batch {trial.global_batch}", style="dim"
        )

    return announce
