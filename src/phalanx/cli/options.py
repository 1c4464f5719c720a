"""Declare options that several commands share, so that they read the same everywhere.

Light on purpose: `phalanx --help` imports this module and nothing behind it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

JobArgument = Annotated[Path, typer.Argument(metavar="JOB", help="Job file in YAML.")]
DirArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Study directory.")]
Format = Literal["text", "markdown", "csv", "json"]

FormatOption = Annotated[
    Format,
    typer.Option(
        "--format", help="Output format; csv and json hold raw numbers, text and markdown units."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", metavar="", help="Short for --format json.")]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="Run name, unique prefix of it, path, or 'last'.")
]
NewestOption = Annotated[
    bool, typer.Option("--newest", metavar="", help="Use the newest checkpoint, not the best.")
]
RunsOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Directory of runs \\[default: $PHALANX_RUNS, else runs]."),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Directory of data sets \\[default: $PHALANX_DATA, else user cache]."
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one setting; repeatable."),
]
WithoutOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Exclude a machine of the pool; repeatable."),
]
PoolOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Pool file \\[default: this machine].")
]
CalibrateOption = Annotated[
    Literal["auto", "never", "fresh"],
    typer.Option(
        help="Calibration: auto (run short trials if earlier runs are insufficient), never, or "
        "fresh (always).",
    ),
]
RetryOption = Annotated[
    bool, typer.Option("--retry-failed", metavar="", help="Repeat failed runs.")
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", metavar="", help="Print nothing but errors.")
]


def examples(*commands: str) -> str:
    """Return the epilog of a command's help: calls to try."""
    return "\n\n".join(["[bold]Examples[/bold]", *commands])


def wanted(form: Format, as_json: bool) -> Format:
    """Return the format that `--format` and its short form `--json` ask for together."""
    return "json" if as_json else form
