"""The worker's side: push a gradient segment by segment, get the parameters back, survive breaks.

One push is outstanding at a time. Its answer is its acknowledgement: a segment that has not been
answered is asked about, and sent again if the server never saw it. Sending hands memory to ZeroMQ's
own thread and returns at once, so segments can leave during backward; nothing here needs a thread
of its own. Not safe for several threads at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

import msgspec
import torch
import zmq
from torch import Tensor

from phalanx.errors import PeerError
from phalanx.paramserver.compression import Compression, Encoder, Received, payload_bytes
from phalanx.paramserver.door import digest_of
from phalanx.paramserver.link import Link, LinkSettings
from phalanx.protocol.shards import Layout, Segment
from phalanx.wire.bulk import FRAME_SLACK_BYTES, HIGH_WATER, Flag, Header, Kind, Op
from phalanx.wire.deadline import Deadline
from phalanx.wire.facts import ClientFacts
from phalanx.wire.keys import KeyPair
from phalanx.wire.meter import ByteMeter
from phalanx.wire.serving import ServerAddress

# Silence after which a segment is asked about.
_ASK_AFTER_S = 1.0
_POLL_MS = 200
# How often a door that is not open yet is tried.
_KNOCK_MS = 5
# How often a full pipe is tried.
_RETRY_MS = 1


def max_frame_bytes(layout: Layout) -> int:
    """The longest frame that servers and clients of a layout have to accept."""
    return payload_bytes(Kind.F32, max(s.size for s in layout.segments)) + FRAME_SLACK_BYTES


@dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Who the client is, and how it talks.

    Attributes:
        worker: Rank.
        keys: The worker's own.
        incarnation: How often this worker has been started.
        generation: Of the run.
        compression: Of pushed gradients.
        overlap: Whether the next gradient is computed while a push is on its way; pushes are then
            sent from a copy.
        whole: Whether parameters of a server are taken over only when all of its segments have
            come, so that the copy held here is always of one version and can restore a server.
        version: Of the parameters that the buffer holds already.
        samples_seen: Behind them.
        holds: Whether the buffer is what the servers begin with, so that they need not send it.
    """

    worker: int
    keys: KeyPair
    incarnation: int = 1
    generation: int = 0
    compression: Compression = "none"
    overlap: bool = False
    whole: bool = False
    version: int = 0
    samples_seen: int = 0
    holds: bool = False


class Client:
    """Exchanges one worker's gradients for parameters; use as a context manager.

    Args:
        layout: How the model is cut; the same on every process.
        parameters: The flat buffer; written to by `connect` and `wait`.
        gradients: The flat buffer; must not change between `ready` and the end of `wait`, unless
            overlapping.
        servers: Where they are.
        settings: The rest.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        parameters: Tensor,
        gradients: Tensor,
        servers: Sequence[ServerAddress],
        settings: ClientSettings,
    ) -> None:
        self._layout = layout
        self._parameters = parameters
        self._source = gradients
        self._gradients = torch.empty_like(gradients) if settings.overlap else gradients
        self._servers = servers
        self._settings = settings
        self._encoder = Encoder(settings.compression, layout)
        self._meter = ByteMeter()
        self.clock = 0
        self.samples_seen = settings.samples_seen
        """As the servers count them; what a schedule by samples goes by."""
        self.held_s = 0.0
        """The part of the last `wait` in which the servers' rule held this worker back."""
        self.first_sent_s: float | None = None
        """When the first segment of the present push left, by `time.perf_counter`."""
        self._sent_s: dict[int, float] = {}
        self._held_until_s = 0.0
        self._versions = dict.fromkeys(range(layout.num_servers), settings.version)
        self._sizes = {s: len(layout.of_server(s)) for s in range(layout.num_servers)}
        self._push = Header(op=Op.PUSH, worker=settings.worker)
        self._missing: list[int] = []
        self._payloads: dict[int, memoryview | None] = {}
        self._unsent: dict[int, None] = {}
        self._awaited: set[int] = set()
        self._held: dict[int, dict[int, Received]] = {}
        self._progress_s = 0.0
        self._entered = False
        self._entered_s = dict.fromkeys(range(layout.num_servers), 0.0)
        self._leaving: set[int] = set()
        self._donations: list[tuple[int, Header, memoryview]] = []
        self._pulling = False
        self._holds = settings.holds
        self._num_pushes = self._num_dropped = self._num_resent = 0
        self._wait_s = 0.0

    def __enter__(self) -> Client:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        frames = max(HIGH_WATER, *self._sizes.values())
        settings = LinkSettings(
            keys=self._settings.keys,
            generation=self._settings.generation,
            digest=digest_of(self._layout),
            max_frame_bytes=max_frame_bytes(self._layout),
            receive_high_water=frames if self._settings.overlap else HIGH_WATER,
        )
        self._links = {
            address.server: Link(self._context, address, settings=settings, meter=self._meter)
            for address in self._servers
            if address.server < self._layout.num_servers
        }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for link in self._links.values():
            link.close()
        self._context.term()

    @property
    def versions(self) -> Mapping[int, int]:
        """The version of each server's parameters that is held here."""
        return dict(self._versions)

    def connect(self, deadline: Deadline, on_idle: Callable[[], None] | None = None) -> None:
        """Take a place at every server and read all parameters; again after `leave`.

        Args:
            deadline: When to give up.
            on_idle: See `wait`.
        """
        self._awaited = set(range(len(self._layout.segments)))
        self._payloads.clear()
        self._missing.clear()
        for link in self._links.values():
            if link.welcome:
                # What it said then about where to fit in is out of date.
                link.renew()
        while not self._all_up():
            self._poll(deadline)
            if on_idle is not None:
                on_idle()
        self.clock = max(link.welcome.clock for link in self._links.values() if link.welcome)
        self._entered = True
        for link in self._links.values():
            self._enter(link, self.clock, holds=self._holds)
        self._holds = False
        self.wait(deadline, on_idle)

    @property
    def sent_bytes(self) -> int:
        """What has gone out to all servers so far."""
        return sum(self._meter.sent.values())

    def begin(self, *, num_samples: int, weight: float = 1.0, ticket: int = 0) -> None:
        """Start a push; the one before must have been waited for.

        Args:
            num_samples: Samples behind the gradient.
            weight: The gradient is this times the mean over the samples.
            ticket: Batch that it was computed from, if the coordinator handed it out.
        """
        if self._awaited:
            raise ValueError("a push is still on its way; wait for it first")
        self.clock += 1
        self._num_pushes += 1
        self._push = Header(
            op=Op.PUSH,
            worker=self._settings.worker,
            generation=self._settings.generation,
            incarnation=self._settings.incarnation,
            clock=self.clock,
            ticket=ticket,
            num_samples=num_samples,
            weight=weight,
        )
        self._missing = [segment.size for segment in self._layout.segments]
        self._payloads.clear()
        self._awaited = set(range(len(self._missing)))
        self._progress_s = time.monotonic()
        self.first_sent_s = None
        self._sent_s.clear()
        self._held_until_s = 0.0

    def ready(self, start: int, stop: int) -> None:
        """A slice of the gradients is final; segments that are complete leave at once.

        Each entry of the buffer must be reported once per push.
        """
        for index in reversed(self._layout.covering(start, stop)):
            segment = self._layout.segments[index]
            self._missing[index] -= min(stop, segment.stop) - max(start, segment.start)
            if self._missing[index] == 0:
                self._encode(segment)
        self._send_unsent()

    def finish(self) -> None:
        """Everything that was not reported is final, too."""
        for segment in reversed(self._layout.segments):
            if self._missing[segment.index] > 0:
                self._missing[segment.index] = 0
                self._encode(segment)
        self._send_unsent()

    def skip(self, *, ticket: int = 0) -> None:
        """Take part in an update without a gradient: there were no samples for this worker."""
        self.begin(num_samples=0, weight=0.0, ticket=ticket)
        for segment in self._layout.segments:
            self._missing[segment.index] = 0
            self._payloads[segment.index] = None
            self._unsent[segment.index] = None
        self._send_unsent()

    def wait(self, deadline: Deadline, on_idle: Callable[[], None] | None = None) -> None:
        """Wait until every server has answered; the parameters are then up to date.

        `held_s` then says how much of the wait was the rule's doing. A server tells how long it has
        held an answer since the push was whole; that time began when the last segment left here,
        and only what of it lies within this call counts. The rest of the call is communication.

        Args:
            deadline: When to give up.
            on_idle: Called several times a second meanwhile; may call `relocate` and `donate`.

        Raises:
            TimeoutExpired: A server did not answer in time.
            PeerError: A server refuses this worker; it has been dismissed.
        """
        started = time.perf_counter()
        self._progress_s = time.monotonic()
        while True:
            self.attend()
            if not self._awaited:
                break
            self._poll(deadline)
            if on_idle is not None:
                on_idle()
        ended = time.perf_counter()
        self._wait_s += ended - started
        self.held_s = max(0.0, min(ended, self._held_until_s) - started)

    def pull(self, deadline: Deadline, on_idle: Callable[[], None] | None = None) -> None:
        """Read all parameters exactly as the servers hold them, whatever answers travel as.

        The push before must have been waited for.
        """
        if self._awaited:
            raise ValueError("a push is still on its way; wait for it first")
        self._pulling = True
        self.clock += 1
        self._awaited = set(range(len(self._layout.segments)))
        self._payloads.clear()
        self._missing.clear()
        self._ask()
        self.wait(deadline, on_idle)
        self._pulling = False

    def leave(self, deadline: Deadline, on_idle: Callable[[], None] | None = None) -> None:
        """Give up the place at every server, so that nobody waits for this worker.

        The push before must have been waited for. A server that cannot be reached is waited for,
        too: one that comes back must not expect this worker.
        """
        if self._awaited:
            raise ValueError("a push is still on its way; wait for it first")
        self._entered = False
        self._leaving = set(self._links)
        self._progress_s = 0.0
        while self._leaving:
            self.attend()
            if self._leaving:
                self._poll(deadline)
                if on_idle is not None:
                    on_idle()

    def relocate(self, address: ServerAddress) -> None:
        """A server has been started anew elsewhere; what it has not answered is sent again."""
        self._links[address.server].relocate(address)

    def donate(self, server: int) -> None:
        """Send a server that lost its parameters the copy that is held here, as its new start.

        May be called while a push is on its way. What the connection does not take at once is sent
        by `attend`, `wait` and `leave`. The server is told the version of the copy.
        """
        self._donations = []
        for segment in self._layout.of_server(server):
            header = Header(
                op=Op.LOAD,
                worker=self._settings.worker,
                generation=self._settings.generation,
                incarnation=self._settings.incarnation,
                readver=self._versions[server],
                segment=segment.index,
                kind=Kind.F32,
                num_samples=self.samples_seen,
                num_bytes=segment.size * 4,
            )
            # A copy, because the next answer may overwrite the buffer before this has left.
            values = _memory(self._slice(self._parameters, segment).clone())
            self._donations.append((server, header, values))
        self.attend()

    def attend(self) -> None:
        """Do whatever can be done without waiting; not while the parameters are being read."""
        for link in self._links.values():
            self._serve(link)
            while (message := link.receive()) is not None:
                self._take(*message)
        self._send_unsent()
        while self._donations and self._links[self._donations[0][0]].send(*self._donations[0][1:]):
            self._donations.pop(0)
        if time.monotonic() - self._progress_s > _ASK_AFTER_S:
            self._ask()

    def facts(self) -> ClientFacts:
        """Totals so far."""
        connects = sum(link.num_connects for link in self._links.values())
        return ClientFacts(
            worker=self._settings.worker,
            pushes=self._num_pushes,
            dropped=self._num_dropped,
            wait_s=self._wait_s,
            resent=self._num_resent,
            reconnects=max(0, connects - len(self._links)),
            sent_bytes=dict(self._meter.sent),
            received_bytes=dict(self._meter.received),
        )

    def _all_up(self) -> bool:
        for link in self._links.values():
            link.service()
        return all(link.welcome for link in self._links.values())

    def _encode(self, segment: Segment) -> None:
        gradient = self._slice(self._source, segment)
        if self._settings.overlap:
            gradient = self._slice(self._gradients, segment).copy_(gradient)
        self._payloads[segment.index] = _memory(self._encoder.encode(segment, gradient))
        self._unsent[segment.index] = None

    def _send_unsent(self) -> None:
        blocked: set[int] = set()
        for index in list(self._unsent):
            server = self._layout.segments[index].server
            if server in blocked:
                continue
            if self._send_push(index):
                del self._unsent[index]
                self._note_sent(server)
            else:
                blocked.add(server)

    def _note_sent(self, server: int) -> None:
        now_s = time.perf_counter()
        self._sent_s[server] = now_s
        if self.first_sent_s is None:
            self.first_sent_s = now_s

    def _send_push(self, index: int) -> bool:
        payload = self._payloads[index]
        server = self._layout.segments[index].server
        push = self._push
        header = Header(
            op=Op.PUSH,
            worker=push.worker,
            generation=push.generation,
            incarnation=push.incarnation,
            clock=push.clock,
            readver=self._versions[server],
            ticket=push.ticket,
            segment=index,
            kind=Kind.NOTHING if payload is None else self._encoder.kind,
            num_samples=push.num_samples,
            weight=push.weight,
            num_bytes=0 if payload is None else payload.nbytes,
        )
        return self._links[server].send(header, payload)

    def _serve(self, link: Link) -> None:
        if link.service():
            self._rejoin(link)

    def _take(self, header: Header, payload: memoryview | None) -> None:
        index = header.segment
        if index >= len(self._layout.segments):
            return
        if header.op == Op.REFUSED:
            raise PeerError(
                f"worker {self._settings.worker} has been dismissed from the run by a server",
                worker=self._settings.worker,
            )
        server = self._layout.segments[index].server
        if header.op == Op.LEFT:
            self._leaving.discard(server)
        if header.op == Op.WHO and time.monotonic() - self._entered_s[server] > _ASK_AFTER_S / 2:
            self._rejoin(self._links[server], known=False)
        if header.clock != self.clock or index not in self._awaited:
            return
        self._progress_s = time.monotonic()
        if header.op == Op.AGAIN:
            self._num_resent += 1
            self._unsent[index] = None
        elif header.op == Op.PARAMS and payload is not None:
            self._accept(header, payload)
        elif header.op == Op.PARAMS and header.flags & Flag.HELD:
            self._settle_segment(header)

    def _accept(self, header: Header, payload: memoryview) -> None:
        segment = self._layout.segments[header.segment]
        received = Received(header.kind, payload, segment.size)
        self._num_dropped += header.flags & Flag.DROPPED
        self.samples_seen = max(self.samples_seen, header.num_samples)
        sent_s = self._sent_s.get(segment.server, 0.0)
        self._held_until_s = max(self._held_until_s, sent_s + header.held_s)
        held = self._held.setdefault(segment.server, {})
        held[segment.index] = received
        if not self._settings.whole or len(held) == self._sizes[segment.server]:
            for index, values in held.items():
                values.write_to(self._slice(self._parameters, self._layout.segments[index]))
            held.clear()
        self._settle_segment(header)

    def _settle_segment(self, header: Header) -> None:
        """What was asked of a segment is here."""
        segment = self._layout.segments[header.segment]
        self._awaited.discard(segment.index)
        self._unsent.pop(segment.index, None)
        if not any(s.index in self._awaited for s in self._layout.of_server(segment.server)):
            self._versions[segment.server] = header.readver

    def _ask(self) -> None:
        self._progress_s = time.monotonic()
        for server in self._leaving:
            first = self._layout.of_server(server)[0].index
            self._links[server].send(self._header(Op.LEAVE, first))
        if self._pulling:
            for server in {self._layout.segments[index].server for index in self._awaited}:
                first = self._layout.of_server(server)[0].index
                self._links[server].send(self._header(Op.PULL, first))
            return
        for index in self._awaited:
            if index not in self._unsent and self._missing_nothing(index):
                link = self._links[self._layout.segments[index].server]
                link.send(self._header(Op.ASK, index))

    def _missing_nothing(self, index: int) -> bool:
        return not self._missing or self._missing[index] == 0

    def _enter(self, link: Link, clock: int, *, holds: bool = False) -> None:
        first = self._layout.of_server(link.server)[0].index
        self._entered_s[link.server] = time.monotonic()
        header = self._header(Op.ENTER, first, clock)
        if holds:
            header = msgspec.structs.replace(
                header, flags=Flag.HELD, readver=self._versions[link.server]
            )
        link.send(header)

    def _rejoin(self, link: Link, *, known: bool | None = None) -> None:
        """A connection is new, or the server has forgotten this worker."""
        # Whatever was on its way may be lost: ask at once.
        self._progress_s = 0.0
        if not self._entered or link.welcome is None:
            return
        if link.welcome.known if known is None else known:
            return
        own = [segment.index for segment in self._layout.of_server(link.server)]
        pushing = bool(self._payloads) and any(index in self._awaited for index in own)
        self._enter(link, self.clock - 1 if pushing else self.clock)
        if pushing:
            # A server that lost its memory needs the whole push, or none of it.
            again = [index for index in own if index in self._payloads]
            self._num_resent += len(again)
            self._awaited.update(own)
            self._unsent.update(dict.fromkeys(again))
            self._held.pop(link.server, None)

    def _header(self, op: Op, segment: int, clock: int | None = None) -> Header:
        return Header(
            op=op,
            worker=self._settings.worker,
            generation=self._settings.generation,
            incarnation=self._settings.incarnation,
            clock=self.clock if clock is None else clock,
            segment=segment,
        )

    def _poll(self, deadline: Deadline) -> None:
        poller = zmq.Poller()
        limit_ms = _POLL_MS
        for link in self._links.values():
            for source in link.sources:
                poller.register(source, zmq.POLLIN)
            if link.is_knocking:
                limit_ms = _KNOCK_MS
        if self._unsent:
            limit_ms = _RETRY_MS
        poller.poll(min(limit_ms, deadline.remaining_ms))
        deadline.check()

    def _slice(self, flat: Tensor, segment: Segment) -> Tensor:
        return flat[segment.start : segment.stop]


def _memory(values: Tensor) -> memoryview:
    return values.view(torch.uint8).numpy().data
