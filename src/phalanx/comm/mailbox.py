"""Messages from one member of a group to another: a sender waits until its receiver is ready.

Runs in the thread of the exchange. Nothing is sent that nobody waits for, so messages need no
memory besides their tensors, in whatever order the two sides post them.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque

from phalanx.comm.exchanges import (
    Exchange,
    IncomingMessage,
    OutgoingMessage,
    Put,
    misplaced,
)
from phalanx.comm.frames import FrameHeader

_Slot = tuple[int, int]


class Mailbox:
    """Messages under way, by member and tag; each tag keeps its order."""

    def __init__(self) -> None:
        self._outgoing: dict[_Slot, deque[OutgoingMessage]] = defaultdict(deque)
        self._incoming: dict[_Slot, deque[IncomingMessage]] = defaultdict(deque)
        self._ready: Counter[_Slot] = Counter()

    def send(self, message: OutgoingMessage, target: int, put: Put) -> None:
        """Send a message as soon as its target waits for it."""
        slot = (target, message.number)
        self._outgoing[slot].append(message)
        self._match(slot, put)

    def receive(self, message: IncomingMessage, source: int, put: Put) -> None:
        """Wait for a message, and say so."""
        message.begin(put)
        if not message.finished.is_set():
            self._incoming[source, message.number].append(message)

    def ready(self, rank: int, header: FrameHeader, put: Put) -> None:
        """Note that a member waits for a message."""
        slot = (rank, header.number)
        self._ready[slot] += 1
        self._match(slot, put)

    def awaited(self, rank: int, header: FrameHeader) -> IncomingMessage:
        """Return the message that a frame belongs to.

        Raises:
            ProtocolError: None.
        """
        queue = self._incoming.get((rank, header.number))
        if not queue:
            raise misplaced(header)
        return queue[0]

    def arrived(self, rank: int, header: FrameHeader) -> None:
        """Handle a part of a message."""
        message = self.awaited(rank, header)
        message.arrived(rank, header)
        if message.finished.is_set():
            self._incoming[rank, header.number].popleft()

    def pending(self) -> list[Exchange]:
        """Return the messages that are not over."""
        outgoing = [one for queue in self._outgoing.values() for one in queue]
        return [*outgoing, *(one for queue in self._incoming.values() for one in queue)]

    def _match(self, slot: _Slot, put: Put) -> None:
        while self._ready[slot] and self._outgoing[slot]:
            self._ready[slot] -= 1
            self._outgoing[slot].popleft().begin(put)
