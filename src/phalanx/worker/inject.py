"""Slow a worker down on purpose, for experiments with stragglers.

It sleeps before each step, so that its cores stay free for others, as if the slow machine were
another one. The sleep counts as compute time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from phalanx.spec.job import InjectSpec
from phalanx.strategy.base import StepFacts

# Weight of the newest step in the running mean of a step's own time.
_WEIGHT = 0.2


class InjectedSlowdown:
    """Apply the job's injected slowdown to one worker.

    Args:
        injected: All of the job's.
        rank: Of this worker.
    """

    def __init__(self, injected: Sequence[InjectSpec], *, rank: int) -> None:
        self._own = [one for one in injected if one.rank == rank]
        self._mean_s = 0.0

    def wait(self, progress: float) -> float:
        """Sleep before a step if this worker is slowed now; return the seconds.

        Args:
            progress: Share of all samples that have been seen.
        """
        factor = max((one.slow for one in self._own if one.begin <= progress < one.end), default=1)
        pause_s = (factor - 1) * self._mean_s
        if pause_s > 0:
            time.sleep(pause_s)
        return pause_s

    def count(self, facts: StepFacts, slept_s: float) -> StepFacts:
        """Add the sleep before a step to its compute time."""
        if not self._own:
            return facts
        own_s = facts.forward_s + facts.backward_s
        self._mean_s += (_WEIGHT if self._mean_s else 1.0) * (own_s - self._mean_s)
        return replace(facts, forward_s=facts.forward_s + slept_s)
