"""Call what a job adds to the steps of a loop: fault injection, profiling, window statistics.

A loop knows nothing of these; where a job asks for none of them, a step costs a few comparisons.
Imports no framework.
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
    """What is called around the steps of one worker.

    Args:
        slowdown: What the job injects into this worker, as it stands from earlier phases.
        profiler: Takes the times of operators.
        sampler: Is told when training begins and ends.
        window: Where the workers agree now and then whether to end the phase; None: they do not.
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
        """Mark that training goes on."""
        self._sampler.mark("begin")

    def training_ends(self) -> None:
        """Mark that training is over for now."""
        self._sampler.mark("end")

    def steps_begin(self, epoch: int) -> None:
        """Prepare for steps of this epoch."""
        self._profiler.enter(epoch)

    def steps_end(self) -> None:
        """Put away what was prepared for steps."""
        self._profiler.leave()

    def before_step(self, progress: float) -> None:
        """Delay the step, if the job injects that; `progress` is the share of samples seen."""
        self._slept_s = self._slowdown.wait(progress)

    def adjust(self, facts: StepFacts) -> StepFacts:
        """Count the delay into what the step came to, before anybody records it."""
        return self._slowdown.count(facts, self._slept_s)

    def after_step(
        self, facts: StepFacts, position: Position, *, lr: float, input_s: float
    ) -> bool:
        """Take part in window statistics; True: the workers agreed to end the phase here."""
        ends = self._window is not None and self._window.observe(facts, position, lr=lr)
        # After the meeting: its exchange belongs to the window that is being profiled.
        self._profiler.step_done(input_s=input_s, exchange_s=facts.exchange_s)
        return ends
