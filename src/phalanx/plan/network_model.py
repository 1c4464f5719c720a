"""Model communication: all-reduce, and workers that queue at servers.

Ring all-reduce, and its overlap with backward.

Notation: N workers, M bytes, L latency and W bandwidth of the slowest link of the ring, g seconds
to add a byte. T(M) = 2 (N-1) (L + M / (N W)) + (N-1)/N M g + the cost of the call. Buckets k = 1 …
K become ready at r_k, evenly over backward, and are sent in sequence:
f_k = max(f_{k-1}, r_k) + T(M_k). Exposed is the part of f_K after the end of backward.
References: Patarasuk and Yuan 2009 (ring), Li et al. 2020 (buckets behind backward).

All-reduce along any trees (`topology`), one per slice: S slices, D the greatest depth, F a frame.
Up and down each edge go M / S bytes; B is the time in which the busiest machine sends its bytes one
after another, A the bytes that the busiest worker adds. T(M) = 2 D L + max(B, 2 D F / W) + A g +
the cost of the call.

Throughput of workers and servers as a closed queueing network.

Notation: N customers (workers) think for Z seconds, then visit stations k with demand D_k. Mean
value analysis (Reiser and Lavenberg 1980): Q_k = 0, X = 0; for n = 1 … N: R_k = D_k (1 + Q_k - d X
D_k), X = n / (Z + Σ R_k), Q_k = X R_k. X D_k is the utilisation of a station, and d the mean share
of a service that is over when another customer arrives: 0 for exponential service times, where the
analysis is exact; a half for deterministic ones, as here, where all workers send the same bytes.
Unequal workers have the residence times of as many equal workers with the mean rate; each has the
rate 1 / (Z_i + Σ R_k), and their sum is limited by the busiest station.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from phalanx.plan.facts import LinkFacts, NetworkFacts, SystemCosts
from phalanx.topology.sum_tree import SumTree

# What travels at once on each hop of a tree.
_FRAME_BYTES = 1 << 18


def ring_link(machines: Sequence[str], network: NetworkFacts) -> LinkFacts:
    """Return the slowest link of a ring through the workers, given their machines in order.

    Workers on one machine share its link, because it is one memory.
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
    """Return the time of one all-reduce, from the last arrival to the end."""
    if num_workers == 1:
        return 0.0
    steps = 2 * (num_workers - 1)
    transfer_s = link.latency_s + size_bytes / num_workers / link.bandwidth_bytes_per_s
    added_bytes = size_bytes * (num_workers - 1) / num_workers
    return costs.call_s + steps * transfer_s + added_bytes * costs.reduce_s_per_byte


def along_trees_s(
    size_bytes: float,
    trees: Sequence[SumTree],
    machines: Sequence[str],
    network: NetworkFacts,
    costs: SystemCosts,
) -> float:
    """Return the time of one all-reduce along trees over workers on these machines."""
    part = size_bytes / len(trees)
    sending_s: dict[str, float] = defaultdict(float)
    added: dict[int, int] = defaultdict(int)
    latency_s = frame_s = 0.0
    for rank, parent in (edge for tree in trees for edge in tree.edges):
        one, other = machines[rank], machines[parent]
        link = network.link(one, other)
        latency_s = max(latency_s, link.latency_s)
        frame_s = max(frame_s, min(part, _FRAME_BYTES) / link.bandwidth_bytes_per_s)
        # Up by the one and down by the other; within a machine both go through one memory.
        sending_s[one] += part / link.bandwidth_bytes_per_s
        sending_s[other] += part / link.bandwidth_bytes_per_s
        added[parent] += 1
    hops = 2 * max(tree.depth for tree in trees)
    adding_s = part * max(added.values()) * costs.reduce_s_per_byte
    moving_s = max(hops * frame_s, *sending_s.values())
    return costs.call_s + hops * latency_s + moving_s + adding_s


def exposed_s(exchanges_s: Sequence[float], backward_s: float) -> float:
    """Return the exposed time of exchanges that become ready evenly during backward."""
    finished_s = 0.0
    for number, exchange_s in enumerate(exchanges_s, start=1):
        ready_s = backward_s * number / len(exchanges_s)
        finished_s = max(finished_s, ready_s) + exchange_s
    return max(0.0, finished_s - backward_s)


class QueueThroughput(msgspec.Struct, frozen=True):
    """Throughput of the queueing network."""

    rates: tuple[float, ...]
    """Rounds per second of each worker."""
    residence_s: float
    """Queueing and service at all stations, per round."""

    @property
    def total(self) -> float:
        """Return the rounds per second of all workers."""
        return sum(self.rates)


def residence(
    demands_s: Sequence[float], think_s: float, num_workers: int, *, done: float
) -> float:
    """Return the seconds per round that one of several equal workers spends at all stations.

    `done` is the mean share of a service that is over when another worker arrives.
    """
    lengths = [0.0] * len(demands_s)
    total_s, rate = 0.0, 0.0
    for n in range(1, num_workers + 1):
        spent_s = [
            demand_s * (1 + length - done * rate * demand_s)
            for demand_s, length in zip(demands_s, lengths, strict=True)
        ]
        # The busiest station limits the total throughput.
        total_s = max(sum(spent_s), n * max(demands_s, default=0.0) - think_s)
        if think_s + total_s == 0:
            return 0.0
        rate = n / (think_s + total_s)
        lengths = [rate * spent for spent in spent_s]
    return total_s


def queue_throughput(
    demands_s: Sequence[float], thinks_s: Sequence[float], *, done: float
) -> QueueThroughput:
    """Return the rates of unequal workers; `done` as in `residence`."""
    num_workers = len(thinks_s)
    alone_s = sum(demands_s)
    mean_rate = sum(1 / (z + alone_s) for z in thinks_s) / num_workers
    spent_s = residence(demands_s, max(0.0, 1 / mean_rate - alone_s), num_workers, done=done)
    rates = [1 / (z + spent_s) for z in thinks_s]
    most = 1 / max(demands_s) if max(demands_s, default=0.0) > 0 else float("inf")
    shrink = min(1.0, most / sum(rates))
    return QueueThroughput(tuple(rate * shrink for rate in rates), spent_s)
