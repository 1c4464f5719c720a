"""The process (or thread) that owns a slice of the parameters: one loop around a `Shard`.

Poll, decode, decide, move the slice, answer. Everything happens in the thread that calls `serve`;
other threads hand in work with `call`, which is how the control plane admits and dismisses peers.
Sockets are in `reception`, numbers and rules in `shard`.
"""

from __future__ import annotations

import queue
import socket as sockets
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

import torch
import zmq

from phalanx.paramserver.compression import Received
from phalanx.paramserver.door import FromServer, Knock, Peer, Refusal, Role, Welcome
from phalanx.paramserver.reception import Message, Reception
from phalanx.paramserver.replies import Copy, Replies
from phalanx.paramserver.shard import Answer, Arrival, Shard
from phalanx.wire.bulk import Flag, Header, Kind, Op
from phalanx.wire.facts import ServerFacts
from phalanx.wire.keys import KeyPair
from phalanx.wire.serving import ServerAddress

_IDLE_MS = 1000
# Answers that a full pipe did not take are tried again this soon.
_RETRY_MS = 1
# Messages taken at a stretch before calls and knocks get their turn.
_BURST = 64

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What a server is told at its start.

    Attributes:
        index: Which server it is.
        digest: Of the layout; see `digest_of`.
        max_frame_bytes: Longest frame that a peer may send.
        generation: Of the run; messages of another are refused.
        incarnation: How often this server has been started.
        host: Address to listen on.
        encrypt: Whether bulk data is encrypted.
        pull_kind: Format of parameters on their way to workers.
        restoring: Whether the slice is still to be loaded from a worker.
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


class Server:
    """Serves one shard; use as a context manager, then call `serve`.

    Args:
        shard: The slice and its rules.
        keys: The server's own.
        settings: The rest.
    """

    def __init__(self, shard: Shard, *, keys: KeyPair, settings: ServerSettings) -> None:
        self._shard = shard
        self._settings = settings
        self._reception = Reception(
            keys,
            host=settings.host,
            encrypt=settings.encrypt,
            max_frame_bytes=settings.max_frame_bytes,
        )
        self._first = shard.segments[0].index
        self._present: dict[int, Peer] = {}
        self._pulls: dict[Peer, int] = {}
        self._holds: dict[int, int] = {}  # versions that workers brought along
        self._to_load = set(range(len(shard.segments))) if settings.restoring else set()
        self.restored_version: int | None = None
        """The version from which it went on after a loss, once it has."""
        # What everybody begins with; a slice that was lost and loaded again is nobody's.
        self._begins_with = -1 if settings.restoring else shard.policy.version
        parameters, parts = shard.updater.parameters, shard.updater.parts
        self._replies = Replies(parameters, parts, settings.pull_kind)
        self._exact = Replies(parameters, parts, Kind.F32)
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopping = False
        self._began_s = self._busy_s = 0.0
        self._num_looks = self._num_messages = self._queue_max = 0

    def __enter__(self) -> Server:
        self._bell, self._ringer = sockets.socketpair()
        self._reception.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._reception.__exit__(kind, error, traceback)
        self._bell.close()
        self._ringer.close()

    @property
    def is_restoring(self) -> bool:
        """Whether the slice is still to be loaded from a worker; by `call` while serving."""
        return bool(self._to_load)

    @property
    def address(self) -> ServerAddress:
        """What clients need in order to connect."""
        return self._reception.address(self._settings.index)

    def call(self, function: Callable[[], Value]) -> Future[Value]:
        """Run a function in the serving thread, between two messages; safe from any thread."""
        future: Future[Value] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        self._calls.put(run)
        self._ringer.send(b"\0")
        return future

    def stop(self) -> None:
        """Make `serve` return; safe from any thread."""

        def stop() -> None:
            self._stopping = True

        self.call(stop)

    def admit(self, public_key: str, peer: Peer) -> None:
        """Let a peer in, and its earlier incarnations no longer; before `serve` or by `call`."""
        self._reception.admit(public_key, peer)

    def dismiss(self, role: Role, rank: int) -> None:
        """Shut a peer out and stop waiting for it, even if it never came; by `call`."""
        self._reception.shut_out(f"{role}-{rank}")
        if role == "worker":
            self._forget(rank)

    def flush(self) -> None:
        """Apply what has been gathered, however little; by `call`."""
        self._answer(self._shard.flush(time.monotonic()))

    def facts(self) -> ServerFacts:
        """Totals so far; by `call` while serving."""
        shard, policy, reception = self._shard, self._shard.policy, self._reception
        return ServerFacts(
            server=self._settings.index,
            version=policy.version,
            samples=shard.samples_seen,
            pushes=policy.num_pushes,
            applied=policy.num_applied,
            dropped=policy.num_dropped,
            lost=policy.num_lost,
            gathered=policy.num_gathered,
            repeated=shard.num_repeated,
            refused=reception.num_refused,
            staleness=shard.staleness.facts(),
            held_s={worker: shard.held_s(worker) for worker in shard.workers},
            sent_bytes=dict(reception.meter.sent),
            received_bytes=dict(reception.meter.received),
            running_s=time.monotonic() - self._began_s,
            busy_s=self._busy_s,
            queue_mean=self._num_messages / max(1, self._num_looks),
            queue_max=self._queue_max,
        )

    def serve(self) -> None:
        """Serve until `stop`; strangers and nonsense are counted and change nothing."""
        torch.set_flush_denormal(True)
        reception = self._reception
        poller = zmq.Poller()
        for source in (reception.door, reception.bulk, self._bell):
            poller.register(source, zmq.POLLIN)
        self._began_s = time.monotonic()
        while not self._stopping:
            ready = dict(poller.poll(_RETRY_MS if reception.is_full else _IDLE_MS))
            started = time.perf_counter()
            if self._bell.fileno() in ready:
                self._run_calls()
            if reception.door in ready:
                reception.open_door(self._judge)
            if reception.is_full:
                reception.retry()
            if reception.bulk in ready:
                self._serve_bulk()
            self._busy_s += time.perf_counter() - started

    def _run_calls(self) -> None:
        self._bell.recv(4096)
        while not self._calls.empty():
            self._calls.get()()

    def _judge(self, peer: Peer, knock: Knock, is_near: bool) -> FromServer:
        if knock.generation != self._settings.generation:
            return Refusal(f"the run is in generation {self._settings.generation} by now")
        if knock.digest != self._settings.digest:
            return Refusal("the model is cut in another way here; use one job file for all")
        bulk, token = self._reception.issue(peer, is_near=is_near)
        return Welcome(
            bulk=bulk,
            token=token,
            incarnation=self._settings.incarnation,
            known=self._present.get(peer.rank) == peer,
            clock=self._shard.policy.entry_clock(peer.rank),
        )

    def _serve_bulk(self) -> None:
        count = 0
        while count < _BURST:
            try:
                message = self._reception.receive()
            except zmq.Again:
                break
            count += 1
            if message is not None:
                self._take(message)
        self._num_looks += 1
        self._num_messages += count
        self._queue_max = max(self._queue_max, count)

    def _take(self, message: Message) -> None:
        peer, header = message.peer, message.header
        claimed = (header.generation, header.worker, header.incarnation)
        if claimed != (self._settings.generation, peer.rank, peer.incarnation):
            self._refuse(message)
        elif self._to_load:
            # Everything else waits until the parameters are here; the peers will ask again.
            self._load(message)
        elif header.op == Op.PULL:
            self._pulls[peer] = header.clock
            self._answer_pulls()
        elif peer.role == "worker" and header.op == Op.ENTER:
            self._enter(peer, header)
        elif peer.role == "worker":
            self._work(message)
        else:
            self._refuse(message)

    def _work(self, message: Message) -> None:
        peer, header = message.peer, message.header
        index = header.segment - self._first
        if header.op == Op.LEAVE:
            self._forget(peer.rank)
            self._reception.send(peer, self._about(Op.LEFT, header))
        elif self._present.get(peer.rank) != peer:
            self._reception.send(peer, self._about(Op.WHO, header))
        elif not 0 <= index < len(self._shard.segments):
            self._refuse(message)
        elif header.op == Op.PUSH:
            self._push(index, message)
        elif header.op != Op.ASK:
            self._refuse(message)
        elif self._shard.has_arrived(peer.rank, header.clock, index):
            self._answer(self._shard.ask(peer.rank, header.clock, index))
        else:
            self._reception.send(peer, self._about(Op.AGAIN, header))

    def _push(self, index: int, message: Message) -> None:
        header, payload = message.header, message.payload
        self._holds.pop(header.worker, None)
        try:
            gradient = (
                Received(header.kind, payload, self._shard.segments[index].size)
                if payload is not None
                else None
            )
        except ValueError:
            self._refuse(message)
            return
        arrival = Arrival(
            worker=header.worker,
            clock=header.clock,
            readver=header.readver,
            index=index,
            gradient=gradient,
            weight=header.weight,
            num_samples=header.num_samples,
            ticket=header.ticket,
        )
        self._answer(self._shard.deliver(arrival, time.monotonic()))

    def _enter(self, peer: Peer, header: Header) -> None:
        now_s, clock = time.monotonic(), header.clock
        older = self._present.get(peer.rank)
        if older == peer:
            # Asked twice: the seat is taken already, only the answers may have been lost.
            for index in range(len(self._shard.segments)):
                self._answer(self._shard.ask(peer.rank, clock, index))
            return
        if older is not None:
            self._holds.pop(peer.rank, None)
            self._answer(self._shard.leave(peer.rank, now_s))
        self._present[peer.rank] = peer
        if header.flags & Flag.HELD:
            self._holds[peer.rank] = header.readver
        self._answer(self._shard.enter(peer.rank, clock, now_s))

    def _forget(self, worker: int) -> None:
        self._present.pop(worker, None)
        self._holds.pop(worker, None)
        self._answer(self._shard.leave(worker, time.monotonic()))

    def _load(self, message: Message) -> None:
        header, payload = message.header, message.payload
        index = header.segment - self._first
        if header.op != Op.LOAD or index not in self._to_load or payload is None:
            return
        part = self._shard.updater.parts[index]
        try:
            values = Received(header.kind, payload, part.stop - part.start)
        except ValueError:
            self._refuse(message)
            return
        values.write_to(self._shard.updater.parameters[part])
        self._to_load.discard(index)
        if not self._to_load:
            self.restored(version=header.readver, samples_seen=header.num_samples)

    def restored(self, *, version: int, samples_seen: int) -> None:
        """The slice has been filled again: serve from this version on; by `call`."""
        self._shard.restore(version=version, samples_seen=samples_seen)
        self.restored_version = version
        self._to_load.clear()
        self._replies.forget()
        self._exact.forget()

    def _answer(self, answers: list[Answer]) -> None:
        for answer in answers:
            peer = self._present.get(answer.worker)
            held = self._holds.get(answer.worker)
            if peer is not None and held == self._begins_with == self._shard.applied[answer.index]:
                self._send_nothing(peer, answer)
            elif peer is not None:
                copy = self._replies.current(answer.index, self._shard.applied[answer.index])
                self._send(peer, copy, answer)
        if self._pulls:
            self._answer_pulls()

    def _answer_pulls(self) -> None:
        # All segments of one moment; where updates are whole, not in the middle of one.
        if self._shard.policy.rule.barrier and not self._shard.is_settled:
            return
        for peer, clock in self._pulls.items():
            for index, applied in enumerate(self._shard.applied):
                copy = self._exact.current(index, applied)
                version = self._shard.policy.version
                self._send(peer, copy, Answer(peer.rank, clock, version, index, dropped=False))
        self._pulls.clear()

    def _send_nothing(self, peer: Peer, answer: Answer) -> None:
        """Tell a worker that it holds a segment as it is."""
        header = Header(
            op=Op.PARAMS,
            worker=peer.rank,
            generation=self._settings.generation,
            sender=self._settings.incarnation,
            clock=answer.clock,
            readver=answer.readver,
            segment=self._first + answer.index,
            flags=Flag.HELD,
            num_samples=self._shard.samples_seen,
        )
        self._reception.send(peer, header)

    def _send(self, peer: Peer, copy: Copy, answer: Answer) -> None:
        header = Header(
            op=Op.PARAMS,
            worker=peer.rank,
            generation=self._settings.generation,
            sender=self._settings.incarnation,
            clock=answer.clock,
            readver=answer.readver,
            segment=self._first + answer.index,
            kind=Kind.BF16 if copy.values.dtype == torch.bfloat16 else Kind.F32,
            flags=Flag.DROPPED if answer.dropped else 0,
            num_samples=self._shard.samples_seen,
            num_bytes=copy.values.nbytes,
            held_s=answer.held_s,
        )
        self._reception.send(peer, header, copy)

    def _about(self, op: Op, asked: Header) -> Header:
        return Header(
            op=op,
            worker=asked.worker,
            generation=self._settings.generation,
            sender=self._settings.incarnation,
            clock=asked.clock,
            segment=asked.segment,
        )

    def _refuse(self, message: Message) -> None:
        self._reception.num_refused += 1
        self._reception.send(message.peer, self._about(Op.REFUSED, message.header))
