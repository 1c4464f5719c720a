"""Compute how many extra steps the fastest worker is granted under a dynamic staleness bound.

Notation: p is the fastest worker, q the slowest, with last push times tp, tq and intervals Ip, Iq.
The next pushes are predicted at tp + r Ip and tq + (i + 1) Iq. Objective: the r in 0 … most for
which the wait of p for some push of q is least. Reference: Zhao et al. 2019 (DSSP), section on the
synchronisation controller.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PushIntervals:
    """Time of a worker's last push, and the interval before it; None while unknown."""

    last_s: float | None = None
    interval_s: float | None = None

    def after_push(self, now_s: float) -> PushIntervals:
        """Return the intervals after a push at this moment."""
        interval_s = None if self.last_s is None else now_s - self.last_s
        return PushIntervals(now_s, interval_s)


def extra_steps(fast: PushIntervals, slow: PushIntervals, *, most: int) -> int:
    """Return the number of extra steps, 0 to `most`, after which the fast worker waits least."""
    if fast.last_s is None or fast.interval_s is None:
        return 0
    if slow.last_s is None or slow.interval_s is None or most <= 0:
        return 0
    arrivals = [slow.last_s + (i + 1) * slow.interval_s for i in range(most + 1)]
    waits = [
        min(abs(arrival - (fast.last_s + steps * fast.interval_s)) for arrival in arrivals)
        for steps in range(most + 1)
    ]
    return waits.index(min(waits))
