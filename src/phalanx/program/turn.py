"""Define the update that a script is working on: its batches, and what came of them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch

from phalanx.comm.base import Collective
from phalanx.data.stream import Batch
from phalanx.engine.flat import OnBucketReady
from phalanx.engine.result import StepResult
from phalanx.program.own_stream import ended_early
from phalanx.program.rows import count_rows
from phalanx.program.source import MicroBatch

LossForm = Literal["mean", "sum", "update_mean"]
"""Mean over a batch, sum over its samples, or divided by the count of all batches of the update."""

_NOTHING = np.empty(0, dtype=np.float32)


@dataclass(frozen=True)
class ScriptBatch(Batch):
    """One worker's part of one update: the batches of the loader that are accumulated in it."""

    micro: tuple[MicroBatch, ...] = ()

    def __len__(self) -> int:
        return sum(one.num_rows for one in self.micro)

    @classmethod
    def of(
        cls, micro: Sequence[MicroBatch], *, count: int, offset: int, epoch: int, step: int
    ) -> ScriptBatch:
        """Join batches of the loader; `count` samples of all workers are counted for them."""
        return cls(
            inputs=_NOTHING,
            targets=_NOTHING,
            indices=np.empty(0, dtype=np.int64),
            global_count=count,
            global_offset=offset,
            epoch=epoch,
            step=step,
            micro=tuple(micro),
        )

    @property
    def is_alone(self) -> bool:
        """Whether the update is made of this worker's samples only."""
        return self.global_count == max(1, len(self))


class LossWeights(Protocol):
    """Weigh the losses of an update."""

    loss: LossForm
    """What the script's losses are over."""

    def weights(self, batch: ScriptBatch) -> Callable[[int], float]:
        """Return the weight of each batch of an update."""


class LossScale:
    """Weigh the loss of a batch so that gradients of all workers add up to those of one process.

    Args:
        loss: What the script's losses are over.
        count: Counts what the mean of a batch is over, such as its tokens; None: its samples.
        total: Adds numbers over all workers.
        own_streams: Whether no worker knows how many samples the others have in a batch.
    """

    def __init__(
        self,
        *,
        loss: LossForm,
        count: Callable[[Any], Any] | None,
        total: Callable[[torch.Tensor], Callable[[], torch.Tensor]],
        own_streams: bool = False,
    ) -> None:
        self.loss = loss
        self._count = count
        self._total = total
        self._own_streams = own_streams

    def weights(self, batch: ScriptBatch) -> Callable[[int], float]:
        """Return the weight of each batch of an update; counts travel while it computes."""
        if self.loss == "update_mean":
            return self._over_update(batch)
        if not self._own_streams:
            if batch.is_alone or self.loss == "sum":
                return lambda index: 1.0 if batch.micro[index].num_rows else 0.0
            if self._count is None:
                return lambda index: batch.micro[index].num_rows / batch.micro[index].global_rows
        own = [self._counted(one) for one in batch.micro]
        rows = [float(one.num_rows) for one in batch.micro]
        wait = self._total(torch.tensor([*own, *rows], dtype=torch.float64))

        def weigh(index: int) -> float:
            both = wait()
            if not both[len(own) + index]:
                raise ended_early("on any worker")
            whole = float(both[index])
            if self.loss == "sum":
                return 1.0 if rows[index] else 0.0
            return own[index] / whole if whole else 0.0

        return weigh

    def _over_update(self, batch: ScriptBatch) -> Callable[[int], float]:
        """Weigh losses that the script has divided by the count of all batches that it got."""
        # What it has divided by has stand-ins in it; what it should have divided by has none.
        count = count_rows if self._count is None else self._count
        given = sum(float(count(one.payload)) for one in batch.micro)
        own = sum(self._counted(one) for one in batch.micro)
        sums = torch.tensor([own, float(len(batch))], dtype=torch.float64)
        wait = sums.clone if batch.is_alone else self._total(sums)

        def weigh(index: int) -> float:
            whole, rows = wait().tolist()
            if self._own_streams and not rows:
                raise ended_early("on any worker")
            return given / whole if whole and batch.micro[index].num_rows else 0.0

        return weigh

    def _counted(self, batch: MicroBatch) -> float:
        if not batch.num_rows:
            return 0.0
        return float(batch.num_rows if self._count is None else self._count(batch.payload))


def loss_samples(loss: LossForm, batch: ScriptBatch) -> Callable[[int], float]:
    """Return how many samples the loss of each batch stands for, in the loss of the update."""
    match loss:
        case "sum":
            return lambda index: float(batch.micro[index].num_rows > 0)
        case "update_mean":
            return lambda index: float(len(batch) if batch.micro[index].num_rows else 0)
    # A script that accumulates divides its losses by the number of batches.
    return lambda index: float(len(batch.micro) * batch.micro[index].num_rows)


def start_sum(collective: Collective) -> Callable[[torch.Tensor], Callable[[], torch.Tensor]]:
    """Return a function that starts to add a tensor over all workers."""

    def start(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        pending = [collective.start_all_reduce(tensor)]

        def wait() -> torch.Tensor:
            while pending:
                pending.pop().wait()
            return tensor

        return wait

    return start


@dataclass
class Turn:
    """The script's turn: an update from its first batch to its last backward pass.

    Attributes:
        step: Number of the update in the run.
        waiting: Batches that the script has not asked for yet.
        weigh: Weight of the loss of a batch, by its number in the update.
        samples: How many samples the loss of a batch stands for, likewise.
        passes_left: Backward passes up to the exchange; None: it is the optimisers' steps that
            exchange.
        on_bucket: Told which gradients are final, in the last pass.
    """

    step: int
    waiting: deque[MicroBatch]
    weigh: Callable[[int], float]
    samples: Callable[[int], float]
    passes_left: int | None = None
    on_bucket: OnBucketReady | None = None
    rank: int | None = None
    """Of the worker whose random numbers it draws; None: this one."""
    num_drawn: int = 0
    num_passes: int = 0
    gradient_version: int = 0
    """Of the gradients' memory after the last pass, which shows whether the script changes it."""
    loss_sum: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    _since: float = field(default_factory=time.perf_counter)

    def draw(self) -> MicroBatch:
        """Take the next batch."""
        self.num_drawn += 1
        return self.waiting.popleft()

    def begin_pass(self, passes: int | None) -> int:
        """Return the batch that the next backward pass is of.

        Scripts may draw batches before they use them, so it is the order of the passes that tells.

        Args:
            passes: That the script makes of each batch; None: any number, of the last one drawn.
        """
        self.num_passes += 1
        if passes is None:
            return self.num_drawn - 1
        return min((self.num_passes - 1) // passes, self.num_drawn - 1)

    def clock(self) -> float:
        """Return the seconds since it was called last."""
        now = time.perf_counter()
        spent, self._since = now - self._since, now
        return spent

    def result(self, batch: ScriptBatch) -> StepResult:
        """Return what came of the update."""
        return StepResult(self.loss_sum, 0, len(batch), self.forward_s, self.backward_s)
