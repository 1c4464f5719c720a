"""Implement `phalanx launch`: run the user's own training script on several workers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from phalanx.cli.machines import WhereOption
from phalanx.cli.options import (
    QuietOption,
    RunsOption,
    SetOption,
    WithoutOption,
    argument,
    examples,
    option,
    strategy_names,
)
from phalanx.cli.request import (
    MachineOptions,
    Places,
    ScriptRequest,
    TrainRequest,
    new_script_run,
    planned_run,
    refuse_with_resume,
    resumption,
    with_short_options,
)
from phalanx.cli.settings import cache_root, data_root, runs_root
from phalanx.cli.train import (
    BuildOption,
    DryRunOption,
    ForceOption,
    JsonOption,
    LaunchOption,
    PlanOption,
    PoolOption,
    ResumeOption,
    SelectOption,
    run_command,
)

EXAMPLES = examples(
    "phalanx launch --workers 4 train.py --lr 0.1",
    "phalanx launch --workers 4 --strategy '{name: local_sgd, every: 16}' train.py",
    "phalanx launch --pool pool.yaml train.py --epochs 20",
    "phalanx plan train.py --pool pool.yaml -o plan.json && phalanx launch --plan plan.json",
    "phalanx launch --resume last",
)

SETTINGS = {"allow_interspersed_args": False}
"""Of the command: what follows the script belongs to the script."""

ScriptArgument = Annotated[
    Path | None,
    argument("SCRIPT", "Training script with phalanx.session() in it.", show_default=False),
]
ArgsArgument = Annotated[
    list[str] | None,
    argument("ARGS", "Arguments of the script.", show_default=False),
]
WorkersOption = Annotated[int | None, option("N", "Processes that run the script.")]
StrategyOption = Annotated[
    str | None,
    option(
        "NAME",
        "Distribution strategy, or its settings as '{name: ...}'.",
        autocompletion=strategy_names,
    ),
]
NameOption = Annotated[str | None, option("NAME", "Name of the run [default: of the script].")]
SeedOption = Annotated[int | None, option("N", "Seed, unless the script sets its own.")]


def launch(
    script: ScriptArgument = None,
    args: ArgsArgument = None,
    workers: WorkersOption = None,
    strategy: StrategyOption = None,
    settings: SetOption = None,
    name: NameOption = None,
    seed: SeedOption = None,
    resume: ResumeOption = None,
    plan: PlanOption = None,
    pool: PoolOption = None,
    select: SelectOption = None,
    where: WhereOption = None,
    without: WithoutOption = None,
    build_env: BuildOption = False,
    launcher: LaunchOption = None,
    force: ForceOption = False,
    runs: RunsOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run your own training script on several workers, or continue such a run."""
    short = {"strategy": strategy, "workers": workers, "seed": seed}
    overrides = with_short_options(settings or (), short)
    options = MachineOptions(
        pool=pool,
        select=select,
        where=tuple(where or ()),
        without=tuple(without or ()),
        build_env=build_env,
        launch=launcher,
        force=force,
    )
    if resume is not None:
        refuse_with_resume(resume, job_path=script, data=None)

    def request_with(options: MachineOptions) -> TrainRequest:
        if resume is not None:
            return resumption(resume, runs_root(runs), overrides, options)
        places = Places(runs=runs_root(runs), data=data_root(None), cache=cache_root())
        request = ScriptRequest(script, tuple(args or ()), name)
        if plan is not None:
            return planned_run(plan, places, script=request, overrides=overrides, options=options)
        return new_script_run(request, places, overrides, options)

    run_command(request_with, options, dry_run=dry_run, as_json=as_json, quiet=quiet)
