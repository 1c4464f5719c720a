"""What a search has cost and when it will have paid for itself; pure.

Costs are whole runs as the journal has them, from start to end of their processes, those of the
synchronous job included. A search pays when a job recurs: every later one is shorter by the
difference between the synchronous and the switched job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from phalanx.study.tune.policy import SYNCHRONOUS


@dataclass(frozen=True)
class Payback:
    """Cost so far, and what it is good for."""

    num_runs: int
    cost_s: float
    synchronous_s: float | None
    """One synchronous job, in the mean; None before one has finished."""
    switched_s: float | None
    """One job with the share found, in the mean; None while none is found."""

    @property
    def cost_in_jobs(self) -> float | None:
        """Cost as a multiple of one synchronous job."""
        return None if not self.synchronous_s else self.cost_s / self.synchronous_s

    @property
    def saving_s(self) -> float | None:
        """By how much every later job is shorter; negative if it is longer."""
        if self.synchronous_s is None or self.switched_s is None:
            return None
        return self.synchronous_s - self.switched_s

    @property
    def saving_share(self) -> float | None:
        """The same as a share of the synchronous job."""
        saving = self.saving_s
        return saving / self.synchronous_s if saving is not None and self.synchronous_s else None

    @property
    def jobs_to_pay(self) -> float | None:
        """After how many later jobs the cost is won back; None: never, or not known yet."""
        saving = self.saving_s
        return self.cost_s / saving if saving is not None and saving > 0 else None


def reckon(
    all_s: Sequence[float], whole_s: Mapping[float, Sequence[float]], found: float | None
) -> Payback:
    """Put costs and savings together.

    Args:
        all_s: Every run of the search, also those that failed or were ended at a bar.
        whole_s: Runs that went to their end, by share.
        found: The share that is held for the best.
    """
    synchronous = whole_s.get(SYNCHRONOUS, ())
    switched = whole_s.get(found, ()) if found is not None else ()
    return Payback(
        num_runs=len(all_s),
        cost_s=sum(all_s),
        synchronous_s=fmean(synchronous) if synchronous else None,
        switched_s=fmean(switched) if switched else None,
    )
