"""Restore the slice of a restarted server from the copy of one worker: the donor's half.

A `Donation` is pure. It keeps its segments until the server has acknowledged them, and sends again
what a broken connection may have swallowed. It never changes: segments sent again are of the same
copy. `Donations` are those of one client, to several servers at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from phalanx.paramserver.connection import ServerConnections
from phalanx.paramserver.pulled import PulledParameters
from phalanx.paramserver.push import memory_of
from phalanx.wire.bulk import BulkOp, Header, Kind

# A server that was not told of the donation yet is asked again this soon.
_AGAIN_S = 0.1
# Without an answer for so long, one segment is sent again, whatever the connection says.
_SILENT_S = 5.0


@dataclass(frozen=True)
class CopiedSegment:
    """One segment of a copy, as it is sent."""

    header: Header
    payload: memoryview
    tickets: bytes


class Donation:
    """Copy for one server on its way.

    Args:
        number: Of the coordinator's request.
        segments: The copy; the donation owns its memory.
        now_s: The time.
    """

    def __init__(self, number: int, segments: Iterable[CopiedSegment], now_s: float) -> None:
        self.number = number
        self._segments = {one.header.segment: one for one in segments}
        self._unsent: dict[int, float] = dict.fromkeys(self._segments, now_s)
        self._moved_s = now_s

    @property
    def is_over(self) -> bool:
        """Whether the server has acknowledged every segment."""
        return not self._segments

    def due(self, now_s: float) -> list[CopiedSegment]:
        """Return the segments to send now, in order; call `sent` for each that was."""
        if not self._unsent and now_s - self._moved_s > _SILENT_S:
            self._unsent[min(self._segments)] = now_s
        return [self._segments[i] for i, due_s in self._unsent.items() if due_s <= now_s]

    def sent(self, segment: int, now_s: float) -> None:
        """Note that a segment has been passed on."""
        self._unsent.pop(segment, None)
        self._moved_s = now_s

    def acknowledged(self, segment: int, now_s: float) -> None:
        """Note that the server has a segment, or no longer wants it."""
        self._segments.pop(segment, None)
        self._unsent.pop(segment, None)
        self._moved_s = now_s

    def unexpected(self, segment: int, now_s: float) -> None:
        """Note that the server was not told of this donation when a segment arrived."""
        if segment in self._segments:
            self._unsent[segment] = now_s + _AGAIN_S

    def reconnected(self, now_s: float) -> None:
        """Send again what was under way: a break may have swallowed it."""
        self._unsent = dict.fromkeys(self._segments, now_s)


class Donations:
    """Copies that one client sends to servers.

    Args:
        connections: To the servers.
        pulled: The parameters held here.
    """

    def __init__(self, connections: ServerConnections, pulled: PulledParameters) -> None:
        self._connections = connections
        self._pulled = pulled
        self._by_server: dict[int, Donation] = {}

    def begin(self, server: int, number: int, sender: Header) -> None:
        """Copy what is held of a server's parameters, to be sent by `attend`.

        Args:
            server: Which one.
            number: Of the coordinator's request; one that was answered is not answered again.
            sender: Says who sends.
        """
        before = self._by_server.get(server)
        if before is not None and number <= before.number:
            return
        # Copies, because the next reply may overwrite the buffer before they are sent.
        segments = [
            CopiedSegment(
                msgspec.structs.replace(
                    sender,
                    op=BulkOp.LOAD,
                    clock=number,
                    segment=segment.index,
                    readver=self._pulled.versions[server],
                    kind=Kind.F32,
                    num_samples=contents.num_samples,
                    num_bytes=segment.size * 4,
                ),
                memory_of(values),
                contents.tickets,
            )
            for segment, values, contents in self._pulled.copy_of(server)
        ]
        self._by_server[server] = Donation(number, segments, time.monotonic())

    def attend(self) -> None:
        """Send what the connections take; the rest is sent by the next call."""
        now_s = time.monotonic()
        for server, donation in self._by_server.items():
            if donation.is_over:
                continue
            for one in donation.due(now_s):
                if not self._connections[server].send(one.header, one.payload, one.tickets):
                    break
                donation.sent(one.header.segment, now_s)

    def take(self, server: int, answer: Header) -> None:
        """Take a server's answer to a segment of a copy."""
        donation = self._by_server.get(server)
        if donation is None or answer.clock != donation.number:
            return
        if answer.op == BulkOp.LOADED:
            donation.acknowledged(answer.segment, time.monotonic())
        else:
            donation.unexpected(answer.segment, time.monotonic())

    def reconnected(self, server: int) -> None:
        """Send again what was under way to a server: its connection is a new one."""
        donation = self._by_server.get(server)
        if donation is not None:
            donation.reconnected(time.monotonic())
