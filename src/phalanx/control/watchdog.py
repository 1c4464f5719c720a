"""Notice that nothing moves in a run any more, and say what it waits for. Pure: no clock.

Slow is not stuck: a step, a message, another activity or processor time of any process is movement,
however long the rest takes. Processor time alone is movement for some hours only: a process that
runs in circles uses it, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from phalanx.control.coordinator import Awaited
from phalanx.control.failure_policy import ProcessFailure
from phalanx.errors import ExitCode
from phalanx.wire.messages import Heartbeat, Progress
from phalanx.wire.parameter_server import WorkDone

# Heartbeats, sampling and polls of a process that waits take a percent or two.
_BUSY_SHARE = 0.1
_MEASURED_S = 5.0
# Multiples of the limit in which processes only compute: six hours by default, longer than the
# evaluation of a great data set takes on one core.
_ONLY_BUSY = 36
_MOST_NAMED = 6


@dataclass
class _Usage:
    """Processor time that a process had used at a moment of the watchdog's time."""

    cpu_s: float
    at_s: float


class ProgressWatchdog:
    """Count the time in which nothing moves.

    Args:
        limit_s: How much of it is allowed.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._now_s = 0.0
        self._moved_s = 0.0
        self._advanced_s = 0.0
        """The last movement that was more than processor time."""
        self._counters: dict[str, tuple[float, ...]] = {}
        self._activities: set[tuple[str, str]] = set()
        """Activities since the last movement: to come back to one of them is no movement."""
        self._usage: dict[str, _Usage] = {}

    @property
    def is_stuck(self) -> bool:
        """Whether nothing has moved for longer than is allowed, or processes only compute."""
        return self._now_s - self._moved_s > self._limit_s or self._is_only_busy

    @property
    def _is_only_busy(self) -> bool:
        return self._now_s - self._advanced_s > _ONLY_BUSY * self._limit_s

    def age(self, elapsed_s: float, *, is_starting: bool) -> None:
        """Let time pass.

        Args:
            elapsed_s: How much, without delays of the controller itself.
            is_starting: Whether a process has not joined yet, for which there is another deadline.
        """
        self._now_s += elapsed_s
        if is_starting:
            self.moved()

    def take(self, process: str, message: object) -> None:
        """Note what a message shows; heartbeats, and work without a batch, may show nothing.

        Rounds that lack a worker are filled up with pushes without samples, for ever if need be.
        """
        match message:
            case Heartbeat(progress=progress):
                self._take_progress(process, progress)
            case WorkDone(completed=()):
                pass
            case _:
                self.moved()

    def moved(self) -> None:
        """Note movement that no message shows."""
        self._moved_s = self._advanced_s = self._now_s
        self._activities.clear()

    def failure(self, awaited: Iterable[Awaited], activities: Mapping[str, str]) -> ProcessFailure:
        """Describe a run that is stuck, by what it waits for.

        Args:
            awaited: What the coordinator waits for; none: it does not wait itself.
            activities: What each process says it is doing.
        """
        waits = list(awaited) or [Awaited(name, "to go on") for name in activities]
        named = [
            f"{one.process} {one.what} (it says: {activities.get(one.process, 'nothing')})"
            for one in waits[:_MOST_NAMED]
        ]
        if len(waits) > _MOST_NAMED:
            named.append(f"{len(waits) - _MOST_NAMED} more")
        # One that has left the run has no log to show.
        present = [one.process for one in waits if one.process in activities]
        what = f"nothing has moved for {self._limit_s:g} s"
        if self._is_only_busy:
            what = (
                f"processes have only computed for {_ONLY_BUSY * self._limit_s:g} s, no step done"
            )
        return ProcessFailure(
            process=present[0] if present else next(iter(activities)),
            cause=f"{what} (deadlines.progress_s): the run waits for {', '.join(named)}",
            exit_code=ExitCode.DEADLINE,
        )

    def _take_progress(self, process: str, progress: Progress) -> None:
        is_busy = self._is_busy(process, progress.cpu_s)
        counters = (progress.epoch, progress.step, progress.samples, progress.compute_s)
        before, self._counters[process] = self._counters.get(process), counters
        if counters != before:
            self.moved()
        elif is_busy:
            self._moved_s = self._now_s
        doing = (process, progress.activity)
        if doing not in self._activities:
            self._activities.add(doing)
            self._moved_s = self._advanced_s = self._now_s

    def _is_busy(self, process: str, cpu_s: float) -> bool:
        before = self._usage.get(process)
        if before is None or cpu_s < before.cpu_s:
            self._usage[process] = _Usage(cpu_s, self._now_s)
            return False
        elapsed_s = self._now_s - before.at_s
        if elapsed_s < _MEASURED_S:
            return False
        self._usage[process] = _Usage(cpu_s, self._now_s)
        return cpu_s - before.cpu_s > _BUSY_SHARE * elapsed_s
