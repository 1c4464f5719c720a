"""`phalanx runs list` and `phalanx runs show`: what the run directories say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from phalanx.cli.history import RunFacts
    from phalanx.records.rundir import RunDir

app = typer.Typer(help="List runs, and show what one of them did.", no_args_is_help=True)

LIST_EXAMPLES = """
[bold]Examples[/bold]

phalanx runs list

phalanx runs list --runs /scratch/runs --json
"""
SHOW_EXAMPLES = """
[bold]Examples[/bold]

phalanx runs show last

phalanx runs show demo-allreduce --json
"""

RunsOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where runs are kept \\[default: $PHALANX_RUNS, else runs]."),
]


@app.command("list", epilog=LIST_EXAMPLES)
def list_(
    runs: RunsOption = None,
    as_json: Annotated[bool, typer.Option("--json", metavar="", help="Print a JSON list.")] = False,
) -> None:
    """List all runs, oldest first."""
    from phalanx.cli.history import read_facts
    from phalanx.cli.settings import runs_root
    from phalanx.records.rundir import list_runs

    root = runs_root(runs)
    found = [read_facts(run) for run in list_runs(root)]
    if as_json:
        from phalanx.cli.train import print_json

        print_json(found)
    else:
        _show_list(found, root)


@app.command("show", epilog=SHOW_EXAMPLES)
def show(
    run: Annotated[str, typer.Argument(help="Name, a unique beginning of it, a path, or 'last'.")],
    runs: RunsOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="Print one JSON object.")
    ] = False,
) -> None:
    """Show one run: job, versions, epochs, checkpoints and how it ended."""
    from phalanx.cli.history import read_details
    from phalanx.cli.settings import runs_root
    from phalanx.records.rundir import find_run

    found = find_run(runs_root(runs), run)
    if as_json:
        from phalanx.cli.train import print_json

        print_json(read_details(found))
    else:
        _show_run(found)


def _show_list(found: list[RunFacts], root: Path) -> None:
    from phalanx.cli.history import render_list
    from phalanx.cli.screen import open_console

    console = open_console()
    if found:
        console.print(render_list(found, width=console.width))
    else:
        console.print(f"no runs in {root} yet; `phalanx demo` makes some")


def _show_run(run: RunDir) -> None:
    from phalanx.cli.history import read_details, render_details
    from phalanx.cli.screen import open_console

    console = open_console()
    for part in render_details(read_details(run)):
        console.print(part)
