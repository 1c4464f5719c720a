"""Traffic of a group over its links: frames to exchanges, and what the end of a link means.

Runs in the thread of the exchange, but for `check` and the figures, which any thread may read.
"""

from __future__ import annotations

import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from phalanx.comm.exchanges import Exchange, IncomingMessage, OutgoingMessage, misplaced
from phalanx.comm.frames import FrameHeader, FrameKind
from phalanx.comm.io_loop import IoLoop
from phalanx.comm.link import PeerLink
from phalanx.comm.mailbox import Mailbox
from phalanx.comm.pairing import ProvenPeer
from phalanx.comm.peer_news import PeerNews
from phalanx.errors import PeerError

MOST_EARLY_BYTES = 1 << 26
"""Bytes of exchanges that this member has not begun; beyond them links are not read on."""
# A lost member breaks all its links within this time: by then it is told from those who left
# because of it.
_SETTLE_S = 0.05
# How long the others have to read why this member left.
_FAREWELL_S = 0.5
ANSWER_S = 0.25
"""How long the others have to say whom they wait for in an exchange that does not go on."""


# Frames that belong to no exchange of their own; what they bring is kept until it is read.
_OF_THE_GROUP = (FrameKind.READY, FrameKind.FAREWELL, FrameKind.STUCK)


class _EarlyFrames:
    """Frames of exchanges that this member has not begun, within a limit."""

    def __init__(self) -> None:
        self._frames: dict[int, list[tuple[int, FrameHeader, memoryview]]] = defaultdict(list)
        self._num_bytes = 0

    def has_room(self, num_bytes: int) -> bool:
        return self._num_bytes + num_bytes <= MOST_EARLY_BYTES

    def put(self, rank: int, header: FrameHeader, payload: memoryview) -> None:
        self._num_bytes += header.num_bytes
        self._frames[header.number].append((rank, header, payload))

    def take(self, number: int) -> list[tuple[int, FrameHeader, memoryview]]:
        frames = self._frames.pop(number, [])
        self._num_bytes -= sum(header.num_bytes for _, header, _ in frames)
        return frames


class GroupTraffic:
    """Links of a group, the exchanges on them, and its failure, once it has failed.

    Attributes:
        names: Of the members, by rank.
        sent_bytes: Handed to links so far.
        moved_s: When bytes moved last, in either direction, on the monotonic clock.

    Args:
        loop: Whose thread moves the bytes.
        names: Of the members, by rank.
        rank: Of this member.
    """

    def __init__(self, loop: IoLoop, names: Sequence[str], rank: int) -> None:
        self.names = tuple(names)
        self.sent_bytes = 0
        self.moved_s = 0.0
        self._loop = loop
        self._links: dict[int, PeerLink] = {}
        self._exchanges: dict[int, Exchange] = {}
        self._mailbox = Mailbox()
        self._early = _EarlyFrames()
        self._placed: dict[int, memoryview] = {}
        self._news = PeerNews(self.names, rank)
        self._error: PeerError | None = None
        self._touched: set[int] = set()
        self._num_begun = 0
        self._stuck: int | None = None
        self._is_settling = False

    def check(self) -> None:
        """Raise the error that the group has failed with, if it has."""
        if self._error is not None:
            raise self._error

    def missing(self) -> list[int]:
        """Return the ranks without a link, this member's own among them."""
        return [rank for rank in range(len(self.names)) if rank not in self._links]

    def add(self, peer: ProvenPeer, sock: socket.socket) -> bool:
        """Take the link to a member; returns whether all are there."""
        known = self._links.pop(peer.rank, None)
        if known is not None:
            # It connected again, so it does not know of the first one.
            known.close()
        link = PeerLink(peer.rank, sock, peer.ciphers)
        self._links[peer.rank] = link
        link.start(self._loop, self)
        return len(self._links) == len(self.names) - 1

    def begin(self, exchange: Exchange) -> None:
        """Begin an exchange; what has come of it already is taken."""
        if self._error is not None:
            exchange.fail(self._error)
            return
        self._exchanges[exchange.number] = exchange
        self._num_begun = exchange.number + 1
        exchange.begin(self._put)
        self._take_early(exchange)
        self._flush()
        for link in list(self._links.values()):
            link.resume()
        self._check_lost()

    def send(self, message: OutgoingMessage, target: int) -> None:
        """Send a message once its target waits for it."""
        if self._error is not None:
            message.fail(self._error)
            return
        self._mailbox.send(message, target, self._put)
        self._flush()
        self._check_lost()

    def receive(self, message: IncomingMessage, source: int) -> None:
        """Wait for a message."""
        if self._error is not None:
            message.fail(self._error)
            return
        self._mailbox.receive(message, source, self._put)
        self._flush()
        self._check_lost()

    def expire(self, exchange: Exchange, limit_s: float) -> None:
        """Fail because nothing has moved for so long, unless the exchange has ended meanwhile.

        Of an exchange of all members the others are asked first whom they wait for.
        """
        if exchange.finished.is_set():
            return
        if self._exchanges.get(exchange.number) is exchange:
            self._say_stuck(exchange)
            self._loop.after(ANSWER_S, partial(self._give_up, exchange, limit_s))
        else:
            self._blame(exchange, exchange.suspects(), limit_s)

    def fail(self, error: PeerError) -> None:
        """End everything under way with an error, and tell the others whom it is about."""
        if self._error is not None:
            return
        self._error = error
        payload = ",".join(error.facts.get("suspects", ())).encode()
        header = FrameHeader(FrameKind.FAREWELL, len(payload), 0, 0)
        for link in self._links.values():
            link.part(header, memoryview(payload))
        for exchange in [*self._exchanges.values(), *self._mailbox.pending()]:
            exchange.fail(error)
        self._forget_all()
        self._loop.after(_FAREWELL_S, self._close_links)

    def close(self) -> None:
        """Leave the group: whatever is still under way fails."""
        closed = PeerError("the group was closed", suspects=())
        for exchange in [*self._exchanges.values(), *self._mailbox.pending()]:
            exchange.fail(closed)
        self._error = self._error or closed
        self._forget_all()
        self._close_links()

    def place(self, rank: int, header: FrameHeader) -> memoryview | None:
        """Return where the payload of a frame goes; None: not now, read no further."""
        if header.kind is FrameKind.MESSAGE:
            return self._mailbox.awaited(rank, header).place(rank, header)
        if header.kind in _OF_THE_GROUP:
            self._placed[rank] = memoryview(bytearray(header.num_bytes))
            return self._placed[rank]
        exchange = self._exchanges.get(header.number)
        if exchange is not None:
            return exchange.place(rank, header)
        if header.number < self._num_begun:
            raise misplaced(header)
        if not self._early.has_room(header.num_bytes):
            return None
        self._placed[rank] = memoryview(bytearray(header.num_bytes))
        return self._placed[rank]

    def arrived(self, rank: int, header: FrameHeader) -> None:
        """Handle a frame whose payload is in its place, whole and checked."""
        kept = self._placed.pop(rank, None)
        if header.kind is FrameKind.MESSAGE:
            self._mailbox.arrived(rank, header)
        elif header.kind is FrameKind.READY:
            self._mailbox.ready(rank, header, self._put)
        elif header.kind is FrameKind.FAREWELL:
            self._news.hear_farewell(rank, bytes(kept or b""))
            self._check_lost()
        elif header.kind is FrameKind.STUCK:
            self._news.hear_stuck(rank, header.number, bytes(kept or b""))
            if header.number in self._exchanges:
                self._say_stuck(self._exchanges[header.number])
        elif kept is not None and header.number >= self._num_begun:
            self._early.put(rank, header, kept)
        elif kept is not None:
            # Its exchange has begun while it came.
            self._take_kept(self._exchanges[header.number], rank, header, kept)
        else:
            self._exchanges[header.number].arrived(rank, header)
        self._flush()

    def lost(self, rank: int, error: PeerError | None) -> None:
        """Handle the end of a link; None: the peer closed it between two frames."""
        self._news.lost[rank] = str(error) if error is not None else "it has left the group"
        self._check_lost()

    def moved(self, num_sent: int) -> None:
        """Note that bytes moved; those that were sent are counted."""
        self.sent_bytes += num_sent
        self.moved_s = time.monotonic()

    def _put(
        self, rank: int, header: FrameHeader, payload: memoryview, on_left: Callable[[], None]
    ) -> None:
        self._links[rank].put(header, payload, on_left)
        self._touched.add(rank)

    def _flush(self) -> None:
        """Write what was put; only now, so that no exchange is over before all of it is queued."""
        while self._touched:
            self._links[self._touched.pop()].flush()
        for number in [n for n, one in self._exchanges.items() if one.finished.is_set()]:
            del self._exchanges[number]

    def _take_early(self, exchange: Exchange) -> None:
        for rank, header, payload in self._early.take(exchange.number):
            try:
                self._take_kept(exchange, rank, header, payload)
            except PeerError as error:
                self._links[rank].close()
                self.lost(rank, error)
                return

    def _take_kept(
        self, exchange: Exchange, rank: int, header: FrameHeader, payload: memoryview
    ) -> None:
        exchange.place(rank, header)[:] = payload
        exchange.arrived(rank, header)

    def _check_lost(self) -> None:
        """Fail soon, if an exchange waits for somebody who is gone."""
        if self._error is None and not self._is_settling and self._hopeless():
            self._is_settling = True
            self._loop.after(_SETTLE_S, self._conclude)

    def _hopeless(self) -> Exchange | None:
        gone, left = self._news.gone, bool(self._news.farewells)
        pending = [*self._exchanges.values(), *self._mailbox.pending()]
        open_ones = (one for one in pending if not one.finished.is_set())
        return next(
            (one for one in open_ones if one.waits_for() & gone or (left and one.needs_everybody)),
            None,
        )

    def _conclude(self) -> None:
        self._is_settling = False
        exchange = self._hopeless()
        if exchange is None or self._error is not None:
            return
        culprits = self._news.broken()
        if culprits and exchange.waits_for() & self._news.gone:
            suspects = self._names_of(culprits)
            what = "; ".join(f"{self.names[rank]}: {why}" for rank, why in culprits.items())
        else:
            suspects = self._names_of(self._news.named_by_farewells())
            who = ", ".join(self._names_of(self._news.farewells))
            what = f"{who} gave the group up, having waited for {', '.join(suspects) or 'nobody'}"
        self.fail(PeerError(f"{exchange.activity} broke off: {what}", suspects=suspects))

    def _say_stuck(self, exchange: Exchange) -> None:
        """Tell all others, once, whom this member waits for in an exchange."""
        if self._stuck == exchange.number or exchange.finished.is_set():
            return
        self._stuck = exchange.number
        payload = self._news.pack(exchange.suspects())
        header = FrameHeader(FrameKind.STUCK, len(payload), exchange.number, 0)
        for rank in self._links:
            self._put(rank, header, memoryview(payload), lambda: None)
        self._flush()

    def _give_up(self, exchange: Exchange, limit_s: float) -> None:
        """Fail, in the name of those who keep all from going on, if it still does not."""
        if not exchange.finished.is_set():
            silent = self._news.silent(exchange.number, exchange.suspects())
            self._blame(exchange, silent, limit_s)

    def _blame(self, exchange: Exchange, ranks: Iterable[int], limit_s: float) -> None:
        suspects = self._names_of(ranks)
        self.fail(
            PeerError(
                f"{exchange.activity} broke off: waited for {', '.join(suspects)}, and nothing "
                f"moved for {limit_s:g} s (limit by deadlines.exchange_s)",
                suspects=suspects,
            )
        )

    def _names_of(self, ranks: Iterable[int]) -> tuple[str, ...]:
        return tuple(self.names[rank] for rank in sorted(ranks))

    def _forget_all(self) -> None:
        self._exchanges.clear()
        self._early = _EarlyFrames()
        self._touched.clear()
        self._mailbox = Mailbox()

    def _close_links(self) -> None:
        for link in self._links.values():
            link.close()
