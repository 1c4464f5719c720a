"""Run the caller of a seat inside an engine's process.

Engines receive this function by value (`cloudpickle`), so that no Phalanx has to be there; it
imports nothing of it. Used by `ray_seats` and `spark_seats`.
"""

from __future__ import annotations

from typing import Any


def serve_seat(source: str, ticket: dict[str, Any], facts: dict[str, str]) -> str:
    """Call home from this process and run the agent of a seat until the controller lets it go.

    Args:
        source: Source of `agent.dial`.
        ticket: Where and with which keys to call; secret.
        facts: What the engine says of this place.

    Returns:
        Why it has ended.
    """
    space: dict[str, Any] = {"__name__": "phalanx_dial"}
    exec(compile(source, "phalanx/dial", "exec"), space)
    reason: str = space["dial"](ticket, facts)
    return reason
