"""Totals of parameter servers and their clients: records, not objects.

Running totals only, so that a missed report costs nothing. One thread counts; `facts()` returns
copies, whose totals belong to one moment and are consistent.
"""

from __future__ import annotations

import msgspec


class StalenessStats(msgspec.Struct, frozen=True):
    """Staleness of one worker's applied pushes: count by value."""

    histogram: dict[int, int]

    @property
    def count(self) -> int:
        """Applied pushes."""
        return sum(self.histogram.values())

    @property
    def mean(self) -> float:
        """Mean over applied pushes; 0 if there were none."""
        total = sum(value * count for value, count in self.histogram.items())
        return total / self.count if self.histogram else 0.0

    @property
    def max(self) -> int:
        """The stalest applied push."""
        return max(self.histogram, default=0)


class ServerStats(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of one server. Pushes = applied + dropped + lost + gathered, at every moment."""

    server: int
    version: int
    samples: int
    pushes: int
    applied: int
    dropped: int
    lost: int
    gathered: int
    repeated: int
    """Segments that arrived again after they had been taken, and were ignored."""
    refused: int
    """Messages of unknown senders or older incarnations, or malformed ones."""
    staleness: dict[int, StalenessStats]
    """By worker."""
    held_s: dict[int, float]
    """Time for which the rule made each worker wait for parameters."""
    sent_bytes: dict[str, int]
    received_bytes: dict[str, int]
    running_s: float
    busy_s: float
    queue_mean: float
    """Messages in the queue at each poll."""
    queue_max: int

    @property
    def updates_per_s(self) -> float:
        """Versions per second since the server began to serve."""
        return self.version / self.running_s if self.running_s > 0 else 0.0

    @property
    def busy_share(self) -> float:
        """Share of the time in which the server was working."""
        return self.busy_s / self.running_s if self.running_s > 0 else 0.0


class ClientStats(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of one worker."""

    worker: int
    pushes: int
    dropped: int
    """Segments that a server dropped as too late."""
    wait_s: float
    """Time in `wait`, with nothing else to do."""
    resent: int
    reconnects: int
    sent_bytes: dict[str, int]
    received_bytes: dict[str, int]
