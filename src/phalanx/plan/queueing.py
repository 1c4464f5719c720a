"""Workers and servers as a closed queueing network: how many updates per second come out.

Notation: N customers (workers) think for Z seconds, then visit stations k with demand D_k. Mean
value analysis (Reiser and Lavenberg 1980): Q_k = 0, X = 0; for n = 1 … N: R_k = D_k (1 + Q_k - d X
D_k), X = n / (Z + Σ R_k), Q_k = X R_k. X D_k is the share of time in which a station is found
serving somebody, and d what of that service is over by then: 0 where the times of service are
exponential, which makes the analysis exact; a half where all take equally long, as here, where
everybody sends the same bytes. With unequal workers the residence times are those of the same
number of workers with the mean rate, and each has its own rate 1 / (Z_i + Σ R_k), never more
together than the busiest station lets through.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Throughput(msgspec.Struct, frozen=True):
    """What comes out of the network."""

    rates: tuple[float, ...]
    """Rounds per second of each worker."""
    residence_s: float
    """Queueing and service over all stations, in one round."""

    @property
    def total(self) -> float:
        """Rounds per second of all workers."""
        return sum(self.rates)


def residence(
    demands_s: Sequence[float], think_s: float, num_workers: int, *, done: float
) -> float:
    """Seconds that one of so many equal workers spends at all stations in a round.

    Args:
        demands_s: Of each station, in one round.
        think_s: Spent elsewhere.
        num_workers: All of them equal.
        done: What of a service is over when somebody else finds it going on, as a share.
    """
    lengths = [0.0] * len(demands_s)
    total_s, rate = 0.0, 0.0
    for n in range(1, num_workers + 1):
        spent_s = [
            demand_s * (1 + length - done * rate * demand_s)
            for demand_s, length in zip(demands_s, lengths, strict=True)
        ]
        # Nobody gets through faster than the busiest station lets all of them.
        total_s = max(sum(spent_s), n * max(demands_s, default=0.0) - think_s)
        if think_s + total_s == 0:
            return 0.0
        rate = n / (think_s + total_s)
        lengths = [rate * spent for spent in spent_s]
    return total_s


def throughput(demands_s: Sequence[float], thinks_s: Sequence[float], *, done: float) -> Throughput:
    """The rates of unequal workers; `done` as in `residence`."""
    num_workers = len(thinks_s)
    alone_s = sum(demands_s)
    mean_rate = sum(1 / (z + alone_s) for z in thinks_s) / num_workers
    spent_s = residence(demands_s, max(0.0, 1 / mean_rate - alone_s), num_workers, done=done)
    rates = [1 / (z + spent_s) for z in thinks_s]
    most = 1 / max(demands_s) if max(demands_s, default=0.0) > 0 else float("inf")
    shrink = min(1.0, most / sum(rates))
    return Throughput(tuple(rate * shrink for rate in rates), spent_s)
