"""Represent the workers of a candidate for the models: one row each, in rank order.

Built by `predict` from assignments and machines; the models of the families read it.
"""

from __future__ import annotations

import msgspec

from phalanx.plan.facts import ClusterModel, ComputeFit
from phalanx.plan.placement import Candidate


class WorkerModel(msgspec.Struct, frozen=True, kw_only=True):
    """One worker."""

    machine: str
    batch: int
    fit: ComputeFit

    @property
    def compute_s(self) -> float:
        """Return the mean compute time of a step."""
        return self.fit.seconds(self.batch)

    @property
    def backward_s(self) -> float:
        """Return the part of it in which buckets become ready."""
        return self.compute_s * self.fit.backward_share


class WorkerModels(msgspec.Struct, frozen=True, kw_only=True):
    """All workers, and the machines of the servers."""

    workers: tuple[WorkerModel, ...]
    servers: tuple[str, ...]
    """Machine of each server."""

    @property
    def machines(self) -> list[str]:
        """Return the machine of each worker, by rank."""
        return [worker.machine for worker in self.workers]

    @property
    def means_s(self) -> list[float]:
        """Return the mean compute time of each worker."""
        return [worker.compute_s for worker in self.workers]

    @property
    def jitters(self) -> list[float]:
        """Return the jitter of each worker from step to step."""
        return [worker.fit.jitter for worker in self.workers]

    @property
    def batch(self) -> int:
        """Return the samples of one step."""
        return sum(worker.batch for worker in self.workers)


def worker_models(candidate: Candidate, cluster: ClusterModel) -> WorkerModels | str:
    """Return the workers of a candidate, or why their speed is unknown."""
    workers: list[WorkerModel] = []
    servers: list[str] = []
    for seat in candidate.seats:
        machine = cluster.machines[seat.machine]
        servers += [seat.machine] * seat.servers
        if seat.workers == 0:
            continue
        fit = machine.compute(
            workers=seat.workers, threads=seat.threads, precision=candidate.precision
        )
        if fit is None:
            return f"nothing is known of {candidate.precision} on {seat.machine}"
        workers += [
            WorkerModel(machine=seat.machine, batch=batch, fit=fit) for batch in seat.batches
        ]
    return WorkerModels(workers=tuple(workers), servers=tuple(servers))
