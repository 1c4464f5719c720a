"""Transfer state between a worker's replica and the servers' shards at a switch.

All state that goes from one phase of a run into the next:

| What | Synchronous to servers | Servers to synchronous |
|---|---|---|
| parameters | each server takes its slice of the replica | slices are put together, exactly |
| optimiser state | each server takes its slice | slices are put together |
| batch-norm statistics | averaged, then every worker's own | mean over workers |
| schedule position | samples seen | samples seen |
| sample position | epoch and samples within it | epoch and samples within it |
| random state | a function of seed, epoch, step and rank: nothing to transfer | the same |

Servers inside the workers need no traffic for what they take, and every worker broadcasts its slice
on the way back. Server processes load the checkpoint that the chief writes at the switch; on the
way back workers read their parameters over the wire, and the chief reads the optimiser's state
from the servers' files and broadcasts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from phalanx.comm.base import Collective
from phalanx.consistency.shards import ShardLayout
from phalanx.engine.trained import WholeReplica
from phalanx.errors import SpecError
from phalanx.paramserver.shard import Shard
from phalanx.records.position import Position
from phalanx.spec.optimize import OptimizerSpec
from phalanx.wire.delivery import MAX_MESSAGE_BYTES
from phalanx.worker.checkpoint import Checkpoints
from phalanx.worker.rate import Ramp


@dataclass(frozen=True)
class PhaseEntry:
    """State with which a process begins a phase with servers.

    Attributes:
        position: Where the phase begins, if it follows another.
        restoring: Whether the phase is running and others hold the state that this process lacks.
        checkpoint: Name of the one to take up, or that of the newest; None: from memory.
        ramp: Of the learning rate.
        momentum: What the optimiser's momentum is multiplied by on the way in.
    """

    position: Position | None = None
    restoring: bool = False
    checkpoint: str | None = None
    ramp: Ramp | None = None
    momentum: float = 1.0

    @property
    def carries(self) -> bool:
        """Whether this process holds the state of the previous phase."""
        return self.position is not None and not self.restoring

    @property
    def version(self) -> int:
        """Version of the parameters that it holds; -1: none."""
        return self.position.updates if self.position is not None and self.carries else -1


def scale_momentum(
    state: Mapping[str, Tensor], factor: float, spec: OptimizerSpec
) -> dict[str, Tensor]:
    """Scale the momentum in an optimiser's state."""
    if factor == 1.0:
        return dict(state)
    # State that is saved by name ends in that of the slot.
    slots = spec.momentum_slots
    return {
        name: one * factor if name.rpartition("/")[2] in slots else one
        for name, one in state.items()
    }


def give_to_shard(
    replica: WholeReplica, shard: Shard, bounds: tuple[int, int], factor: float
) -> None:
    """Give a server in this process its slice of the optimiser's state."""
    if replica.optimizer is not None:
        part = replica.optimizer.part(bounds)
        shard.updater.load_state(scale_momentum(part, factor, replica.optimizer.spec))


def take_from_shard(replica: WholeReplica, shard: Shard, bounds: tuple[int, int]) -> None:
    """Take back the slice of a server in this process, with its optimiser state."""
    replica.parameters[slice(*bounds)].copy_(shard.updater.parameters)
    if replica.optimizer is not None:
        shard.updater.copy_state_to(replica.optimizer.part(bounds))


def gather_slices(replica: WholeReplica, layout: ShardLayout, collective: Collective) -> None:
    """Give every worker the slices that servers inside the workers held; all call it together.

    Each must have called `take_from_shard` before.
    """
    assert replica.optimizer is not None
    # Server i is inside worker i; all workers broadcast in the same order.
    for server in range(layout.num_servers):
        bounds = layout.bounds(server)
        collective.broadcast(replica.parameters[slice(*bounds)], source=server)
        for tensor in replica.optimizer.part(bounds).values():
            _broadcast(tensor, collective, source=server)


def _broadcast(tensor: Tensor, collective: Collective, *, source: int) -> None:
    if tensor.ndim:
        collective.broadcast(tensor, source=source)
        return
    # A counter is a single number, which collectives take as a vector of one.
    one = tensor.reshape(1).clone()
    collective.broadcast(one, source=source)
    tensor.copy_(one[0])


def check_statistics(replica: WholeReplica) -> None:
    """Refuse, before training, a model whose statistics the control channel cannot carry."""
    size = replica.buffers.nbytes
    # With room for the rest of the message.
    if size > MAX_MESSAGE_BYTES - (1 << 16):
        raise SpecError(
            f"the float buffers of the model take {size / 2**20:.0f} MiB, more than the "
            f"{MAX_MESSAGE_BYTES >> 20} MiB that workers can average; register constant tables "
            "with persistent=False"
        )


def set_statistics(replica: WholeReplica, statistics: bytes) -> None:
    """Load these batch-norm statistics; empty: keep the replica's."""
    if statistics:
        replica.buffers.copy_(torch.frombuffer(bytearray(statistics), dtype=torch.float32))


def read_statistics(replica: WholeReplica, checkpoints: Checkpoints[Tensor], name: str) -> None:
    """Load the batch-norm statistics of a checkpoint, if the model has any."""
    if replica.buffers.numel() == 0:
        return
    found = checkpoints.load(name, only=["replica.buffers"])
    if found is not None:
        replica.buffers.copy_(found.tensors["replica.buffers"])
