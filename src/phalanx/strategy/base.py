"""Interface of a training step, exchange included, and its factory.

The training loop only passes batches to a `Strategy`, so strategies with different exchanges (none,
every step, every few steps, through servers) fit the same loop. Nothing here imports torch: a
process of another framework may use it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, cast

from typing_extensions import override

from phalanx.errors import SpecError
from phalanx.spec.kinds import kind_of
from phalanx.spec.registry import load
from phalanx.spec.strategy import StrategySpec

if TYPE_CHECKING:
    from torch import Tensor

    from phalanx.comm.base import Collective, Pending
    from phalanx.data.pipeline import Batch
    from phalanx.engine.result import StepResult
    from phalanx.engine.trained import FlatReplica
    from phalanx.strategy.split.pipeline_runner import PassResult


@dataclass(frozen=True)
class StepFacts:
    """Result of one step of one worker, and the breakdown of its time."""

    num_samples: int
    loss_sum: float
    num_correct: int
    forward_s: float
    backward_s: float
    exchange_s: float
    apply_s: float
    overlapped_s: float = 0.0
    """Exchange behind forward and backward; `exchange_s` is what was left exposed."""
    wait_s: float | None = None
    """The part of `exchange_s` that was waiting for others; None: the worker alone cannot know."""
    weight: float | None = None
    """What loss and correct ones are sums over, such as tokens; None: the samples."""

    @property
    def divisor(self) -> float:
        """What the sums are divided by to get means."""
        return self.num_samples if self.weight is None else self.weight

    @classmethod
    def of(
        cls,
        result: StepResult | PassResult,
        *,
        exchange_s: float,
        apply_s: float,
        overlapped_s: float = 0.0,
        wait_s: float | None = None,
    ) -> StepFacts:
        """Add exchange and update to what was computed."""
        return cls(
            result.num_samples,
            result.loss_sum,
            result.num_correct,
            result.forward_s,
            result.backward_s,
            exchange_s,
            apply_s,
            overlapped_s,
            wait_s,
            result.weight,
        )

    def plus(self, other: StepFacts) -> StepFacts:
        """Add a further step of the same samples."""
        waits = (self.wait_s, other.wait_s)
        return replace(
            other,
            loss_sum=self.loss_sum + other.loss_sum,
            forward_s=self.forward_s + other.forward_s,
            backward_s=self.backward_s + other.backward_s,
            exchange_s=self.exchange_s + other.exchange_s,
            apply_s=self.apply_s + other.apply_s,
            overlapped_s=self.overlapped_s + other.overlapped_s,
            wait_s=None if None in waits else sum(one for one in waits if one is not None),
        )


class GradientNoise(Protocol):
    """Measure the squared norms of gradients, from which the noise scale is estimated."""

    def arm(self) -> None:
        """Measure in the next step."""

    def take(self) -> tuple[float, float]:
        """Return the squared norms of this worker's mean gradient and of that of all workers."""


class StepNote(Protocol):
    """Exchange a few numbers beside the gradients, before the update."""

    def start(self, result: StepResult) -> Pending:
        """Start to add up what this worker has computed and what the others have."""


class Strategy(ABC):
    """Train one model on several workers, one step at a time.

    Implemented by the strategies that a spec describes completely (`attach` gives them a replica),
    and by those that are made with what they train (split networks, parameter servers, torch's
    DDP).
    """

    noise: GradientNoise | None = None
    """Measures the gradient noise scale when asked to; None: this strategy cannot."""
    note: StepNote | None = None
    """Goes along with the gradients of each step, where the strategy can regroup; None: nothing."""

    def attach(self, replica: FlatReplica, collective: Collective, *, equal: bool = False) -> None:
        """Take over a replica and bring all workers to the same parameters; called once, first.

        `equal`: they hold the same parameters and statistics already. Strategies that are made with
        what they train have nothing to attach.
        """
        raise NotImplementedError(f"{type(self).__name__} is made with what it trains")

    @abstractmethod
    def step(self, batch: Batch, *, lr: float, step_index: int) -> StepFacts:
        """Train on this worker's part of a batch, which may be empty, exchange included.

        `step_index` counts in the whole run; with seed and rank it decides dropout.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Bring all replicas to one defined state, before evaluation, saving or hand-over."""

    def export_state(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold beyond the replica; all workers call it together."""
        return {}

    def import_state(self, state: dict[str, Tensor]) -> None:  # noqa: B027 (most have none)
        """Restore what `export_state` returned, maybe in a group of another size.

        What another strategy left, such as residuals, is ignored.
        """

    def take_note(self) -> str | None:
        """Return what the user should know of the steps so far, once; None: nothing new."""
        return None

    def close(self) -> None:  # noqa: B027 (most form none)
        """Leave groups that the strategy formed itself."""


class Single(Strategy):
    """Plain training in one process: the reference that other strategies are checked against."""

    def __init__(self, spec: StrategySpec) -> None:
        """Make it from its spec, which has no settings."""

    @override
    def attach(self, replica: FlatReplica, collective: Collective, *, equal: bool = False) -> None:
        self._replica = replica

    @override
    def step(self, batch: Batch, *, lr: float, step_index: int) -> StepFacts:
        result = self._replica.forward_backward(batch, step=step_index)
        begin = time.perf_counter()
        self._replica.apply(lr)
        return StepFacts.of(
            result,
            exchange_s=0.0,
            apply_s=time.perf_counter() - begin,
        )

    @override
    def synchronize(self) -> None:
        return


def make_equal(replica: FlatReplica, collective: Collective) -> None:
    """Give every worker the chief's parameters and statistics."""
    collective.broadcast(replica.parameters)
    if replica.buffers.numel() > 0:
        collective.broadcast(replica.buffers)


def average_buffers(replica: FlatReplica, collective: Collective) -> None:
    """Replace each worker's batch-norm statistics by the mean over workers.

    During training every worker normalises with its own batch and keeps its own running statistics;
    only their mean describes the model that all of them share.
    """
    if collective.size > 1 and replica.buffers.numel() > 0:
        collective.all_reduce(replica.buffers)
        replica.buffers.div_(collective.size)


def build_strategy(spec: StrategySpec) -> Strategy:
    """Build the step of a strategy, not yet attached to a replica.

    Raises:
        SpecError: The kind has no step, or it cannot be imported.
    """
    kind = kind_of(spec)
    if not kind.step:
        raise SpecError(f"strategy '{spec.name}' has no step that a synchronous worker could take")
    return cast(Callable[[StrategySpec], Strategy], load(kind.step))(spec)
