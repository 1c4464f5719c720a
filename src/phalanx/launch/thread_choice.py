"""Choose the threads of workers on a machine that other programs use, before a run starts.

The threads of an operator wait for one another at its end. Where other programs use the cores, one
of them is always interrupted, and a worker with two threads falls to a quarter of the speed of one
thread. So `threads: auto` takes the cores that are free. The choice is made once and written into
the job of the run: a change while it trains would change its bits, and `--resume` must not.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence

import psutil

from phalanx.spec.job import JobSpec

WATCH_S = 0.25
# A core is taken for free if others use less than half of it.
_HALF = 0.5


def threads_beside_others(num_cores: int, num_workers: int, busy_cores: float) -> int:
    """Return the threads of each worker for which the free cores suffice; at least one."""
    usual = max(1, num_cores // num_workers)
    free = int(num_cores - busy_cores + _HALF)
    return min(usual, max(1, free // num_workers))


def fit_threads(job: JobSpec) -> tuple[JobSpec, tuple[str, ...]]:
    """Let the workers of a job on this machine compute with the cores that are free.

    Returns:
        The job, with a number instead of `auto` if other programs use the cores, and the sentence
        that says so, if there is one.
    """
    cores = sorted(os.sched_getaffinity(0))
    workers = job.worker_processes
    usual = max(1, len(cores) // workers)
    if job.threads != "auto" or usual == 1:
        return job, ()
    busy = busy_beside(cores)
    threads = threads_beside_others(len(cores), workers, busy)
    if threads == usual:
        return job, ()
    # Not bound to cores either: which of them are free changes.
    fitted = job.model_copy(update={"threads": threads, "pin": False})
    note = (
        f"other programs use {busy:.1f} of {len(cores)} cores, so each worker computes with "
        f"{threads} instead of {usual} threads, which would wait for one another; set "
        f"'threads: {usual}' to keep them"
    )
    return fitted, (note,)


def busy_beside(cores: Sequence[int]) -> float:
    """Return how many of these cores other programs have used for about a minute, and use now."""
    before, own = _busy_s(cores), _own_s()
    began = time.monotonic()
    time.sleep(WATCH_S)
    used = _busy_s(cores) - before - (_own_s() - own)
    # A short burst of others is over before a run has started.
    found = used / (time.monotonic() - began)
    return min(max(0.0, found), os.getloadavg()[0], len(cores))


def _busy_s(cores: Sequence[int]) -> float:
    times = psutil.cpu_times(percpu=True)
    return sum(
        sum(times[core][:8]) - times[core].idle - times[core].iowait
        for core in cores
        if core < len(times)
    )


def _own_s() -> float:
    """Return the processor time of this process and of all below it."""
    total = 0.0
    own = psutil.Process()
    for one in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = one.cpu_times()
            total += times.user + times.system
    return total
