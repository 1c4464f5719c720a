"""Plan how far a parameter-server run trains: its gates, and the end of its phase. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from phalanx.errors import SpecError
from phalanx.records.position import Position
from phalanx.spec.job import JobSpec
from phalanx.wire.parameter_server import Ready
from phalanx.wire.switch import StepLimit
from phalanx.wire.tickets import TicketPlan


@dataclass(frozen=True)
class PhaseBound:
    """Planned end of a phase, and how the next one continues.

    Attributes:
        limit: The step before which it ends; None: with the job.
        to_memory: Whether the next strategy continues from the workers' memory; otherwise from a
            checkpoint that is written at the limit.
        discard: Whether the state at the end is neither evaluated nor saved.
    """

    limit: StepLimit | None = None
    to_memory: bool = True
    discard: bool = False


class TrainingProgress:
    """Position of a run between its begin and its end.

    Args:
        job: The job.
        position: Where the run stands; advanced by others.
        bound: Where its phase ends.
    """

    def __init__(self, job: JobSpec, position: Position, bound: PhaseBound) -> None:
        self._job = job
        self._plan: TicketPlan | None = None
        self.position = position
        self.bound = bound

    @property
    def plan(self) -> TicketPlan:
        """The numbering of tickets; known once a worker has reported."""
        assert self._plan is not None
        return self._plan

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to train."""
        return self.position.epoch >= self._job.epochs or self.position.stopped_early

    @property
    def step_done(self) -> int:
        """The first step of the epoch that is not done."""
        done = self.position.epoch_samples
        return -(-done // self._job.global_batch) if self._plan is None else self.plan.step_at(done)

    @property
    def is_at_limit(self) -> bool:
        """Whether the phase ends here."""
        limit = self.bound.limit
        here = (self.position.epoch, self.step_done)
        return limit is not None and here >= (limit.epoch, limit.step)

    @property
    def is_at_end_of_epoch(self) -> bool:
        """Whether every step of the epoch is done."""
        return self.step_done >= self.plan.num_steps

    @property
    def goes_on_in_memory(self) -> bool:
        """Whether the workers continue from memory, without an evaluation before."""
        in_epoch = 0 < self.step_done < self.plan.num_steps
        return self.bound.discard or (self.is_at_limit and self.bound.to_memory and in_epoch)

    @property
    def is_pinned_here(self) -> bool:
        """Whether the next phase begins with a checkpoint of this position."""
        return self.is_at_limit and not self.bound.to_memory and not self.is_over

    def make_plan(self, ready: Ready) -> None:
        """Number the tickets.

        Raises:
            SpecError: The run was resumed between two batches.
        """
        batch, done = self._job.global_batch, self.position.epoch_samples
        plan = TicketPlan.of(
            ready.num_samples,
            global_batch=batch,
            num_parts=self._job.workers,
            portions=ready.portions,
        )
        if not plan.begins_at(done):
            raise SpecError(
                f"the checkpoint stands {done} samples into an epoch, which is not a whole number "
                f"of global batches of {batch}; resume with the batch of the saved run"
            )
        self._plan = plan

    def next_stretch(self) -> tuple[int, int]:
        """Return the first ticket up to the next gate, and the first one behind it."""
        step, epoch, every = self.step_done, self.position.epoch, self._job.checkpoint.every_steps
        stop = self.plan.num_steps if every is None else min(self.plan.num_steps, step + every)
        limit = self.bound.limit
        if limit is not None and limit.epoch == epoch:
            stop = min(stop, limit.step)
        return self.plan.first(epoch, step), self.plan.first(epoch, stop)

    def end_at(self, ticket: int | None, *, discard: bool) -> None:
        """End before a ticket, or here, if that is earlier than planned.

        An earlier end is never for another phase with servers: the next one continues from memory.

        Args:
            ticket: The first one of a step; None: here.
            discard: Neither evaluate nor save the state at the end.
        """
        limit = StepLimit(self.position.epoch, self.step_done)
        if ticket is not None:
            unit = self.plan.unit(ticket)
            limit = StepLimit(unit.epoch, unit.step)
        self.bound = replace(self.bound, discard=discard)
        planned = self.bound.limit
        if planned is None or (limit.epoch, limit.step) < (planned.epoch, planned.step):
            self.bound = replace(self.bound, limit=limit, to_memory=True)
