"""Define the ledger of an elastic run: which workers trained from which sample on."""

from __future__ import annotations

from phalanx.records.event_base import Event


class Grouped(Event):
    """A group of workers begins to train together; written by its chief.

    It has trained the samples from here to where the next group begins, each of them once. Batches
    are cut over its members in their order, but for those that wait for the state of the run.

    Attributes:
        generation: Number of the group.
        members: Workers, in the order of their ranks.
        waiting: Members that were given no samples.
        commits: Steps, ends of epochs and checkpoints before it.
        epoch: Where it begins.
        epoch_samples: Samples of that epoch before it.
        updates: Updates before it.
    """

    generation: int
    members: list[str]
    waiting: list[str]
    commits: int
    epoch: int
    epoch_samples: int
    updates: int
