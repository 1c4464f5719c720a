"""Copy growing files of other machines into the run directory as they arrive.

Event logs are copied unchanged; each line of process output is prefixed with process and machine,
so that all logs can be read together.
"""

from __future__ import annotations

import base64
import threading
from pathlib import Path, PurePosixPath

from phalanx.errors import LaunchError
from phalanx.store.atomic import write_atomically


class LogSync:
    """Maintain the run directory's copy of one machine's files.

    Args:
        root: The run directory.
        machine: Name of that machine.
    """

    def __init__(self, root: Path, machine: str) -> None:
        self._root = root
        self._machine = machine
        self._torn: dict[str, bytes] = {}
        self._writing = threading.Lock()

    def append(self, path: str, content: str) -> None:
        """Append base64-encoded bytes to a file."""
        target, data = self._target(path), base64.b64decode(content)
        with self._writing:
            if path.startswith("logs/"):
                data = self._prefixed(path, data)
            with target.open("ab", buffering=0) as file:
                file.write(data)

    def replace(self, path: str, content: str) -> None:
        """Write a whole file from base64-encoded bytes."""
        target = self._target(path)
        target.parent.mkdir(exist_ok=True)
        write_atomically(target, base64.b64decode(content))

    def finish(self, process: str) -> None:
        """Flush the incomplete last line of an ended process."""
        path = f"logs/{process}.log"
        with self._writing:
            torn = self._torn.pop(path, b"")
            if torn:
                with self._target(path).open("ab", buffering=0) as file:
                    file.write(self._prefix(path) + torn + b"\n")

    def _prefixed(self, path: str, data: bytes) -> bytes:
        *lines, torn = (self._torn.pop(path, b"") + data).split(b"\n")
        if torn:
            self._torn[path] = torn
        prefix = self._prefix(path)
        return b"".join(prefix + line + b"\n" for line in lines)

    def _prefix(self, path: str) -> bytes:
        return f"[{PurePosixPath(path).stem} {self._machine}] ".encode()

    def _target(self, path: str) -> Path:
        """Return the local path of a file; paths outside the run directory are refused."""
        folder, _, name = path.partition("/")
        if folder not in ("events", "logs", "profile") or "/" in name or name.startswith("."):
            raise LaunchError(f"{self._machine} sends a file that is not of its run: {path}")
        return self._root / folder / name
