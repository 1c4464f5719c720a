"""Send what the processes of a run write to their files, a bounded amount at a time.

Part of the agent. A log that grows faster than the connection carries it away delays neither orders
nor the other files: every file gets its turn, and what does not fit waits on the disk.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_CHUNK_BYTES = 1 << 17
"""Of a file in one item of news."""
_CHUNKS_AT_A_TIME = 8
# What is printed must not fill the disk of a machine in a long run.
_LONG_LOG_BYTES = 64 << 20
# Files that grow while a process runs, and files written once when it ends.
_GROWING = ("events", "logs")
_WHOLE = ("profile",)


class FileSender:
    """Files of one run on this machine, and how much of each is sent.

    Args:
        send: Sends one item of news to the controller.
        has_room: Tells whether more of a file may be sent now.
    """

    def __init__(
        self, send: Callable[[dict[str, Any]], None], has_room: Callable[[], bool]
    ) -> None:
        self._send = send
        self._has_room = has_room
        self._folder: Path | None = None
        self._sent: dict[Path, int] = {}
        self._last: Path | None = None
        self._at_end: dict[str, dict[Path, int]] = {}
        self.has_more = False
        """Whether the last call of `send_some` has left something that could be sent."""

    def begin(self, folder: Path) -> None:
        """Set the directory of the run."""
        self._folder = folder

    def send_some(self) -> None:
        """Send bytes appended to the growing files, by turns."""
        budget, self.has_more = _CHUNKS_AT_A_TIME, False
        waiting = self._turns()
        while waiting:
            path = waiting.pop(0)
            if budget == 0 or not self._has_room():
                self.has_more = True
                return
            budget -= 1
            self._last = path
            if self._send_more(path):
                waiting.append(path)

    def is_home(self, process: str) -> bool:
        """Whether all that a process wrote before its end, which has come, has been sent."""
        files = self._at_end.get(process)
        if files is None:
            files = {path: path.stat().st_size for path in self._growing(f"{process}.*")}
            self._at_end[process] = files
        return all(self._sent.get(path, 0) >= size for path, size in files.items())

    def forget_end(self, process: str) -> None:
        """Forget the end of a process that is started again, or whose end is told."""
        self._at_end.pop(process, None)

    def send_whole(self, process: str) -> None:
        """Send the files that a process writes once when it ends, in parts."""
        assert self._folder is not None
        for part in _WHOLE:
            for path in (self._folder / part).glob(f"{process}.*"):
                with path.open("rb") as file:
                    left, first = path.stat().st_size, True
                    while first or left > 0:
                        chunk = file.read(min(MAX_CHUNK_BYTES, left))
                        left -= len(chunk)
                        # Shorter than it was: what is there is all that will come.
                        is_last = left <= 0 or not chunk
                        self._tell("whole", path, chunk, first=first, last=is_last)
                        first = False
                        if is_last:
                            break

    def _turns(self) -> list[Path]:
        """Return the growing files that have more, beginning after the last one served."""
        found = [
            path for path in self._growing("*") if path.stat().st_size > self._sent.get(path, 0)
        ]
        if self._last is None:
            return found
        later = [path for path in found if path > self._last]
        return later + [path for path in found if path <= self._last]

    def _growing(self, pattern: str) -> list[Path]:
        if self._folder is None:
            return []
        return sorted(path for part in _GROWING for path in (self._folder / part).glob(pattern))

    def _send_more(self, path: Path) -> bool:
        """Send the next chunk of a file; return whether there may be more."""
        start = self._sent.get(path, 0)
        with path.open("rb") as file:
            file.seek(start)
            chunk = file.read(MAX_CHUNK_BYTES)
        if chunk:
            self._sent[path] = start + len(chunk)
            self._tell("more", path, chunk)
            self._shorten(path)
        return len(chunk) == MAX_CHUNK_BYTES

    def _shorten(self, path: Path) -> None:
        """Empty a long log that has been sent; its process appends to what is then there."""
        sent = self._sent[path]
        if path.suffix == ".log" and sent >= _LONG_LOG_BYTES and path.stat().st_size == sent:
            os.truncate(path, 0)
            self._sent[path] = 0
            for files in self._at_end.values():
                files.pop(path, None)

    def _tell(self, kind: str, path: Path, chunk: bytes, **more: object) -> None:
        assert self._folder is not None
        content = base64.b64encode(chunk).decode()
        where = str(path.relative_to(self._folder))
        self._send({"news": kind, "path": where, "content": content, **more})
