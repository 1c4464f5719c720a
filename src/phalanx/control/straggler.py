"""What to do about a machine that turns slow: uneven batches, a looser strategy, and back. Pure.

Slowness is a worker's time per sample in multiples of the median worker's. Nothing is done before
several windows agree, recovery is asked for with a margin, and the number of changes is limited: a
machine that comes and goes does not make the run flap.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from phalanx.spec.switch import StragglerSpec

# Shares that differ by less are not worth a change.
_WORTH = 0.15


@dataclass(frozen=True)
class Reaction:
    """What is to be done, and why."""

    what: Literal["reshare", "loosen", "return"]
    reason: str
    shares: tuple[float, ...] = ()


class StragglerPolicy:
    """Decides on the answer to slow machines.

    Args:
        spec: The thresholds.
        num_workers: Of the job.
    """

    def __init__(self, spec: StragglerSpec, *, num_workers: int) -> None:
        self._spec = spec
        self._shares = (1.0,) * num_workers
        self._loose = False
        self._num_changes = 0
        self._slow_windows = self._calm_windows = 0

    def consider(self, sample_s: Sequence[float]) -> Reaction | None:
        """What the times per sample of all workers, over one window, call for.

        Args:
            sample_s: By rank; 0 for a worker that did nothing in the window.
        """
        known = [one for one in sample_s if one > 0]
        if len(known) < len(sample_s) or len(known) < 2:
            return None
        median_s = statistics.median_low(known)
        slowness = [one / median_s for one in sample_s]
        worst = max(range(len(slowness)), key=slowness.__getitem__)
        is_slow = slowness[worst] > self._spec.slow
        # Half of the way back to even: what is slow and what has recovered do not touch.
        is_calm = slowness[worst] < (1 + self._spec.slow) / 2
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

    def _answer(self, slowness: Sequence[float], worst: int, words: str) -> Reaction | None:
        spec = self._spec
        # Whatever is done must be possible to undo.
        if self._loose or self._num_changes + 2 > spec.max_changes:
            return None
        wanted = _shares(slowness)
        differs = any(
            abs(new - old) > _WORTH * old for new, old in zip(wanted, self._shares, strict=True)
        )
        is_even = self._shares == (1.0,) * len(self._shares)
        may_loosen = spec.loosen_above is not None and (
            not spec.reshare or slowness[worst] > spec.loosen_above
        )
        if may_loosen and not (spec.reshare and is_even):
            self._loose = True
            return self._change(Reaction("loosen", words))
        if not spec.reshare or not differs:
            return None
        self._shares = wanted
        return self._change(Reaction("reshare", words, wanted))

    def _undo(self, words: str) -> Reaction | None:
        even = (1.0,) * len(self._shares)
        if self._loose:
            self._loose, self._shares = False, even
            return self._change(Reaction("return", f"recovered: {words}", even))
        if self._shares != even:
            self._shares = even
            return self._change(Reaction("reshare", f"recovered: {words}", even))
        return None

    def _change(self, reaction: Reaction) -> Reaction:
        self._num_changes += 1
        self._slow_windows = self._calm_windows = 0
        return reaction


def _shares(slowness: Sequence[float]) -> tuple[float, ...]:
    """In proportion to speed, with a mean of one."""
    speeds = [1 / one for one in slowness]
    mean = statistics.fmean(speeds)
    return tuple(round(speed / mean, 3) for speed in speeds)
