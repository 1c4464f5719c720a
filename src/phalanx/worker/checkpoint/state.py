"""Collect the state of a run as named tensors for a checkpoint, and restore it.

Parameters, statistics and optimiser state come from the replica, residuals and the like from the
strategy, and the sums of the epoch in progress from every worker. Random state is not needed:
sample order, augmentation and dropout are functions of seed, epoch, step and rank.
"""

from __future__ import annotations

import torch

from phalanx.comm.base import Collective
from phalanx.engine.trained import WholeReplica
from phalanx.records.position import Position
from phalanx.strategy.base import Strategy
from phalanx.worker.checkpoint.checkpoints import Checkpoints
from phalanx.worker.metrics import WorkerMetrics
from phalanx.worker.trainable import Trainable

REPLICA, OPTIMIZER = "replica.", "replica.optimizer/"
"""Prefixes of the names of the replica's tensors, and of its optimiser's."""
_STRATEGY, _SUMS = "strategy.", "worker.epoch_sums"


def collect_state(
    replica: Trainable, strategy: Strategy, collective: Collective, metrics: WorkerMetrics
) -> dict[str, torch.Tensor]:
    """Collect all tensors of the state, live; all workers call it, after `synchronize`."""
    sums = torch.tensor(
        [
            metrics.epoch_loss_sum,
            metrics.epoch_correct,
            metrics.epoch_samples,
            metrics.epoch_weight,
        ],
        dtype=torch.float64,
    )
    state = {_SUMS: torch.stack(collective.all_gather(sums))}
    state |= {REPLICA + name: tensor for name, tensor in replica.state().items()}
    state |= {_STRATEGY + name: tensor for name, tensor in strategy.export_state().items()}
    return state


def served_state(
    replica: Trainable, optimizer: dict[str, torch.Tensor], position: Position
) -> dict[str, torch.Tensor]:
    """Collect the state of a run with parameter servers, named as `collect_state` does.

    Args:
        replica: Holds the parameters and statistics that were read from the servers.
        optimizer: The optimiser state of all servers, joined.
        position: Of the moment at which they were read.
    """
    sums = [
        position.epoch_loss_sum,
        position.epoch_correct,
        position.epoch_samples,
        position.epoch_divisor,
    ]
    state = {_SUMS: torch.tensor([sums], dtype=torch.float64)}
    state |= {REPLICA + name: tensor for name, tensor in replica.state().items()}
    state |= {OPTIMIZER + name: tensor for name, tensor in optimizer.items()}
    return state


def restore_state(
    state: dict[str, torch.Tensor],
    replica: Trainable,
    strategy: Strategy,
    collective: Collective,
    metrics: WorkerMetrics,
) -> None:
    """Load a collected state into a worker, even of a group of another size."""
    replica.load_state(_named(REPLICA, state))
    strategy.import_state(_named(_STRATEGY, state))
    sums = state[_SUMS]
    if len(sums) == collective.size:
        own = sums[collective.rank]
    else:
        # The sums cannot be divided among other workers; their total is what counts.
        own = sums.sum(0) if collective.rank == 0 else torch.zeros_like(sums[0])
    metrics.epoch_loss_sum = own[0].item()
    metrics.epoch_correct = int(own[1].item())
    metrics.epoch_samples = int(own[2].item())
    # Checkpoints of earlier versions end here: their losses counted samples.
    metrics.epoch_weight = own[-1].item()


def rescue_optimizer_state(
    checkpoints: Checkpoints[torch.Tensor], name: str, replica: WholeReplica, *, position: bytes
) -> None:
    """Write the optimiser state of the last switch now, unless its checkpoint exists.

    Every worker holds it while servers train. The parameters have changed since and are left out,
    so the file serves processes that get theirs from others, and cannot be rolled back to.
    """
    if checkpoints.has(name):
        return
    tensors = {
        REPLICA + key: tensor for key, tensor in replica.state().items() if key != "parameters"
    }
    checkpoints.write_partial(name, position, tensors)


def _named(prefix: str, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix)
    }
