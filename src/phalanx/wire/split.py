"""Messages from the workers of a split run to the controller."""

from __future__ import annotations

import msgspec


class SplitTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that one worker sent to another in the whole run."""

    kind: str
    """activations, gradients, parameters (between holders of one part), evaluation."""
    target: int
    sent_bytes: int
    messages: int


class SplitFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of one worker of a split run."""

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
    """The chief has decided the placement of every part.

    Attributes:
        event: The `Placed` event, in JSON.
    """

    event: bytes


ToSplit = PlacementReport
