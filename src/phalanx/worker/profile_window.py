"""Profile operators in the epochs that the job selects; for every framework.

Loops report their position (`enter`, `step_done`, `leave`); outside of the selected epochs that
costs a comparison. The profiler is read every few steps, because it keeps some hundred bytes per
operator call and a large model makes thousands of calls a step. All workers read after the same
step, so that they do not wait for one another, and the pause is not measured. Imports no framework.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

from phalanx.records.profile import EpochProfile, ProcessProfile, read_profile, write_profile
from phalanx.records.rundir import RunDir
from phalanx.spec.observe import ProfileSpec

# ResNet-56 makes 3,200 calls a step: 64,000 calls are read in a third of a second.
STEPS_PER_READING = 20


class ProfileWindow(ABC):
    """The time from `enter` to `leave`, in which a framework's profiler runs.

    Args:
        epoch: The epoch that it is in.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self._steps = 0
        self._wall_s = 0.0
        self._begin = 0.0

    @abstractmethod
    def _start(self) -> None:
        """Start the framework's profiler."""

    @abstractmethod
    def _stop(self) -> None:
        """Stop it, and add what it saw."""

    @abstractmethod
    def _count(self, *, input_s: float, exchange_s: float) -> None:
        """Add the loop's own measurements of a step."""

    @abstractmethod
    def _include(self, former: EpochProfile) -> None:
        """Add the operators of an earlier window of the same epoch."""

    @abstractmethod
    def _profile(self, *, wall_s: float, steps: int) -> EpochProfile:
        """Build the profile from what was measured."""

    def resume(self) -> None:
        """Start measuring."""
        self._start()
        self._begin = time.perf_counter()

    def pause(self) -> None:
        """Stop measuring, and read what was measured."""
        self._wall_s += time.perf_counter() - self._begin
        self._stop()

    def count_step(self, *, input_s: float, exchange_s: float) -> None:
        """Count a step; every few steps, read the profiler and restart it."""
        self._steps += 1
        self._count(input_s=input_s, exchange_s=exchange_s)
        if self._steps % STEPS_PER_READING == 0:
            self.pause()
            self.resume()

    def result(self, former: EpochProfile | None) -> EpochProfile:
        """Combine this window with an earlier one of the same epoch."""
        if former is not None:
            self._include(former)
            self._wall_s += former.wall_s
            self._steps += former.steps
        return self._profile(wall_s=self._wall_s, steps=self._steps)


class WindowProfiler(ABC):
    """Profile the chosen epochs of one process.

    Args:
        spec: Which epochs; None profiles nothing.
        run: Where the result is written.
        process: This process's name.
    """

    engine: str
    """Name and version of the framework."""

    def __init__(self, spec: ProfileSpec | None, *, run: RunDir, process: str) -> None:
        self._spec = spec
        self._run = run
        self._process = process
        self._window: ProfileWindow | None = None
        self._own: set[int] = set()

    @abstractmethod
    def _open(self, epoch: int, spec: ProfileSpec) -> ProfileWindow:
        """Make a window, which does not measure yet."""

    def enter(self, epoch: int) -> None:
        """Prepare for steps of this epoch; further calls within the epoch do nothing."""
        if self._window is not None and self._window.epoch == epoch:
            return
        self.leave()
        if self._spec is not None and self._spec.covers(epoch):
            self._window = self._open(epoch, self._spec)
            self._window.resume()

    def step_done(self, *, input_s: float = 0.0, exchange_s: float = 0.0) -> None:
        """Count a step.

        Args:
            input_s: How long it waited for its batch.
            exchange_s: How long it took part in the exchange.
        """
        if self._window is not None:
            self._window.count_step(input_s=input_s, exchange_s=exchange_s)

    def leave(self) -> None:
        """End the measurement at the end of an epoch or a pause, and write the profile."""
        window, self._window = self._window, None
        if window is None:
            return
        window.pause()
        former = read_profile(self._run, self._process)
        epochs = {one.epoch: one for one in former.epochs} if former is not None else {}
        # A gate within an epoch, such as a checkpoint, makes several windows of it. The profile of
        # an earlier process is replaced: a resumed run repeats the epoch.
        earlier = epochs.get(window.epoch) if window.epoch in self._own else None
        epochs[window.epoch] = window.result(earlier)
        self._own.add(window.epoch)
        write_profile(
            self._run,
            ProcessProfile(
                process=self._process,
                engine=self.engine,
                epochs=[epochs[number] for number in sorted(epochs)],
            ),
        )
