"""The numbers by which controller, workers and servers speak of one part of one batch.

A global batch is cut into as many parts as the job has workers; a *ticket* is the number of one
part of one step of one epoch, counted from 1 through the whole run. 0 stands for no ticket.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """What a ticket stands for."""

    epoch: int
    step: int
    part: int


@dataclass(frozen=True)
class TicketPlan:
    """The numbering of tickets.

    Attributes:
        num_parts: Parts per global batch.
        num_steps: Global batches per epoch.
    """

    num_parts: int
    num_steps: int

    @property
    def per_epoch(self) -> int:
        """Tickets of one epoch."""
        return self.num_parts * self.num_steps

    def first(self, epoch: int, step: int = 0) -> int:
        """The ticket of the first part of a step; one past the last is the next epoch's first."""
        return 1 + epoch * self.per_epoch + step * self.num_parts

    def unit(self, ticket: int) -> Unit:
        """What a ticket stands for."""
        epoch, rest = divmod(ticket - 1, self.per_epoch)
        step, part = divmod(rest, self.num_parts)
        return Unit(epoch=epoch, step=step, part=part)
