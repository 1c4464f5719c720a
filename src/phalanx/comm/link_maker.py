"""Make the links of a group: connect, listen, prove, and turn strangers away.

Runs in the thread of the exchange. The listener stays open while the group lives, so that whoever
comes late is counted as well; once all members have come nobody is let in.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Mapping

from phalanx.comm.io_loop import READ, WRITE, IoLoop, Timer
from phalanx.comm.pairing import (
    Handshake,
    MemberCard,
    MemberPair,
    ProvenPeer,
    greet,
    receive_greeting,
)
from phalanx.wire.noise import ProofError

HANDSHAKE_S = 5.0
"""Time in which a handshake must be over."""
MOST_STRANGERS = 64
"""Connections that have not proved anything; one more ends the oldest."""
# Between two attempts to reach a member.
_RETRY_S = 0.1
_BACKLOG = 128


class _Proving:
    """One connection whose handshake is under way."""

    def __init__(
        self,
        loop: IoLoop,
        sock: socket.socket,
        handshake: Handshake,
        *,
        on_proven: Callable[[ProvenPeer, socket.socket], None],
        on_failed: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._socket = sock
        self._handshake = handshake
        self._on_proven = on_proven
        self._on_failed = on_failed
        self._received = bytearray()
        self._num_wanted = 0
        self._timer: Timer = loop.after(HANDSHAKE_S, lambda: self.fail("silent"))
        self._is_over = False

    def connect(self, address: tuple[str, int]) -> None:
        """Begin as the side that greets."""
        try:
            self._socket.connect_ex(address)
        except OSError:  # the address itself is none
            self._loop.call(lambda: self.fail("unreachable"))
        self._loop.watch(self._socket, WRITE, self._on_connected)

    def listen(self) -> None:
        """Begin as the side that is greeted."""
        self._loop.watch(self._socket, READ, self._on_readable)
        self._take(next(self._handshake))

    def fail(self, reason: str) -> None:
        """Drop the connection."""
        if not self._is_over:
            self._end()
            self._socket.close()
            self._on_failed(reason)

    def _end(self) -> None:
        self._is_over = True
        self._timer.cancel()
        self._loop.forget(self._socket)
        self._handshake.close()

    def _on_connected(self, events: int) -> None:
        if self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.fail("unreachable")
            return
        self._loop.change(self._socket, READ, self._on_readable)
        self._take(next(self._handshake))

    def _on_readable(self, events: int) -> None:
        try:
            # Never more than this turn: what follows the last one are frames.
            data = self._socket.recv(self._num_wanted - len(self._received))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.fail("no greeting")
            return
        self._received += data
        if len(self._received) == self._num_wanted:
            message = bytes(self._received)
            self._received.clear()
            self._advance(message)

    def _advance(self, message: bytes) -> None:
        try:
            turn = self._handshake.send(message)
            self._take(turn)
            if not self._is_over and turn.receive == 0:
                self._handshake.send(b"")
        except ProofError:
            self.fail("no proof")
        except StopIteration as proven:
            self._end()
            self._on_proven(proven.value, self._socket)

    def _take(self, turn: tuple[bytes, int]) -> None:
        """Send what a turn says; so few bytes fit into any connection, or it is none."""
        data, self._num_wanted = turn
        try:
            if data and self._socket.send(data) < len(data):
                self.fail("no greeting")
        except OSError:
            self.fail("no greeting")


class LinkMaker:
    """Listener of a group, its connections to members, and the count of those it refused.

    Args:
        loop: Of the group.
        host: Local address to listen at.
        on_refused: Called with the number of those who were turned away, by reason: soon after the
            first, whenever there are twice as many, and at the end.
    """

    def __init__(self, loop: IoLoop, host: str, on_refused: Callable[[Counter[str]], None]) -> None:
        self._loop = loop
        self._on_refused = on_refused
        self._proving: dict[_Proving, None] = {}
        self._greeting: dict[int, _Proving] = {}
        self._pairs: Mapping[int, MemberPair] = {}
        self._rank = 0
        self._on_link: Callable[[ProvenPeer, socket.socket], None] | None = None
        self._is_closed = False
        self._is_listening = False
        self._listener = socket.create_server((host, 0), backlog=_BACKLOG)
        self._listener.setblocking(False)
        self.host = host
        self.port: int = self._listener.getsockname()[1]
        self.refused: Counter[str] = Counter()
        self._num_reported = 0

    def start(
        self,
        rank: int,
        pairs: Mapping[int, MemberPair],
        cards: Mapping[int, MemberCard],
        on_link: Callable[[ProvenPeer, socket.socket], None],
    ) -> None:
        """Connect to the members of lower rank, and await those of higher rank.

        Args:
            rank: Of this member.
            pairs: With every other member.
            cards: Of every other member.
            on_link: Called with each proven peer; the socket is its own from then on.
        """
        self._rank, self._on_link = rank, on_link
        self._pairs = {other: pair for other, pair in pairs.items() if other > rank}
        self._listen()
        for other, pair in pairs.items():
            if other < rank:
                self._connect(pair, (cards[other].host, cards[other].port))

    def admit_nobody(self) -> None:
        """Refuse everyone from now on: all members have come."""
        self._pairs = {}

    def close(self) -> None:
        """Stop listening, and drop every connection that has proved nothing."""
        self._is_closed = True
        for one in [*self._proving, *self._greeting.values()]:
            one.fail("closed")
        if self._is_listening:
            self._loop.forget(self._listener)
        self._listener.close()
        if self.refused.total() > self._num_reported:
            self._on_refused(self.refused)

    def _listen(self) -> None:
        if not self._is_closed:
            self._is_listening = True
            self._loop.watch(self._listener, READ, self._on_connection)

    def _connect(self, pair: MemberPair, address: tuple[str, int]) -> None:
        if self._is_closed:
            return
        sock = socket.socket()
        _prepare(sock)

        def proven(peer: ProvenPeer, sock: socket.socket) -> None:
            del self._greeting[pair.rank]
            self._link(peer, sock)

        def failed(reason: str) -> None:
            self._greeting.pop(pair.rank, None)
            if reason == "no proof":
                self._refuse("impostor")
            # Its listener may have been full of strangers, or its machine out of reach for long
            # enough: the deadline of the group decides when to give up.
            self._loop.after(_RETRY_S, lambda: self._connect(pair, address))

        one = _Proving(
            self._loop, sock, greet(self._rank, pair), on_proven=proven, on_failed=failed
        )
        self._greeting[pair.rank] = one
        one.connect(address)

    def _on_connection(self, events: int) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):  # gone again
            return
        except OSError:  # no descriptor is free, and the listener would stay readable
            self._is_listening = False
            self._loop.forget(self._listener)
            self._loop.after(_RETRY_S, self._listen)
            return
        _prepare(sock)
        if len(self._proving) >= MOST_STRANGERS:
            next(iter(self._proving)).fail("crowded out")

        def proven(peer: ProvenPeer, sock: socket.socket) -> None:
            del self._proving[one]
            if peer.rank in self._pairs:
                self._link(peer, sock)
            else:
                sock.close()

        def failed(reason: str) -> None:
            del self._proving[one]
            self._refuse(reason)

        one = _Proving(
            self._loop,
            sock,
            receive_greeting(self._pairs),
            on_proven=proven,
            on_failed=failed,
        )
        self._proving[one] = None
        one.listen()

    def _link(self, peer: ProvenPeer, sock: socket.socket) -> None:
        assert self._on_link is not None, "links are made after start"
        self._on_link(peer, sock)

    def _refuse(self, reason: str) -> None:
        if not self._is_closed:
            self.refused[reason] += 1
            # A flood must not fill the records.
            if self.refused.total() >= 2 * self._num_reported:
                self._num_reported = self.refused.total()
                self._on_refused(self.refused)


def _prepare(sock: socket.socket) -> None:
    sock.setblocking(False)
    # Frames are whole already: the last one of an exchange must not wait for an acknowledgement.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
