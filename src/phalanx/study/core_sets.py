"""Divide cores into disjoint sets for trials that run at the same time; pure."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.errors import SpecError
from phalanx.spec.job import JobSpec


def assign_core_sets(
    cores: Sequence[int], jobs: Sequence[JobSpec], parallel: int | str
) -> list[list[int]]:
    """Divide the cores into core sets; each runs one trial at a time.

    Args:
        cores: Cores that this process may use.
        jobs: Every job of the study; the largest decides under `auto`.
        parallel: The number of core sets, or `auto`.

    Raises:
        SpecError: There are more core sets than cores.
    """
    if parallel == "auto":
        number = max(1, len(cores) // max(cores_wanted(job) for job in jobs))
    else:
        number = int(parallel)
    if number > len(cores):
        raise SpecError(
            f"parallel is {number}, but there are only {len(cores)} cores, and runs at the same "
            f"time share none; set it to {len(cores)} or less, or to auto"
        )
    each = len(cores) // number
    # Remaining cores stay idle: runs on core sets of unequal size could not be compared.
    return [list(cores[lane * each : (lane + 1) * each]) for lane in range(number)]


def cores_wanted(job: JobSpec) -> int:
    """Return the number of cores at which no two processes of the job share one."""
    threads = 1 if job.threads == "auto" else job.threads
    return job.workers * threads + job.processes.servers
