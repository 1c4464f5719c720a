"""Implement `phalanx stop`: end a running run, to be continued later."""

from __future__ import annotations

from phalanx.cli.options import RunArgument, RunsOption, examples
from phalanx.cli.screen import open_console
from phalanx.cli.settings import runs_root

EXAMPLES = examples("phalanx stop last", "phalanx stop runs/mnist-20260101-120000-ab12")


def stop(run: RunArgument, runs: RunsOption = None) -> None:
    """Stop a running run, as Ctrl-C in its terminal does; `train --resume` continues it."""
    from phalanx.records.rundir import find_run
    from phalanx.records.stop_request import request_stop

    found = find_run(runs_root(runs), run)
    request_stop(found)
    open_console().print(f"asked {found.name} to stop", markup=False)
