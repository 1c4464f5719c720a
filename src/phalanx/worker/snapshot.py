"""The whole state of a run as named tensors, and back: what a checkpoint holds.

Parameters, statistics and optimiser state come from the replica, residuals and the like from the
strategy, and the sums of the epoch in progress from every worker. Random state is not among them:
sample order, augmentation and dropout are functions of seed, epoch, step and rank.
"""

from __future__ import annotations

import torch

from phalanx.comm.base import Collective
from phalanx.records.position import Position
from phalanx.worker.learner import Learner, Stepper
from phalanx.worker.metrics import WorkerMetrics

_REPLICA, _STRATEGY, _SUMS = "replica.", "strategy.", "worker.epoch_sums"


def collect(
    replica: Learner, strategy: Stepper, collective: Collective, tally: WorkerMetrics
) -> dict[str, torch.Tensor]:
    """All tensors of the state; every worker calls it together, after `settle`."""
    sums = torch.tensor(
        [tally.epoch_loss_sum, tally.epoch_correct, tally.epoch_samples], dtype=torch.float64
    )
    state = {_SUMS: torch.stack(collective.all_gather(sums))}
    state |= {_REPLICA + name: tensor for name, tensor in replica.state().items()}
    state |= {_STRATEGY + name: tensor for name, tensor in strategy.export_state().items()}
    return state


def served_state(
    replica: Learner, optimizer: dict[str, torch.Tensor], position: Position
) -> dict[str, torch.Tensor]:
    """The state of a run whose parameters live on servers, in the same form as `collect`'s.

    Args:
        replica: Holds the parameters and statistics that were read.
        optimizer: The optimiser's memory of all servers, put together.
        position: Of the moment at which they were read.
    """
    sums = [position.epoch_loss_sum, position.epoch_correct, position.epoch_samples]
    state = {_SUMS: torch.tensor([sums], dtype=torch.float64)}
    state |= {_REPLICA + name: tensor for name, tensor in replica.state().items()}
    state |= {f"{_REPLICA}optimizer/{name}": tensor for name, tensor in optimizer.items()}
    return state


def take_up(
    state: dict[str, torch.Tensor],
    replica: Learner,
    strategy: Stepper,
    collective: Collective,
    tally: WorkerMetrics,
) -> None:
    """Bring a worker to a collected state, maybe in a group of another size."""
    replica.load_state(_named(_REPLICA, state))
    strategy.import_state(_named(_STRATEGY, state))
    sums = state[_SUMS]
    if len(sums) == collective.size:
        own = sums[collective.rank]
    else:
        own = sums.sum(0) if collective.rank == 0 else torch.zeros(3, dtype=torch.float64)
    tally.epoch_loss_sum = own[0].item()
    tally.epoch_correct = int(own[1].item())
    tally.epoch_samples = int(own[2].item())


def _named(prefix: str, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix)
    }
