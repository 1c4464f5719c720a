"""Read the last lines of a process's output, however long the log is."""

from __future__ import annotations

import os
from pathlib import Path

from phalanx.errors import printable

_MAX_BYTES = 1 << 18


def log_tail(path: Path, num_lines: int) -> str:
    """Return the last lines of a log, free of control characters; empty: there is no log."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _MAX_BYTES))
            data = file.read(_MAX_BYTES)
    except FileNotFoundError:
        return ""
    # Split after `printable`, which makes lines of a progress bar's returns.
    lines = printable(data.decode(errors="replace")).splitlines()
    return "\n".join(lines[-num_lines:])
