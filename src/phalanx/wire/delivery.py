"""Deliver messages once and in order over connections that break. Pure: no socket, no clock.

Each end of a channel has one `Delivery`. It numbers the frames that it sends and keeps them until
the other end has acknowledged them; whatever a broken connection swallows is sent again. A long
message travels in parts, so that no frame is ever above the limit of the sockets. Heartbeats and
the like are not numbered, but every frame tells what was sent and received so far: over one
connection frames keep their order, so a frame that tells of a number which has not come shows a
loss, and the receiver asks for a repetition.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from enum import IntFlag

from phalanx.errors import PeerError, PhalanxError

# Magic, flags, own number, highest number sent, highest number received without a gap.
_HEADER = struct.Struct("<HHQQQ")
_MAGIC = 0xC7A1
# Short enough that a heartbeat never waits long behind one part on a slow line.
_PART_BYTES = 1 << 18
MAX_FRAME_BYTES = _PART_BYTES + _HEADER.size
MAX_SOCKET_BYTES = MAX_FRAME_BYTES + 256
"""Limit for sockets: encryption makes a frame some dozen bytes longer."""
MAX_MESSAGE_BYTES = 1 << 26
"""Longest message; all of its parts are in memory at both ends."""

# Frames on their way without an acknowledgement; what a reconnect repeats at most.
_WINDOW_FRAMES = 256
_WINDOW_BYTES = 1 << 21
# The receiver acknowledges so many at once, otherwise with its next frame.
_ACKNOWLEDGE_FRAMES = _WINDOW_FRAMES // 4
_ACKNOWLEDGE_BYTES = _WINDOW_BYTES // 4
# What waits for an acknowledgement before the sender gives up.
_MAX_QUEUED_BYTES = 4 * MAX_MESSAGE_BYTES
_MAX_QUEUED_FRAMES = 100_000
# Notes of the other end, twice a second, without a sign that it took one of the frames sent.
_PATIENCE_NOTES = 60
# Own notes without an acknowledgement of what was sent, until its first frame is sent again.
_PROBE_NOTES = 4


class MessageTooLarge(PhalanxError):
    """A message is longer than the control channel carries; to send it again is no use."""


class MalformedFrame(PeerError):
    """Bytes that the other end cannot have sent by this protocol."""


class _Flag(IntFlag):
    PART = 1  # the next number continues this message
    REPEAT = 2  # frames after the acknowledged one are lost


class Delivery:
    """One end of a channel; use from one thread."""

    def __init__(self) -> None:
        self._queue: deque[tuple[int, _Flag, bytes]] = deque()
        """All frames that are not acknowledged; the first `_num_sent` of them are on their way."""
        self._num_sent = 0
        self._queued_bytes = 0
        self._sent_bytes = 0
        self._last_number = 0
        self._received = 0
        self._parts: list[bytes] = []
        self._unacknowledged = 0
        self._unacknowledged_bytes = 0
        self._is_lossy = False
        self._complained_at = -1
        self._num_idle_notes = 0
        self._num_own_notes = 0

    @property
    def num_unacknowledged(self) -> int:
        """Frames that the other end is not known to have."""
        return len(self._queue)

    @property
    def has_news(self) -> bool:
        """Whether the other end should hear an acknowledgement, or which frames are lost."""
        return self._is_lossy or self._unacknowledged > 0

    @property
    def must_answer(self) -> bool:
        """Whether that cannot wait for the next frame that goes there anyway."""
        return (
            self._is_lossy
            or self._unacknowledged >= _ACKNOWLEDGE_FRAMES
            or self._unacknowledged_bytes >= _ACKNOWLEDGE_BYTES
        )

    @property
    def is_stuck(self) -> bool:
        """Whether the other end lives and yet has taken nothing of what was sent for long."""
        return self._num_idle_notes >= _PATIENCE_NOTES

    def put(self, body: bytes) -> None:
        """Queue a message; it arrives once and in order, or this end learns that it did not.

        Raises:
            MessageTooLarge: It is above the limit.
            PeerError: The other end has taken nothing for so long that the queue is full.
        """
        check_size(body)
        if (
            self._queued_bytes + len(body) > _MAX_QUEUED_BYTES
            or len(self._queue) >= _MAX_QUEUED_FRAMES
        ):
            raise PeerError(
                f"{len(self._queue)} frames of messages wait, and the other end takes none of them"
            )
        starts = range(0, max(1, len(body)), _PART_BYTES)
        for start in starts:
            flag = _Flag.PART if start != starts[-1] else _Flag(0)
            self._last_number += 1
            part = body[start : start + _PART_BYTES]
            self._queue.append((self._last_number, flag, part))
        self._queued_bytes += len(body)

    def frames(self) -> Iterator[bytes]:
        """Yield the frames that may be sent now; each counts as sent once it is yielded."""
        if self._num_sent and self._num_own_notes >= _PROBE_NOTES:
            # All may have arrived, and the last acknowledgement be lost with its connection: the
            # other end has nothing more to say, unless it hears a frame again.
            self._num_own_notes = 0
            yield self._pack(*self._queue[0])
        while self._num_sent < min(len(self._queue), _WINDOW_FRAMES):
            number, flag, part = self._queue[self._num_sent]
            if self._num_sent and self._sent_bytes + len(part) > _WINDOW_BYTES:
                return
            self._num_sent += 1
            self._sent_bytes += len(part)
            yield self._pack(number, flag, part)

    def note(self, body: bytes = b"") -> bytes:
        """Return an unnumbered frame, which may be lost: a heartbeat, or news alone."""
        self._num_own_notes += 1
        return self._pack(0, _Flag(0), body)

    def repeat(self) -> None:
        """Send everything again that is not acknowledged; for a new connection."""
        self._num_sent = self._sent_bytes = 0

    def take(self, frame: bytes | memoryview) -> bytes | None:
        """Return the message that a received frame completes; None: there is none yet.

        Raises:
            MalformedFrame: It is none of this protocol.
        """
        if len(frame) < _HEADER.size or len(frame) > MAX_FRAME_BYTES:
            raise MalformedFrame(f"a frame of {len(frame)} bytes is none of the control channel")
        magic, bits, number, sent, acknowledged = _HEADER.unpack_from(frame)
        is_known = magic == _MAGIC and bits <= _Flag.PART | _Flag.REPEAT
        if not is_known or acknowledged > self._last_number or (number and sent < number):
            raise MalformedFrame("a frame of the control channel has an impossible header")
        flag = _Flag(bits)
        self._take_acknowledgement(acknowledged, is_note=number == 0)
        if flag & _Flag.REPEAT:
            self.repeat()
        body = bytes(frame[_HEADER.size :])
        if number == 0:
            # Sent after everything that it tells of, over the same connection.
            self._is_lossy |= sent > self._received
            return body or None
        if number <= self._received:
            # Repeated, though it had arrived: what was lost is the acknowledgement.
            self._unacknowledged += 1
            return None
        if number > self._received + 1:
            # Once per gap: all frames behind it arrive out of order, too.
            self._is_lossy |= self._complained_at != self._received
            return None
        return self._accept(body, is_part=bool(flag & _Flag.PART))

    def _accept(self, body: bytes, *, is_part: bool) -> bytes | None:
        self._received += 1
        self._unacknowledged += 1
        self._unacknowledged_bytes += len(body)
        if not self._parts and not is_part:
            return body
        self._parts.append(body)
        if len(self._parts) * _PART_BYTES > MAX_MESSAGE_BYTES + _PART_BYTES:
            raise MalformedFrame("the parts of a message are longer than any message may be")
        if is_part:
            return None
        whole = b"".join(self._parts)
        self._parts.clear()
        return whole

    def _take_acknowledgement(self, acknowledged: int, *, is_note: bool) -> None:
        moved = False
        while self._queue and self._queue[0][0] <= acknowledged:
            _, _, part = self._queue.popleft()
            self._queued_bytes -= len(part)
            if self._num_sent:
                self._num_sent -= 1
                self._sent_bytes -= len(part)
            moved = True
        if moved or not self._num_sent:
            self._num_idle_notes = self._num_own_notes = 0
        elif is_note:
            self._num_idle_notes += 1

    def _pack(self, number: int, flag: _Flag, body: bytes) -> bytes:
        if self._is_lossy:
            flag |= _Flag.REPEAT
            self._complained_at = self._received
        self._is_lossy = False
        self._unacknowledged = self._unacknowledged_bytes = 0
        first = self._queue[0][0] if self._queue else self._last_number + 1
        sent = first + self._num_sent - 1
        return _HEADER.pack(_MAGIC, flag, number, sent, self._received) + body


def check_size(body: bytes) -> None:
    """Refuse a message above the limit of the channel, before any of it is sent.

    Raises:
        MessageTooLarge: It is.
    """
    if len(body) > MAX_MESSAGE_BYTES:
        raise MessageTooLarge(
            f"a message of {len(body) / 2**20:.1f} MiB is above the "
            f"{MAX_MESSAGE_BYTES >> 20} MiB that the control channel carries"
        )
