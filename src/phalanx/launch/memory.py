"""Refuse more processes than the memory of this machine holds, before it begins to swap."""

from __future__ import annotations

import psutil

from phalanx.cgroup import memory_limit
from phalanx.errors import LaunchError
from phalanx.spec.job import JobSpec

PROCESS_BYTES = 200 << 20
"""Private memory of a process with its framework, measured with 8 to 32 workers on one machine;
model, data and buffers come on top."""


def available_bytes() -> int:
    """Return the memory that new processes may take here, within the limit of a container."""
    available = psutil.virtual_memory().available
    limit = memory_limit()
    return available if limit is None else min(available, limit)


def check_memory(job: JobSpec, available: int, *, state_bytes: int = 0) -> None:
    """Check that the processes of a job fit into the memory of this machine.

    Args:
        job: The job.
        available: Memory that they may take.
        state_bytes: Parameters and moments of one worker, where they are known.

    Raises:
        LaunchError: They do not fit; the numbers are named.
    """
    counts = job.processes
    total = counts.workers + counts.servers + counts.evaluators
    # A worker holds its gradients, and for a while a second copy of what it writes or receives.
    need = total * PROCESS_BYTES + 2 * counts.workers * state_bytes
    if need <= available:
        return
    remedy = "fewer workers or a smaller network" if state_bytes else "fewer workers"
    raise LaunchError(
        f"{total} processes ({counts.workers} workers) need at least {need / 1e9:.1f} GB of memory "
        f"({need / total / 2**20:,.0f} MiB each), and {available / 1e9:.1f} GB are available on "
        f"this machine; use {remedy} or end other programs, or start all the same with --force"
    )
