"""Define the messages between a study and the process of a trial, one JSON object per line.

The order arrives on standard input, which stays open as a lifeline; messages leave on standard
output. The process is `python -m phalanx.cli.trial`, started by name and never by import.
"""

from __future__ import annotations

from typing import Any

import msgspec


class TrialOrder(msgspec.Struct, kw_only=True):
    """The order to the process of a trial."""

    job: dict[str, Any]
    runs: str
    """Directory in which the run directory is created."""
    data_root: str
    cache_root: str
    cores: list[int]
    """Cores that the run is pinned to."""
    fork_server: str = "own"
    """How its processes start, as `launch.fork_server.use_fork_server` takes it."""
    pool: str = ""
    """The pool file; empty: the run takes place on this machine."""
    machines: list[str] = []
    """Machines of the pool to run on."""
    build_env: bool = False


class RunBegun(msgspec.Struct, tag="begun", kw_only=True):
    """The run directory exists."""

    run: str


class RunMoved(msgspec.Struct, tag="moved", kw_only=True):
    """Progress of the run."""

    share: float
    """Of all epochs."""
    activity: str = ""


class RunEnded(msgspec.Struct, tag="ended", kw_only=True):
    """The last message of a trial."""

    exit_code: int
    cause: str | None = None
    lost_machines: list[str] = []
    """Machines that were lost on the way, or did not pass the preflight."""


News = RunBegun | RunMoved | RunEnded
