"""Get the drawing library of the reports without holding up the server.

Bundling takes seconds in which the interpreter that does it can do nothing else, so another one
does it, once, when the first page asks for it.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from functools import cache

from phalanx.errors import EngineError

_PROGRAM = (
    "import sys; from phalanx.report.page import chart_library; sys.stdout.write(chart_library())"
)
_LIMIT_S = 300.0
_lock = threading.Lock()


def bundled_library() -> bytes:
    """Return the library; the first call takes seconds, others wait for it."""
    with _lock:
        return _bundle()


@cache
def _bundle() -> bytes:
    done = subprocess.run(
        [sys.executable, "-X", "utf8", "-c", _PROGRAM],
        capture_output=True,
        timeout=_LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise EngineError(f"no charts: {done.stderr.decode(errors='replace')[-500:]}")
    return done.stdout
