"""Say which processes a job needs, before any of them exists."""

from __future__ import annotations

from phalanx.spec.job import JobSpec
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.spec.switch import SwitchSpec


def processes_of(job: JobSpec) -> list[tuple[str, int]]:
    """Return role and rank of every process that a job starts with or may come to need.

    A run that switches counts with the most servers that any of its phases has.
    """
    phases: list[object] = [job.strategy]
    if isinstance(job.strategy, SwitchSpec):
        phases = [phase.strategy for phase in job.strategy.resolved]
    served = [one for one in phases if isinstance(one, ParameterServerSpec)]
    counts = [one.servers for one in served if isinstance(one.servers, int)]
    found = [("worker", rank) for rank in range(job.worker_processes)]
    found += [("server", rank) for rank in range(max(counts, default=0))]
    return [*found, ("evaluator", 0)] if served else found
