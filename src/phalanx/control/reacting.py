"""What happens between planned switches: the automatic moment, its canary, slow machines.

Holds the pure policies, feeds them with what workers report, writes down what they say, and answers
with a `Move` when the present phase is to be left.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Literal

from phalanx.control.coordinator import Desk
from phalanx.control.moment import Canary, MomentPolicy
from phalanx.control.straggler import Reaction, StragglerPolicy
from phalanx.records import events
from phalanx.records.position import Position
from phalanx.spec.job import JobSpec
from phalanx.spec.switch import PhaseStrategy, SwitchSpec
from phalanx.wire.messages import Progress
from phalanx.wire.phases import Window
from phalanx.wire.serving import WorkDone


@dataclass(frozen=True)
class Move:
    """Leave the present phase."""

    what: Literal["next", "rollback", "reshare", "loosen", "return"]
    cause: str
    shares: tuple[float, ...] = ()


class Reactor:
    """Decides about the phases of one run while it goes.

    Args:
        job: What is to be done.
        desk: Who records and knows the workers' progress.
        num_samples: Training samples of an epoch.
    """

    def __init__(self, job: JobSpec, desk: Desk, *, num_samples: int) -> None:
        assert isinstance(job.strategy, SwitchSpec)
        self._job = job
        self._switch = job.strategy
        self._desk = desk
        self._total = num_samples * job.epochs
        straggler = self._switch.straggler
        self._straggler = StragglerPolicy(straggler, num_workers=job.workers) if straggler else None
        self._moment: MomentPolicy | None = None
        self._of_phase = -1
        self._canary: Canary | None = None
        self._loss = math.nan
        self._num_rollbacks = 0
        self._compared = time.monotonic()
        self._before: list[Progress] | None = None
        self._computed_s = [0.0] * job.workers
        self._counted = [0] * job.workers

    def enter_lockstep(self, phase: int, after: PhaseStrategy | None) -> None:
        """A lockstep phase begins, or goes on.

        Args:
            phase: Its number.
            after: The strategy that an automatic switch leads to; None: none is planned.
        """
        self._canary = None
        self._forget_times()
        is_new, self._of_phase = phase != self._of_phase, phase
        if after is None:
            self._moment = None
        elif self._moment is None or is_new:
            self._moment = MomentPolicy(
                self._switch.auto,
                after=after,
                peak_lr=self._job.optimizer.lr,
                total_samples=self._total,
                global_batch=self._job.global_batch,
                warmup=self._job.schedule.warmup,
            )

    def enter_serving(self, position: Position, *, watched: bool) -> None:
        """A phase with servers begins.

        Args:
            position: Where.
            watched: Whether it was begun by itself, and can be undone.
        """
        self._before = None
        self._canary = None
        may_go_back = self._num_rollbacks < self._switch.auto.max_rollbacks
        if watched and may_go_back and math.isfinite(self._loss):
            self._canary = Canary(
                self._switch.auto,
                baseline=self._loss,
                begin=position.samples,
                total_samples=self._total,
            )

    def note_pause(self, pause_s: float) -> None:
        """A switch was made, and took so long."""
        if self._moment is not None:
            self._moment.switch_s = pause_s

    def take_window(self, window: Window) -> Move | None:
        """The workers of a lockstep phase have met."""
        self._loss = window.loss if math.isnan(self._loss) else 0.7 * self._loss + 0.3 * window.loss
        reaction = self._compare_in(window)
        if reaction is not None:
            return Move(reaction.what, reaction.reason, reaction.shares)
        if self._moment is None:
            return None
        outlook = self._moment.consider(window)
        self._desk.record(
            events.Considered(
                samples=outlook.samples,
                rel_lr=outlook.rel_lr,
                noise_batches=min(outlook.noise_batches, 1e9),
                gain=outlook.gain,
                saved_s=outlook.saved_s,
                closed=list(outlook.closed),
            )
        )
        return Move("next", outlook.reason) if outlook.ready else None

    def _compare_in(self, window: Window) -> Reaction | None:
        """Compare the workers of a lockstep phase, once enough time has passed."""
        spec = self._switch.straggler
        if self._straggler is None or spec is None:
            return None
        self._computed_s = [a + b for a, b in zip(self._computed_s, window.compute_s, strict=True)]
        self._counted = [a + b for a, b in zip(self._counted, window.num_samples, strict=True)]
        if max(self._computed_s) < spec.window_s:
            return None
        computed_s, counted = self._computed_s, self._counted
        self._forget_times()
        return self._straggler.consider(computed_s, counted)

    def _forget_times(self) -> None:
        self._computed_s = [0.0] * self._job.workers
        self._counted = [0] * self._job.workers

    def take_work(self, message: WorkDone) -> Move | None:
        """Batches of a phase with servers are done."""
        if self._canary is None:
            return None
        for one in message.completed:
            self._canary.count(one.loss_sum, one.num_samples)
        alarm = self._canary.alarm
        if self._canary.is_over:
            self._canary = None
        if alarm is None:
            return None
        self._num_rollbacks += 1
        if self._moment is not None:
            self._moment.demand_more()
        return Move("rollback", alarm)

    def compare_workers(self) -> Move | None:
        """Called often in a looser phase: has the slow machine recovered?"""
        now = time.monotonic()
        spec = self._switch.straggler
        if self._straggler is None or spec is None or now - self._compared < spec.window_s:
            return None
        self._compared = now
        present = [self._desk.progress(f"worker-{rank}") for rank in range(self._job.workers)]
        before, self._before = self._before, present
        if before is None:
            return None
        pairs = list(zip(before, present, strict=True))
        reaction = self._straggler.consider(
            [new.compute_s - old.compute_s for old, new in pairs],
            [new.samples - old.samples for old, new in pairs],
        )
        return None if reaction is None else Move(reaction.what, reaction.reason, reaction.shares)
