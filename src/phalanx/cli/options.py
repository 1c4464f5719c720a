"""Declare options that several commands share, so that they read the same everywhere.

Light on purpose: `phalanx --help` imports this module and nothing behind it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from phalanx.errors import PhalanxError


def option(metavar: str | None, help: str, *names: str, **limits: Any) -> Any:
    """Declare an option: what stands for its value in the help, and what it does."""
    return typer.Option(*names, metavar=metavar, help=help, **limits)


def argument(metavar: str | None, help: str, **limits: Any) -> Any:
    """Declare an argument likewise."""
    return typer.Argument(metavar=metavar, help=help, **limits)


def flag(help: str, *names: str) -> Any:
    """Declare an option without a value."""
    return typer.Option(*names, metavar="", help=help)


JobArgument = Annotated[Path, argument("JOB", "Job file in YAML.")]
Format = Literal["text", "markdown", "csv", "json"]

FormatOption = Annotated[
    Format,
    option(
        None, "Output format; csv and json hold raw numbers, text and markdown units.", "--format"
    ),
]
JsonOption = Annotated[bool, flag("Short for --format json.", "--json")]


def run_names(incomplete: str) -> list[str]:
    """Complete the name of a run in a shell: those below the usual directory of runs."""
    from phalanx.cli.settings import runs_root

    try:
        names = sorted(one.name for one in runs_root().iterdir() if one.is_dir())
    except (OSError, PhalanxError):
        return []
    return [name for name in (*names, "last") if name.startswith(incomplete)]


def study_names(incomplete: str) -> list[str]:
    """Complete the name of a study in a shell likewise."""
    return [name for name in run_names(incomplete) if name.startswith(("study-", "tune-"))]


def strategy_names(incomplete: str) -> list[str]:
    """Complete the name of a strategy in a shell."""
    from phalanx.spec.kinds import STRATEGIES

    return [name for name in STRATEGIES.built_in if name.startswith(incomplete)]


StudyArgument = Annotated[
    str,
    argument(
        "STUDY",
        "Study name, unique prefix of it, path, or 'last'.",
        autocompletion=study_names,
    ),
]
RunArgument = Annotated[
    str,
    argument("RUN", "Run name, unique prefix of it, path, or 'last'.", autocompletion=run_names),
]
NewestOption = Annotated[bool, flag("Use the newest checkpoint, not the best.", "--newest")]
RunsOption = Annotated[
    Path | None, option("DIR", "Directory of runs \\[default: $PHALANX_RUNS, else runs].")
]
DataOption = Annotated[
    Path | None,
    option("DIR", "Directory of data sets \\[default: $PHALANX_DATA, else user cache]."),
]
SetOption = Annotated[
    list[str] | None, option("KEY=VALUE", "Override one setting; repeatable.", "--set")
]
WithoutOption = Annotated[
    list[str] | None, option("NAME", "Exclude a machine of the pool; repeatable.")
]
PoolOption = Annotated[Path | None, option("FILE", "Pool file \\[default: this machine].")]
CalibrateOption = Annotated[
    Literal["auto", "never", "fresh"],
    option(
        None,
        "Calibration: auto (run short trials if earlier runs are insufficient), never, or "
        "fresh (always).",
    ),
]
RetryOption = Annotated[bool, flag("Repeat failed runs.", "--retry-failed")]
QuietOption = Annotated[bool, flag("Print nothing but errors.", "--quiet", "-q")]


def examples(*commands: str) -> str:
    """Return the epilog of a command's help: calls to try."""
    return "\n\n".join(["[bold]Examples[/bold]", *commands])


def wanted(form: Format, as_json: bool) -> Format:
    """Return the format that `--format` and its short form `--json` ask for together."""
    return "json" if as_json else form
