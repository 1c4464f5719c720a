"""The outstanding push of a client: which segments are final, encoded, sent.

Sending passes memory to ZeroMQ's own thread and returns at once, so that segments are sent during
backward without a copy: the gradient must not change before the reply. With overlap it does change,
and pushes are sent from a copy.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from phalanx.consistency.shards import Segment, ShardLayout
from phalanx.paramserver.compression import Encoder
from phalanx.paramserver.connection import ServerConnections
from phalanx.wire.bulk import BulkOp, Flag, Header, Kind


class OutgoingPush:
    """Encode and send the segments of one gradient at a time.

    Args:
        layout: Shards and segments.
        gradients: The flat buffer.
        compression: Of what is sent, by name.
        overlap: Whether the buffer may change before the push is answered.
    """

    def __init__(
        self, layout: ShardLayout, gradients: Tensor, *, compression: str, overlap: bool
    ) -> None:
        self.first_sent_s: float | None = None
        """Time at which the first segment was sent, by `time.perf_counter`."""
        self.held_until_s = 0.0
        """Time until which the servers' rule held a reply back, by `time.perf_counter`."""
        self.num_begun = 0
        self._options = b""
        self.num_resent = 0
        self._layout = layout
        self._gradients = gradients
        self._staged = torch.empty_like(gradients) if overlap else None
        self._encoder = Encoder(compression, layout)
        self._missing: list[int] = []
        self._payloads: dict[int, memoryview | None] = {}
        self._unsent: dict[int, None] = {}
        self._brought: set[int] = set()  # segments that pushes of this batch have brought
        self._aside: set[int] = set()  # those that this push does not bring
        self._sent_s: dict[int, float] = {}

    @property
    def has_unsent(self) -> bool:
        """Whether segments wait for room in a pipe or for a connection."""
        return bool(self._unsent)

    @property
    def is_final(self) -> bool:
        """Whether every segment of the gradient is final."""
        return not any(self._missing)

    def begin(self, options: bytes = b"", *, continues: bool = False) -> None:
        """Begin a push; no part of its gradient is final yet.

        Args:
            options: Of the update, sent along; see `wire.push_options`.
            continues: Whether the push before was of the same batch.
        """
        self.num_begun += 1
        if not continues:
            self._brought.clear()
        self._aside.clear()
        self._options = options
        self.first_sent_s = None
        self.held_until_s = 0.0
        self._missing = [segment.size for segment in self._layout.segments]
        self._payloads.clear()
        self._sent_s.clear()

    def ready(self, start: int, stop: int) -> None:
        """Mark a slice of the gradient as final; encode the segments that are complete."""
        # From the back: backward finishes the last layers first.
        for index in reversed(self._layout.covering(start, stop)):
            segment = self._layout.segments[index]
            self._missing[index] -= min(stop, segment.stop) - max(start, segment.start)
            if self._missing[index] == 0:
                self._encode(segment)

    def finish(self) -> None:
        """Mark all other gradients as final."""
        for segment in reversed(self._layout.segments):
            if self._missing[segment.index] > 0:
                self._missing[segment.index] = 0
                self._encode(segment)

    def skip(self) -> None:
        """Push segments without a gradient, where no push of this batch has brought one."""
        for segment in self._layout.segments:
            self._leave_empty(segment, aside=segment.index in self._brought)

    def set_aside(self) -> None:
        """Leave all other segments to another push of this batch."""
        for segment in self._layout.segments:
            if self._missing[segment.index] > 0:
                self._leave_empty(segment, aside=True)

    def is_sent(self, index: int) -> bool:
        """Return whether a segment has been passed to ZeroMQ."""
        return self._missing[index] == 0 and index not in self._unsent

    def send(
        self, push: Header, connections: ServerConnections, versions: Mapping[int, int]
    ) -> None:
        """Send final segments that have not been sent; stops at each server whose pipe is full."""
        blocked: set[int] = set()
        for index in list(self._unsent):
            server = self._layout.segments[index].server
            if server in blocked:
                continue
            header, payload = self._message(push, index, versions[server])
            if connections[server].send(header, payload, self._options):
                del self._unsent[index]
                self._note_sent(server)
            else:
                blocked.add(server)

    def resend(self, segments: Iterable[int]) -> None:
        """Send final segments again that a server does not have."""
        for index in segments:
            if index in self._payloads:
                self.num_resent += 1
                self._unsent[index] = None

    def drop(self, index: int) -> None:
        """Stop sending a segment: it has been answered."""
        self._unsent.pop(index, None)

    def note_held(self, server: int, held_s: float) -> None:
        """Note how long a server held a reply back since it had the whole push."""
        # That time began when the last segment left here: clocks of machines are not compared.
        until_s = self._sent_s.get(server, 0.0) + held_s
        self.held_until_s = max(self.held_until_s, until_s)

    def _leave_empty(self, segment: Segment, *, aside: bool) -> None:
        self._missing[segment.index] = 0
        self._payloads[segment.index] = None
        self._unsent[segment.index] = None
        (self._aside if aside else self._brought).add(segment.index)

    def _encode(self, segment: Segment) -> None:
        self._brought.add(segment.index)
        gradient = self._gradients[segment.start : segment.stop]
        # Staged, because the next gradient overwrites the buffer during the transfer.
        if self._staged is not None:
            gradient = self._staged[segment.start : segment.stop].copy_(gradient)
        self._payloads[segment.index] = memory_of(self._encoder.encode(segment, gradient))
        self._unsent[segment.index] = None

    def _message(self, push: Header, index: int, version: int) -> tuple[Header, memoryview | None]:
        payload = self._payloads[index]
        header = Header(
            op=BulkOp.PUSH,
            worker=push.worker,
            generation=push.generation,
            incarnation=push.incarnation,
            clock=push.clock,
            readver=version,
            ticket=push.ticket,
            segment=index,
            kind=Kind.NOTHING if payload is None else self._encoder.kind,
            flags=push.flags | (Flag.ASIDE if index in self._aside else 0),
            num_samples=push.num_samples,
            weight=push.weight,
            num_bytes=0 if payload is None else payload.nbytes,
        )
        return header, payload

    def _note_sent(self, server: int) -> None:
        now_s = time.perf_counter()
        self._sent_s[server] = now_s
        if self.first_sent_s is None:
            self.first_sent_s = now_s


def memory_of(values: Tensor) -> memoryview:
    """Return the bytes of a tensor without copying them."""
    return values.view(torch.uint8).numpy().data
