"""Copy growing files of other machines into the run directory as they arrive.

Event logs are copied unchanged; each line of process output is prefixed with process and machine,
so that all logs can be read together. A machine writes to the files of its own processes alone, and
no more than a bound per file: it can neither speak for another machine nor fill this disk.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from phalanx.errors import LaunchError, StoreError
from phalanx.store.atomic import write_atomically

_log = logging.getLogger(__name__)

# Far above what a long run writes: 8 GiB are 20 million steps of one process.
_MAX_BYTES = {"events": 8 << 30, "logs": 1 << 30, "profile": 256 << 20}


class LogSync:
    """Maintain the run directory's copy of one machine's files.

    Called by one thread.

    Args:
        root: The run directory.
        machine: Name of that machine.
        processes: Names of the processes that it runs or ran last; they may change.
    """

    def __init__(self, root: Path, machine: str, processes: Collection[str]) -> None:
        self._root = root
        self._machine = machine
        self._processes = processes
        self._within_line: set[str] = set()
        self._parts: dict[str, bytearray] = {}
        self._cut: set[str] = set()

    def append(self, path: str, content: str) -> None:
        """Append base64-encoded bytes to a file.

        Raises:
            LaunchError: The file is none of this machine's.
            StoreError: This disk refuses it.
        """
        target, data = self._target(path), base64.b64decode(content)
        if data and self._has_room(path, target, len(data)):
            self._write(target, self._prefixed(path, data) if path.startswith("logs/") else data)
            if data.endswith(b"\n"):
                self._within_line.discard(path)
            else:
                self._within_line.add(path)

    def replace(self, path: str, content: str, *, first: bool, last: bool) -> None:
        """Write a whole file from base64-encoded parts; it appears with the last.

        Raises:
            LaunchError: The file is none of this machine's.
        """
        target = self._target(path)
        if first:
            self._parts[path] = bytearray()
        parts = self._parts.setdefault(path, bytearray())
        parts += base64.b64decode(content)
        if not self._has_room(path, target, len(parts), replaces=True):
            self._parts.pop(path)
        elif last:
            target.parent.mkdir(exist_ok=True)
            write_atomically(target, bytes(self._parts.pop(path)))

    def finish(self, process: str) -> None:
        """End the incomplete last lines of a process that has ended, or goes to another machine.

        An event that its successor wrote behind half of another would be lost with it.
        """
        for path in (f"logs/{process}.log", f"events/{process}.jsonl"):
            # Of a file that was this machine's when the line began.
            if path in self._within_line:
                self._within_line.remove(path)
                self._write(self._root / path, b"\n")

    def _prefixed(self, path: str, data: bytes) -> bytes:
        """Prefix each line that begins in these bytes; nothing is held back."""
        prefix = f"[{PurePosixPath(path).stem} {self._machine}] ".encode()
        # At line breaks alone: the returns of a progress bar are part of its line.
        *whole, rest = data.split(b"\n")
        lines = [line + b"\n" for line in whole] + ([rest] if rest else [])
        return (b"" if path in self._within_line else prefix) + prefix.join(lines)

    def _has_room(self, path: str, target: Path, num_bytes: int, *, replaces: bool = False) -> bool:
        held = target.stat().st_size if target.exists() and not replaces else 0
        most = _MAX_BYTES[path.partition("/")[0]]
        if held + num_bytes <= most:
            return True
        if path not in self._cut:
            self._cut.add(path)
            _log.warning(
                "%s: %s has reached %d MiB; the rest is not copied", self._machine, path, most >> 20
            )
        return False

    def _write(self, target: Path, data: bytes) -> None:
        try:
            with target.open("ab", buffering=0) as file:
                rest = memoryview(data)
                # A disk that is nearly full takes a part and says nothing.
                while rest:
                    rest = rest[file.write(rest) :]
        except OSError as error:
            raise StoreError(f"cannot write {target}: {error.strerror}") from error

    def _target(self, path: str) -> Path:
        """Return the local path of a file; one that is not of this machine's is refused."""
        folder, _, name = path.partition("/")
        process = name.partition(".")[0]
        if folder not in _MAX_BYTES or "/" in name or process not in self._processes:
            raise LaunchError(f"{self._machine} sends a file that is not of its processes: {path}")
        return self._root / folder / name
