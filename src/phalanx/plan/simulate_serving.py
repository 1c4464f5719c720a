"""Workers and parameter servers in made-up time, under the very policy that real servers run.

Every server has its own `Policy`, two directions of a wire and a processor; pushes travel as the
segments that `plan_shards` cuts. A segment is encrypted, queues at its worker's port, behind its
first packet at the server's port, and at the server's processor; its answer takes the way back once
the policy has released the worker and the segment has had the updates that the release asks for.
Servers and encryption on full machines slow the workers there down by what they take. What is
simulated: queues, jitter, heterogeneity, slow machines, crashes with retries of the lost work. What
is not: packets, retransmissions, the coordinator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from phalanx.plan.clockwork import Agenda, Happening, Line
from phalanx.plan.disturbance import Crash, Disturbance
from phalanx.plan.facts import BYTES_PER_FLOAT, ClusterModel
from phalanx.plan.parameter_server import PULL_BYTES, PUSH_BYTES, sealing_s
from phalanx.plan.simulated import Computation, SimulatedRun
from phalanx.plan.simulated_server import Due, SimulatedServer
from phalanx.plan.workers import WorkerModels
from phalanx.protocol.rule import rule_for
from phalanx.protocol.shards import plan_shards
from phalanx.spec.parameter_server import ParameterServerSpec

# Less than this is rounding.
_NOTHING_S = 1e-6


@dataclass
class _Push:
    """One push to one server."""

    readver: int
    begun: bool = False


@dataclass
class _Worker:
    life: int = 0
    """Counts incarnations: what was under way for an earlier one is void."""
    awaited: int = 0
    begun_s: float = 0.0
    stolen_s: float = 0.0
    computed_s: float = 0.0
    gone: bool = False
    holds_ticket: bool = False
    """Its gradient is not at the servers yet."""


class ServingSimulation:
    """One run; make it, call `run` once.

    Args:
        crew: The workers and the machines of the servers.
        spec: The strategy.
        world: Wires and costs.
        num_rounds: How much work: so many global batches.
        disturbances: What goes wrong.
        seed: Decides everything random.
    """

    def __init__(
        self,
        crew: WorkerModels,
        spec: ParameterServerSpec,
        world: ClusterModel,
        *,
        num_rounds: int,
        disturbances: Sequence[Disturbance] = (),
        seed: int = 1,
    ) -> None:
        layout = plan_shards(
            world.model.num_parameters,
            num_servers=len(crew.servers),
            min_shard_bytes=spec.min_shard_bytes,
            max_shards=spec.max_shards,
        )
        rule, size = rule_for(spec), len(crew.workers)
        self._crew, self._spec, self._world = crew, spec, world
        self._agenda = Agenda()
        self._computation = Computation(crew, disturbances, seed)
        self._crashes = [one for one in disturbances if isinstance(one, Crash)]
        self._servers = [
            SimulatedServer(machine, layout.of_server(number), rule, size)
            for number, machine in enumerate(crew.servers[: layout.num_servers])
        ]
        # Backward fills the buffer from its end, and segments leave in that order.
        self._order = [
            (number, index)
            for number in reversed(range(len(self._servers)))
            for index in reversed(range(len(self._servers[number].segments)))
        ]
        self._workers = [_Worker() for _ in crew.workers]
        self._out = {machine: Line() for machine in world.machines}
        self._in = {machine: Line() for machine in world.machines}
        self._own_out = [Line() for _ in crew.workers]
        self._own_in = [Line() for _ in crew.workers]
        self._sealing = [Line() for _ in crew.workers]
        self._ports = {machine: world.network.port(machine) for machine in world.machines}
        self._shared = not rule.barrier and spec.dispatch == "dynamic"
        self._tickets = [num_rounds] * size
        self._sent_bytes = 0.0
        self._last_s = 0.0

    def run(self) -> SimulatedRun:
        """Let it run until all work is done."""
        for server in self._servers:
            for rank in range(len(self._workers)):
                server.enter(rank, 0)
        for rank in range(len(self._workers)):
            self._compute(rank)
        for crash in self._crashes:
            self._agenda.at(crash.at_s, partial(self._crash, crash))
        self._agenda.run(until=lambda: False)
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
            happenings=self._agenda.num_happenings,
        )

    def _compute(self, rank: int) -> None:
        """A worker has its parameters: it takes the next ticket, or leaves."""
        worker = self._workers[rank]
        if not self._take_ticket(rank):
            worker.gone = True
            self._leave(rank)
            return
        now_s = self._agenda.now_s
        duration_s = self._computation.next_s(rank, now_s)
        backward_s = duration_s * self._crew.workers[rank].fit.backward_share
        worker.begun_s = now_s
        worker.holds_ticket = True
        worker.stolen_s = self._stolen(rank)
        # One more than there are segments: its own computation has to end, too.
        worker.awaited = 1 + len(self._order)
        pushes = [_Push(server.readver(rank)) for server in self._servers]
        for count, (server, index) in enumerate(self._order, start=1):
            ready_s = duration_s - backward_s * (1 - count / len(self._order))
            push = partial(self._send, rank, server, index, pushes[server])
            if count < len(self._order):
                self._later(rank, ready_s, push)
            else:
                self._later(rank, ready_s, partial(self._computed, rank, push))

    def _computed(self, rank: int, push: Happening) -> None:
        """Backward is over, unless servers took some of its time; the last segment goes out."""
        worker = self._workers[rank]
        stolen_s = self._stolen(rank)
        more_s = stolen_s - worker.stolen_s
        if more_s > _NOTHING_S:
            worker.stolen_s = stolen_s
            self._later(rank, more_s, partial(self._computed, rank, push))
            return
        worker.computed_s += self._agenda.now_s - worker.begun_s
        push()
        self._received(rank)

    def _stolen(self, rank: int) -> float:
        """Seconds so far by which servers and encryption on its full machine held a worker up."""
        hand = self._crew.workers[rank]
        cores = self._world.machines[hand.machine].cores
        threads = hand.fit.workers * hand.fit.threads
        if threads < cores:
            return 0.0
        served_s = sum(
            server.processor.busy_until(self._agenda.now_s)
            for server in self._servers
            if server.machine == hand.machine
        )
        served_s += self._sealing[rank].busy_until(self._agenda.now_s)
        return served_s / max(threads, cores)

    def _send(self, rank: int, number: int, index: int, push: _Push) -> None:
        """A segment goes to its server: the worker's wire, the server's, its processor."""
        hand, agenda, server = self._crew.workers[rank], self._agenda, self._servers[number]
        local = hand.machine == server.machine
        segment = server.segments[index]
        size = segment.size * PUSH_BYTES[self._spec.compression]
        self._sent_bytes += size

        def receive() -> None:
            if not server.has_seat(rank):
                return
            if not push.begun:
                push.begun = True
                server.begin(rank, readver=push.readver, num_samples=hand.batch, now_s=agenda.now_s)
            costs = self._world.costs
            work_s = costs.message_s + segment.size * BYTES_PER_FLOAT * costs.update_s_per_byte
            answer = segment.size * PULL_BYTES[self._spec.pull_compression]
            work_s += self._sealing_s(server.machine, hand.machine, size + answer)
            end_s = server.processor.serve(agenda.now_s, work_s)
            self._later(rank, end_s - agenda.now_s, partial(self._answer, server, rank, index))

        wires = (
            (self._own_out[rank], server.local_in)
            if local
            else (self._out[hand.machine], self._in[server.machine])
        )
        sealed_s = self._sealing[rank].serve(
            agenda.now_s, self._sealing_s(hand.machine, server.machine, size)
        )
        travel = partial(self._travel, rank, wires, (hand.machine, server.machine), size, receive)
        self._later(rank, sealed_s - agenda.now_s, travel)

    def _answer(self, server: SimulatedServer, rank: int, index: int) -> None:
        if server.has_seat(rank):
            due = server.take(rank, index)
            if server is self._servers[0] and server.is_complete(rank):
                self._workers[rank].holds_ticket = False
            self._reply(server, due)

    def _reply(self, server: SimulatedServer, due: Due) -> None:
        for rank, index in due:
            self._return(server, rank, index)

    def _return(self, server: SimulatedServer, rank: int, index: int) -> None:
        hand, agenda = self._crew.workers[rank], self._agenda
        size = server.segments[index].size * PULL_BYTES[self._spec.pull_compression]

        def open_it() -> None:
            opened_s = self._sealing[rank].serve(
                agenda.now_s, self._sealing_s(hand.machine, server.machine, size)
            )
            self._later(rank, opened_s - agenda.now_s, lambda: self._received(rank))

        wires = (
            (server.local_out, self._own_in[rank])
            if hand.machine == server.machine
            else (self._out[server.machine], self._in[hand.machine])
        )
        self._travel(rank, wires, (server.machine, hand.machine), size, open_it)

    def _travel(
        self,
        rank: int,
        wires: tuple[Line, Line],
        ends: tuple[str, str],
        size: float,
        then: Happening,
    ) -> None:
        """Bytes pass the sender's port and, behind their first packet, the receiver's.

        Each port is held as long as it takes by itself; a slow one at the far end does not keep the
        sender from others.
        """
        agenda, link = self._agenda, self._world.network.link(*ends)
        local = ends[0] == ends[1]
        out_s, in_s = (
            size / (link.bandwidth_bytes_per_s if local else self._ports[end]) for end in ends
        )
        sender, receiver = wires

        def arrive() -> None:
            end_s = receiver.serve(agenda.now_s, in_s)
            end_s = max(end_s, agenda.now_s + size / link.bandwidth_bytes_per_s)
            self._later(rank, end_s - agenda.now_s, then)

        begin_s = sender.serve(agenda.now_s, out_s) - out_s
        self._later(rank, begin_s - agenda.now_s + link.latency_s, arrive)

    def _sealing_s(self, machine: str, other: str, size: float) -> float:
        return sealing_s(self._spec, self._world, machine, other, size)

    def _received(self, rank: int) -> None:
        worker = self._workers[rank]
        if worker.gone:
            return
        worker.awaited -= 1
        self._last_s = max(self._last_s, self._agenda.now_s)
        if worker.awaited == 0:
            self._compute(rank)

    def _later(self, rank: int, delay_s: float, happening: Happening) -> None:
        """Do something for a worker unless it has crashed by then."""
        worker = self._workers[rank]
        life = worker.life

        def unless_gone() -> None:
            if worker.life == life:
                happening()

        self._agenda.after(delay_s, unless_gone)

    def _take_ticket(self, rank: int) -> bool:
        pool = self._tickets
        if pool[rank] == 0 and self._shared:
            # Whoever has most left is furthest behind.
            rank = max(range(len(pool)), key=pool.__getitem__)
        if pool[rank] == 0:
            return False
        pool[rank] -= 1
        return True

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
        self._tickets[rank] += worker.holds_ticket
        self._agenda.after(crash.noticed_s, lambda: self._leave(rank))
        if crash.back_s is None:
            self._hand_on(rank)
        else:
            self._agenda.after(max(crash.back_s, crash.noticed_s), lambda: self._come_back(rank))

    def _hand_on(self, rank: int) -> None:
        """What a worker that stays away had to do is done by the others."""
        left, self._tickets[rank] = self._tickets[rank], 0
        present = [r for r, other in enumerate(self._workers) if not other.gone]
        for number in range(left if present else 0):
            self._tickets[present[number % len(present)]] += 1

    def _come_back(self, rank: int) -> None:
        worker = self._workers[rank]
        worker.life += 1
        worker.gone = False
        worker.awaited = len(self._order)
        clock = max(server.policy.entry_clock(rank) for server in self._servers)
        for server in self._servers:
            self._reply(server, server.enter(rank, clock))
