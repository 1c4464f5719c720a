"""Predict the throughput of parameter-server training, under each consistency.

Notation: N workers, m servers, M bytes pushed (after compression), W bandwidth, L latency, u
seconds of a server for a byte, C_i the computation of worker i.

No waiting (async, k_async): a closed queueing network, see `network_model`. Stations: the servers'
network D = M / (m W) and processor u M / m; think time Z_i = C_i + 2 L + M / W + one segment +
encryption - D. W is the bandwidth of a machine's port, or of the path to a slower machine.
Colocated servers share their worker's network in both directions, so each carries push and pull.
Bounded (ssp, dssp): no round is faster than T(s) = c + (E[max C] - c) / (1 + 1.15 s / v), with c
the slowest worker's mean and v its variation; a fit to simulations, accurate to 3 %.
Barriers (bsp, k_sync): the k-th of N workers, then all push and pull at once; see `_rush_s`.
Workers that share cores with servers are slowed down by the servers' load: solved by iteration.
References: Ho et al. 2013; Dutta et al. 2018; Reiser and Lavenberg 1980.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from phalanx.consistency.rule import ConsistencyRule, rule_for
from phalanx.consistency.shards import plan_shards
from phalanx.plan.compute_model import expected_kth, expected_max
from phalanx.plan.facts import ClusterModel
from phalanx.plan.network_model import QueueThroughput, exposed_s, queue_throughput
from phalanx.plan.result import StepParts, Throughput
from phalanx.plan.workers import WorkerModels
from phalanx.spec.parameter_server import ParameterServerSpec

PULL_BYTES = {"none": 4, "bf16": 2}
_SSP_SLOPE = 1.15
# Pushes and answers interfere on machines that serve and work, beyond their sum. Fits to
# simulations of 2 to 16 machines, 5 and 40 MB: async within 8 %, barriers within 15 %.
_COLOCATED_FLOW = 1.15
_COLOCATED_RUSH = 1.35
_RUSH_INWARD = 0.9
# Fixed-point iteration with mild feedback: three rounds converge to below a per cent.
_ROUNDS = 4


def push_bytes(spec: ParameterServerSpec) -> int:
    """Return the bytes of one entry of a pushed gradient."""
    size = spec.compression.kind.pushed_bytes
    assert size is not None, "refused by the spec"
    return size


def sealing_s(
    spec: ParameterServerSpec, cluster: ClusterModel, machine: str, other: str, size_bytes: float
) -> float:
    """Return the time to encrypt or decrypt a machine's traffic with another one."""
    if machine == other or not spec.encrypts(beyond_this_machine=True):
        return 0.0
    return size_bytes * cluster.costs.seal_s_per_byte / min(1.0, cluster.machines[machine].cores)


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """Demand of one push of the whole model on network and servers."""

    network_s: float
    """Of the busiest server's network, with all traffic that shares it."""
    one_way_s: float
    """Of the busiest server's network by pushes alone, or by answers alone."""
    processor_s: float
    """Of each server."""
    segments: tuple[tuple[int, float], ...]
    """In sending order: the server, and the segment's share of the model."""
    wire_s: tuple[float, ...]
    """The whole model over each worker's port, or its slowest path to a server."""
    sealed_s: tuple[float, ...]
    """Encryption and decryption, per worker."""
    latency_s: float
    pipe_s: float
    """One segment: the last answer, after everything pushed."""
    sent_bytes: float
    num_servers: int
    done: float
    """Mean share of a push that is over when another worker reaches the same server."""


def demand_of(group: WorkerModels, spec: ParameterServerSpec, cluster: ClusterModel) -> Demand:
    """Return the demand of one push."""
    model, costs = cluster.model, cluster.costs
    layout = plan_shards(
        model.num_parameters,
        num_servers=len(group.servers),
        min_shard_bytes=spec.min_shard_bytes,
        max_shards=spec.max_shards,
    )
    servers = group.servers[: layout.num_servers]
    num_servers = len(servers)
    up, down = _traffic(spec, cluster)
    ways = _ways(group, servers, spec, cluster)
    longest = (
        max(segment.size for segment in layout.segments) / model.num_parameters * max(up, down)
    )
    return Demand(
        network_s=max(ways.loads_s),
        one_way_s=max(ways.one_way_s),
        processor_s=(
            model.size_bytes * costs.update_s_per_byte + len(layout.segments) * costs.message_s
        )
        / num_servers
        + max(ways.opened_s),
        segments=tuple(
            (segment.server, segment.size / model.num_parameters)
            for segment in reversed(layout.segments)
        ),
        wire_s=tuple(ways.wires_s),
        sealed_s=tuple(ways.sealed_s),
        latency_s=ways.latency_s,
        pipe_s=longest / ways.slowest,
        sent_bytes=up,
        num_servers=num_servers,
        # Workers visit dedicated servers in the same order, so they interfere less.
        done=0.5 if set(servers) & set(group.machines) else 1 - 0.5 / num_servers,
    )


def _traffic(spec: ParameterServerSpec, cluster: ClusterModel) -> tuple[int, int]:
    """Return the bytes of one push of the whole model, and of its answer."""
    size = cluster.model.num_parameters
    return size * push_bytes(spec), size * PULL_BYTES[spec.pull_compression]


class _Ways(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over all pairs of workers and servers, for one push of each worker."""

    loads_s: list[float]
    """Of each server's network, with all traffic that shares it."""
    one_way_s: list[float]
    """Of each server's network by pushes alone, or by answers alone."""
    opened_s: list[float]
    """Decrypting pushes and encrypting answers, per server."""
    wires_s: list[float]
    sealed_s: list[float]
    latency_s: float
    slowest: float
    """Bytes per second of the slowest path."""


def _ways(
    group: WorkerModels, servers: tuple[str, ...], spec: ParameterServerSpec, cluster: ClusterModel
) -> _Ways:
    num_servers, num_workers, network = len(servers), len(group.workers), cluster.network
    up, down = _traffic(spec, cluster)
    part, exchanged = max(up, down) / num_servers, (up + down) / num_servers
    working = Counter(group.machines)
    ports = {machine: network.port(machine) for machine in {*working, *servers}}
    loads_s, one_way_s, opened_s = ([0.0] * num_servers for _ in range(3))
    own_s, longest_s, sealed_s = (dict.fromkeys(working, 0.0) for _ in range(3))
    links = []
    for number, server in enumerate(servers):
        for machine, count in working.items():
            link, near = network.link(machine, server), machine == server
            way_s = part / link.bandwidth_bytes_per_s
            # A machine that serves and works carries pushes and pulls in each direction.
            shared = server in working and not near
            both = (up + down) / max(up, down) * _COLOCATED_FLOW if shared else 1.0
            rush = _COLOCATED_RUSH if shared else 1.0
            port_s = way_s if near else part / ports[server]
            weight = count / num_workers
            loads_s[number] += both * port_s * weight
            one_way_s[number] += rush * port_s * weight
            opened_s[number] += sealing_s(spec, cluster, server, machine, exchanged) * weight
            own_s[machine] += way_s if near else part / ports[machine]
            longest_s[machine] = max(longest_s[machine], way_s)
            sealed_s[machine] += sealing_s(spec, cluster, machine, server, exchanged)
            links.append(link)
    return _Ways(
        loads_s=loads_s,
        one_way_s=one_way_s,
        opened_s=opened_s,
        wires_s=[max(own_s[machine], longest_s[machine]) for machine in group.machines],
        sealed_s=[sealed_s[machine] for machine in group.machines],
        latency_s=max(link.latency_s for link in links),
        slowest=min(link.bandwidth_bytes_per_s for link in links),
    )


def predict_parameter_server(
    group: WorkerModels, spec: ParameterServerSpec, cluster: ClusterModel
) -> Throughput:
    """Predict training in which workers push gradients and pull parameters."""
    rule, demand = rule_for(spec), demand_of(group, spec, cluster)
    model = _gathered if rule.barrier else _flowing
    compute_s = group.means_s
    throughput = model(group, compute_s, rule, demand)
    for _ in range(_ROUNDS):
        slowed = _slowed(group, throughput, cluster)
        if slowed == compute_s:
            break
        compute_s = slowed
        throughput = model(group, compute_s, rule, demand)
    return throughput


def _slowed(group: WorkerModels, throughput: Throughput, cluster: ClusterModel) -> list[float]:
    """Return the compute times where servers use cores that workers occupy."""
    times_s = []
    serving = Counter(group.servers)
    for worker in group.workers:
        machine = cluster.machines[worker.machine]
        busy = worker.fit.workers * worker.fit.threads
        busy_servers = serving[worker.machine] * throughput.server_busy
        over = (busy + busy_servers) / machine.cores if busy >= machine.cores else 1.0
        times_s.append(worker.compute_s * max(1.0, over / max(1.0, busy / machine.cores)))
    return times_s


def _flowing(
    group: WorkerModels, compute_s: list[float], rule: ConsistencyRule, demand: Demand
) -> Throughput:
    """Predict consistencies without a barrier: pushes are answered at once, or within the bound."""
    thinks_s = _thinks(group, compute_s, demand)
    flow = queue_throughput([demand.network_s, demand.processor_s], thinks_s, done=demand.done)
    lead = rule.lead_max if rule.lead_max is not None else rule.lead
    if lead is not None and len(group.workers) > 1:
        flow = _bounded(group, thinks_s, lead, demand)
    samples_per_s = sum(r * h.batch for r, h in zip(flow.rates, group.workers, strict=True))
    round_s = group.batch / samples_per_s
    mean_compute_s = sum(r * c for r, c in zip(flow.rates, compute_s, strict=True)) * round_s
    mean_compute_s /= len(group.workers)
    unbound_s = group.batch / sum(
        worker.batch / (think_s + flow.residence_s)
        for worker, think_s in zip(group.workers, thinks_s, strict=True)
    )
    wait_s = min(max(0.0, round_s - unbound_s), round_s - mean_compute_s)
    return Throughput(
        family="async",
        samples_per_s=samples_per_s,
        parts=StepParts(
            compute_s=mean_compute_s,
            communication_s=max(0.0, round_s - mean_compute_s - wait_s),
            wait_s=wait_s,
        ),
        busy=tuple(c * rate for c, rate in zip(compute_s, flow.rates, strict=True)),
        server_busy=min(1.0, flow.total * demand.processor_s),
        # Between two pushes of a worker all others push at their own rates: averaged over all
        # pushes that is one push of each, whatever the path lengths.
        staleness=(len(group.workers) - 1) / rule.gradients_per_update(len(group.workers)),
        sent_bytes=demand.sent_bytes,
        tail_s=max(1 / rate for rate in flow.rates) / 2,
    )


def _thinks(group: WorkerModels, compute_s: list[float], demand: Demand) -> list[float]:
    """Return the part of each worker's round outside the shared stations.

    Without contention a round takes the computation, the part of the push that backward does not
    hide, and the last segment's round trip. The stations' own time is a part of that.
    """
    inside_s = demand.network_s + demand.processor_s * (1 - 1 / len(demand.segments))
    thinks_s = []
    own = zip(group.workers, compute_s, demand.wire_s, demand.sealed_s, strict=True)
    for worker, computing_s, wire_s, sealed_s in own:
        backward_s = computing_s * worker.fit.backward_share
        left_s = exposed_s([share * wire_s for _, share in demand.segments], backward_s)
        # Encryption delays backward; decryption overlaps with arrivals except for the last one.
        sealing_s = sealed_s * (1 + 1 / len(demand.segments)) / 2
        alone_s = computing_s + left_s + sealing_s + demand.pipe_s + 2 * demand.latency_s
        thinks_s.append(max(computing_s - backward_s, alone_s - inside_s))
    return thinks_s


def _bounded(
    group: WorkerModels, thinks_s: list[float], lead: int, demand: Demand
) -> QueueThroughput:
    """Limit all workers to the slowest one's rate, plus the jitter that exceeds the bound."""
    slowest_s = max(thinks_s)
    flow = queue_throughput(
        [demand.network_s, demand.processor_s], [slowest_s] * len(thinks_s), done=demand.done
    )
    # A lead of some rounds absorbs the more jitter the longer a round takes, queueing included;
    # without the queue a faster network would count as more jitter and could predict slower rounds.
    rounds_s = [think_s + flow.residence_s for think_s in thinks_s]
    jitters = [
        worker.fit.jitter * min(1.0, worker.compute_s / round_s)
        for worker, round_s in zip(group.workers, rounds_s, strict=True)
    ]
    waited_s = expected_max(rounds_s, jitters) - max(rounds_s)
    round_s = 1 / flow.rates[0] + waited_s / (1 + _SSP_SLOPE * lead / max(max(jitters), 1e-3))
    return QueueThroughput((1 / round_s,) * len(thinks_s), flow.residence_s)


def _gathered(
    group: WorkerModels, compute_s: list[float], rule: ConsistencyRule, demand: Demand
) -> Throughput:
    """Predict consistencies with a barrier: each update waits for several gradients."""
    num_workers = len(group.workers)
    needed = rule.gradients_per_update(num_workers)
    arrival_s = expected_kth(compute_s, group.jitters, needed)
    exchange_s = _rush_s(group, compute_s, needed, demand)
    step_s = arrival_s + exchange_s
    used = group.batch * needed / num_workers
    # Parts are per global batch; updates of fewer gradients require more of them.
    scale = group.batch / used
    mean_s = sum(compute_s) / num_workers
    return Throughput(
        family="bsp",
        samples_per_s=used / step_s,
        parts=StepParts(
            compute_s=min(mean_s, arrival_s) * scale,
            communication_s=exchange_s * scale,
            wait_s=max(0.0, arrival_s - mean_s) * scale,
        ),
        busy=tuple(min(1.0, c / step_s) for c in compute_s),
        server_busy=min(1.0, needed * demand.processor_s / step_s),
        sent_bytes=demand.sent_bytes * scale,
    )


def _rush_s(group: WorkerModels, compute_s: list[float], needed: int, demand: Demand) -> float:
    """Return the time from the end of backward to new parameters when all push and pull at once.

    All answers queue at each server's outbound link, and a part of the pushes at the inbound one:
    answers leave in sequence, so workers drift apart, and the further apart they are (workers over
    segments of a server), the fewer answers precede the last push. Servers are visited in sequence,
    which delays the last of them. The weight is a fit to simulations.
    """
    slowest = max(range(len(compute_s)), key=compute_s.__getitem__)
    backward_s = compute_s[slowest] * group.workers[slowest].fit.backward_share
    num_segments, num_servers = len(demand.segments), demand.num_servers
    each = num_segments / num_servers
    wire_s = max(demand.wire_s)
    apart = needed / each
    inward = _RUSH_INWARD * apart / (1 + apart) * (1 - 1 / each)
    crowd_s = needed * demand.one_way_s
    crowd_s += inward * needed * max(demand.one_way_s, demand.processor_s)
    behind_s = wire_s * (num_servers - 1) / num_servers
    hidden_s = backward_s * (1 - 1 / num_segments)
    ends_s = (
        2 * demand.latency_s + demand.processor_s / each + demand.sealed_s[slowest] / num_segments
    )
    left_s = exposed_s([share * wire_s for _, share in demand.segments], backward_s)
    return ends_s + max(
        left_s + demand.pipe_s,
        crowd_s + behind_s - hidden_s,
        needed * demand.one_way_s + demand.pipe_s - backward_s * (1 - 1 / each),
        needed * demand.processor_s - hidden_s,
    )
