"""Go on with a run whose scheduler starts the same command again, and ask for that at SIGTERM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.errors import StoreError, Terminated

if TYPE_CHECKING:
    from phalanx.launch.base import PoolRequest
    from phalanx.pool.scheduler import Lease


def restarted_run(lease: Lease | None, runs: Path) -> str | None:
    """Return the run that a restarted command had begun on what its scheduler lent.

    Returns:
        Its name; None: the command is no restart, or had begun none.
    """
    from phalanx.records.manifest import read_manifest
    from phalanx.records.rundir import list_runs

    if lease is None or lease.restarts == 0:
        return None
    for run in reversed(list_runs(runs)):
        try:
            if read_manifest(run).lease == lease.name:
                return run.name
        except StoreError:
            continue  # ended before its manifest was written
    return None


@contextmanager
def requeue_at_sigterm(machines: PoolRequest | None) -> Iterator[None]:
    """Ask the scheduler of a pool to start the job again if SIGTERM ends the block."""
    try:
        yield
    except Terminated as error:
        if machines is None or machines.pool.scheduler is None:
            raise
        import signal

        from phalanx.pool.scheduler import scheduler_of

        # The scheduler now ends this command; it is about to end, and says why first.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        said = scheduler_of(machines.pool.scheduler).requeue()
        raise Terminated(f"{error}; {said}" if said else str(error), **error.facts) from error
