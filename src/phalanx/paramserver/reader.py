"""Reading without taking part: the evaluator's, the checkpoint's and the coordinator's view.

A reader pulls whole shards, each as it was at one moment, in full precision. No server waits for
it, and it may come, go or freeze at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType

import zmq
from torch import Tensor

from phalanx.errors import PeerError
from phalanx.paramserver.client import max_frame_bytes
from phalanx.paramserver.compression import Received
from phalanx.paramserver.door import digest_of
from phalanx.paramserver.link import Link, LinkSettings
from phalanx.protocol.shards import Layout
from phalanx.wire.bulk import HIGH_WATER, Header, Op
from phalanx.wire.deadline import Deadline
from phalanx.wire.keys import KeyPair
from phalanx.wire.meter import ByteMeter
from phalanx.wire.serving import ServerAddress

_ASK_AFTER_S = 1.0
_POLL_MS = 200
# How often a door that is not open yet is tried.
_KNOCK_MS = 5


@dataclass(frozen=True)
class Reading:
    """What was read: the version of each server, and the samples behind the least of them."""

    versions: tuple[int, ...]
    samples_seen: int


class Reader:
    """Pulls parameters; use as a context manager, from one thread.

    Args:
        layout: How the model is cut.
        servers: Where they are.
        keys: The reader's own.
        rank: Its number among the readers.
        incarnation: How often it has been started.
        generation: Of the run.
    """

    def __init__(
        self,
        layout: Layout,
        servers: Sequence[ServerAddress],
        *,
        keys: KeyPair,
        rank: int = 0,
        incarnation: int = 1,
        generation: int = 0,
    ) -> None:
        self._layout = layout
        self._servers = servers
        self._settings = LinkSettings(
            keys=keys,
            generation=generation,
            digest=digest_of(layout),
            max_frame_bytes=max_frame_bytes(layout),
            receive_high_water=HIGH_WATER,
        )
        self._rank = rank
        self._incarnation = incarnation
        self._clock = 0

    def __enter__(self) -> Reader:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        meter = ByteMeter()
        self._links = {
            address.server: Link(self._context, address, settings=self._settings, meter=meter)
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

    def relocate(self, address: ServerAddress) -> None:
        """A server has been started anew elsewhere."""
        self._links[address.server].relocate(address)

    def pull(
        self, out: Tensor, deadline: Deadline, on_idle: Callable[[], None] | None = None
    ) -> Reading:
        """Fill a flat buffer with the present parameters of all servers.

        Args:
            out: Is filled.
            deadline: When to give up.
            on_idle: Called several times a second meanwhile; may call `relocate`.

        Raises:
            TimeoutExpired: A server did not answer in time; `out` may hold a part.
            PeerError: A server refuses this reader.
        """
        self._clock += 1
        awaited = {
            server: {s.index for s in self._layout.of_server(server)} for server in self._links
        }
        answers: dict[int, Header] = {}
        asked_s = dict.fromkeys(self._links, 0.0)
        while any(awaited.values()):
            for server, link in self._links.items():
                if link.service():
                    asked_s[server] = 0.0
                while (message := link.receive()) is not None:
                    self._take(*message, out=out, awaited=awaited[server], answers=answers)
                    asked_s[server] = time.monotonic()
                if awaited[server] and time.monotonic() - asked_s[server] > _ASK_AFTER_S:
                    # One shard is of one moment: after a break, all of it is read again.
                    awaited[server] = {s.index for s in self._layout.of_server(server)}
                    if link.send(self._header()):
                        asked_s[server] = time.monotonic()
            if any(awaited.values()):
                self._poll(deadline)
                if on_idle is not None:
                    on_idle()
        return Reading(
            versions=tuple(answers[server].readver for server in sorted(answers)),
            samples_seen=min(header.num_samples for header in answers.values()),
        )

    def _take(
        self,
        header: Header,
        payload: memoryview | None,
        *,
        out: Tensor,
        awaited: set[int],
        answers: dict[int, Header],
    ) -> None:
        if header.op == Op.REFUSED:
            raise PeerError("a server refuses this reader; it has been dismissed from the run")
        if header.op != Op.PARAMS or payload is None or header.clock != self._clock:
            return
        if header.segment in awaited:
            segment = self._layout.segments[header.segment]
            values = Received(header.kind, payload, segment.size)
            values.write_to(out[segment.start : segment.stop])
            answers[segment.server] = header
            awaited.discard(header.segment)

    def _header(self) -> Header:
        return Header(
            op=Op.PULL,
            worker=self._rank,
            generation=self._settings.generation,
            incarnation=self._incarnation,
            clock=self._clock,
        )

    def _poll(self, deadline: Deadline) -> None:
        poller = zmq.Poller()
        limit_ms = _POLL_MS
        for link in self._links.values():
            for source in link.sources:
                poller.register(source, zmq.POLLIN)
            if link.is_knocking:
                limit_ms = _KNOCK_MS
        poller.poll(min(limit_ms, deadline.remaining_ms))
        deadline.check()
