"""A parameter-server run in made-up time: real shards, ledgers, restorations, donations, tickets.

Only sockets and processes are played. Messages lie in queues until they are delivered, and can be
lost, doubled or late; connections can be cut, and processes lost at any moment. Every batch changes
every parameter by -1, so that the parameters themselves say how often each one counted.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from phalanx.consistency.rule import ConsistencyRule
from phalanx.control.coordinator import Identity
from phalanx.control.parameter_server.batches import BatchAssignment, BatchScheduler
from phalanx.control.parameter_server.restoring import Restorations
from phalanx.paramserver.compression import Received
from phalanx.paramserver.donation import CopiedSegment, Donation
from phalanx.paramserver.handshake import ClientIdentity
from phalanx.paramserver.ledger import SegmentTickets
from phalanx.paramserver.shard import PushedSegment, Shard, ShardReply
from phalanx.paramserver.slice_restore import LoadVerdict, SliceRestore
from phalanx.spec.optimize import SgdSpec
from phalanx.wire.bulk import BulkOp, Header, Kind
from phalanx.wire.parameter_server import (
    CompletedTicket,
    ExpectParameters,
    HeldVersion,
    QueryVersion,
    Restored,
    RestoreFromDisk,
    SendParameters,
    ServerAddress,
    ServerUp,
)
from phalanx.wire.tickets import TicketPlan
from support.paramserver import make_shard, small_layout

# Orders that may be lost or doubled; the rest of the control channel is taken as reliable here.
RESTORING = (QueryVersion, SendParameters, ExpectParameters, RestoreFromDisk)
SEGMENTS = 2
WANT = 2


@dataclass(frozen=True)
class Moved:
    """To a worker: the server has a new address."""

    server: int
    incarnation: int


@dataclass(frozen=True)
class Dismissed:
    """To a server: the worker is gone."""

    worker: int


@dataclass(frozen=True)
class Saved:
    """A server's state in the store."""

    version: int
    values: torch.Tensor
    tickets: list[SegmentTickets]


@dataclass
class PlayedServer:
    shard: Shard
    incarnation: int
    restore: SliceRestore
    entered: dict[int, int] = field(default_factory=dict)
    """Incarnations of the workers that have entered."""
    loaded: dict[int, tuple[ClientIdentity, int, int]] = field(default_factory=dict)
    """Donor, number and version of each segment that was loaded."""


@dataclass
class PlayedWorker:
    incarnation: int
    tickets: deque[int] = field(default_factory=deque)
    clock: int = 0
    ticket: int = 0
    unsent: list[tuple[int, int]] = field(default_factory=list)
    awaited: set[tuple[int, int]] = field(default_factory=set)
    received: dict[int, dict[int, tuple[float, SegmentTickets]]] = field(default_factory=dict)
    copies: dict[int, list[tuple[float, SegmentTickets]]] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    known: dict[int, int] = field(default_factory=dict)
    """Incarnations of the servers whose address it knows."""
    unreported: list[int] = field(default_factory=list)
    donations: dict[int, Donation] = field(default_factory=dict)
    has_joined: bool = False


class World:
    """One epoch of a run, with faults on request."""

    def __init__(
        self,
        chance: random.Random,
        *,
        rule: ConsistencyRule,
        num_servers: int,
        num_workers: int,
        num_steps: int,
    ) -> None:
        self.chance, self.rule, self.now = chance, rule, 0.0
        self.layout = small_layout(SEGMENTS * num_servers, servers=num_servers, segments=SEGMENTS)
        self.plan = TicketPlan(num_workers, num_steps)
        self.batches = BatchScheduler(self.plan, rule, static=False, now=0.0)
        self.restorations = Restorations(self._identity, patience_s=20.0)
        self.incarnations: dict[str, int] = {}
        self.counted: list[int] = []
        self.servers: dict[int, PlayedServer] = {
            index: self._start_server(index, restoring=False) for index in range(num_servers)
        }
        self.workers: dict[int, PlayedWorker] = {}
        self.saved: dict[int, Saved] = {}
        self.inbox: dict[str, deque[Any]] = {}
        self.outbox: dict[str, deque[Any]] = {}
        self.replies: dict[tuple[int, int], deque[tuple[ShardReply, float, SegmentTickets]]] = {}
        self.loads: dict[tuple[int, int], deque[CopiedSegment]] = {}
        self.first = [Saved(0, torch.zeros(SEGMENTS), s.shard.ledger.state()) for s in self.up()]
        for rank in range(num_workers):
            self._start_worker(rank)
            self.join(rank)
        self._assign(self.batches.open(1, 1 + self.plan.per_epoch, self.workers))

    def up(self) -> list[PlayedServer]:
        return list(self.servers.values())

    @property
    def is_serving(self) -> bool:
        whole = all(server.restore.is_over for server in self.up())
        return len(self.servers) == self.layout.num_servers and whole

    @property
    def is_over(self) -> bool:
        idle = not any(w.awaited or w.tickets or w.unreported for w in self.workers.values())
        return self.batches.is_drained and self.restorations.is_over and self.is_serving and idle

    # What can happen.

    def lose_server(self, index: int) -> None:
        if self.servers.pop(index, None) is None:
            return
        self.restorations.server_left(index)
        self.inbox[f"server-{index}"] = deque()
        self.outbox[f"server-{index}"] = deque()
        self._cut(lambda key: key[0] == index, only_loads=True)

    def restart_server(self, index: int) -> None:
        if index in self.servers:
            return
        self._next_incarnation(f"server-{index}")
        server = self.servers[index] = self._start_server(index, restoring=True)
        saved = self.saved.get(index, self.first[index])
        address = ServerAddress(index, str(server.incarnation), "")
        self._tell(
            f"server-{index}", ServerUp(address, restoring=True, saved_version=saved.version)
        )

    def lose_worker(self, rank: int) -> None:
        if self.workers.pop(rank, None) is None:
            return
        name = f"worker-{rank}"
        self.inbox[name] = deque()
        self.outbox[name] = deque()
        self._cut(lambda key: key[1] == rank)
        for index in self.servers:
            self._order(f"server-{index}", Dismissed(rank))
        self._send(self.restorations.worker_left(name, self._names(), self.now))
        _, work = self.batches.lose(rank, self.workers)
        self._assign(work)
        self._note_chosen()

    def restart_worker(self, rank: int) -> None:
        if rank not in self.workers:
            self._next_incarnation(f"worker-{rank}")
            self._start_worker(rank)

    def join(self, rank: int) -> None:
        """A restarted worker gets a place at every server and its first copies."""
        worker = self.workers[rank]
        if worker.has_joined or not self.is_serving:
            return
        worker.has_joined = True
        worker.clock = max(s.shard.policy.entry_clock(rank) for s in self.up())
        worker.awaited = {(i, j) for i in self.servers for j in range(SEGMENTS)}
        for index, server in self.servers.items():
            worker.known[index] = server.incarnation
            self._enter(index, rank, worker.clock)
        self.batches.request(rank, WANT)
        self._assign(self.batches.assign(rank, self.workers))

    def save(self, index: int) -> None:
        server = self.servers.get(index)
        if server is not None and server.restore.is_over:
            state = server.shard.state()
            self.saved[index] = Saved(state.version, state.parameters, state.tickets)

    def cut(self, index: int, rank: int) -> None:
        """A connection breaks: what was under way in either direction is gone."""
        self._cut(lambda key: key == (index, rank))
        worker, server = self.workers.get(rank), self.servers.get(index)
        if worker is None:
            return
        if index in worker.donations:
            worker.donations[index].reconnected(self.now)
        lost = [(i, j) for i, j in worker.awaited if i == index and (i, j) not in worker.unsent]
        if server is None or not self._has_entered(index, rank):
            return
        for _, j in lost:  # it asks about every segment without a reply
            if server.shard.has_arrived(rank, worker.clock, j):
                self._reply(index, server.shard.ask(rank, worker.clock, j))
            else:
                worker.unsent.append((index, j))

    def lose_message(self, name: str) -> None:
        queue = self.inbox.get(name)
        if queue and isinstance(queue[0], RESTORING):
            queue.popleft()

    def double_message(self, name: str) -> None:
        queue = self.inbox.get(name)
        if queue and isinstance(queue[0], RESTORING):
            queue.insert(self.chance.randrange(len(queue)) + 1, queue[0])

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self._send(self.restorations.tick(self._names(), self.now))
        self._note_chosen()

    def work(self, rank: int) -> None:
        """A worker begins a push, or sends the next segment of it."""
        worker = self.workers.get(rank)
        if worker is None or not worker.has_joined:
            return
        if not worker.awaited:
            if worker.ticket:
                worker.unreported.append(worker.ticket)
                worker.ticket = 0
            if not worker.tickets:
                return
            worker.ticket = worker.tickets.popleft()
            worker.clock += 1
            worker.awaited = {(i, j) for i in range(len(self.first)) for j in range(SEGMENTS)}
            worker.unsent = self.chance.sample(sorted(worker.awaited), len(worker.awaited))
        for index, server in self.servers.items():
            known = worker.known.get(index) == server.incarnation and server.restore.is_over
            if known and not self._has_entered(index, rank):
                self._enter_again(index, rank)
        for place in worker.unsent:
            if self._has_entered(place[0], rank):
                worker.unsent.remove(place)
                self._push(rank, *place)
                return

    def report(self, rank: int) -> None:
        worker = self.workers.get(rank)
        if worker is not None and worker.unreported:
            done = tuple(CompletedTicket(t, 1, 0.0, 0) for t in worker.unreported)
            worker.unreported = []
            self._tell(f"worker-{rank}", done)

    def reply(self, index: int, rank: int) -> None:
        """One reply of a server arrives."""
        queue, worker = self.replies.get((index, rank)), self.workers.get(rank)
        if not queue or worker is None:
            return
        answer, value, contents = queue.popleft()
        if answer.clock != worker.clock or (index, answer.index) not in worker.awaited:
            return
        received = worker.received.setdefault(index, {})
        received[answer.index] = value, contents
        worker.awaited.discard((index, answer.index))
        if not any(i == index for i, _ in worker.awaited):
            worker.versions[index] = answer.readver
        if len(received) == SEGMENTS:
            worker.copies[index] = [received[j] for j in range(SEGMENTS)]
            received.clear()

    def donate(self, rank: int) -> None:
        """A donor passes what is due to its connections."""
        worker = self.workers.get(rank)
        for index, donation in worker.donations.items() if worker is not None else ():
            server = self.servers.get(index)
            if donation.is_over or server is None or worker is None:
                continue
            if worker.known.get(index) == server.incarnation:
                for one in donation.due(self.now)[:1]:
                    self.loads.setdefault((index, rank), deque()).append(one)
                    donation.sent(one.header.segment, self.now)

    def load(self, index: int, rank: int) -> None:
        """One segment of a copy arrives."""
        queue, server = self.loads.get((index, rank)), self.servers.get(index)
        worker = self.workers.get(rank)
        if not queue or server is None or worker is None:
            return
        header, tickets = queue[0].header, queue[0].tickets
        value = float(torch.frombuffer(bytearray(queue.popleft().payload), dtype=torch.float32))
        donor = ClientIdentity("worker", rank, worker.incarnation)
        contents = SegmentTickets(tickets, header.num_samples)
        verdict = server.restore.offer(
            donor,
            number=header.clock,
            version=header.readver,
            segment=header.segment,
            contents=contents,
        )
        assert verdict != LoadVerdict.FORBIDDEN
        donation = worker.donations.get(index)
        current = donation is not None and donation.number == header.clock
        if verdict == LoadVerdict.UNEXPECTED:
            if donation is not None and current:
                donation.unexpected(header.segment, self.now)
            return
        if verdict == LoadVerdict.TAKE:
            server.shard.updater.parameters[header.segment] = value
            server.loaded[header.segment] = donor, header.clock, header.readver
        if donation is not None and current:
            donation.acknowledged(header.segment, self.now)
        whole = server.restore.whole_copy()
        if whole is not None:
            assert len(set(server.loaded.values())) == 1, "one donor, one request, one version"
            self._restored(index, header.readver, whole, 0)

    def obey(self, name: str) -> None:
        """A process reads one order."""
        queue = self.inbox.get(name)
        if not queue:
            return
        role, rank = name.split("-")[0], int(name.split("-")[1])
        order = queue.popleft()
        if role == "server" and rank in self.servers:
            self._obey_server(rank, order)
        elif role == "worker" and rank in self.workers:
            self._obey_worker(rank, order)

    def hear(self, name: str) -> None:
        """The controller reads one message of a process."""
        queue = self.outbox.get(name)
        if not queue:
            return
        message, rank = queue.popleft(), int(name.split("-")[1])
        match message:
            case ServerUp():
                for other in self.workers:
                    self._order(f"worker-{other}", Moved(rank, int(message.address.door)))
                self._send(
                    self.restorations.begin(
                        rank,
                        name,
                        self._names(),
                        saved_version=message.saved_version,
                        now_s=self.now,
                    )
                )
            case HeldVersion():
                self._send(self.restorations.offered(name, message, self.now))
            case Restored():
                self.batches.done.note_held(rank, message.tickets)
                if self.restorations.restored(rank):
                    self._assign(self.batches.repeat(rank, self.workers)[1])
            case tuple():
                done = self.batches.complete(rank, message, want=WANT, now=self.now)
                self.counted += [one.ticket for one in done]
                self._assign(self.batches.assign(rank, self.workers))
        self._note_chosen()

    def _obey_server(self, index: int, order: object) -> None:
        server = self.servers[index]
        match order:
            case Dismissed(worker):
                incarnation = server.entered.pop(worker, None)
                if incarnation is not None:
                    self._reply(index, server.shard.leave(worker))
            case ExpectParameters():
                donor = ClientIdentity("worker", order.donor, order.incarnation)
                server.restore.expect(order.number, donor)
            case RestoreFromDisk() if not server.restore.is_over:
                saved = self.saved.get(index, self.first[index])
                server.shard.updater.parameters.copy_(saved.values)
                server.loaded.clear()
                self._restored(index, saved.version, saved.tickets, order.number)
                return
        if isinstance(order, ExpectParameters | RestoreFromDisk) and server.restore.is_over:
            self._report_restored(index)

    def _obey_worker(self, rank: int, order: object) -> None:
        worker = self.workers[rank]
        match order:
            case Moved(server, incarnation) if incarnation > worker.known.get(server, 0):
                worker.known[server] = incarnation
                self.replies.pop((server, rank), None)
            case QueryVersion():
                self.report(rank)
                answered = not any(i == order.server for i, _ in worker.awaited)
                self._tell(
                    f"worker-{rank}",
                    HeldVersion(
                        order.server,
                        order.number,
                        worker.versions.get(order.server, -1),
                        acknowledged=worker.ticket if answered else 0,
                    ),
                )
            case SendParameters():
                before = worker.donations.get(order.server)
                if before is None or before.number < order.number:
                    worker.donations[order.server] = self._donation(worker, rank, order)
            case BatchAssignment():
                worker.tickets.extend(order.tickets)

    def _donation(self, worker: PlayedWorker, rank: int, order: SendParameters) -> Donation:
        segments = [
            CopiedSegment(
                Header(
                    op=BulkOp.LOAD,
                    worker=rank,
                    clock=order.number,
                    segment=index,
                    readver=worker.versions[order.server],
                    num_samples=contents.num_samples,
                ),
                torch.tensor([value]).view(torch.uint8).numpy().data,
                contents.tickets,
            )
            for index, (value, contents) in enumerate(worker.copies[order.server])
        ]
        return Donation(order.number, segments, self.now)

    def _restored(
        self, index: int, version: int, tickets: list[SegmentTickets], number: int
    ) -> None:
        shard = self.servers[index].shard
        shard.restore(version=version, samples_seen=max(one.num_samples for one in tickets))
        shard.ledger.load_state(tickets)
        self.servers[index].restore.finish(version, number)
        self._report_restored(index)

    def _report_restored(self, index: int) -> None:
        server = self.servers[index]
        held = server.shard.ledger.held().encode()
        version = server.restore.version or 0
        self._tell(f"server-{index}", Restored(index, version, 0, held))

    def _push(self, rank: int, index: int, segment: int) -> None:
        worker, shard = self.workers[rank], self.servers[index].shard
        gradient = Received(Kind.F32, torch.ones(1).view(torch.uint8), 1)
        arrival = PushedSegment(
            worker=rank,
            clock=worker.clock,
            readver=worker.versions.get(index, 0),
            index=segment,
            gradient=gradient,
            num_samples=1,
            ticket=worker.ticket,
        )
        self._reply(index, shard.deliver(arrival))

    def _enter(self, index: int, rank: int, clock: int) -> None:
        server = self.servers[index]
        if server.entered.pop(rank, None) is not None:
            self._reply(index, server.shard.leave(rank))
        server.entered[rank] = self.workers[rank].incarnation
        self._reply(index, server.shard.enter(rank, clock))

    def _enter_again(self, index: int, rank: int) -> None:
        worker = self.workers[rank]
        if not any(i == index for i, _ in worker.awaited):
            self._enter(index, rank, worker.clock)
            return
        pushing = worker.ticket != 0
        self._enter(index, rank, worker.clock - 1 if pushing else worker.clock)
        worker.received.pop(index, None)
        everything = [(index, j) for j in range(SEGMENTS)]
        worker.awaited.update(everything)
        if pushing:
            worker.unsent = [one for one in worker.unsent if one[0] != index] + everything

    def _has_entered(self, index: int, rank: int) -> bool:
        server, worker = self.servers.get(index), self.workers[rank]
        return (
            server is not None
            and server.restore.is_over
            and worker.known.get(index) == server.incarnation
            and server.entered.get(rank) == worker.incarnation
        )

    def _reply(self, index: int, replies: list[ShardReply]) -> None:
        shard = self.servers[index].shard
        for one in replies:
            value = float(shard.updater.parameters[one.index])
            contents = shard.ledger.of_segment(one.index)
            queue = self.replies.setdefault((index, one.worker), deque())
            queue.append((one, value, contents))

    def _cut(self, hit: Callable[[tuple[int, int]], bool], *, only_loads: bool = False) -> None:
        for key in [key for key in self.loads if hit(key)]:
            del self.loads[key]
        for key in [key for key in self.replies if hit(key) and not only_loads]:
            del self.replies[key]

    def _assign(self, work: list[BatchAssignment]) -> None:
        for one in work:
            self._order(f"worker-{one.worker}", one)

    def _note_chosen(self) -> None:
        for server, acknowledged in self.restorations.take_chosen().items():
            self.batches.done.source_chosen(server, self.batches.only_held(acknowledged))

    def _send(self, orders: list[tuple[str, Any]]) -> None:
        for name, order in orders:
            self._order(name, order)

    def _order(self, name: str, order: object) -> None:
        self.inbox.setdefault(name, deque()).append(order)

    def _tell(self, name: str, message: object) -> None:
        self.outbox.setdefault(name, deque()).append(message)

    def _names(self) -> list[str]:
        return [f"worker-{rank}" for rank, worker in self.workers.items() if worker.has_joined]

    def _next_incarnation(self, name: str) -> None:
        self.incarnations[name] = self.incarnations.get(name, 1) + 1

    def _identity(self, name: str) -> Identity:
        return Identity(public_key=name, incarnation=self.incarnations.get(name, 1))

    def _start_server(self, index: int, *, restoring: bool) -> PlayedServer:
        shard = make_shard(
            self.layout,
            rule=self.rule,
            workers=(),
            server=index,
            optimizer=SgdSpec(lr=1.0, momentum=0.0),
            num_parts=self.plan.num_parts,
        )
        restore = SliceRestore(SEGMENTS, restoring=restoring)
        return PlayedServer(shard, self.incarnations.get(f"server-{index}", 1), restore)

    def _start_worker(self, rank: int) -> None:
        self.workers[rank] = PlayedWorker(self.incarnations.get(f"worker-{rank}", 1))
