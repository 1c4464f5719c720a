"""Define the connection handshake of a parameter server, before any bulk data.

The client authenticates over a CURVE socket and receives the address of the bulk socket and, where
that one is plain, a token that opens one connection. The handshake socket is separate from the bulk
socket, so that a full pipe never keeps a client from connecting.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Literal

import msgspec

from phalanx.consistency.shards import ShardLayout

HANDSHAKE_BYTES = 1 << 12
"""Longest frame of the handshake socket."""

ClientRole = Literal["worker", "reader"]


@dataclass(frozen=True)
class ClientIdentity:
    """Owner of a key; a restarted worker gets a new key and the next incarnation."""

    role: ClientRole
    rank: int
    incarnation: int

    @property
    def name(self) -> str:
        """The name in counters and messages, such as worker-0."""
        return f"{self.role}-{self.rank}"

    @property
    def label(self) -> str:
        """The name with the incarnation; tokens are issued to it."""
        return f"{self.name}/{self.incarnation}"


class ConnectRequest(msgspec.Struct, frozen=True, tag=True):
    """Request for a bulk connection; every request is granted another one."""

    generation: int
    digest: int
    """Of the layout: both sides must cut the model in the same way."""


class ConnectAccepted(msgspec.Struct, frozen=True, tag=True):
    """Grant of a connection.

    Attributes:
        bulk: Address of the bulk socket.
        token: Opens one plain connection to it; None: it is a CURVE socket like this one.
        incarnation: How often this server has been started.
        known: Whether the worker is still entered at the server, so that it need not enter again.
        clock: At which a newcomer enters.
    """

    bulk: str
    token: str | None
    incarnation: int
    known: bool
    clock: int


class ConnectRejected(msgspec.Struct, frozen=True, tag=True):
    """Final rejection of a client."""

    reason: str


HandshakeReply = ConnectAccepted | ConnectRejected


def digest_of(layout: ShardLayout) -> int:
    """Return a number that two processes compare instead of whole layouts."""
    text = ";".join(f"{s.server},{s.start},{s.stop}" for s in layout.segments)
    return zlib.crc32(text.encode())
