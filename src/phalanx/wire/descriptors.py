"""Raise this process's limit of open files, and check that it suffices for a run.

Every machine costs an ssh process with its pipes, every process a connection or two. Strangers who
hold connections open take descriptors as well, for as long as a handshake may last: with the usual
1024 they could keep the controller from writing its records.
"""

from __future__ import annotations

import resource

from phalanx.errors import PlanError

# Pipes to ssh and its messages, and a second session while a lost machine is cleaned up.
_PER_MACHINE = 8
# Pipe, log, connection to a fork server and its descriptor, control and store connections.
_PER_PROCESS = 8
# The program itself, its libraries, logs and checkpoints, and connections of strangers.
_RESERVE = 256
_MANY = 1 << 20


def ensure_descriptors(*, num_machines: int, num_processes: int) -> int:
    """Raise the limit to what the system allows this user; returns it.

    Raises:
        PlanError: That is too little for so many machines and processes.
    """
    limit = raise_descriptors()
    needed = _RESERVE + _PER_MACHINE * num_machines + _PER_PROCESS * num_processes
    if needed > limit:
        raise PlanError(
            f"{num_processes} processes on {max(1, num_machines)} machines need about {needed} "
            f"open files, and this user may have {limit}; raise the limit (`ulimit -Hn`, "
            "/etc/security/limits.conf), or take fewer"
        )
    return limit


def raise_descriptors() -> int:
    """Raise the limit to what the system allows this user; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        hard = max(soft, _MANY)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return soft  # some systems allow less than they say
    return hard
