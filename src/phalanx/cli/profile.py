"""Implement `phalanx profile`: operator times of chosen epochs by group; compare two runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from phalanx.cli import output
from phalanx.cli.options import (
    DataOption,
    FormatOption,
    JsonOption,
    RunsOption,
    SetOption,
    argument,
    examples,
    option,
    run_names,
    wanted,
)
from phalanx.cli.screen import open_console
from phalanx.cli.settings import cache_root, data_root, runs_root
from phalanx.errors import SpecError
from phalanx.report.document import Block, line

if TYPE_CHECKING:
    from phalanx.records.rundir import RunDir
    from phalanx.report.profile import ProfileComparison, RunProfile

EXAMPLES = examples(
    "phalanx profile job.yaml --epochs 2-4",
    "phalanx profile job.yaml --epochs 2-4 --set strategy=local_sgd --against last",
    "phalanx profile last --rules my-groups.yaml -o groups.csv",
    "phalanx profile RUN_B --against RUN_A",
)

TargetArgument = Annotated[
    str, argument("JOB|RUN", "Job file to train, or a run that has a profile.")
]
EpochsOption = Annotated[
    str | None, option("EPOCHS", "Epochs to profile, from 1: 3, 2-4 or 2-4,8; job files only.")
]
RulesOption = Annotated[
    Path | None, option("FILE", "Rules that assign operators to groups, in YAML.")
]
AgainstOption = Annotated[
    str | None,
    option("RUN", "Compare with this profiled run (A); the target is B.", autocompletion=run_names),
]
OutputOption = Annotated[
    Path | None,
    option("FILE", "Also write the table to a file: .csv, .md or .json.", "--output", "-o"),
]
OperatorsOption = Annotated[int, option("N", "Number of single operators to show.", min=0)]


def profile(
    target: TargetArgument,
    epochs: EpochsOption = None,
    settings: SetOption = None,
    rules: RulesOption = None,
    against: AgainstOption = None,
    to: OutputOption = None,
    operators: OperatorsOption = 10,
    runs: RunsOption = None,
    data: DataOption = None,
    form: FormatOption = "text",
    as_json: JsonOption = False,
) -> None:
    """Profile operators of chosen epochs: train a job, or read a profiled run."""
    from phalanx.cli import profile_tables as tables
    from phalanx.records.rundir import find_run
    from phalanx.report.grouping import read_grouping
    from phalanx.report.profile import compare_profiles, profile_run

    root = runs_root(runs)
    form = wanted(form, as_json)
    tables.check_format(to)
    grouping = read_grouping(rules)
    # Checked before anything is trained, so that a wrong name costs no time.
    a = profile_run(find_run(root, against), grouping) if against is not None else None
    path = Path(target)
    if path.is_file():
        run = _train(path, root, _overrides(epochs, settings), data, quiet=form != "text")
    elif epochs is None and not settings:
        run = find_run(root, target)
    else:
        raise SpecError(
            f"{target} is not a job file, so nothing is trained: leave out --epochs and --set, "
            "or name a job file"
        )
    b = profile_run(run, grouping)
    found: RunProfile | ProfileComparison = b if a is None else compare_profiles(a, b)
    if to is not None:
        tables.write_table(found, to)

    def blocks() -> list[Block]:
        shown = tables.profile_blocks(b, operators=operators)
        if a is not None:
            shown += [line(""), tables.comparison_table(compare_profiles(a, b))]
        return shown

    output.show(blocks, facts=lambda: found, form=form)


def _overrides(epochs: str | None, settings: Sequence[str] | None) -> list[str]:
    return [*(settings or ()), *([] if epochs is None else [f'profile.epochs="{epochs}"'])]


def _train(
    path: Path, root: Path, overrides: Sequence[str], data: Path | None, *, quiet: bool
) -> RunDir:
    from phalanx.cli.request import Places, request_run
    from phalanx.cli.train import follow
    from phalanx.records.rundir import RunDir
    from phalanx.spec.loader import load_job

    job = load_job(path, overrides)
    if job.profile is None:
        raise SpecError(
            f"{path} does not say which epochs to profile; add --epochs, as in --epochs 2-4"
        )
    places = Places(runs=root, data=data_root(data), cache=cache_root())
    request = request_run(job, places)
    summary = request.start([]) if quiet else follow(request, open_console())
    return RunDir(Path(summary.run_dir))
