"""Rendezvous of groups over the run's control channel: cards of members, and a store for Gloo.

torch's usual store is an open TCP port that anyone may write to. This one passes addresses through
the authenticated channel to the controller, so strangers never learn them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Protocol

import torch.distributed as dist

from phalanx.comm.pairing import MemberCard
from phalanx.errors import TimeoutExpired
from phalanx.wire.deadline import Deadline

CHECK_S = 0.1
"""How often a group that forms asks whether it is still wanted."""


class RendezvousChannel(Protocol):
    """Channel on which values are published and awaited, such as `ControlClient`."""

    def put(self, key: str, value: bytes) -> None:
        """Publish a value."""

    def get(self, key: str, deadline: Deadline) -> bytes:
        """Wait for a value."""


class CheckedChannel:
    """A channel whose waits end when they are not wanted any more.

    Args:
        channel: The channel.
        check: Called before and during each wait; what it raises ends the wait.
    """

    def __init__(self, channel: RendezvousChannel, check: Callable[[], None]) -> None:
        self._channel = channel
        self.check = check

    def put(self, key: str, value: bytes) -> None:
        """Publish a value."""
        self._channel.put(key, value)

    def get(self, key: str, deadline: Deadline) -> bytes:
        """Wait for a value."""
        while True:
            self.check()
            turn_s = min(CHECK_S, deadline.remaining_s)
            try:
                return self._channel.get(key, Deadline.after(turn_s, deadline.activity))
            except TimeoutExpired:
                deadline.check()


def swap_cards(
    channel: RendezvousChannel,
    group: str,
    own: MemberCard,
    members: Sequence[str],
    deadline: Deadline,
) -> dict[int, MemberCard]:
    """Publish this member's card and return those of the others, by rank.

    Raises:
        TimeoutExpired: One did not come in time; the error names it.
    """
    channel.put(f"{group}/{own.name}", own.pack())
    cards = {}
    for rank, name in enumerate(members):
        if name != own.name:
            deadline.activity = f"{name} to join"
            cards[rank] = MemberCard.unpack(channel.get(f"{group}/{name}", deadline))
    return cards


class RendezvousStore(dist.Store):  # type: ignore[misc, name-defined]  # no stubs in torch
    """The part of torch's store interface that Gloo's rendezvous uses.

    Args:
        board: The channel.
        prefix: Separates the groups of one run.
        limit_s: Time limit for a value to appear.
    """

    def __init__(self, board: RendezvousChannel, *, prefix: str, limit_s: float) -> None:
        super().__init__()
        self._board = board
        self._prefix = prefix
        self._limit_s = limit_s

    def set(self, key: str, value: bytes | str) -> None:
        """Publish this worker's addresses; called by Gloo."""
        self._board.put(self._prefix + key, value if isinstance(value, bytes) else value.encode())

    def get(self, key: str) -> bytes:
        """Return another worker's addresses; called by Gloo."""
        deadline = Deadline.after(self._limit_s, f"{key} of the rendezvous")
        return self._board.get(self._prefix + key, deadline)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait for keys; called by Gloo before it reads."""
        for key in keys:
            self.get(key)
