"""Change runs from the dashboard: the same requests, with the same checks, as the commands.

An entry of `ACTIONS` per command that changes a running run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from phalanx.errors import SpecError
from phalanx.records.rundir import RunDir
from phalanx.records.scale_request import request_scale


def _scale(run: RunDir, settings: Mapping[str, int]) -> str:
    workers = settings.get("workers")
    if workers is None or workers < 1:
        raise SpecError("how many workers? at least 1")
    request_scale(run, workers)
    return f"asked {run.name} for {workers} workers"


ACTIONS: dict[str, Callable[[RunDir, Mapping[str, int]], str]] = {"scale": _scale}
"""By the name of the command: takes a run and the values of the options, says what was done."""
