"""What a process of `backend: tensorflow` does in its role."""

from __future__ import annotations

from phalanx.errors import SpecError
from phalanx.wire.messages import Done
from phalanx.worker.station import Station


def run_tensorflow_role(station: Station) -> Done:
    """Do this process's part of the run, to its end."""
    raise SpecError(f"no process of this version has the role '{station.spec.role}'")
