"""All-reduce step statistics every few steps, and the chief's request to end the phase.

One small all-reduce per window carries what each worker measured (time, samples, loss, the length
of its own gradient) and whether the chief was asked to end the phase. All ranks see the same sums,
so all of them stop at the same step; the chief sends the statistics to the controller.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from phalanx.comm.base import Collective
from phalanx.records.position import Position
from phalanx.strategy.base import GradientNoise, StepFacts
from phalanx.wire.control_client import ControlClient
from phalanx.wire.switch import EndPhase, WindowReport

_LEAVE, _STAY = 1.0, 2.0


@dataclass
class _Sums:
    compute_s: float = 0.0
    exchange_s: float = 0.0
    total_s: float = 0.0
    num_samples: int = 0
    loss_sum: float = 0.0
    num_steps: int = 0


class WindowStats:
    """Collect one worker's steps and share them at the end of each window.

    Args:
        control: Where the chief is asked to end the phase, and reports.
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
        gauge: GradientNoise | None,
    ) -> None:
        self._control = control
        self._collective = collective
        self._every = every
        self._gauge = gauge
        self._sums = _Sums()
        self._asked = 0.0
        self.has_ended = False
        """Whether the workers have agreed to end the phase."""
        self.same_strategy = False
        """Whether the next phase has the same strategy."""

    def observe(self, facts: StepFacts, position: Position, *, lr: float) -> bool:
        """Add a step; at the end of a window, share it. True: the phase ends here."""
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
        return self._share(sums, facts, position, lr)

    def _share(self, sums: _Sums, facts: StepFacts, position: Position, lr: float) -> bool:
        rank, size = self._collective.rank, self._collective.size
        own_squared, mean_squared = self._gauge.take() if self._gauge is not None else (0.0, 0.0)
        # A worker without samples in the measured step has no gradient to measure.
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
        shared = torch.cat(
            [table.flatten(), torch.tensor([self._read_inbox()], dtype=torch.float64)]
        )
        self._collective.all_reduce(shared)
        table, asked = shared[:-1].view(size, 6), float(shared[-1])
        # Only the chief adds to it, so that the sum is what the controller requested of it.
        self.has_ended, self.same_strategy = asked > 0, asked == _STAY
        if rank == 0:
            noise, signal = _noise_and_signal(table, mean_squared)
            num_samples = table[:, 2]
            self._control.send(
                WindowReport(
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
        return self.has_ended

    def _read_inbox(self) -> float:
        """Return the controller's requests to the chief; nothing on the others."""
        while self._collective.rank == 0 and not self._control.inbox.empty():
            order = self._control.inbox.get()
            assert isinstance(order, EndPhase), f"{order} is not for a synchronous worker"
            self._asked = _STAY if order.stay else _LEAVE
        return self._asked


def _noise_and_signal(table: torch.Tensor, mean_squared: float) -> tuple[float, float]:
    """Compute variance per sample and squared length of the true gradient, from two sizes of batch.

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
