"""Count the processes that a job needs, before any of them exists."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.spec.job import JobSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.switch import SwitchSpec


@dataclass(frozen=True)
class ProcessCounts:
    """Processes of a run by role."""

    workers: int
    servers: int = 0
    """Parameter servers that are processes, not threads of workers."""
    evaluators: int = 0


def processes_of(job: JobSpec) -> ProcessCounts:
    """Count the processes that a job starts with or may come to need.

    A run that switches counts with the most servers that any of its phases has.
    """
    phases: list[object] = [job.strategy]
    if isinstance(job.strategy, SwitchSpec):
        phases = [phase.strategy for phase in job.strategy.resolved]
    served = [one for one in phases if isinstance(one, ParameterServerSpec)]
    servers = [one.servers for one in served if isinstance(one.servers, int)]
    return ProcessCounts(
        workers=job.worker_processes,
        servers=max(servers, default=0),
        evaluators=1 if served else 0,
    )
