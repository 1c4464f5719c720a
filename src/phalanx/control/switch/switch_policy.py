"""Decide when an automatic switch is made. Pure: facts in, decision out; no clock, no I/O.

A stale gradient does little harm once the learning rate has fallen and gradients are mostly noise,
and a switch pays only if the next strategy is faster and enough is left to do. Each of these is a
gate; all must be open in several windows in a row. docs/explain-switch.md justifies the thresholds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from phalanx.spec.strategy import StrategySpec
from phalanx.spec.switch import AutoSpec
from phalanx.wire.switch import WindowReport

# Weight of the newest window in the running means of noise and signal.
_WEIGHT = 0.1
# Assumed cost of a switch before one has been measured.
_SWITCH_S = 0.25


@dataclass(frozen=True)
class SwitchEstimate:
    """Estimated benefit of switching now, from one window."""

    samples: int
    rel_lr: float
    noise_batches: float
    gain: float
    saved_s: float
    closed: tuple[str, ...]
    """Reasons against it, in words; empty: every gate is open."""
    ready: bool
    """Whether the gates have been open long enough."""

    @property
    def reason(self) -> str:
        """The estimate in one line."""
        return (
            f"learning rate at {self.rel_lr:.0%} of its peak, gradient noise scale "
            f"{self.noise_batches:.1f} global batches, expected gain {self.gain:.2f}x, saves "
            f"{self.saved_s:.1f} s"
        )


class SwitchPolicy:
    """Decide when to leave a synchronous phase for the next.

    Args:
        spec: The thresholds.
        after: The strategy to switch to.
        peak_lr: Highest learning rate of the job.
        total_samples: Of the whole job.
        global_batch: Samples per step.
        warmup: Share of the job in which the rate still climbs.
    """

    def __init__(
        self,
        spec: AutoSpec,
        *,
        after: StrategySpec,
        peak_lr: float,
        total_samples: int,
        global_batch: int,
        warmup: float,
    ) -> None:
        self._spec = spec
        self._after = after
        self._peak_lr = peak_lr
        self._total = total_samples
        self._batch = global_batch
        self._first = max(spec.after, warmup)
        self._noise = self._signal = 0.0
        self._gain: float | None = None
        self._in_a_row = 0
        self.required_gain = spec.gain
        self.switch_s = _SWITCH_S

    def demand_more(self) -> None:
        """Require twice the gain of the next switch, after one was rolled back."""
        self.required_gain = 1 + 2 * (self.required_gain - 1)
        self._in_a_row = 0

    def consider(self, window: WindowReport) -> SwitchEstimate:
        """Estimate the benefit of switching, and decide whether it is time."""
        self._noise += _WEIGHT * (window.noise - self._noise)
        self._signal += _WEIGHT * (window.signal - self._signal)
        rel_lr = window.lr / self._peak_lr
        # Both running means start at zero; the bias cancels in their quotient.
        noise_batches = self._noise / self._signal / self._batch if self._signal > 0 else math.inf
        if self._noise <= 0:
            noise_batches = 0.0
        gain = self._smooth_gain(window)
        rate = sum(window.num_samples) / max(1e-9, self._window_s(window))
        left_s = (self._total - window.samples) / max(rate, 1e-9)
        saved_s = left_s * (1 - 1 / gain) if gain > 0 else 0.0
        closed = self._closed(window, rel_lr, noise_batches, gain, saved_s)
        self._in_a_row = 0 if closed else self._in_a_row + 1
        return SwitchEstimate(
            samples=window.samples,
            rel_lr=rel_lr,
            noise_batches=noise_batches,
            gain=gain,
            saved_s=saved_s,
            closed=closed,
            ready=self._in_a_row >= self._spec.windows,
        )

    def _smooth_gain(self, window: WindowReport) -> float:
        """Smooth the gain over windows: a single one is too short to trust its times."""
        gain = expected_gain(window, self._after)
        self._gain = gain if self._gain is None else self._gain + _WEIGHT * (gain - self._gain)
        return self._gain

    def _closed(
        self, window: WindowReport, rel_lr: float, noise_batches: float, gain: float, saved_s: float
    ) -> tuple[str, ...]:
        spec = self._spec
        price_s = spec.amortise * self.switch_s
        gates = (
            (window.samples < self._first * self._total, "it is too early"),
            (rel_lr > spec.rel_lr, f"the learning rate is above {spec.rel_lr:.0%} of its peak"),
            (
                noise_batches < spec.noise,
                f"the gradient noise scale is below {spec.noise:g} global batches",
            ),
            (gain < self.required_gain, f"the gain is below {self.required_gain:.2f}x"),
            (saved_s < price_s, f"it saves less than {price_s:.1f} s"),
        )
        return tuple(reason for is_closed, reason in gates if is_closed)

    @staticmethod
    def _window_s(window: WindowReport) -> float:
        """Return the length of a window: each step lasts as long as that of the slowest worker."""
        return max(
            compute_s + exchange_s
            for compute_s, exchange_s in zip(window.compute_s, window.exchange_s, strict=True)
        )


def expected_gain(window: WindowReport, after: StrategySpec) -> float:
    """Return the throughput under another strategy, as a multiple of the present one's.

    The last worker to arrive never waits: its time in exchanges is their cost. Without a barrier
    every worker runs at its own speed; with averaging every few steps it pays that less often.
    """
    exchange_s = min(window.exchange_s)
    slowest_s = max(window.compute_s)
    now_s = slowest_s + exchange_s
    if now_s <= 0:
        return 1.0
    if after.exchange_every > 1:
        return now_s / (slowest_s + exchange_s / after.exchange_every)
    if after.synchronous:
        return 1.0
    rate = sum(
        count / (compute_s + exchange_s)
        for count, compute_s in zip(window.num_samples, window.compute_s, strict=True)
        if compute_s + exchange_s > 0
    )
    return rate * now_s / max(1, sum(window.num_samples))


class Canary:
    """Watch the training loss after a switch.

    Args:
        spec: The thresholds.
        baseline: Training loss just before the switch.
        begin: Samples seen at the switch.
        total_samples: Of the whole job.
    """

    def __init__(self, spec: AutoSpec, *, baseline: float, begin: int, total_samples: int) -> None:
        self._spec = spec
        self._baseline = baseline
        self._look_at = begin + spec.canary_after * (total_samples - begin)
        self._samples = begin
        self._loss = 0.0
        self._weight = 0.0

    def count(self, loss_sum: float, num_samples: int) -> None:
        """Add batches that are done."""
        if num_samples == 0:
            return
        self._samples += num_samples
        loss = loss_sum / num_samples
        self._weight += _WEIGHT * (1 - self._weight)
        self._loss += _WEIGHT * (loss - self._loss)

    @property
    def is_over(self) -> bool:
        """Whether the canary has seen enough."""
        return self._samples >= self._look_at

    @property
    def alarm(self) -> str | None:
        """Return why the switch must be undone; None: it need not."""
        if self._spec.canary is None or not self.is_over or self._weight == 0:
            return None
        loss = self._loss / self._weight
        limit = self._spec.canary * self._baseline
        if math.isfinite(loss) and loss <= limit:
            return None
        return (
            f"the training loss is {loss:.4g} after the switch, above {self._spec.canary:g} times "
            f"the {self._baseline:.4g} before it"
        )
