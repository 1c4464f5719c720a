"""Everything that goes from one phase of a run into the next, and how: the one list of it.

| What | Lockstep to servers | Servers to lockstep |
|---|---|---|
| parameters | each server takes its slice of the replica | slices are put together, exactly |
| optimiser state | each server takes its slice | slices are put together |
| batch-norm statistics | averaged, then every worker's own | mean over workers |
| schedule position | samples seen | samples seen |
| sample position | epoch and samples within it | epoch and samples within it |
| random state | a function of seed, epoch, step and rank: nothing to carry | the same |

Servers inside the workers need no traffic for what they take, and every worker broadcasts its slice
on the way back. Servers of their own take the checkpoint that the chief writes at the switch; on
the way back workers read their parameters over the wire and the optimiser's state from their files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from phalanx.comm.base import Collective
from phalanx.engine.replica import Replica
from phalanx.engine.schedule import learning_rate
from phalanx.paramserver.shard import Shard
from phalanx.protocol.shards import Layout
from phalanx.records.position import Position
from phalanx.spec.job import JobSpec
from phalanx.spec.switch import SwitchSpec

# What the update rules remember of the direction in which parameters were moving.
_MOMENTUM = frozenset({"momentum_buffer", "exp_avg"})


@dataclass(frozen=True)
class Ramp:
    """The climb of the learning rate after a switch to an asynchronous phase."""

    begin: int
    length: int
    start: float

    def factor(self, samples_seen: int) -> float:
        """What the rate is multiplied by."""
        if samples_seen >= self.begin + self.length:
            return 1.0
        done = max(0, samples_seen - self.begin) / self.length
        return self.start + (1 - self.start) * done


@dataclass(frozen=True)
class Entry:
    """How a process comes into a phase with servers.

    Attributes:
        position: Where the phase begins, if it follows another.
        restoring: Whether others are under way and hold what this process lacks.
        checkpoint: A file, or the directory of a run that is resumed; None: from memory.
        ramp: Of the learning rate.
        momentum: What the optimiser's momentum is multiplied by on the way in.
    """

    position: Position | None = None
    restoring: bool = False
    checkpoint: Path | None = None
    ramp: Ramp | None = None
    momentum: float = 1.0

    @property
    def carries(self) -> bool:
        """Whether this process brings the state of the phase before."""
        return self.position is not None and not self.restoring

    @property
    def version(self) -> int:
        """Of the parameters that it brings; -1: none."""
        return self.position.updates if self.position is not None and self.carries else -1


def ramp_into(job: JobSpec, position: Position) -> Ramp | None:
    """The climb of the asynchronous phase that the run is in, if it follows another."""
    switch = job.strategy
    assert isinstance(switch, SwitchSpec)
    if switch.ramp_steps == 0 or position.phase_begin == 0:
        return None
    length = switch.ramp_steps * job.global_batch
    return Ramp(begin=position.phase_begin, length=length, start=switch.ramp_from)


def momentum_factor(job: JobSpec, *, asynchronous: bool) -> float:
    """What the optimiser's momentum is multiplied by when a phase follows another."""
    switch = job.strategy
    assert isinstance(switch, SwitchSpec)
    if switch.momentum == "zero":
        return 0.0
    return 1.0 / job.workers if switch.momentum == "scale" and asynchronous else 1.0


class Rate:
    """The learning rate by samples seen, ramp included; the same on servers and workers.

    Args:
        job: Says which schedule.
        samples_per_epoch: Of one pass over the training data.
        ramp: After a switch.
    """

    def __init__(self, job: JobSpec, *, samples_per_epoch: int, ramp: Ramp | None = None) -> None:
        self._job = job
        self._samples_per_epoch = samples_per_epoch
        self._ramp = ramp

    def __call__(self, samples_seen: int) -> float:
        """The rate for what starts after so many samples."""
        rate = learning_rate(
            self._job.schedule,
            peak=self._job.optimizer.lr,
            samples_seen=samples_seen,
            total_samples=self._samples_per_epoch * self._job.epochs,
            samples_per_epoch=self._samples_per_epoch,
        )
        return rate if self._ramp is None else rate * self._ramp.factor(samples_seen)


def treat_momentum(state: Mapping[str, Tensor], factor: float) -> dict[str, Tensor]:
    """An optimiser's state with less, or nothing, of the direction that it remembers."""
    if factor == 1.0:
        return dict(state)
    return {name: one * factor if name in _MOMENTUM else one for name, one in state.items()}


def give_to_shard(replica: Replica, shard: Shard, bounds: tuple[int, int], factor: float) -> None:
    """Let a server in this process take its slice of the optimiser's state."""
    if replica.optimizer is not None:
        part = slice_state(replica.optimizer.state(), bounds)
        shard.updater.load_state(treat_momentum(part, factor))


def slice_state(state: Mapping[str, Tensor], bounds: tuple[int, int]) -> dict[str, Tensor]:
    """The part of an optimiser's state that belongs to a slice; counters belong to all."""
    start, stop = bounds
    return {name: one[start:stop] if one.ndim else one for name, one in state.items()}


def take_from_shard(replica: Replica, shard: Shard, bounds: tuple[int, int]) -> None:
    """Take back what a server in this process made of its slice."""
    replica.parameters[slice(*bounds)].copy_(shard.updater.parameters)
    if replica.optimizer is not None:
        shard.updater.copy_state_to(slice_state(replica.optimizer.state(), bounds))


def gather_slices(replica: Replica, layout: Layout, collective: Collective) -> None:
    """Give every worker the slices that servers inside the workers held; all call it together.

    Each must have taken its own slice before.
    """
    assert replica.optimizer is not None
    state = {"parameters": replica.parameters} | replica.optimizer.state()
    for server in range(layout.num_servers):
        for tensor in slice_state(state, layout.bounds(server)).values():
            _broadcast(tensor, collective, source=server)


def _broadcast(tensor: Tensor, collective: Collective, *, source: int) -> None:
    if tensor.ndim:
        collective.broadcast(tensor, source=source)
        return
    # A counter is a single number, which collectives take as a vector of one.
    one = tensor.reshape(1).clone()
    collective.broadcast(one, source=source)
    tensor.copy_(one[0])


def set_statistics(replica: Replica, statistics: bytes) -> None:
    """Go on from these batch-norm statistics; empty: from the replica's own."""
    if statistics:
        replica.buffers.copy_(torch.frombuffer(bytearray(statistics), dtype=torch.float32))
