"""Decide which phase follows which, and the state it begins with. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from phalanx.control.coordinator import PhaseEnd
from phalanx.control.switch.boundaries import boundary, describe_moment
from phalanx.control.switch.transition import PhaseTransition
from phalanx.records.events import Switched
from phalanx.records.position import Position
from phalanx.spec.job import JobSpec
from phalanx.spec.switch import LOOSENED, PhaseSpec, PhaseStrategy, SwitchSpec, strategy_of
from phalanx.wire.switch import CARRIED, StepLimit


@dataclass(frozen=True)
class PhaseStart:
    """State that a phase begins with.

    Attributes:
        phase: Its number in the job; `LOOSENED` for the looser strategy.
        home: The planned phase that it belongs to.
        position: Where the run stands; its own phase is still the one before.
        checkpoint: Load this one instead of continuing from memory; empty: continue from memory.
        snapshot: Checkpoint of the last switch, for processes that hold no state.
        statistics: Batch-norm statistics to continue with; empty: each worker's own.
        save: Whether the chief writes the state that it begins with.
        shares: Relative share of the global batch per worker; empty: as the job says.
        follows_servers: Whether the phase before had servers.
        rollback_to: Where the run stood at the last planned switch.
    """

    phase: int
    home: int
    position: Position
    checkpoint: str = ""
    snapshot: str = ""
    statistics: bytes = b""
    save: bool = False
    shares: tuple[float, ...] = ()
    follows_servers: bool = False
    rollback_to: Position | None = None


class PhaseSequence:
    """The planned phases of a job."""

    def __init__(self, job: JobSpec, *, num_samples: int) -> None:
        assert isinstance(job.strategy, SwitchSpec)
        self._job = job
        self._switch = job.strategy
        self._num_samples = num_samples

    def limit(self, home: int) -> StepLimit | None:
        """Return where a phase ends by plan; None: with the job, or decided during the run."""
        following = self._after(home)
        if following is None:
            return None
        return boundary(following, self._job, num_samples=self._num_samples)

    def goes_to_memory(self, home: int) -> bool:
        """Return whether the phase after a planned one continues from the workers' memory."""
        following = self._after(home)
        serves = following is not None and following.strategy.updates_on_servers
        return self._switch.handover == "live" and not serves

    def automatic_next(self, home: int) -> PhaseStrategy | None:
        """Return the strategy that an automatic switch leads to; None: none is planned."""
        following = self._after(home)
        return following.strategy if following is not None and following.at == "auto" else None

    def is_watched(self, start: PhaseStart) -> bool:
        """Return whether an automatic switch began a phase, and can be undone."""
        automatic = start.phase > 0 and self._switch.resolved[start.phase].at == "auto"
        return automatic and start.rollback_to is not None

    def following(
        self, start: PhaseStart, end: PhaseEnd, transition: PhaseTransition | None
    ) -> PhaseStart:
        """Return the state that the next phase begins with.

        Args:
            start: The state that the ending phase began with.
            end: The state that it leaves.
            transition: Why it ends early; None: it ends by plan.
        """
        transition = self._without_planned(start, end, transition)
        position, home = msgspec.structs.replace(end.position), start.home
        was_loose = start.phase == LOOSENED
        shares = () if was_loose else start.shares
        if transition is not None and transition.shares:
            shares = transition.shares
        following = replace(
            start,
            checkpoint="",
            snapshot=end.snapshot or start.snapshot,
            statistics=end.statistics,
            save=end.is_unsaved,
            shares=shares,
            follows_servers=strategy_of(self._job, start.phase).updates_on_servers,
        )
        match transition.kind if transition is not None else "next":
            case "next":
                home, back = home + 1, msgspec.structs.replace(position)
                following = replace(following, home=home, phase=home, rollback_to=back)
            case "rollback":
                assert start.rollback_to is not None
                position, home = msgspec.structs.replace(start.rollback_to), home - 1
                checkpoint = following.snapshot
                following = replace(following, home=home, phase=home, checkpoint=checkpoint)
            case "loosen":
                following = replace(following, phase=LOOSENED)
            case "return" | "reshare":
                following = replace(following, phase=home)
        position.phase_begin = position.samples
        return replace(following, position=position)

    def event(
        self,
        start: PhaseStart,
        end: PhaseEnd,
        transition: PhaseTransition | None,
        following: PhaseStart,
    ) -> Switched:
        """Describe a switch for the records; its pause is not known yet."""
        transition = self._without_planned(start, end, transition)
        moment = describe_moment(self._switch.resolved[following.home])
        return Switched(
            phase=following.phase,
            before=strategy_of(self._job, start.phase).name,
            after=strategy_of(self._job, following.phase).name,
            cause=transition.cause if transition is not None else moment,
            epoch=following.position.epoch,
            samples=following.position.samples,
            pause_s=0.0,
            carried=list(CARRIED),
            handover=self._switch.handover,
        )

    def _after(self, home: int) -> PhaseSpec | None:
        phases = self._switch.resolved
        return phases[home + 1] if home + 1 < len(phases) else None

    def _without_planned(
        self, start: PhaseStart, end: PhaseEnd, transition: PhaseTransition | None
    ) -> PhaseTransition | None:
        """Drop a transition if the phase reached its planned end first."""
        if transition is None or transition.kind == "rollback":
            return transition
        limit = self.limit(start.home)
        step = -(-end.position.epoch_samples // self._job.global_batch)
        here = (end.position.epoch, step)
        return None if limit is not None and here >= (limit.epoch, limit.step) else transition
