"""Declare options that several commands share, so that they read the same everywhere.

Light on purpose: `phalanx --help` imports this module and nothing behind it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

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
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", metavar="", help="Print nothing but errors.")
]


def wanted(form: Format, as_json: bool) -> Format:
    """Return the format that `--format` and its short form `--json` ask for together."""
    return "json" if as_json else form
