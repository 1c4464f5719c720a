"""What is said at a server's door, before any bulk data: who comes, and where to go from here.

The door is a CURVE socket: whoever gets a message through holds a key of the run. It is small and
apart from the bulk socket, so that a full pipe never keeps anyone from being let in.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Literal

import msgspec

from phalanx.protocol.shards import Layout

Role = Literal["worker", "reader"]


@dataclass(frozen=True)
class Peer:
    """Whom a key belongs to; a restarted worker gets a new key and the next incarnation."""

    role: Role
    rank: int
    incarnation: int

    @property
    def name(self) -> str:
        """For counters and messages, such as worker-0."""
        return f"{self.role}-{self.rank}"


class Knock(msgspec.Struct, frozen=True, tag=True):
    """A peer wants a connection; asked again, it gets another."""

    generation: int
    digest: int
    """Of the layout: both sides must cut the model alike."""


class Welcome(msgspec.Struct, frozen=True, tag=True):
    """Where bulk data goes.

    Attributes:
        bulk: Address of the bulk socket.
        token: Opens one plain connection to it; None: it is a CURVE socket like the door.
        incarnation: How often this server has been started.
        known: Whether the worker's seat is still there, so that it need not enter again.
        clock: Where a newcomer fits in.
    """

    bulk: str
    token: str | None
    incarnation: int
    known: bool
    clock: int


class Refusal(msgspec.Struct, frozen=True, tag=True):
    """The peer has no business here."""

    reason: str


FromServer = Welcome | Refusal


def digest_of(layout: Layout) -> int:
    """A number that two processes compare instead of whole layouts."""
    text = ";".join(f"{s.server},{s.start},{s.stop}" for s in layout.segments)
    return zlib.crc32(text.encode())
