"""What a study and the process of a trial say to each other, one JSON object per line.

The order goes in on standard input, which stays open as a lifeline; news come out on standard
output. The process is `python -m phalanx.cli.trial`, started by name and never by import.
"""

from __future__ import annotations

from typing import Any

import msgspec


class TrialOrder(msgspec.Struct, kw_only=True):
    """What the process of a trial is to do."""

    job: dict[str, Any]
    runs: str
    """Where the run directory is made."""
    data_root: str
    cache_root: str
    cores: list[int]
    """The only ones that the run may use."""
    fork_server: str = "own"
    """How its processes start, as `launch.fork_server.use_fork_server` takes it."""


class RunBegun(msgspec.Struct, tag="begun", kw_only=True):
    """There is a run directory."""

    run: str


class RunMoved(msgspec.Struct, tag="moved", kw_only=True):
    """How far the run is."""

    share: float
    """Of all epochs."""
    activity: str = ""


class RunEnded(msgspec.Struct, tag="ended", kw_only=True):
    """The last word of a trial."""

    exit_code: int
    cause: str | None = None


News = RunBegun | RunMoved | RunEnded
