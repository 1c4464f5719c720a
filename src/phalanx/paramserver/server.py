"""Serve a slice of the parameters to clients: one loop around a `Shard`.

Poll, decode, decide, update the slice, reply. Everything happens in the thread that calls `serve`;
other threads pass functions to `call`, which is how clients are admitted and dismissed. Sockets are
in `connection_table`, updates and rules in `shard`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import torch
import zmq

from phalanx.paramserver.answers import Answers
from phalanx.paramserver.call_queue import CallQueue
from phalanx.paramserver.compression import Received
from phalanx.paramserver.connection_table import ClientMessage, ConnectionTable, ServerSockets
from phalanx.paramserver.handshake import (
    ClientIdentity,
    ClientRole,
    ConnectAccepted,
    ConnectRejected,
    ConnectRequest,
    HandshakeReply,
)
from phalanx.paramserver.ledger import SegmentTickets
from phalanx.paramserver.shard import PushedSegment, Shard, ShardReply
from phalanx.paramserver.slice_restore import LoadVerdict, SliceRestore
from phalanx.wire.bulk import BulkOp, Flag, Header, Kind
from phalanx.wire.keys import KeyPair
from phalanx.wire.moments import reach
from phalanx.wire.parameter_server import ServerAddress
from phalanx.wire.push_options import decode_options
from phalanx.wire.server_stats import ServerStats

_IDLE_MS = 1000
# Replies that a full pipe did not take are tried again this soon.
_RETRY_MS = 1
# Messages handled in a row before calls and handshakes get their turn.
_BURST = 64

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Settings of a server.

    Attributes:
        index: Number of the server.
        digest: Of the layout; see `digest_of`.
        max_frame_bytes: Longest frame that a client may send.
        generation: Of the run; messages of another are refused.
        incarnation: How often this server has been started.
        host: Address to listen on.
        encrypt: Whether bulk data is encrypted.
        pull_kind: Format of parameters in replies to workers.
        restoring: Whether the slice is missing, and comes from a worker or from the store.
    """

    index: int
    digest: int
    max_frame_bytes: int
    generation: int = 0
    incarnation: int = 1
    host: str = "127.0.0.1"
    encrypt: bool = False
    pull_kind: Kind = Kind.F32
    restoring: bool = False


@dataclass
class _Load:
    """Utilisation of a server; `num_polls` counts those that found messages."""

    began_s: float = 0.0
    busy_s: float = 0.0
    num_polls: int = 0
    num_messages: int = 0
    most_messages: int = 0


@dataclass
class _Entered:
    """A worker that takes part, and the version it held when it entered, until its first push."""

    client: ClientIdentity
    holds: int | None = None


class Server:
    """Serve one shard; use as a context manager, then call `serve`."""

    def __init__(self, shard: Shard, *, keys: KeyPair, settings: ServerSettings) -> None:
        self._shard = shard
        self._settings = settings
        self._sockets = ServerSockets(
            keys,
            host=settings.host,
            encrypt=settings.encrypt,
            max_frame_bytes=settings.max_frame_bytes,
        )
        self._clients = ConnectionTable(self._sockets)
        self._entered: dict[int, _Entered] = {}
        self.restore = SliceRestore(len(shard.segments), restoring=settings.restoring)
        """How far a lost slice is restored; by `call` while serving."""
        # What all workers begin with; no worker holds a slice that was lost and restored.
        self._begins_with = -1 if settings.restoring else shard.policy.version
        self._answers = Answers(
            shard,
            self._clients,
            generation=settings.generation,
            incarnation=settings.incarnation,
            pull_kind=settings.pull_kind,
        )
        self._calls = CallQueue()
        self._load_stats = _Load()
        self._stopping = False

    def __enter__(self) -> Server:
        self._calls.__enter__()
        self._sockets.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._sockets.__exit__(*exception)
        self._calls.__exit__(*exception)

    @property
    def _first(self) -> int:
        return self._shard.segments[0].index

    @property
    def is_restoring(self) -> bool:
        """Whether the slice is still missing; by `call` while serving."""
        return not self.restore.is_over

    @property
    def address(self) -> ServerAddress:
        """Address and key that clients connect with."""
        return self._clients.address(self._settings.index)

    def call(self, function: Callable[[], Value]) -> Future[Value]:
        """Run a function in the serving thread, between two messages; safe from any thread."""
        return self._calls.put(function)

    def stop(self) -> None:
        """Make `serve` return; safe from any thread."""

        def stop() -> None:
            self._stopping = True

        self.call(stop)

    def expect(self, number: int, donor: ClientIdentity) -> None:
        """Restore the slice from the copy of this worker, and of no other; by `call`."""
        self.restore.expect(number, donor)

    def admit(self, public_key: str, client: ClientIdentity) -> None:
        """Accept a client, and no earlier incarnation of it; before `serve` or by `call`."""
        self._clients.admit(public_key, client)

    def dismiss(self, role: ClientRole, rank: int) -> None:
        """Reject a client from now on and stop waiting for it, even if it never came; by `call`."""
        self._clients.dismiss(f"{role}-{rank}")
        if role == "worker":
            self._forget(rank)

    def flush(self) -> None:
        """Apply the gathered pushes, however few; by `call`."""
        self._answer(self._shard.flush(time.monotonic()))

    def facts(self) -> ServerStats:
        """Return the totals so far; by `call` while serving."""
        shard, policy, clients = self._shard, self._shard.policy, self._clients
        load = self._load_stats
        return ServerStats(
            server=self._settings.index,
            version=policy.version,
            # What every segment has had: the ledger counts each batch once, whoever pushed it.
            samples=min(shard.ledger.num_samples),
            pushes=policy.num_pushes,
            applied=policy.num_applied,
            dropped=policy.num_dropped,
            lost=policy.num_lost,
            gathered=policy.num_gathered,
            repeated=shard.num_repeated,
            refused=clients.num_refused,
            staleness=shard.staleness.facts(),
            held_s={worker: shard.held_s(worker) for worker in shard.workers},
            sent_bytes=dict(clients.meter.sent),
            received_bytes=dict(clients.meter.received),
            running_s=time.monotonic() - load.began_s,
            busy_s=load.busy_s,
            queue_mean=load.num_messages / max(1, load.num_polls),
            queue_max=load.most_messages,
        )

    def serve(self) -> None:
        """Serve until `stop`; messages of strangers and malformed ones are counted and ignored.

        If it raises, so does every call that waits for this thread or is made later.
        """
        try:
            self._serve()
        except BaseException as error:  # the end of a thread: its callers must not wait for it
            self._calls.fail(error)
            raise

    def _serve(self) -> None:
        torch.set_flush_denormal(True)
        sockets, clients, load = self._sockets, self._clients, self._load_stats
        poller = zmq.Poller()
        for source in (sockets.handshake, sockets.bulk, self._calls.wakeup):
            poller.register(source, zmq.POLLIN)
        load.began_s = time.monotonic()
        while not self._stopping:
            waits = clients.is_full or self._answers.are_deferred
            ready = dict(poller.poll(_RETRY_MS if waits else _IDLE_MS))
            if not ready and not waits:
                self._answers.give_back()
            started = time.perf_counter()
            # Calls before messages: a client that was dismissed is not served again.
            if self._calls.wakeup.fileno() in ready:
                self._calls.run()
            if sockets.handshake in ready:
                clients.answer_request(self._decide)
            if clients.is_full:
                clients.retry()
            if self._answers.are_deferred:
                self._answers.retry(self._is_wanted)
            if sockets.bulk in ready:
                self._serve_bulk()
            load.busy_s += time.perf_counter() - started

    def _decide(
        self, client: ClientIdentity, request: ConnectRequest, is_local: bool
    ) -> HandshakeReply:
        if request.generation != self._settings.generation:
            return ConnectRejected(f"the run is in generation {self._settings.generation} by now")
        if request.digest != self._settings.digest:
            return ConnectRejected("the model is cut in another way here; use one job file for all")
        bulk, token = self._clients.issue(client, is_local=is_local)
        return ConnectAccepted(
            bulk=bulk,
            token=token,
            incarnation=self._settings.incarnation,
            known=self._has_entered(client),
            clock=self._shard.policy.entry_clock(client.rank),
        )

    def _has_entered(self, client: ClientIdentity) -> bool:
        entered = self._entered.get(client.rank)
        return entered is not None and entered.client == client

    def _serve_bulk(self) -> None:
        count = 0
        while count < _BURST:
            try:
                message = self._clients.receive()
            except zmq.Again:
                break
            count += 1
            if message is not None:
                self._take(message)
        load = self._load_stats
        load.num_polls += 1
        load.num_messages += count
        load.most_messages = max(load.most_messages, count)

    def _take(self, message: ClientMessage) -> None:
        client, header = message.client, message.header
        # Checked against the authenticated sender: a client cannot act for another one.
        claimed = (header.generation, header.worker, header.incarnation)
        if claimed != (self._settings.generation, client.rank, client.incarnation):
            self._refuse(message)
        elif header.op == BulkOp.LOAD:
            self._load(message)
        elif self.is_restoring:
            pass  # dropped until the parameters are here; clients will ask again
        elif header.op == BulkOp.PULL:
            self._answers.pull(client, header.clock)
        elif client.role == "worker" and header.op == BulkOp.ENTER:
            self._enter(client, header)
        elif client.role == "worker":
            self._work(message)
        else:
            self._refuse(message)

    def _work(self, message: ClientMessage) -> None:
        client, header = message.client, message.header
        index = header.segment - self._first
        # Before the check below: a restarted server also confirms LEAVE to a worker it never knew.
        if header.op == BulkOp.LEAVE:
            self._forget(client.rank)
            self._answers.note(client, BulkOp.LEFT, header)
        elif not self._has_entered(client):
            self._answers.note(client, BulkOp.WHO, header)
        elif not 0 <= index < len(self._shard.segments):
            self._refuse(message)
        elif header.op == BulkOp.PUSH:
            self._push(index, message)
        elif header.op != BulkOp.ASK:
            self._refuse(message)
        elif self._shard.has_arrived(client.rank, header.clock, index):
            self._answer(self._shard.ask(client.rank, header.clock, index))
        else:
            self._answers.note(client, BulkOp.AGAIN, header)

    def _push(self, index: int, message: ClientMessage) -> None:
        header, payload = message.header, message.payload
        reach("push received")
        self._entered[header.worker].holds = None
        try:
            gradient = (
                Received(header.kind, payload, self._shard.segments[index].size)
                if payload is not None
                else None
            )
            options = decode_options(message.tickets) if message.tickets else None
        except ValueError:
            self._refuse(message)
            return
        arrival = PushedSegment(
            worker=header.worker,
            clock=header.clock,
            readver=header.readver,
            index=index,
            gradient=gradient,
            weight=header.weight,
            num_samples=header.num_samples,
            ticket=header.ticket,
            options=options,
            is_aside=bool(header.flags & Flag.ASIDE),
            continues=bool(header.flags & Flag.CONTINUES),
        )
        self._answer(self._shard.deliver(arrival, time.monotonic()))

    def _enter(self, client: ClientIdentity, header: Header) -> None:
        now_s, clock = time.monotonic(), header.clock
        if self._has_entered(client):
            # Entered already; only the replies may have been lost.
            for index in range(len(self._shard.segments)):
                self._answer(self._shard.ask(client.rank, clock, index))
            return
        if self._entered.pop(client.rank, None) is not None:
            # An earlier incarnation: its unfinished push is retracted before the successor begins.
            self._answer(self._shard.leave(client.rank, now_s))
        holds = header.readver if header.flags & Flag.HELD else None
        self._entered[client.rank] = _Entered(client, holds)
        self._answer(self._shard.enter(client.rank, clock, now_s))

    def _forget(self, worker: int) -> None:
        self._entered.pop(worker, None)
        self._answer(self._shard.leave(worker, time.monotonic()))

    def _load(self, message: ClientMessage) -> None:
        client, header, payload = message.client, message.header, message.payload
        index = header.segment - self._first
        if client.role != "worker" or payload is None or not self._settings.restoring:
            self._refuse(message)  # a reader never writes, and a whole slice needs no copy
            return
        contents = SegmentTickets(message.tickets, header.num_samples)
        try:
            values = Received(header.kind, payload, self._size_of(index))
            self._shard.ledger.check(contents)
        except ValueError:
            self._refuse(message)
            return
        reach("donation received")
        verdict = self.restore.offer(
            client, number=header.clock, version=header.readver, segment=index, contents=contents
        )
        match verdict:
            case LoadVerdict.FORBIDDEN:
                self._refuse(message)
                return
            case LoadVerdict.UNEXPECTED:
                self._answers.note(client, BulkOp.UNEXPECTED, header)
                return
            case LoadVerdict.TAKE:
                part = self._shard.updater.parts[index]
                values.write_to(self._shard.updater.parameters[part])
        # After the segment is written: the donor forgets what has been acknowledged.
        self._answers.note(client, BulkOp.LOADED, header)
        tickets = self.restore.whole_copy()
        if tickets is not None:
            self.restored(version=header.readver, tickets=tickets)

    def restored(self, *, version: int, tickets: Sequence[SegmentTickets], number: int = 0) -> None:
        """Serve from this version on, once the slice has been filled again; by `call`.

        Args:
            version: Of the slice.
            tickets: Batches that each segment contains.
            number: Of the request, unless a worker's copy has answered it.
        """
        reach("restored")
        shard = self._shard
        shard.restore(version=version, samples_seen=max(one.num_samples for one in tickets))
        # The ledger comes with the parameters: what is in them is exactly what it says.
        shard.ledger.load_state(tickets)
        self.restore.finish(version, number)
        # Copies of the parameters before the loss must not be sent.
        self._answers.forget()

    def _size_of(self, index: int) -> int:
        segments = self._shard.segments
        if not 0 <= index < len(segments):
            raise ValueError(f"segment {index} is not of this server")
        return segments[index].size

    def _answer(self, replies: list[ShardReply]) -> None:
        for reply in replies:
            entered = self._entered.get(reply.worker)
            if entered is None:
                continue
            applied = self._shard.applied[reply.index]
            if entered.holds == self._begins_with == applied:
                self._answers.send_unchanged(entered.client, reply)
            else:
                self._answers.send(entered.client, reply)
        self._answers.answer_pulls()

    def _is_wanted(self, client: ClientIdentity, reply: ShardReply) -> bool:
        return self._has_entered(client) and self._shard.reads(reply)

    def _refuse(self, message: ClientMessage) -> None:
        self._clients.num_refused += 1
        self._answers.note(message.client, BulkOp.REFUSED, message.header)
