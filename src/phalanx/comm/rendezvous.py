"""Gloo's meeting point, kept on the run's own control channel.

torch's usual store is an open TCP port that anyone may write to. This one passes addresses through
the authenticated channel to the controller instead, so a stranger never learns them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

import torch.distributed as dist

from phalanx.wire.deadline import Deadline


class RendezvousChannel(Protocol):
    """Where values are published and waited for: `wire.ControlClient` is one."""

    def put(self, key: str, value: bytes) -> None:
        """Publish a value."""

    def get(self, key: str, deadline: Deadline) -> bytes:
        """Wait for a value."""


class RendezvousStore(dist.Store):  # type: ignore[misc, name-defined]  # no stubs in torch
    """The part of torch's store interface that Gloo's rendezvous uses.

    Args:
        board: Where the values travel.
        prefix: Keeps the groups of one run apart.
        limit_s: How long a value may take to appear.
    """

    def __init__(self, board: RendezvousChannel, *, prefix: str, limit_s: float) -> None:
        super().__init__()
        self._board = board
        self._prefix = prefix
        self._limit_s = limit_s

    def set(self, key: str, value: bytes | str) -> None:
        """Called by Gloo to publish this worker's addresses."""
        self._board.put(self._prefix + key, value if isinstance(value, bytes) else value.encode())

    def get(self, key: str) -> bytes:
        """Called by Gloo to learn a peer's addresses."""
        deadline = Deadline.after(self._limit_s, f"{key} of the rendezvous")
        return self._board.get(self._prefix + key, deadline)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Called by Gloo before it reads."""
        for key in keys:
            self.get(key)
