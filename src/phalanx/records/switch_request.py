"""Request that a running run begins its next phase now, if it has one.

Used by `phalanx switch` and by the dashboard, so that both refuse the same requests.
"""

from __future__ import annotations

import secrets

from phalanx.errors import SpecError
from phalanx.records.manifest import read_manifest
from phalanx.records.rundir import RunDir
from phalanx.store.atomic import write_atomically

_FILE = "switch.request"


def request_switch(run: RunDir) -> None:
    """Request the next phase; the controller decides whether there is one, and records it.

    Raises:
        SpecError: The run is not running, or its strategy cannot be changed under way.
    """
    status = run.read_status()
    if status.state != "running":
        raise SpecError(f"run {run.name} is {status.state}; only a running one can switch")
    strategy = read_manifest(run).job["strategy"]
    if strategy["name"] != "switch":
        raise SpecError(
            f"run {run.name} cannot switch: its strategy is {strategy['name']}; 'strategy: switch' "
            "names the phases of a run"
        )
    if strategy["handover"] != "live":
        raise SpecError(
            f"run {run.name} cannot switch on request: with 'handover: restart' its phases end "
            "where the job says"
        )
    # Every request differs from the one before, and one of an earlier attempt is void.
    content = f"{status.attempt} {secrets.token_hex(8)}"
    write_atomically(run.path / _FILE, content.encode())


def requested_switch(run: RunDir, attempt: int) -> str | None:
    """Return the last request of this attempt, which differs from every other; None: none."""
    try:
        content = (run.path / _FILE).read_text()
    except FileNotFoundError:
        return None
    return content if content.partition(" ")[0] == str(attempt) else None
