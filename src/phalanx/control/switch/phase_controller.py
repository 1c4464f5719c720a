"""Decide when a phase is left early: automatic switches, their canary, stragglers.

Feeds the pure policies with workers' reports, records their estimates, and returns a
`PhaseTransition` when the present phase is to be left.
"""

from __future__ import annotations

import math
import time

from phalanx.control.coordinator import ControllerApi
from phalanx.control.switch.sequence import PhaseSequence
from phalanx.control.switch.straggler import StragglerPolicy
from phalanx.control.switch.switch_policy import Canary, SwitchPolicy
from phalanx.control.switch.transition import PhaseTransition
from phalanx.records import events
from phalanx.records.position import Position
from phalanx.spec.job import JobSpec
from phalanx.spec.switch import PhaseStrategy, SwitchSpec
from phalanx.wire.messages import Progress
from phalanx.wire.parameter_server import WorkDone
from phalanx.wire.switch import WindowReport


class PhaseController:
    """Early transitions of one run.

    Args:
        job: The job.
        api: Records, and knows the workers' progress.
        num_samples: Training samples of an epoch.
    """

    def __init__(self, job: JobSpec, api: ControllerApi, *, num_samples: int) -> None:
        assert isinstance(job.strategy, SwitchSpec)
        self._job = job
        self._switch = job.strategy
        self._api = api
        self.sequence = PhaseSequence(job, num_samples=num_samples)
        self._total = num_samples * job.epochs
        straggler = self._switch.straggler
        self._straggler = StragglerPolicy(straggler, num_workers=job.workers) if straggler else None
        self._policy: SwitchPolicy | None = None
        self._of_phase = -1
        self._canary: Canary | None = None
        self._loss = math.nan
        self._num_rollbacks = 0
        self._compared = time.monotonic()
        self._before: list[Progress] | None = None
        self._computed_s = [0.0] * job.workers
        self._counted = [0] * job.workers

    def enter_lockstep(self, phase: int, after: PhaseStrategy | None) -> None:
        """Watch a synchronous phase, which begins or continues.

        Args:
            phase: Its number.
            after: The strategy that an automatic switch leads to; None: none is planned.
        """
        self._canary = None
        self._forget_times()
        is_new, self._of_phase = phase != self._of_phase, phase
        if after is None:
            self._policy = None
        elif self._policy is None or is_new:
            self._policy = SwitchPolicy(
                self._switch.auto,
                after=after,
                peak_lr=self._job.optimizer.lr,
                total_samples=self._total,
                global_batch=self._job.global_batch,
                warmup=self._job.schedule.warmup,
            )

    def enter_serving(self, position: Position, *, watched: bool) -> None:
        """Watch a phase with servers, which begins.

        Args:
            position: Where the run stands.
            watched: Whether an automatic switch began it, which can be undone.
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
        """Note the length of a switch's pause: the next one must save more."""
        if self._policy is not None:
            self._policy.switch_s = pause_s

    def take_window(self, window: WindowReport) -> PhaseTransition | None:
        """Evaluate a window of steps of a synchronous phase."""
        self._loss = window.loss if math.isnan(self._loss) else 0.7 * self._loss + 0.3 * window.loss
        transition = self._compare_in(window)
        if transition is not None:
            return transition
        if self._policy is None:
            return None
        estimate = self._policy.consider(window)
        self._api.record(
            events.Considered(
                samples=estimate.samples,
                rel_lr=estimate.rel_lr,
                noise_batches=min(estimate.noise_batches, 1e9),
                gain=estimate.gain,
                saved_s=estimate.saved_s,
                closed=list(estimate.closed),
            )
        )
        return PhaseTransition("next", estimate.reason) if estimate.ready else None

    def _compare_in(self, window: WindowReport) -> PhaseTransition | None:
        """Compare the workers of a synchronous phase, once enough time has passed."""
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

    def take_work(self, message: WorkDone) -> PhaseTransition | None:
        """Show completed batches of a phase with servers to the canary."""
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
        if self._policy is not None:
            self._policy.demand_more()
        return PhaseTransition("rollback", alarm)

    def compare_workers(self) -> PhaseTransition | None:
        """Compare workers in a loosened phase, as a straggler may have recovered; called often."""
        now = time.monotonic()
        spec = self._switch.straggler
        if self._straggler is None or spec is None or now - self._compared < spec.window_s:
            return None
        self._compared = now
        present = [self._api.progress(f"worker-{rank}") for rank in range(self._job.workers)]
        before, self._before = self._before, present
        if before is None:
            return None
        pairs = list(zip(before, present, strict=True))
        return self._straggler.consider(
            [new.compute_s - old.compute_s for old, new in pairs],
            [new.samples - old.samples for old, new in pairs],
        )
