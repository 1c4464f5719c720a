"""Simulate workers and parameter servers under the same policy that real servers run.

Every server has a `Policy`, two directions of a network port and a processor; pushes are sent as
the segments of `plan_shards`. A segment is encrypted, queues at its worker's port, after its first
packet at the server's port, and at the server's processor; its answer returns once the policy has
released the worker and the segment has had the updates that the release requires. Servers and
encryption slow down the workers on fully loaded machines. Simulated: queues, jitter, heterogeneity,
slow machines, crashes with retries of the lost work. Not simulated: packets, retransmissions, the
coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from phalanx.consistency.rule import rule_for
from phalanx.consistency.shards import plan_shards
from phalanx.plan.facts import BYTES_PER_FLOAT, ClusterModel
from phalanx.plan.parameter_server import PULL_BYTES, push_bytes, sealing_s
from phalanx.plan.workers import WorkerModels
from phalanx.simulate.event_queue import Action, EventQueue, FifoResource
from phalanx.simulate.perturbation import Crash, Perturbation
from phalanx.simulate.run import ComputeTimes, SimulatedRun
from phalanx.simulate.server import Due, SimulatedServer
from phalanx.spec.parameter_server import ParameterServerSpec

# Differences below this are rounding errors.
_NOTHING_S = 1e-6


@dataclass
class _Push:
    """One push to one server."""

    readver: int
    begun: bool = False


@dataclass
class _Worker:
    life: int = 0
    """Incarnation number: events of an earlier one are void."""
    awaited: int = 0
    begun_s: float = 0.0
    stolen_s: float = 0.0
    computed_s: float = 0.0
    gone: bool = False
    holds_ticket: bool = False
    """Its gradient has not reached the servers yet."""


class _TicketPool:
    """Tickets that are still to be computed, by the worker that owns them."""

    def __init__(self, num_workers: int, *, rounds: int, shared: bool) -> None:
        self._left = [rounds] * num_workers
        self._shared = shared

    def take(self, rank: int) -> bool:
        """Take a ticket; False: there is none for this worker."""
        if self._left[rank] == 0 and self._shared:
            # Take from the worker with most tickets left: it is furthest behind.
            rank = max(range(len(self._left)), key=self._left.__getitem__)
        if self._left[rank] == 0:
            return False
        self._left[rank] -= 1
        return True

    def give_back(self, rank: int) -> None:
        """Return the ticket of a worker that was lost."""
        self._left[rank] += 1

    def hand_on(self, rank: int, present: Sequence[int]) -> None:
        """Redistribute the tickets of a worker that is not replaced among the others."""
        left, self._left[rank] = self._left[rank], 0
        for number in range(left if present else 0):
            self._left[present[number % len(present)]] += 1


class _Ports:
    """Network ports of all machines, each direction with a FIFO queue.

    Traffic within a machine bypasses its port: every worker has separate queues there.
    """

    def __init__(self, cluster: ClusterModel, num_workers: int) -> None:
        self._out = {machine: FifoResource() for machine in cluster.machines}
        self._in = {machine: FifoResource() for machine in cluster.machines}
        self._local_out = [FifoResource() for _ in range(num_workers)]
        self._local_in = [FifoResource() for _ in range(num_workers)]
        self._speeds = {machine: cluster.network.port(machine) for machine in cluster.machines}
        self._network = cluster.network

    def push(self, rank: int, machine: str, server: SimulatedServer) -> _Route:
        """Return the route from a worker to a server."""
        if machine == server.machine:
            return self._route(machine, machine, self._local_out[rank], server.local_in)
        ends = self._out[machine], self._in[server.machine]
        return self._route(machine, server.machine, *ends)

    def pull(self, rank: int, machine: str, server: SimulatedServer) -> _Route:
        """Return the route from a server to a worker."""
        if machine == server.machine:
            return self._route(machine, machine, server.local_out, self._local_in[rank])
        ends = self._out[server.machine], self._in[machine]
        return self._route(server.machine, machine, *ends)

    def _route(self, start: str, end: str, out: FifoResource, into: FifoResource) -> _Route:
        link = self._network.link(start, end)
        bandwidth = link.bandwidth_bytes_per_s
        return _Route(
            sender=out,
            receiver=into,
            sender_speed=bandwidth if start == end else self._speeds[start],
            receiver_speed=bandwidth if start == end else self._speeds[end],
            bandwidth=bandwidth,
            latency_s=link.latency_s,
        )


@dataclass(frozen=True)
class _Route:
    """Route through the network; speeds in bytes per second."""

    sender: FifoResource
    receiver: FifoResource
    sender_speed: float
    receiver_speed: float
    bandwidth: float
    latency_s: float


class ParameterServerSimulation:
    """One simulated run; construct it and call `run` once.

    The amount of work is counted in global batches.
    """

    def __init__(
        self,
        group: WorkerModels,
        spec: ParameterServerSpec,
        cluster: ClusterModel,
        *,
        num_rounds: int,
        perturbations: Sequence[Perturbation] = (),
        seed: int = 1,
    ) -> None:
        layout = plan_shards(
            cluster.model.num_parameters,
            num_servers=len(group.servers),
            min_shard_bytes=spec.min_shard_bytes,
            max_shards=spec.max_shards,
        )
        rule, size = rule_for(spec), len(group.workers)
        self._group, self._spec, self._cluster = group, spec, cluster
        self._queue = EventQueue()
        self._computation = ComputeTimes(group, perturbations, seed)
        self._crashes = [one for one in perturbations if isinstance(one, Crash)]
        self._servers = [
            SimulatedServer(machine, layout.of_server(number), rule, size)
            for number, machine in enumerate(group.servers[: layout.num_servers])
        ]
        self._servers_on: dict[str, list[SimulatedServer]] = {}
        for server in self._servers:
            self._servers_on.setdefault(server.machine, []).append(server)
        # Backward fills the buffer from its end, and segments are sent in that order.
        self._order = [
            (number, index)
            for number in reversed(range(len(self._servers)))
            for index in reversed(range(len(self._servers[number].segments)))
        ]
        self._workers = [_Worker() for _ in group.workers]
        self._ports = _Ports(cluster, size)
        self._sealing = [FifoResource() for _ in group.workers]
        shared = not rule.barrier and spec.dispatch == "dynamic"
        self._tickets = _TicketPool(size, rounds=num_rounds, shared=shared)
        self._sent_bytes = 0.0
        self._last_s = 0.0

    def run(self) -> SimulatedRun:
        """Simulate until all work is done."""
        for server in self._servers:
            for rank in range(len(self._workers)):
                server.enter(rank, 0)
        for rank in range(len(self._workers)):
            self._compute(rank)
        for crash in self._crashes:
            self._queue.at(crash.at_s, partial(self._crash, crash))
        self._queue.run()
        for server in self._servers:
            server.flush()
        return self._outcome()

    def _outcome(self) -> SimulatedRun:
        first = self._servers[0]
        policy, elapsed_s = first.policy, self._last_s
        return SimulatedRun(
            elapsed_s=elapsed_s,
            samples=first.samples,
            updates=policy.version,
            pushes=policy.num_pushes,
            dropped=policy.num_dropped,
            lost=policy.num_lost,
            staleness=dict(sorted(first.staleness.items())),
            busy=tuple(worker.computed_s / elapsed_s for worker in self._workers),
            server_busy=tuple(server.processor.busy_s / elapsed_s for server in self._servers),
            sent_bytes=self._sent_bytes,
            num_events=self._queue.num_events,
        )

    def _compute(self, rank: int) -> None:
        """Start the next computation of a worker that has its parameters, or let it leave."""
        worker = self._workers[rank]
        if not self._tickets.take(rank):
            worker.gone = True
            self._leave(rank)
            return
        now_s = self._queue.now_s
        duration_s = self._computation.next_s(rank, now_s)
        backward_s = duration_s * self._group.workers[rank].fit.backward_share
        worker.begun_s = now_s
        worker.holds_ticket = True
        worker.stolen_s = self._stolen(rank)
        # One more than the segments: the worker's own computation must end as well.
        worker.awaited = 1 + len(self._order)
        pushes = [_Push(server.readver(rank)) for server in self._servers]
        for count, (server, index) in enumerate(self._order, start=1):
            ready_s = duration_s - backward_s * (1 - count / len(self._order))
            push = partial(self._send, rank, server, index, pushes[server])
            if count < len(self._order):
                self._later(rank, ready_s, push)
            else:
                self._later(rank, ready_s, partial(self._computed, rank, push))

    def _computed(self, rank: int, push: Action) -> None:
        """Finish backward, delayed by the cores that servers used, and send the last segment."""
        worker = self._workers[rank]
        stolen_s = self._stolen(rank)
        more_s = stolen_s - worker.stolen_s
        if more_s > _NOTHING_S:
            worker.stolen_s = stolen_s
            self._later(rank, more_s, partial(self._computed, rank, push))
            return
        worker.computed_s += self._queue.now_s - worker.begun_s
        push()
        self._received(rank)

    def _stolen(self, rank: int) -> float:
        """Return the seconds by which servers and encryption on its machine delayed a worker."""
        model = self._group.workers[rank]
        cores = self._cluster.machines[model.machine].cores
        threads = model.fit.workers * model.fit.threads
        if threads < cores:
            return 0.0
        served_s = sum(
            server.processor.busy_until(self._queue.now_s)
            for server in self._servers_on.get(model.machine, ())
        )
        served_s += self._sealing[rank].busy_until(self._queue.now_s)
        return served_s / max(threads, cores)

    def _send(self, rank: int, number: int, index: int, push: _Push) -> None:
        """Send a segment through the worker's port, the server's port and its processor."""
        model, queue, server = self._group.workers[rank], self._queue, self._servers[number]
        segment = server.segments[index]
        size = segment.size * push_bytes(self._spec)
        self._sent_bytes += size

        def receive() -> None:
            if not server.has_member(rank):
                return
            if not push.begun:
                push.begun = True
                server.begin(rank, readver=push.readver, num_samples=model.batch, now_s=queue.now_s)
            costs = self._cluster.costs
            work_s = costs.message_s + segment.size * BYTES_PER_FLOAT * costs.update_s_per_byte
            answer = segment.size * PULL_BYTES[self._spec.pull_compression]
            work_s += self._sealing_s(server.machine, model.machine, size + answer)
            end_s = server.processor.serve(queue.now_s, work_s)
            self._later(rank, end_s - queue.now_s, partial(self._answer, server, rank, index))

        sealed_s = self._sealing[rank].serve(
            queue.now_s, self._sealing_s(model.machine, server.machine, size)
        )
        route = self._ports.push(rank, model.machine, server)
        travel = partial(self._travel, rank, route, size, receive)
        self._later(rank, sealed_s - queue.now_s, travel)

    def _answer(self, server: SimulatedServer, rank: int, index: int) -> None:
        if server.has_member(rank):
            due = server.take(rank, index)
            if server is self._servers[0] and server.is_complete(rank):
                self._workers[rank].holds_ticket = False
            self._reply(server, due)

    def _reply(self, server: SimulatedServer, due: Due) -> None:
        for rank, index in due:
            self._return(server, rank, index)

    def _return(self, server: SimulatedServer, rank: int, index: int) -> None:
        model, queue = self._group.workers[rank], self._queue
        size = server.segments[index].size * PULL_BYTES[self._spec.pull_compression]

        def open_it() -> None:
            opened_s = self._sealing[rank].serve(
                queue.now_s, self._sealing_s(model.machine, server.machine, size)
            )
            self._later(rank, opened_s - queue.now_s, lambda: self._received(rank))

        self._travel(rank, self._ports.pull(rank, model.machine, server), size, open_it)

    def _travel(self, rank: int, route: _Route, size: float, then: Action) -> None:
        """Transfer bytes through the sender's port and, after the first packet, the receiver's.

        Each port is occupied for its own transfer time; a slow receiver does not block the sender's
        traffic to others.
        """
        queue = self._queue

        def arrive() -> None:
            end_s = route.receiver.serve(queue.now_s, size / route.receiver_speed)
            end_s = max(end_s, queue.now_s + size / route.bandwidth)
            self._later(rank, end_s - queue.now_s, then)

        out_s = size / route.sender_speed
        begin_s = route.sender.serve(queue.now_s, out_s) - out_s
        self._later(rank, begin_s - queue.now_s + route.latency_s, arrive)

    def _sealing_s(self, machine: str, other: str, size: float) -> float:
        return sealing_s(self._spec, self._cluster, machine, other, size)

    def _received(self, rank: int) -> None:
        worker = self._workers[rank]
        if worker.gone:
            return
        worker.awaited -= 1
        self._last_s = max(self._last_s, self._queue.now_s)
        if worker.awaited == 0:
            self._compute(rank)

    def _later(self, rank: int, delay_s: float, action: Action) -> None:
        """Schedule an action for a worker unless it has crashed by then."""
        worker = self._workers[rank]
        life = worker.life

        def unless_gone() -> None:
            if worker.life == life:
                action()

        self._queue.after(delay_s, unless_gone)

    def _leave(self, rank: int) -> None:
        for server in self._servers:
            self._reply(server, server.leave(rank))

    def _crash(self, crash: Crash) -> None:
        rank = crash.rank
        worker = self._workers[rank]
        if worker.gone:
            return
        worker.gone = True
        worker.life += 1
        if worker.holds_ticket:
            self._tickets.give_back(rank)
        self._queue.after(crash.noticed_s, lambda: self._leave(rank))
        if crash.back_s is None:
            present = [other for other, one in enumerate(self._workers) if not one.gone]
            self._tickets.hand_on(rank, present)
        else:
            self._queue.after(max(crash.back_s, crash.noticed_s), lambda: self._come_back(rank))

    def _come_back(self, rank: int) -> None:
        worker = self._workers[rank]
        worker.life += 1
        worker.gone = False
        worker.awaited = len(self._order)
        clock = max(server.policy.entry_clock(rank) for server in self._servers)
        for server in self._servers:
            self._reply(server, server.enter(rank, clock))
