"""Define what a run tells of strangers at its ports."""

from __future__ import annotations

from phalanx.records.event_base import Event


class Refused(Event):
    """Strangers that were turned away from a group of workers so far.

    Attributes:
        group: Name of the group.
        reasons: How many, by what they did: silent, no greeting, no proof, crowded out; impostor:
            somebody in a worker's place.
    """

    group: str
    reasons: dict[str, int]
