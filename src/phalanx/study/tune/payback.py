"""Compute the cost of a search and its payback time; pure.

Costs are complete runs of the journal, from start to end of their processes, those of the
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
    """Cost so far, and the saving per later job."""

    num_runs: int
    cost_s: float
    synchronous_s: float | None
    """Mean duration of the synchronous job; None before one has finished."""
    switched_s: float | None
    """Mean duration of the job with the share found; None while none is found."""

    @property
    def cost_in_jobs(self) -> float | None:
        """Cost as a multiple of one synchronous job."""
        return None if not self.synchronous_s else self.cost_s / self.synchronous_s

    @property
    def saving_s(self) -> float | None:
        """Saving per later job; negative if it takes longer."""
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
        """Number of later jobs that recover the cost; None: never, or not known yet."""
        saving = self.saving_s
        return self.cost_s / saving if saving is not None and saving > 0 else None


def payback_of(
    all_s: Sequence[float], whole_s: Mapping[float, Sequence[float]], found: float | None
) -> Payback:
    """Compute costs of all runs, and savings from complete runs by share."""
    synchronous = whole_s.get(SYNCHRONOUS, ())
    switched = whole_s.get(found, ()) if found is not None else ()
    return Payback(
        num_runs=len(all_s),
        cost_s=sum(all_s),
        synchronous_s=fmean(synchronous) if synchronous else None,
        switched_s=fmean(switched) if switched else None,
    )
