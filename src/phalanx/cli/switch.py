"""Implement `phalanx switch`: begin the next phase of a running run now."""

from __future__ import annotations

from phalanx.cli.options import RunArgument, RunsOption, examples
from phalanx.cli.screen import open_console
from phalanx.cli.settings import runs_root

EXAMPLES = examples("phalanx switch last", "phalanx switch runs/mnist-20260101-120000-ab12")


def switch(run: RunArgument, runs: RunsOption = None) -> None:
    """Begin the next phase of a running run with 'strategy: switch' now."""
    from phalanx.records.rundir import find_run
    from phalanx.records.switch_request import request_switch

    found = find_run(runs_root(runs), run)
    request_switch(found)
    open_console().print(f"asked {found.name} for its next phase", markup=False)
