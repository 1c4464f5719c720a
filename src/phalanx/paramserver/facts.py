"""Counting staleness by worker and value; the records that it fills are in `wire.facts`."""

from __future__ import annotations

from collections import Counter

from phalanx.wire.facts import StalenessFacts


class StalenessCounter:
    """Counts by worker and value."""

    def __init__(self) -> None:
        self._counts: dict[int, Counter[int]] = {}

    def add(self, worker: int, staleness: int) -> None:
        """A push was applied."""
        self._counts.setdefault(worker, Counter())[staleness] += 1

    def facts(self) -> dict[int, StalenessFacts]:
        """A copy by worker."""
        return {worker: StalenessFacts(dict(count)) for worker, count in self._counts.items()}
