"""Divide an epoch where every worker owns samples. Plain numbers.

Notation: T_r samples that worker r sees in an epoch, s_r samples it takes per step. Before step t
worker r has seen min(T_r, t s_r); it has none left after ceil(T_r / s_r) steps, which may be fewer
than the epoch has. Workers, servers and the controller count by the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EpochQuota:
    """The division of an epoch over workers.

    Attributes:
        totals: T_r.
        rows: s_r, at least 1.
        num_steps: Steps of the epoch, the same for all workers.
    """

    totals: tuple[int, ...]
    rows: tuple[int, ...]
    num_steps: int

    @property
    def samples(self) -> int:
        """Samples of an epoch, over all workers."""
        return sum(self.totals)

    def offset_of(self, step: int) -> int:
        """Return the samples of all workers before a step."""
        sizes = zip(self.totals, self.rows, strict=True)
        return sum(min(total, step * rows) for total, rows in sizes)

    def step_at(self, sample: int) -> int | None:
        """Return the step that begins after so many samples; None: no step does."""
        low, high = 0, self.num_steps
        while low < high:
            middle = (low + high) // 2
            if self.offset_of(middle) < sample:
                low = middle + 1
            else:
                high = middle
        return low if self.offset_of(low) == sample else None

    def has_samples(self, worker: int, step: int) -> bool:
        """Return whether a worker has samples left at a step."""
        return step * self.rows[worker] < self.totals[worker]
