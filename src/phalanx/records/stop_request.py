"""Request the end of a running run, as Ctrl-C does, from any process that can write its directory.

Used by `phalanx stop` and by the dashboard, so that both refuse the same requests.
"""

from __future__ import annotations

from phalanx.errors import SpecError
from phalanx.records.rundir import RunDir
from phalanx.store.atomic import write_atomically

_FILE = "stop.request"


def request_stop(run: RunDir) -> None:
    """Request the end of a run.

    Raises:
        SpecError: The run is not running.
    """
    status = run.read_status()
    if status.state != "running":
        raise SpecError(f"run {run.name} is {status.state}; only a running one can be stopped")
    # With its attempt: a run that is resumed later does not stop again.
    write_atomically(run.path / _FILE, str(status.attempt).encode())


def is_stop_requested(run: RunDir, attempt: int) -> bool:
    """Return whether the end of this attempt was requested."""
    try:
        return (run.path / _FILE).read_text() == str(attempt)
    except FileNotFoundError:
        return False
