"""Read the parameters of all servers without taking part in training.

A reader pulls whole shards, each as it was at one moment, in full precision. No server waits for
it, and it may connect, disconnect or freeze at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from phalanx.consistency.shards import ShardLayout
from phalanx.errors import PeerError
from phalanx.paramserver.compression import Received
from phalanx.paramserver.connection import ConnectionSettings, ServerConnections
from phalanx.wire.bulk import BulkOp, Header
from phalanx.wire.deadline import Deadline
from phalanx.wire.keys import KeyPair
from phalanx.wire.parameter_server import ServerAddress

_ASK_AFTER_S = 1.0


@dataclass(frozen=True)
class Reading:
    """Version of each server, and the samples behind the oldest of them."""

    versions: tuple[int, ...]
    samples_seen: int


class Reader:
    """Pull parameters; use as a context manager, from one thread.

    Args:
        layout: Shards and segments.
        servers: Their addresses.
        keys: Keys of the reader.
        rank: Its number among the readers.
        incarnation: How often it has been started.
        generation: Of the run.
    """

    def __init__(
        self,
        layout: ShardLayout,
        servers: Sequence[ServerAddress],
        *,
        keys: KeyPair,
        rank: int = 0,
        incarnation: int = 1,
        generation: int = 0,
    ) -> None:
        self._layout = layout
        self._connections = ServerConnections(
            servers,
            num_servers=layout.num_servers,
            settings=ConnectionSettings.of(layout, keys=keys, generation=generation),
        )
        self._generation = generation
        self._rank = rank
        self._incarnation = incarnation
        self._clock = 0

    def __enter__(self) -> Reader:
        self._connections.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._connections.__exit__(*exception)

    @property
    def unreachable(self) -> list[int]:
        """Servers without a connection."""
        return self._connections.unreachable

    def relocate(self, address: ServerAddress) -> None:
        """Connect to a server's successor."""
        self._connections[address.server].relocate(address)

    def pull(
        self, out: Tensor, deadline: Deadline, on_idle: Callable[[], None] | None = None
    ) -> Reading:
        """Fill a flat buffer with the present parameters of all servers.

        Args:
            out: The buffer.
            deadline: When to give up.
            on_idle: Called several times a second meanwhile; may call `relocate`.

        Raises:
            TimeoutExpired: A server did not reply in time; `out` may hold a part.
            PeerError: A server refuses this reader.
        """
        self._clock += 1
        awaited = {
            connection.server: {s.index for s in self._layout.of_server(connection.server)}
            for connection in self._connections
        }
        answers: dict[int, Header] = {}
        asked_s = dict.fromkeys(awaited, 0.0)
        while any(awaited.values()):
            for connection in self._connections:
                server = connection.server
                if connection.service():
                    asked_s[server] = 0.0
                while (message := connection.receive()) is not None:
                    self._take(*message, out=out, awaited=awaited[server], answers=answers)
                    asked_s[server] = time.monotonic()
                if awaited[server] and time.monotonic() - asked_s[server] > _ASK_AFTER_S:
                    # One shard is of one moment: after a break, all of it is read again.
                    awaited[server] = {s.index for s in self._layout.of_server(server)}
                    if connection.send(self._header()):
                        asked_s[server] = time.monotonic()
            if any(awaited.values()):
                self._connections.poll(deadline)
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
        _tickets: bytes,
        *,
        out: Tensor,
        awaited: set[int],
        answers: dict[int, Header],
    ) -> None:
        if header.op == BulkOp.REFUSED:
            raise PeerError("a server refuses this reader; it has been dismissed from the run")
        if header.op != BulkOp.PARAMS or payload is None or header.clock != self._clock:
            return
        if header.segment in awaited:
            segment = self._layout.segments[header.segment]
            values = Received(header.kind, payload, segment.size)
            values.write_to(out[segment.start : segment.stop])
            answers[segment.server] = header
            awaited.discard(header.segment)

    def _header(self) -> Header:
        return Header(
            op=BulkOp.PULL,
            worker=self._rank,
            generation=self._generation,
            incarnation=self._incarnation,
            clock=self._clock,
        )
