"""How fast the machine is that this runs on, by the same measurement as a probe over ssh.

Started as a program of its own, because the control plane imports no torch. Called when machines of
a pool have to be compared with this one.
"""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec

from phalanx.pool import remote
from phalanx.pool.facts import Speed

_MEASURE_S = 0.4
_LIMIT_S = 60


def measure_this_machine() -> Speed | None:
    """Speed of matrix products and convolutions here; None: torch is not installed."""
    request = json.dumps({"do": "speed", "seconds": _MEASURE_S}) + "\n"
    done = subprocess.run(
        [sys.executable, str(remote.__file__)],
        input=request,
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    for line in done.stdout.splitlines():
        if line.startswith(remote.MARKER):
            answer = json.loads(line.removeprefix(remote.MARKER)).get("ok")
            return msgspec.convert(answer, Speed) if answer else None
    return None
