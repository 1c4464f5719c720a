"""What every strategy is: the owner of one training step, exchange included.

The worker loop hands it batches and asks for nothing else, so that strategies with quite different
exchanges (none, every step, every few steps, through servers) fit the same loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from phalanx.comm.base import Collective
from phalanx.data.pipeline import Batch
from phalanx.engine.replica import Replica
from phalanx.strategy.facts import StepFacts

__all__ = ["StepFacts", "Strategy"]


class Strategy(ABC):
    """A way to train one model on several workers."""

    @abstractmethod
    def attach(self, replica: Replica, collective: Collective, *, equal: bool = False) -> None:
        """Take over a replica and bring all workers to the same parameters; called once, first.

        Args:
            replica: What is trained.
            collective: The group.
            equal: All workers hold the same parameters and statistics already.
        """

    @abstractmethod
    def step(self, batch: Batch, *, lr: float, step_index: int) -> StepFacts:
        """Train on this worker's part of a batch.

        Args:
            batch: The samples, maybe none, and the true size of the global batch.
            lr: The learning rate at this point of the schedule.
            step_index: Number of this step in the run; decides dropout, together with seed and
            rank.
        """

    @abstractmethod
    def settle(self) -> None:
        """Bring all replicas to one defined state, before evaluation, saving or hand-over."""

    @abstractmethod
    def export_state(self) -> dict[str, torch.Tensor]:
        """What a checkpoint must hold beyond the replica; all workers call it together."""

    @abstractmethod
    def import_state(self, state: dict[str, torch.Tensor]) -> None:
        """Take up what `export_state` gave, maybe in a group of another size."""


def make_equal(replica: Replica, collective: Collective) -> None:
    """Give every worker the chief's parameters and statistics."""
    collective.broadcast(replica.parameters)
    if replica.buffers.numel() > 0:
        collective.broadcast(replica.buffers)


def average_buffers(replica: Replica, collective: Collective) -> None:
    """Replace each worker's batch-norm statistics by the mean over workers.

    During training every worker normalises with its own batch and keeps its own running statistics;
    only their mean describes the model that all of them share.
    """
    if collective.size > 1 and replica.buffers.numel() > 0:
        collective.all_reduce(replica.buffers)
        replica.buffers.div_(collective.size)
