"""`phalanx scale`: more workers for a run that is going on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """
[bold]Examples[/bold]

phalanx scale last --workers 4

phalanx scale runs/mnist-20260101-120000-ab12 --workers 8
"""


def scale(
    run: Annotated[str, typer.Argument(help="Name, a unique beginning of it, a path, or 'last'.")],
    workers: Annotated[int, typer.Option(min=1, help="Workers that the run is to have.")],
    runs: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where runs are kept \\[default: $PHALANX_RUNS, else runs]."
        ),
    ] = None,
) -> None:
    """Let more workers join a running run with parameter servers and dynamic dispatch."""
    from phalanx.cli.screen import open_console
    from phalanx.cli.settings import runs_root
    from phalanx.errors import SpecError
    from phalanx.records.manifest import read_manifest
    from phalanx.records.rundir import find_run

    found = find_run(runs_root(runs), run)
    status = found.read_status()
    if status.state != "running":
        raise SpecError(f"run {found.name} is {status.state}; only a running one can grow")
    job = read_manifest(found).job
    strategy = job["strategy"]
    if strategy["name"] == "switch":
        raise SpecError(
            f"run {found.name} cannot grow: a run that switches keeps its workers, as a phase to "
            "come may need all of them in step"
        )
    if strategy["name"] != "parameter_server" or strategy["dispatch"] != "dynamic":
        raise SpecError(
            f"run {found.name} cannot grow: its batches are shared out in advance; only "
            "parameter_server with 'dispatch: dynamic' hands them out one by one"
        )
    if workers <= job["workers"]:
        raise SpecError(
            f"run {found.name} was started with {job['workers']} workers; ask for more than that"
        )
    found.request_workers(workers)
    open_console().print(f"asked {found.name} for {workers} workers")
