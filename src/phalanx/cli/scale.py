"""Implement `phalanx scale`: add workers to a running run."""

from __future__ import annotations

from typing import Annotated

from phalanx.cli.options import RunArgument, RunsOption, examples, option
from phalanx.cli.screen import open_console
from phalanx.cli.settings import runs_root
from phalanx.errors import SpecError

EXAMPLES = examples(
    "phalanx scale last --workers 4",
    "phalanx scale runs/mnist-20260101-120000-ab12 --workers 8",
)


def scale(
    run: RunArgument,
    workers: Annotated[int, option(None, "Target number of workers.", min=1)],
    runs: RunsOption = None,
) -> None:
    """Add workers to a running parameter-server run with dynamic dispatch."""
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
