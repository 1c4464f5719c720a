"""How many bytes went which way, by peer."""

from __future__ import annotations

from collections import Counter


class ByteMeter:
    """Counts payload and header bytes; one thread writes, any thread may read."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
