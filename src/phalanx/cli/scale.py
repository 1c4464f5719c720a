"""Implement `phalanx scale`: change the number of workers of a running run."""

from __future__ import annotations

from typing import Annotated

from phalanx.cli.options import RunArgument, RunsOption, examples, option
from phalanx.cli.screen import open_console
from phalanx.cli.settings import runs_root

EXAMPLES = examples(
    "phalanx scale last --workers 4",
    "phalanx scale runs/mnist-20260101-120000-ab12 --workers 8",
)


def scale(
    run: RunArgument,
    workers: Annotated[int, option(None, "Target number of workers.", min=1)],
    runs: RunsOption = None,
) -> None:
    """Change the workers of a running elastic run; add some to one with dynamic dispatch."""
    from phalanx.records.rundir import find_run
    from phalanx.records.scale_request import request_scale

    found = find_run(runs_root(runs), run)
    request_scale(found, workers)
    open_console().print(f"asked {found.name} for {workers} workers")
