"""What the workers of a split run tell the controller."""

from __future__ import annotations

import msgspec


class SplitTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker sent to another in the whole run."""

    kind: str
    """activations, gradients, parameters (between holders of one part), evaluation."""
    target: int
    sent_bytes: int
    messages: int


class SplitFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's part in a split run."""

    rank: int
    parts: list[str]
    sent: list[SplitTraffic]
    steps: int
    """Training steps of this attempt."""
    samples: int
    """Samples in them."""
    socket_bytes: int | None = None
    """Sent through its connections to other workers, as the system counted; None: unknown."""


class PlacementReport(msgspec.Struct, frozen=True, tag=True):
    """The chief has settled where every part goes.

    Attributes:
        event: The event that says so, in JSON.
    """

    event: bytes


ToSplit = PlacementReport
