"""Add up elapsed time, phases and bytes of a run over its processes and attempts.

A worker that is lost, and an attempt that fails, cannot report what they spent. Heartbeats can: the
controller records their sums from time to time and at the end of an attempt, and a resumed run
begins with the last record of every attempt before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from phalanx.control.work_times import NO_WORK, add_times, add_two, work_times
from phalanx.records.events import AttemptTotals
from phalanx.records.log import EventLog, read_events
from phalanx.wire.messages import Progress, WorkTimes

# Between two records: a tenth of the training so far, so that hardly more is ever missing.
_SHORTEST_S, _LONGEST_S = 0.2, 30.0


def earlier_totals(path: Path, attempt: int) -> AttemptTotals:
    """Return the sums over the attempts before this one.

    Args:
        path: Event log of the controller.
        attempt: The present one.
    """
    latest: dict[int, AttemptTotals] = {}
    for event in read_events(path, AttemptTotals):
        if isinstance(event, AttemptTotals) and event.attempt < attempt:
            latest[event.attempt] = event
    times = NO_WORK
    for event in latest.values():
        times = add_two(times, event.times)
    return AttemptTotals(
        attempt=0,
        elapsed_s=sum(event.elapsed_s for event in latest.values()),
        startup_s=sum(event.startup_s for event in latest.values()),
        times=times,
    )


class RunTotals:
    """Elapsed time, phases and bytes of all attempts of a run.

    Args:
        log: Of the controller.
        attempt: The present attempt.
        before: Sums over the attempts before it.
    """

    def __init__(self, log: EventLog, attempt: int, before: AttemptTotals) -> None:
        self._log = log
        self._attempt = attempt
        self._before = before
        self._startup_s: float | None = None
        self._recorded_s: float | None = None

    def note(
        self, workers: Mapping[str, Progress], lost: Mapping[str, WorkTimes], elapsed_s: float
    ) -> None:
        """Record the sums of this attempt, if the last record has become too old."""
        if self._startup_s is None and any(one.step for one in workers.values()):
            self._startup_s = elapsed_s
        trained_s = elapsed_s - (self._startup_s or 0.0)
        longest_s = min(_LONGEST_S, max(_SHORTEST_S, 0.1 * trained_s))
        if self._recorded_s is None or elapsed_s - self._recorded_s >= longest_s:
            self.record(workers, lost, elapsed_s)
            # At once: a killed controller takes what is only buffered along.
            self._log.flush()

    def record(
        self, workers: Mapping[str, Progress], lost: Mapping[str, WorkTimes], elapsed_s: float
    ) -> None:
        """Record the sums of this attempt now, because it ends."""
        self._recorded_s = elapsed_s
        present = {name: work_times(progress) for name, progress in workers.items()}
        self._log.record(
            AttemptTotals(
                attempt=self._attempt,
                elapsed_s=elapsed_s,
                startup_s=elapsed_s if self._startup_s is None else self._startup_s,
                times=mean_times(present, lost),
            )
        )

    def conclude(
        self,
        reported: Mapping[str, WorkTimes],
        lost: Mapping[str, WorkTimes],
        *,
        elapsed_s: float,
        startup_s: float,
    ) -> AttemptTotals:
        """Return the totals of the whole run once its workers have reported; recorded as well.

        Args:
            reported: By the workers at their end.
            lost: Of workers that could not report.
            elapsed_s: Of this attempt.
            startup_s: Of this attempt as reported, if it ended before a heartbeat told of a step.
        """
        own = AttemptTotals(
            attempt=self._attempt,
            elapsed_s=elapsed_s,
            startup_s=startup_s if self._startup_s is None else self._startup_s,
            times=mean_times(reported, lost),
        )
        self._log.record(own)
        return AttemptTotals(
            attempt=self._attempt,
            elapsed_s=self._before.elapsed_s + elapsed_s,
            startup_s=self._before.startup_s + own.startup_s,
            times=add_two(self._before.times, own.times),
        )


def mean_times(present: Mapping[str, WorkTimes], lost: Mapping[str, WorkTimes]) -> WorkTimes:
    """Return seconds as means per present worker, and the bytes of all, lost ones included."""
    total = NO_WORK
    for one in add_times(lost, present).values():
        total = add_two(total, one)
    share = 1.0 / max(1, len(present))
    seconds = {
        name: share * getattr(total, name)
        for name in WorkTimes.__struct_fields__
        if name.endswith("_s")
    }
    return msgspec.structs.replace(total, **seconds)
