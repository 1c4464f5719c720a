"""Copy what grows on other machines into the run directory, as it arrives.

Event logs arrive as they are; what processes print gets the name of process and machine before each
line, so that all of it can be read together.
"""

from __future__ import annotations

import base64
import threading
from pathlib import Path, PurePosixPath

from phalanx.errors import LaunchError
from phalanx.store.atomic import write_atomically


class LogSync:
    """Keep the run directory's copy of what one machine writes.

    Args:
        root: The run directory.
        machine: Whose files they are.
    """

    def __init__(self, root: Path, machine: str) -> None:
        self._root = root
        self._machine = machine
        self._torn: dict[str, bytes] = {}
        self._writing = threading.Lock()

    def append(self, path: str, content: str) -> None:
        """Append what has come of a file, in base64."""
        target, data = self._target(path), base64.b64decode(content)
        with self._writing:
            if path.startswith("logs/"):
                data = self._prefixed(path, data)
            with target.open("ab", buffering=0) as file:
                file.write(data)

    def replace(self, path: str, content: str) -> None:
        """Write a whole file, in base64."""
        target = self._target(path)
        target.parent.mkdir(exist_ok=True)
        write_atomically(target, base64.b64decode(content))

    def finish(self, process: str) -> None:
        """Write down the line that an ended process did not complete."""
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
        """Return where a file goes; a machine cannot name a path outside of the run directory."""
        folder, _, name = path.partition("/")
        if folder not in ("events", "logs", "profile") or "/" in name or name.startswith("."):
            raise LaunchError(f"{self._machine} sends a file that is not of its run: {path}")
        return self._root / folder / name
