"""Hosts emulated on this machine for a benchmark; needs root."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def emulated(cluster: str, folder: Path) -> Iterator[Path]:
    """The pool file of the hosts, probed; they are there as long as the block lasts.

    Args:
        cluster: What a cluster file says.
        folder: Where their state may lie.
    """
    phalanx = str(Path(sys.executable).with_name("phalanx"))
    file, state = folder / "cluster.yaml", folder / "state"
    file.write_text(cluster)
    command = [phalanx, "pool", "emulate", str(file)]
    # Asked to end, the program leaves the block, and so no hosts behind.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    subprocess.run([*command, "up", "--state", str(state)], check=True, stdout=subprocess.DEVNULL)
    try:
        (pool,) = state.glob("*/pool.yaml")
        subprocess.run([phalanx, "pool", "probe", str(pool)], check=True)
        yield pool
    finally:
        subprocess.run(
            [*command, "down", "--state", str(state)], check=False, stdout=subprocess.DEVNULL
        )
