"""Write and read frames on a non-blocking connection, each in as many pieces as it takes."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from enum import Enum

from phalanx.comm.frames import (
    FRAME_BYTES,
    HEADER,
    SEALED_EXTRA_BYTES,
    FrameCipher,
    FrameHeader,
)
from phalanx.errors import PeerError

EMPTY = memoryview(b"")


class FrameWriter:
    """Send frames in the order they were put.

    Args:
        sock: The connection.
        cipher: Seals what is sent; None: frames are plain.
    """

    def __init__(self, sock: socket.socket, cipher: FrameCipher | None) -> None:
        self._socket = sock
        self._cipher = cipher
        self._queue: deque[tuple[bytes, memoryview, Callable[[], None] | None]] = deque()
        self._parts: list[memoryview] = []
        self._on_left: Callable[[], None] | None = None
        sealed_bytes = HEADER.size + FRAME_BYTES + SEALED_EXTRA_BYTES
        self._sealed = memoryview(bytearray(sealed_bytes if cipher is not None else 0))

    @property
    def is_idle(self) -> bool:
        """Whether everything that was put has left this process."""
        return not self._queue and not self._parts

    def put(
        self, header: FrameHeader, payload: memoryview, on_left: Callable[[], None] | None
    ) -> None:
        """Queue a frame; its payload must not change until `on_left` was called."""
        self._queue.append((header.pack(), payload, on_left))

    def drop_queued(self) -> None:
        """Drop the frames of which nothing has been sent."""
        self._queue.clear()

    def clear(self) -> None:
        """Drop what has not been sent."""
        self.drop_queued()
        self._parts.clear()
        self._on_left = None

    def write(self) -> int:
        """Send one frame, or the rest of one; returns the bytes that left.

        Raises:
            BlockingIOError: The connection takes no more now.
        """
        if not self._parts:
            self._load()
        num_sent = left = self._socket.sendmsg(self._parts)
        while self._parts and left >= self._parts[0].nbytes:
            left -= self._parts.pop(0).nbytes
        if self._parts:
            self._parts[0] = self._parts[0][left:]
        else:
            on_left, self._on_left = self._on_left, None
            if on_left is not None:
                on_left()
        return num_sent

    def _load(self) -> None:
        header, payload, on_left = self._queue.popleft()
        if self._cipher is None:
            self._parts = [memoryview(header), payload] if payload.nbytes else [memoryview(header)]
            self._on_left = on_left
            return
        whole = self._sealed[: HEADER.size + payload.nbytes + SEALED_EXTRA_BYTES]
        whole[: HEADER.size] = header
        self._cipher.seal(payload, header, whole[HEADER.size :])
        self._parts = [whole]
        # The sealed copy is what is sent, so the payload is free already.
        if on_left is not None:
            on_left()


class ReadOutcome(Enum):
    """What came of an attempt to read a frame."""

    FRAME = 1
    NOT_NOW = 2
    END = 3


class FrameReader:
    """Receive frames, each into the place that its header belongs to.

    Args:
        sock: The connection.
        cipher: Opens what is received; None: frames are plain.
    """

    def __init__(self, sock: socket.socket, cipher: FrameCipher | None) -> None:
        self._socket = sock
        self._cipher = cipher
        self._head = bytearray(HEADER.size)
        self._frame: tuple[FrameHeader, memoryview, memoryview] | None = None
        self._num_read = 0
        scratch_bytes = FRAME_BYTES if cipher is not None else 0
        self._sealed = memoryview(bytearray(scratch_bytes + SEALED_EXTRA_BYTES))
        self._opened = memoryview(bytearray(scratch_bytes))

    def read(
        self,
        place: Callable[[FrameHeader], memoryview | None],
        arrived: Callable[[FrameHeader], None],
    ) -> ReadOutcome:
        """Read one frame, or the rest of one.

        Args:
            place: Returns where the payload of a frame goes; None: not now.
            arrived: Called with the header once the payload is there, whole and checked.

        Raises:
            BlockingIOError: No more has arrived.
            PeerError: The connection ended within a frame, or what came is none.
        """
        if self._frame is None:
            if not self._fill(memoryview(self._head)):
                return ReadOutcome.END
            header = FrameHeader.unpack(self._head)
            target = place(header)
            if target is None:
                return ReadOutcome.NOT_NOW
            sealed = self._sealed[: header.num_bytes + SEALED_EXTRA_BYTES]
            self._frame = (header, target, target if self._cipher is None else sealed)
            self._num_read = 0
        header, target, source = self._frame
        self._fill(source)
        if self._cipher is not None:
            # Opened apart, so that what does not open never touches a tensor.
            opened = self._opened[: header.num_bytes]
            self._cipher.open(source, bytes(self._head), opened)
            target[:] = opened
        self._frame, self._num_read = None, 0
        arrived(header)
        return ReadOutcome.FRAME

    def _fill(self, target: memoryview) -> bool:
        """Read until the target is full; False: the connection ended between two frames."""
        while self._num_read < target.nbytes:
            num_bytes = self._socket.recv_into(target[self._num_read :])
            if num_bytes == 0:
                if self._frame is not None or self._num_read:
                    raise PeerError("its connection ended in the middle of a frame")
                return False
            self._num_read += num_bytes
        return True
