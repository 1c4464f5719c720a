"""Assemble the parameters that servers send: which segments are awaited, which version is held.

Where copies must be whole, the segments of a server are written only when all have arrived: the
buffer then holds one version of each server, and can restore a server that was lost. Each segment
comes with the batches behind it, so that a restored server knows what its parameters contain.
"""

from __future__ import annotations

from torch import Tensor

from phalanx.consistency.shards import Segment, ShardLayout
from phalanx.paramserver.compression import Received
from phalanx.paramserver.ledger import SegmentTickets
from phalanx.wire.bulk import Flag, Header


class PulledParameters:
    """Write replies into the flat parameters.

    Args:
        layout: Shards and segments.
        parameters: The flat buffer.
        whole: Whether a server's parameters are written only all at once.
        version: Of what the buffer holds already.
        samples_seen: Behind it.
    """

    def __init__(
        self,
        layout: ShardLayout,
        parameters: Tensor,
        *,
        whole: bool,
        version: int,
        samples_seen: int,
    ) -> None:
        self.awaited: set[int] = set()
        """Segments without a reply."""
        self.versions = dict.fromkeys(range(layout.num_servers), version)
        """The version of each server's parameters that is held."""
        self.samples_seen = samples_seen
        self.num_dropped = 0
        self._layout = layout
        self._parameters = parameters
        self._sizes = {
            server: len(layout.of_server(server)) if whole else 1
            for server in range(layout.num_servers)
        }
        self._received: dict[int, dict[int, tuple[Received, SegmentTickets]]] = {}
        self._contents = [SegmentTickets(b"", samples_seen)] * len(layout.segments)
        self._num_awaited = dict.fromkeys(range(layout.num_servers), 0)

    def expect_all(self) -> None:
        """Await every segment of every server."""
        self.awaited = set(range(len(self._layout.segments)))
        for server in self._num_awaited:
            self._num_awaited[server] = len(self._layout.of_server(server))

    def expect_again(self, server: int) -> None:
        """Await all segments of a server, even those that arrived: they are of another version."""
        own = self._layout.of_server(server)
        self.awaited.update(segment.index for segment in own)
        self._num_awaited[server] = len(own)
        self._received.pop(server, None)

    def awaits(self, server: int) -> bool:
        """Return whether replies of a server are missing."""
        return self._num_awaited[server] > 0

    @property
    def awaited_servers(self) -> set[int]:
        """Servers whose replies are missing."""
        return {server for server, count in self._num_awaited.items() if count > 0}

    def take(self, header: Header, payload: memoryview, tickets: bytes) -> None:
        """Take one segment's parameters from a reply, with the batches behind them."""
        segment = self._layout.segments[header.segment]
        self.num_dropped += header.flags & Flag.DROPPED
        self.samples_seen = max(self.samples_seen, header.num_samples)
        received = self._received.setdefault(segment.server, {})
        values = Received(header.kind, payload, segment.size)
        received[segment.index] = values, SegmentTickets(tickets, header.num_samples)
        # Where copies must be whole, only with the last segment: never a mix of two versions.
        if len(received) >= self._sizes[segment.server]:
            for index, (values, contents) in received.items():
                values.write_to(self._slice(self._layout.segments[index]))
                self._contents[index] = contents
            received.clear()
        self.settle(header)

    def settle(self, header: Header) -> None:
        """Stop awaiting a segment: it has arrived, or the buffer holds it already."""
        server = self._layout.segments[header.segment].server
        if header.segment in self.awaited:
            self.awaited.discard(header.segment)
            self._num_awaited[server] -= 1
        # Only now is all of the server's slice of that version.
        if not self.awaits(server):
            self.versions[server] = header.readver

    def copy_of(self, server: int) -> list[tuple[Segment, Tensor, SegmentTickets]]:
        """Return copies of a server's segments, as the buffer holds them, and their contents."""
        return [
            (segment, self._slice(segment).clone(), self._contents[segment.index])
            for segment in self._layout.of_server(server)
        ]

    def _slice(self, segment: Segment) -> Tensor:
        return self._parameters[segment.start : segment.stop]
