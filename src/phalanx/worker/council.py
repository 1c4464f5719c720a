"""Where the workers of a lockstep phase agree: every few steps they put a few numbers together.

One small all-reduce per window carries what each worker measured (time, samples, loss, the length
of its own gradient) and whether the chief has been told to turn. All see the same sums, so all of
them end the phase at the same step, and the chief tells the controller what they found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from phalanx.comm.base import Collective
from phalanx.records.position import Position
from phalanx.strategy.base import StepFacts
from phalanx.wire.control import ControlClient
from phalanx.wire.phases import Turn, Window

_LEAVE, _STAY = 1.0, 2.0


class GradientGauge(Protocol):
    """What a strategy can tell about the gradients of one step."""

    def arm(self) -> None:
        """Measure in the next step."""

    def take(self) -> tuple[float, float]:
        """Squared lengths of this worker's own mean gradient and of that of all workers."""


@dataclass
class _Sums:
    compute_s: float = 0.0
    exchange_s: float = 0.0
    total_s: float = 0.0
    num_samples: int = 0
    loss_sum: float = 0.0
    num_steps: int = 0


class Council:
    """The meetings of one worker's phase.

    Args:
        control: Where the chief hears and speaks.
        collective: The group.
        every: Steps per window.
        gauge: Measures gradients; None: the strategy cannot.
    """

    def __init__(
        self,
        control: ControlClient,
        collective: Collective,
        *,
        every: int,
        gauge: GradientGauge | None,
    ) -> None:
        self._control = control
        self._collective = collective
        self._every = every
        self._gauge = gauge
        self._sums = _Sums()
        self._told = 0.0
        self.has_turned = False
        """Whether the workers have agreed to end the phase."""
        self.stays = False
        """Whether they go on with the same strategy then."""

    def meet(self, facts: StepFacts, position: Position, *, lr: float) -> bool:
        """Note a step; at the end of a window, agree. True: the phase ends here."""
        sums = self._sums
        sums.compute_s += facts.forward_s + facts.backward_s
        sums.exchange_s += facts.exchange_s
        sums.total_s += facts.forward_s + facts.backward_s + facts.exchange_s + facts.apply_s
        sums.num_samples += facts.num_samples
        sums.loss_sum += facts.loss_sum
        sums.num_steps += 1
        if sums.num_steps == self._every - 1 and self._gauge is not None:
            self._gauge.arm()
        if sums.num_steps < self._every:
            return False
        self._sums = _Sums()
        return self._agree(sums, facts, position, lr)

    def _agree(self, sums: _Sums, facts: StepFacts, position: Position, lr: float) -> bool:
        rank, size = self._collective.rank, self._collective.size
        own_squared, mean_squared = self._gauge.take() if self._gauge is not None else (0.0, 0.0)
        # A worker without samples in the measured step knows nothing of its gradient.
        measured = facts.num_samples > 0 and mean_squared > 0
        table = torch.zeros(size, 6, dtype=torch.float64)
        table[rank] = torch.tensor(
            [
                sums.compute_s,
                sums.exchange_s,
                sums.num_samples,
                sums.loss_sum,
                own_squared if measured else 0.0,
                1.0 / facts.num_samples if measured else 0.0,
            ],
            dtype=torch.float64,
        )
        shared = torch.cat([table.flatten(), torch.tensor([self._hear()], dtype=torch.float64)])
        self._collective.all_reduce(shared)
        table, told = shared[:-1].view(size, 6), float(shared[-1])
        self.has_turned, self.stays = told > 0, told == _STAY
        if rank == 0:
            noise, signal = _noise_and_signal(table, mean_squared)
            num_samples = table[:, 2]
            self._control.send(
                Window(
                    samples=position.samples,
                    epoch=position.epoch,
                    step_s=sums.total_s / sums.num_steps,
                    compute_s=tuple(table[:, 0].tolist()),
                    exchange_s=tuple(table[:, 1].tolist()),
                    num_samples=tuple(int(one) for one in num_samples.tolist()),
                    noise=noise,
                    signal=signal,
                    loss=float(table[:, 3].sum() / num_samples.sum().clamp(min=1)),
                    lr=lr,
                )
            )
        return self.has_turned

    def _hear(self) -> float:
        """What the chief has been told; nothing, on the others."""
        while self._collective.rank == 0 and not self._control.inbox.empty():
            order = self._control.inbox.get()
            assert isinstance(order, Turn), f"{order} is not for a worker in a lockstep phase"
            self._told = _STAY if order.stay else _LEAVE
        return self._told


def _noise_and_signal(table: torch.Tensor, mean_squared: float) -> tuple[float, float]:
    """Variance per sample and squared length of the true gradient, from two sizes of batch.

    With b_i samples of worker i and B of all, E|g_i|² = |G|² + V/b_i and E|g|² = |G|² + V/B; the
    two equations give V and |G|² for any shares.
    """
    own, inverse = table[:, 4], table[:, 5]
    known = inverse > 0
    if int(known.sum()) < 2:
        return 0.0, 0.0
    mean_own = float(own[known].mean())
    mean_inverse = float(inverse[known].mean())
    inverse_all = 1.0 / float((1.0 / inverse[known]).sum())
    noise = (mean_own - mean_squared) / (mean_inverse - inverse_all)
    return noise, mean_squared - noise * inverse_all
