"""Change runs from the dashboard: the same requests, with the same checks, as the commands.

An entry of `ACTIONS` per command that changes a running run. `possible_actions` only says what is
worth offering: each request checks for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from phalanx.dashboard.live_run import LiveRun
from phalanx.errors import SpecError
from phalanx.records.rundir import RunDir
from phalanx.records.scale_request import request_scale
from phalanx.records.stop_request import request_stop
from phalanx.records.switch_request import request_switch

# Of a switching run whose job names no phases.
_NUM_PHASES = 2


def _scale(run: RunDir, settings: Mapping[str, int]) -> str:
    workers = settings.get("workers")
    if workers is None or workers < 1:
        raise SpecError("how many workers? at least 1")
    request_scale(run, workers)
    return f"asked {run.name} for {workers} workers"


def _stop(run: RunDir, settings: Mapping[str, int]) -> str:
    request_stop(run)
    return f"asked {run.name} to stop"


def _switch(run: RunDir, settings: Mapping[str, int]) -> str:
    request_switch(run)
    return f"asked {run.name} for its next phase"


ACTIONS: dict[str, Callable[[RunDir, Mapping[str, int]], str]] = {
    "scale": _scale,
    "stop": _stop,
    "switch": _switch,
}
"""By the name of the command: takes a run and the values of the options, says what was done."""


def possible_actions(live: LiveRun) -> list[str]:
    """List the changes that a run can take now, by its strategy and its records."""
    if not live.is_live:
        return []
    strategy = live.manifest.job["strategy"]
    found = ["stop"]
    if strategy.get("dispatch") == "dynamic":
        found.append("scale")
    if strategy["name"] == "switch" and strategy["handover"] == "live":
        num_phases = len(strategy["phases"]) or _NUM_PHASES
        # The looser strategy of a straggler reaction has no number of its own.
        begun = [event.phase for _, event in live.state.switches if event.phase >= 0]
        if (begun[-1] if begun else 0) + 1 < num_phases:
            found.append("switch")
    return found
