"""Number the parts of batches, for controller, workers and servers alike.

A global batch is cut into as many parts as the job has workers; a *ticket* is the number of one
part of one step of one epoch, counted from 1 through the whole run. 0 stands for no ticket.
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.spec.epoch_quota import EpochQuota


@dataclass(frozen=True)
class TicketPart:
    """The epoch, step and part of a ticket."""

    epoch: int
    step: int
    part: int


@dataclass(frozen=True)
class TicketPlan:
    """The numbering of tickets.

    Attributes:
        num_parts: Parts per global batch.
        num_steps: Global batches per epoch.
        global_batch: Samples of a full one.
        portions: Where workers own samples: how many each, and how many per step.
    """

    num_parts: int
    num_steps: int
    global_batch: int = 1
    portions: EpochQuota | None = None

    @classmethod
    def of(
        cls, num_samples: int, *, global_batch: int, num_parts: int, portions: EpochQuota | None
    ) -> TicketPlan:
        """Make the numbering for a job.

        Args:
            num_samples: Of an epoch.
            global_batch: Samples per step over all parts.
            num_parts: Parts per global batch.
            portions: As above.
        """
        steps = portions.num_steps if portions is not None else -(-num_samples // global_batch)
        return cls(num_parts, steps, global_batch, portions)

    @property
    def per_epoch(self) -> int:
        """Tickets of one epoch."""
        return self.num_parts * self.num_steps

    def first(self, epoch: int, step: int = 0) -> int:
        """Return the ticket of a step's first part; the step after the last begins an epoch."""
        return 1 + epoch * self.per_epoch + step * self.num_parts

    def step_at(self, epoch_samples: int) -> int:
        """Return the first step that is not done after so many samples of an epoch."""
        if self.portions is None:
            return -(-epoch_samples // self.global_batch)
        step = self.portions.step_at(epoch_samples)
        assert step is not None, f"no step begins after {epoch_samples} samples"
        return step

    def begins_at(self, epoch_samples: int) -> bool:
        """Return whether a step begins after so many samples of an epoch."""
        if self.portions is None:
            return epoch_samples % self.global_batch == 0
        return self.portions.step_at(epoch_samples) is not None

    def has_samples(self, ticket: int) -> bool:
        """Return whether a ticket has samples; a part may run out of them before others."""
        if self.portions is None:
            return True
        unit = self.unit(ticket)
        return self.portions.has_samples(unit.part, unit.step)

    def unit(self, ticket: int) -> TicketPart:
        """Return the epoch, step and part of a ticket."""
        epoch, rest = divmod(ticket - 1, self.per_epoch)
        step, part = divmod(rest, self.num_parts)
        return TicketPart(epoch=epoch, step=step, part=part)
