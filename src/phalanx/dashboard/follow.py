"""Follow files that other processes append to: every byte is read once, however often one looks.

Nothing here writes. `LogFollower` yields of an event log what `records.log.read_events` would,
in pieces; `read_text_from` the text of a process's output.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from phalanx.errors import printable
from phalanx.records.events import AnyEvent

CHUNK_BYTES = 4 * 1024 * 1024
TAIL_BYTES = 64 * 1024


def _want_all(line: bytes) -> bool:
    return True


class LogFollower:
    """Reads an event log as it grows.

    Args:
        path: The log; it may appear later.
        is_wanted: Tells by the bytes of a line whether its event is needed; other lines are not
            decoded.
    """

    def __init__(self, path: Path, is_wanted: Callable[[bytes], bool] = _want_all) -> None:
        self.path = path
        self.offset = 0
        self.was_replaced = False
        """The file is another one, or shorter than what has been read: begin again."""
        self._is_wanted = is_wanted
        self._inode = 0
        self._size = 0
        self._decoder = msgspec.json.Decoder(AnyEvent)

    @property
    def num_bytes_left(self) -> int:
        """Bytes that were there at the last look and have not been read."""
        return max(0, self._size - self.offset)

    def read(self, max_bytes: int = CHUNK_BYTES) -> list[AnyEvent]:
        """Return the events of the next complete lines, at most about so many bytes of them.

        A line that is not complete yet is left for the next call; one that a crash cut off in the
        middle of the log is skipped.
        """
        try:
            found = self.path.stat()
        except OSError:
            return []
        self._size = found.st_size
        if self.offset and (found.st_ino != self._inode or found.st_size < self.offset):
            self.was_replaced = True
        if self.was_replaced or found.st_size <= self.offset:
            return []
        self._inode = found.st_ino
        try:
            content = self._complete_lines(max_bytes)
        except OSError:
            return []
        self.offset += len(content)
        return self._decoded(content)

    def _complete_lines(self, max_bytes: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            content = file.read(max_bytes)
            end = content.rfind(b"\n") + 1
            if end == 0 and len(content) == max_bytes:
                # One line is longer than a chunk.
                content += file.readline()
                end = content.rfind(b"\n") + 1
        return content[:end]

    def _decoded(self, content: bytes) -> list[AnyEvent]:
        events: list[AnyEvent] = []
        for line in content.split(b"\n"):
            if not line or not self._is_wanted(line):
                continue
            try:
                events.append(self._decoder.decode(line))
            except msgspec.DecodeError:
                # A partial line that a killed process left, or a kind of a newer version.
                continue
        return events


class TextPiece(msgspec.Struct, frozen=True):
    """Text of a file from one offset to the next."""

    text: str
    next: int
    """Offset to go on from."""
    is_new_file: bool
    """The text does not continue what was read before."""


def read_text_from(path: Path, offset: int | None, max_bytes: int = TAIL_BYTES) -> TextPiece:
    """Return what was appended to a text file since `offset`; None: its end.

    Of more than `max_bytes` only the end is returned. Control characters are shown by their
    numbers.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = max(0, size - max_bytes)
            continues = offset is not None and begin <= offset <= size
            file.seek(offset if continues and offset is not None else begin)
            content = file.read(max_bytes)
            end = file.tell()
    except OSError:
        return TextPiece("", 0, offset not in (None, 0))
    # A character may be cut off at the end: it comes with the next piece.
    whole = len(content) - _cut_bytes(content)
    text = printable(content[:whole].decode("utf-8", errors="replace"))
    return TextPiece(text, end - (len(content) - whole), not continues)


def _cut_bytes(content: bytes) -> int:
    """Return how many bytes at the end are the beginning of a UTF-8 character."""
    for back in range(1, min(4, len(content)) + 1):
        byte = content[-back]
        if byte & 0b1100_0000 == 0b1000_0000:
            continue
        length = 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4
        return back if byte >= 0b1100_0000 and length > back else 0
    return 0
