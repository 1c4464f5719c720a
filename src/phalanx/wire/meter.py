"""Count bytes sent and received, by peer."""

from __future__ import annotations

from collections import Counter


class ByteMeter:
    """Payload and header bytes; one thread writes, any thread may read."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
