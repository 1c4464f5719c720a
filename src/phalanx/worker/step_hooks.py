"""Call a job's additions to the steps of a loop: fault injection, profiling, window statistics.

Loops do not depend on any of these; without them a step costs a few comparisons. Imports no
framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.observe.sampler import Sampler
from phalanx.records.position import Position
from phalanx.strategy.base import StepFacts
from phalanx.worker.inject import InjectedSlowdown
from phalanx.worker.profile_window import WindowProfiler

if TYPE_CHECKING:
    from phalanx.worker.switch.window_stats import WindowStats


class StepHooks:
    """Hooks around the steps of one worker.

    Args:
        slowdown: The injected slowdown, with its state from earlier phases.
        profiler: Profiles operators.
        sampler: Notified when training begins and ends.
        window: Window statistics, by which the workers agree to end the phase; None: none.
    """

    def __init__(
        self,
        *,
        slowdown: InjectedSlowdown,
        profiler: WindowProfiler,
        sampler: Sampler,
        window: WindowStats | None,
    ) -> None:
        self._slowdown = slowdown
        self._profiler = profiler
        self._sampler = sampler
        self._window = window
        self._slept_s = 0.0

    @property
    def has_phase_ended(self) -> bool:
        """Whether the workers have agreed to end the phase."""
        return self._window is not None and self._window.has_ended

    def training_begins(self) -> None:
        """Mark the beginning of a stretch of training."""
        self._sampler.mark("begin")

    def training_ends(self) -> None:
        """Mark the end of a stretch of training."""
        self._sampler.mark("end")

    def steps_begin(self, epoch: int) -> None:
        """Prepare for steps of this epoch."""
        self._profiler.enter(epoch)

    def steps_end(self) -> None:
        """Release what was prepared for steps."""
        self._profiler.leave()

    def before_step(self, progress: float) -> None:
        """Delay the step if the job injects a slowdown; `progress` is the share of samples seen."""
        self._slept_s = self._slowdown.wait(progress)

    def adjust(self, facts: StepFacts) -> StepFacts:
        """Add the delay to the step's compute time, before the step is recorded."""
        return self._slowdown.count(facts, self._slept_s)

    def after_step(
        self, facts: StepFacts, position: Position, *, lr: float, input_s: float
    ) -> bool:
        """Take part in window statistics; True: the workers agreed to end the phase here."""
        ends = self._window is not None and self._window.observe(facts, position, lr=lr)
        # After the window's exchange, which belongs to the window that is being profiled.
        self._profiler.step_done(input_s=input_s, exchange_s=facts.exchange_s)
        return ends
