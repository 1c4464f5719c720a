"""Model exchanges: all-reduce in a ring, and workers that queue for servers.

All-reduce in a ring, and how much of it backward hides.

Notation: N workers, M bytes, L latency and W bandwidth of the slowest link of the ring, g seconds
to add a byte. T(M) = 2 (N-1) (L + M / (N W)) + (N-1)/N M g + the cost of the call. Buckets k = 1 …
K become ready at r_k, evenly over backward; they travel one after the other:
f_k = max(f_{k-1}, r_k) + T(M_k). Exposed is what of f_K lies behind the end of backward.
References: Patarasuk and Yuan 2009 (ring), Li et al. 2020 (buckets behind backward).

Workers and servers as a closed queueing network: how many updates per second come out.

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

from phalanx.plan.facts import LinkFacts, NetworkFacts, SystemCosts


def ring_link(machines: Sequence[str], network: NetworkFacts) -> LinkFacts:
    """The slowest link of a ring through the workers, given the machine of each in order.

    Links within one machine are shared by all its workers, because they are one memory.
    """
    pairs = [(machines[i], machines[(i + 1) % len(machines)]) for i in range(len(machines))]
    links = []
    for one, other in set(pairs):
        link = network.link(one, other)
        sharing = machines.count(one) if one == other else 1
        links.append((link.latency_s, link.bandwidth_bytes_per_s / sharing))
    return LinkFacts(
        latency_s=max(latency for latency, _ in links),
        bandwidth_bytes_per_s=min(bandwidth for _, bandwidth in links),
    )


def ring_s(size_bytes: float, num_workers: int, link: LinkFacts, costs: SystemCosts) -> float:
    """One all-reduce, from the last to arrive to the end."""
    if num_workers == 1:
        return 0.0
    steps = 2 * (num_workers - 1)
    transfer_s = link.latency_s + size_bytes / num_workers / link.bandwidth_bytes_per_s
    added_bytes = size_bytes * (num_workers - 1) / num_workers
    return costs.call_s + steps * transfer_s + added_bytes * costs.reduce_s_per_byte


def exposed_s(exchanges_s: Sequence[float], backward_s: float) -> float:
    """What is left of the exchanges when backward is over; they become ready evenly during it."""
    finished_s = 0.0
    for number, exchange_s in enumerate(exchanges_s, start=1):
        ready_s = backward_s * number / len(exchanges_s)
        finished_s = max(finished_s, ready_s) + exchange_s
    return max(0.0, finished_s - backward_s)


class QueueThroughput(msgspec.Struct, frozen=True):
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


def queue_throughput(
    demands_s: Sequence[float], thinks_s: Sequence[float], *, done: float
) -> QueueThroughput:
    """The rates of unequal workers; `done` as in `residence`."""
    num_workers = len(thinks_s)
    alone_s = sum(demands_s)
    mean_rate = sum(1 / (z + alone_s) for z in thinks_s) / num_workers
    spent_s = residence(demands_s, max(0.0, 1 / mean_rate - alone_s), num_workers, done=done)
    rates = [1 / (z + spent_s) for z in thinks_s]
    most = 1 / max(demands_s) if max(demands_s, default=0.0) > 0 else float("inf")
    shrink = min(1.0, most / sum(rates))
    return QueueThroughput(tuple(rate * shrink for rate in rates), spent_s)
