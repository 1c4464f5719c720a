"""Cache probes between commands: one file per machine, with the date of each measurement.

Machines are keyed by identity, so renaming one or editing its price keeps its probe.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from phalanx.pool.facts import Probe
from phalanx.store.atomic import write_atomically


class ProbeCache:
    """Cache of probes in a directory.

    Args:
        root: The directory; created on the first write.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, machine: str) -> Probe | None:
        """Return the probe of a machine; None: not probed, or written by an older Phalanx."""
        try:
            return msgspec.json.decode(self._file(machine).read_bytes(), type=Probe)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def keep(self, machine: str, probe: Probe) -> None:
        """Store a probe; links that were not measured this time keep their former values.

        Raises:
            StoreError: The directory cannot be written.
        """
        before = self.read(machine)
        if before is not None:
            old = {key: link for key, link in before.links.items() if key not in probe.link_faults}
            probe = msgspec.structs.replace(
                probe, links=old | probe.links, speed=probe.speed or before.speed
            )
        self._root.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file(machine), msgspec.json.format(msgspec.json.encode(probe)))

    def _file(self, machine: str) -> Path:
        return self._root / f"{hashlib.sha256(machine.encode()).hexdigest()[:24]}.json"
