"""The numbers by which controller, workers and servers speak of one part of one batch.

A global batch is cut into as many parts as the job has workers; a *ticket* is the number of one
part of one step of one epoch, counted from 1 through the whole run. 0 stands for no ticket.
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.spec.epoch_quota import EpochQuota


@dataclass(frozen=True)
class TicketPart:
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
        global_batch: Samples of a full one.
        portions: Where every part has samples of its own: how many, and how many per step.
    """

    num_parts: int
    num_steps: int
    global_batch: int = 1
    portions: EpochQuota | None = None

    @classmethod
    def of(
        cls, num_samples: int, *, global_batch: int, num_parts: int, portions: EpochQuota | None
    ) -> TicketPlan:
        """The numbering for a job.

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
        """The ticket of the first part of a step; one past the last is the next epoch's first."""
        return 1 + epoch * self.per_epoch + step * self.num_parts

    def step_at(self, epoch_samples: int) -> int:
        """The first step that is not done after so many samples of an epoch."""
        if self.portions is None:
            return -(-epoch_samples // self.global_batch)
        step = self.portions.step_at(epoch_samples)
        assert step is not None, f"no step begins after {epoch_samples} samples"
        return step

    def begins_at(self, epoch_samples: int) -> bool:
        """Whether a step begins after so many samples of an epoch."""
        if self.portions is None:
            return epoch_samples % self.global_batch == 0
        return self.portions.step_at(epoch_samples) is not None

    def has_samples(self, ticket: int) -> bool:
        """Whether there is anything to do for a ticket; a part may run out before the others."""
        if self.portions is None:
            return True
        unit = self.unit(ticket)
        return self.portions.has_samples(unit.part, unit.step)

    def unit(self, ticket: int) -> TicketPart:
        """What a ticket stands for."""
        epoch, rest = divmod(ticket - 1, self.per_epoch)
        step, part = divmod(rest, self.num_parts)
        return TicketPart(epoch=epoch, step=step, part=part)
