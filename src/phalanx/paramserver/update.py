"""Update a slice of the parameters from gathered gradients: weights, rate, compensation, rule.

A pushed gradient is `weight` times the mean over its samples. The mean over everything gathered is
then the sum of the pushes over the sum of their weights, however unequal the shares. With
weight = samples / global batch the weights of a full round add up to 1 and nothing is divided: the
sum is the one that all-reduce computes.

An update of fewer workers counts by its samples (`StepSize.weight_of`): the few samples that are
left at the end of an epoch move the parameters in proportion, and not once per worker as far as a
full batch would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from phalanx.consistency.policy import Update
from phalanx.consistency.rule import ConsistencyRule
from phalanx.consistency.shards import Segment
from phalanx.engine.layout import Range
from phalanx.engine.optimizer_factory import OptimizerFactory, join_states, slice_state
from phalanx.paramserver.compression import Received
from phalanx.wire.push_options import PushOptions

RateFunction = Callable[[int], float]
"""Learning rate after so many samples, over all workers."""
# Shares such as 1/3 do not add up to 1 exactly; a real difference is at least one sample's.
_FULL = 1e-9
_STALENESS_DECAY = 0.99


@dataclass(frozen=True)
class Contribution:
    """One worker's gradient of one segment; None: it had no samples."""

    worker: int
    gradient: Received | None
    weight: float


def clip_as_torch(gradient: Tensor, *, norm: float, largest: float) -> None:
    """Scale a gradient, or a slice of one, as `torch.nn.utils.clip_grad_norm_` does."""
    factor = largest / (norm + 1e-6)
    if factor < 1.0:
        gradient.mul_(factor)


class StepSize:
    """Compute the learning rate of an update that holds only some of the workers' gradients.

    by_workers: rate · gradients in the update / workers, so that a sample moves the model as far as
    under bsp. by_staleness: that times min(1, usual / own staleness), which leaves the mean step
    alone and shortens those of outliers. Reference: Zhang et al. 2016, with the mean in place of 1.

    Args:
        rate: The schedule.
        scaling: Which of them, or none.
        rule: Says how many gradients make an update.
        push_samples: Samples of an ordinary push, the global batch over the workers of the job;
            None: all updates weigh the same.
    """

    def __init__(
        self,
        rate: RateFunction,
        *,
        scaling: Literal["none", "by_workers", "by_staleness"],
        rule: ConsistencyRule,
        push_samples: float | None = None,
    ) -> None:
        self._rate = rate
        self._scaling = scaling
        self._rule = rule
        self._push_samples = push_samples
        self._usual_staleness = 0.0

    def weight_of(self, update: Update, *, num_workers: int) -> float:
        """Return the samples of an update over those of an ordinary one, a factor of its gradient.

        Of the gradient rather than the rate: momentum would carry a noisy gradient on at full rate.
        An update of all workers always weighs 1, because a single process also makes one ordinary
        step of the last samples of an epoch.
        """
        num_samples = sum(member.num_samples for member in update.members)
        if self._push_samples is None or num_samples == 0 or self._rule.in_rounds(num_workers):
            return 1.0
        return num_samples / (self._rule.gradients_per_update(num_workers) * self._push_samples)

    def of(
        self, update: Update, *, samples_seen: int, num_workers: int, base: float = 1.0
    ) -> float:
        """Return the learning rate of an update; call once for each, in order.

        `base` is the rate that came with the push, of which the schedule then is a factor.
        """
        rate = base * self._rate(samples_seen)
        if self._scaling == "none":
            return rate
        workers = max(1, num_workers)
        rate *= min(1.0, self._rule.gradients_per_update(workers) / workers)
        if self._scaling == "by_workers" or not update.members:
            return rate
        staleness = sum(member.staleness for member in update.members) / len(update.members)
        usual = self._usual_staleness = (
            _STALENESS_DECAY * self._usual_staleness + (1 - _STALENESS_DECAY) * staleness
            if self._usual_staleness
            else staleness
        )
        return rate * min(1.0, usual / staleness) if staleness > 0 else rate


class DelayCompensation:
    """Correct a stale gradient by how far the parameters have moved since it was read.

    g + λ g² (w - w_read), elementwise; adaptive: λ over the root of a running mean of g².
    Reference: Zheng et al. 2017 (DC-ASGD).

    Args:
        parameters: The server's slice.
        adaptive: Divide λ by the root mean square.
        strength: λ; None: 0.04, or 2 when adaptive.
    """

    _KEPT = 0.95
    _EPS = 1e-7

    def __init__(
        self, parameters: Tensor, *, adaptive: bool, strength: float | None = None
    ) -> None:
        self._parameters = parameters
        self._strength = strength if strength is not None else (2.0 if adaptive else 0.04)
        self._mean_square = torch.zeros_like(parameters) if adaptive else None
        self._read: dict[int, Tensor] = {}

    def remember(self, worker: int, part: slice) -> None:
        """Note that a part of the parameters was sent to a worker as it is now."""
        if worker not in self._read:
            self._read[worker] = self._parameters.clone()
        self._read[worker][part].copy_(self._parameters[part])

    def forget(self, worker: int) -> None:
        """Drop the copy kept for a worker that has left."""
        self._read.pop(worker, None)

    def correct(self, worker: int, part: slice, gradient: Tensor) -> None:
        """Correct a gradient in place."""
        read = self._read.get(worker)
        if read is None:
            return
        change = (self._parameters[part] - read[part]).mul_(gradient).mul_(gradient)
        if self._mean_square is not None:
            mean_square = self._mean_square[part].mul_(self._KEPT)
            mean_square.addcmul_(gradient, gradient, value=1 - self._KEPT)
            change.mul_(mean_square.add(self._EPS).rsqrt_())
        gradient.add_(change, alpha=self._strength)


class SliceUpdater:
    """Own a slice of the parameters and the optimiser state for it.

    Each segment has a separate optimiser, so that segments can be updated at different moments.

    Args:
        factory: Makes the optimisers.
        parameters: The slice; written to.
        segments: Cut the slice without gaps, where the factory allows it.
        compensation: For stale gradients; None: none.
    """

    def __init__(
        self,
        factory: OptimizerFactory,
        parameters: Tensor,
        segments: Sequence[Segment],
        *,
        compensation: DelayCompensation | None = None,
    ) -> None:
        first = segments[0].start
        self.parameters = parameters
        self.compensation = compensation
        # The norm is of the whole gradient, so segments cannot be updated one by one.
        self.needs_norm = factory.spec.clip_norm is not None
        self.parts = [slice(s.start - first, s.stop - first) for s in segments]
        self._optimizers = [
            factory.build(parameters[part], Range(segment.start, segment.stop))
            for part, segment in zip(self.parts, segments, strict=True)
        ]
        self._scratch = torch.empty(max(segment.size for segment in segments))

    def combine(
        self, index: int, contributions: Sequence[Contribution], *, update_weight: float = 1.0
    ) -> Tensor | None:
        """Return a segment's mean gradient, valid until the next call; None: there were no samples.

        Gradients are added in the given order, and may be changed.

        Args:
            index: Which segment.
            contributions: The gradients of the update.
            update_weight: Factor of the mean; see `StepSize.weight_of`.
        """
        full = [c for c in contributions if c.gradient is not None and c.weight > 0]
        if not full:
            return None
        total = self._sum([c.gradient for c in full if c.gradient is not None], index)
        weight = math.fsum(c.weight for c in full)
        corrects = self.compensation is not None and len(full) == 1
        # The correction is quadratic in the gradient: it needs the true mean.
        factor = 1.0 / weight if corrects else update_weight / weight
        if abs(factor - 1.0) > _FULL:
            total.mul_(factor)
        if self.compensation is not None and corrects:
            self.compensation.correct(full[0].worker, self.parts[index], total)
            if update_weight != 1.0:
                total.mul_(update_weight)
        return total

    def move(
        self,
        index: int,
        gradient: Tensor,
        lr: float,
        *,
        gradient_norm: float | None = None,
        options: PushOptions | None = None,
    ) -> None:
        """Apply a combined gradient to a segment; see `FlatOptimizer.step`."""
        optimizer = self._optimizers[index]
        if options is not None:
            optimizer.set_options(options.groups)
            if options.clip_norm is not None and gradient_norm is not None:
                clip_as_torch(gradient, norm=gradient_norm, largest=options.clip_norm)
        optimizer.step(gradient, lr, gradient_norm=gradient_norm)

    def squared_norm(self, index: int, gradient: Tensor) -> float:
        """Return the contribution of a segment to the squared norm of the whole gradient."""
        return self._optimizers[index].squared_norm(gradient)

    def state(self) -> dict[str, Tensor]:
        """Return a copy of the optimiser state for the slice, as one optimiser would have it."""
        return join_states([optimizer.state() for optimizer in self._optimizers])

    def copy_state_to(self, state: Mapping[str, Tensor]) -> None:
        """Write the optimiser state for the slice into tensors like those of `state`."""
        counted: set[str] = set()
        for optimizer, part in zip(self._optimizers, self.parts, strict=True):
            own = slice_state(state, (part.start, part.stop))
            for key, value in optimizer.state().items():
                if value.ndim or key not in counted:
                    own[key].copy_(value)
                else:
                    torch.maximum(own[key], value, out=own[key])
                counted.add(key)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state` returned here, on another server or on a worker."""
        for optimizer, part in zip(self._optimizers, self.parts, strict=True):
            optimizer.load_state(slice_state(state, (part.start, part.stop)))

    def _sum(self, gradients: Sequence[Received], index: int) -> Tensor:
        first, *others = gradients
        # The received frame may be overwritten; adding into it saves a pass over memory.
        total = first.own()
        if total is None:
            total = self._scratch[: first.size]
            first.write_to(total)
        for gradient in others:
            gradient.add_to(total)
        return total
