"""Count the units of work that a worker's state holds, and undo the one that was broken off.

A unit is a step, the end of an epoch, or a checkpoint. Parameters and optimiser state change only
after the complete sum of a step; running statistics change before, so they are kept from before
each unit. The sums of the epoch are those of all workers: a lost one takes none of them along.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import torch
from torch import Tensor
from typing_extensions import override

from phalanx.comm.base import Collective, Pending
from phalanx.engine.result import StepResult
from phalanx.engine.trained import WholeReplica
from phalanx.strategy.base import StepNote
from phalanx.worker.metrics import WorkerMetrics


class EpochSums(msgspec.Struct):
    """Sums over all workers and all steps of the epoch so far."""

    loss_sum: float = 0.0
    correct: float = 0.0
    samples: float = 0.0
    weight: float = 0.0

    def give_to(self, metrics: WorkerMetrics, *, is_chief: bool) -> None:
        """Let the chief of a new group hold all sums of the epoch, and the others none."""
        own = self if is_chief else EpochSums()
        metrics.epoch_loss_sum = own.loss_sum
        metrics.epoch_correct = int(own.correct)
        metrics.epoch_samples = int(own.samples)
        metrics.epoch_weight = own.weight


class UnitCount:
    """Units that the state of this worker holds.

    Attributes:
        commits: How many; None: it has no state.
        sums: Of the epoch under way.
    """

    def __init__(self) -> None:
        self.commits: int | None = None
        self.sums = EpochSums()
        self._statistics: dict[str, Tensor] | None = None

    def keep(self, replica: WholeReplica) -> None:
        """Keep the statistics from before a unit, unless it has begun already."""
        if self._statistics is None:
            own = _statistics_of(replica)
            self._statistics = {name: tensor.clone() for name, tensor in own.items()}

    def commit(self) -> None:
        """Count a unit that is complete."""
        assert self.commits is not None
        self.commits += 1
        self._statistics = None

    def undo(self, replica: WholeReplica) -> None:
        """Bring the statistics back to before the unit that was broken off, if one was."""
        kept, self._statistics = self._statistics, None
        if kept is not None:
            own = _statistics_of(replica)
            for name, tensor in kept.items():
                own[name].copy_(tensor)


class GroupNote(StepNote):
    """Add up a step's results over all workers, and whether one of them was told to turn.

    Args:
        collective: The group.
        is_turning: Whether this worker was told to.
    """

    def __init__(self, collective: Collective, is_turning: Callable[[], bool]) -> None:
        self._collective = collective
        self._is_turning = is_turning
        self._values = torch.zeros(5, dtype=torch.float64)

    @override
    def start(self, result: StepResult) -> Pending:
        weight = result.num_samples if result.weight is None else result.weight
        self._values = torch.tensor(
            [
                result.loss_sum,
                result.num_correct,
                result.num_samples,
                weight,
                float(self._is_turning()),
            ],
            dtype=torch.float64,
        )
        return self._collective.start_all_reduce(self._values)

    def add_to(self, sums: EpochSums) -> bool:
        """Add the results of the step; returns whether the group ends after it."""
        loss_sum, correct, samples, weight, turning = self._values.tolist()
        sums.loss_sum += loss_sum
        sums.correct += correct
        sums.samples += samples
        sums.weight += weight
        return bool(turning > 0)


def _statistics_of(replica: WholeReplica) -> dict[str, Tensor]:
    return {name: one for name, one in replica.state().items() if name.startswith("buffer")}
