"""All-reduce in a ring, and how much of it backward hides.

Notation: N workers, M bytes, L latency and W bandwidth of the slowest link of the ring, g seconds
to add a byte. T(M) = 2 (N-1) (L + M / (N W)) + (N-1)/N M g + the cost of the call. Buckets k = 1 …
K become ready at r_k, evenly over backward; they travel one after the other:
f_k = max(f_{k-1}, r_k) + T(M_k). Exposed is what of f_K lies behind the end of backward.
References: Patarasuk and Yuan 2009 (ring), Li et al. 2020 (buckets behind backward).
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.plan.facts import Costs, LinkFacts, NetworkFacts


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


def ring_s(size_bytes: float, num_workers: int, link: LinkFacts, costs: Costs) -> float:
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
