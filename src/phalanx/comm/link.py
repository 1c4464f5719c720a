"""One authenticated connection between two members of a group: frames out, frames in.

Runs in the thread of the exchange. What a frame means is the group's affair: it says where a
payload goes, and is told when it is there.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from functools import partial
from typing import Protocol

from phalanx.comm.frame_stream import EMPTY, FrameReader, FrameWriter, ReadOutcome
from phalanx.comm.frames import FrameCipher, FrameHeader
from phalanx.comm.io_loop import READ, WRITE, IoLoop
from phalanx.errors import PeerError

# Frames read or written in a row before other links get a turn.
_MOST_FRAMES = 16


class LinkOwner(Protocol):
    """The group that a link belongs to."""

    def place(self, rank: int, header: FrameHeader) -> memoryview | None:
        """Return where the payload of a frame goes; None: not now, read no further."""

    def arrived(self, rank: int, header: FrameHeader) -> None:
        """Handle a frame whose payload is in its place, whole and checked."""

    def lost(self, rank: int, error: PeerError | None) -> None:
        """Handle the end of a link; None: the peer closed it between two frames."""

    def moved(self, num_sent: int) -> None:
        """Note that bytes moved; those that were sent are counted."""


class PeerLink:
    """A link to one member.

    Args:
        rank: Of that member in the group.
        sock: The connection, after its handshake.
        ciphers: For what is sent and what is received; None: frames are plain.
    """

    def __init__(
        self, rank: int, sock: socket.socket, ciphers: tuple[FrameCipher, FrameCipher] | None
    ) -> None:
        self.rank = rank
        self._socket = sock
        sealing, opening = ciphers if ciphers is not None else (None, None)
        self._writer = FrameWriter(sock, sealing)
        self._reader = FrameReader(sock, opening)
        self._is_open = True
        self._events = 0

    @property
    def is_idle(self) -> bool:
        """Whether everything that was put has left this process."""
        return self._writer.is_idle

    def start(self, loop: IoLoop, owner: LinkOwner) -> None:
        """Begin to read and write."""
        self._loop, self._owner = loop, owner
        self._place = partial(owner.place, self.rank)
        self._arrived = partial(owner.arrived, self.rank)
        self._watch(reads=True)

    def put(
        self,
        header: FrameHeader,
        payload: memoryview = EMPTY,
        on_left: Callable[[], None] | None = None,
    ) -> None:
        """Queue a frame; its payload must not change until `on_left` was called."""
        self._writer.put(header, payload, on_left)

    def flush(self) -> None:
        """Write what can be written now; the rest follows when the peer has read."""
        if self._is_open:
            self._attempt(self._write)

    def resume(self) -> None:
        """Read on, after `place` had said not now."""
        if self._is_open and not self._events & READ:
            self._attempt(self._read)

    def part(self, header: FrameHeader, payload: memoryview) -> None:
        """Stop at once, with a last frame if none is half sent; nothing is read any more."""
        if not self._is_open:
            return
        if self._events:
            self._loop.forget(self._socket)
            self._events = 0
        self._is_open = False
        self._writer.drop_queued()
        if self._writer.is_idle:
            self._writer.put(header, payload, None)
            # A last word: whoever is gone, or takes nothing now, does without.
            with contextlib.suppress(OSError):
                self._writer.write()
                self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Drop the connection, and what has not been sent."""
        self._is_open = False
        if self._events:
            self._loop.forget(self._socket)
            self._events = 0
        self._socket.close()
        self._writer.clear()

    def _on_event(self, events: int) -> None:
        if events & READ and self._is_open:
            self._attempt(self._read)
        if events & WRITE and self._is_open:
            self._attempt(self._write)

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except PeerError as error:
            self.close()
            self._owner.lost(self.rank, error)
        except OSError as error:
            self.close()
            self._owner.lost(self.rank, PeerError(f"its connection broke: {error.strerror}"))

    def _watch(self, *, reads: bool) -> None:
        """Watch for what this link waits for; nothing: not at all."""
        events = (READ if reads else 0) | (0 if self._writer.is_idle else WRITE)
        if events == self._events or not self._is_open:
            return
        if not events:
            self._loop.forget(self._socket)
        elif self._events:
            self._loop.change(self._socket, events, self._on_event)
        else:
            self._loop.watch(self._socket, events, self._on_event)
        self._events = events

    def _write(self) -> None:
        try:
            for _ in range(_MOST_FRAMES):
                if self._writer.is_idle:
                    break
                self._owner.moved(self._writer.write())
        except BlockingIOError:
            pass
        self._watch(reads=bool(self._events & READ))

    def _read(self) -> None:
        reads = True
        try:
            for _ in range(_MOST_FRAMES):
                outcome = self._reader.read(self._place, self._arrived)
                self._owner.moved(0)
                if not self._is_open:
                    return
                if outcome is ReadOutcome.END:
                    self.close()
                    self._owner.lost(self.rank, None)
                    return
                if outcome is ReadOutcome.NOT_NOW:
                    reads = False
                    break
        except BlockingIOError:
            self._owner.moved(0)
        self._watch(reads=reads)
