"""Respond to stragglers: uneven batches, a looser strategy, and back. Pure.

Slowness is a worker's time per sample in multiples of the median worker's. Several windows must
agree before anything changes, recovery needs a margin, and the number of changes is limited: an
intermittent straggler does not make the run flap.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from phalanx.control.switch.transition import PhaseTransition
from phalanx.spec.switch import PhaseStrategy, StragglerSpec

# Smaller differences of shares are not worth a change.
_WORTH = 0.15


class StragglerPolicy:
    """Decide on the response to stragglers."""

    def __init__(self, spec: StragglerSpec, *, num_workers: int) -> None:
        self._spec = spec
        self._even = (1.0,) * num_workers
        self._shares = self._even
        self._loose = False
        self._num_changes = 0
        self._slow_windows = self._calm_windows = 0

    def consider(
        self, computed_s: Sequence[float], counts: Sequence[int]
    ) -> PhaseTransition | None:
        """Return the transition that one window calls for, if any.

        Args:
            computed_s: Compute time of each worker, by rank.
            counts: Samples of each worker in that time.
        """
        if len(counts) < 2 or not all(counts) or not all(one > 0 for one in computed_s):
            return None
        sample_s = [one / count for one, count in zip(computed_s, counts, strict=True)]
        median_s = statistics.median_low(sample_s)
        slowness = [one / median_s for one in sample_s]
        worst = max(range(len(slowness)), key=slowness.__getitem__)
        is_calm = slowness[worst] < self._recovered or self._is_early(computed_s)
        is_slow = slowness[worst] > self._spec.slow and not is_calm
        self._slow_windows = self._slow_windows + 1 if is_slow else 0
        self._calm_windows = self._calm_windows + 1 if is_calm else 0
        if self._num_changes >= self._spec.max_changes:
            return None
        words = f"worker-{worst} takes {slowness[worst]:.2f} times the median time per sample"
        if self._slow_windows >= self._spec.windows:
            return self._answer(slowness, worst, words)
        if self._calm_windows >= self._spec.windows:
            return self._undo(words)
        return None

    @property
    def _recovered(self) -> float:
        """Halfway back to even: thresholds of slow and recovered do not touch."""
        return (1 + self._spec.slow) / 2

    def _is_early(self, computed_s: Sequence[float]) -> bool:
        """Return whether the worker with the least samples finishes well before the others.

        Its time per sample says little then: the fixed cost of a step weighs more on a small share.
        """
        least = min(range(len(self._shares)), key=self._shares.__getitem__)
        if self._loose or self._shares[least] == max(self._shares):
            return False
        others = [one for rank, one in enumerate(computed_s) if rank != least]
        return statistics.median_low(others) > self._recovered * computed_s[least]

    def _answer(self, slowness: Sequence[float], worst: int, words: str) -> PhaseTransition | None:
        spec = self._spec
        # Every change must leave room for its reversal.
        if self._loose or self._num_changes + 2 > spec.max_changes:
            return None
        wanted = _shares(slowness)
        differs = any(
            abs(new - old) > _WORTH * old for new, old in zip(wanted, self._shares, strict=True)
        )
        is_even = self._shares == self._even
        may_loosen = spec.loosen_above is not None and (
            not spec.reshare or slowness[worst] > spec.loosen_above
        )
        if may_loosen and not (spec.reshare and is_even):
            self._loose = True
            if _dispatches_batches(spec.loosen_to):
                # Only at equal shares can times be compared, and slow workers take fewer anyway.
                self._shares = self._even
            return self._change(PhaseTransition("loosen", words, self._shares))
        if not spec.reshare or not differs:
            return None
        self._shares = wanted
        return self._change(PhaseTransition("reshare", words, wanted))

    def _undo(self, words: str) -> PhaseTransition | None:
        if self._loose:
            self._loose, self._shares = False, self._even
            return self._change(PhaseTransition("return", f"recovered: {words}", self._even))
        if self._shares != self._even:
            self._shares = self._even
            return self._change(PhaseTransition("reshare", f"recovered: {words}", self._even))
        return None

    def _change(self, transition: PhaseTransition) -> PhaseTransition:
        self._num_changes += 1
        self._slow_windows = self._calm_windows = 0
        return transition


def _dispatches_batches(strategy: PhaseStrategy) -> bool:
    return strategy.hands_out_batches


def _shares(slowness: Sequence[float]) -> tuple[float, ...]:
    """Return shares in proportion to speed, with a mean of one."""
    speeds = [1 / one for one in slowness]
    mean = statistics.fmean(speeds)
    return tuple(round(speed / mean, 3) for speed in speeds)
