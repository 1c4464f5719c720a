"""Sum up the phases of each worker's steps, to hold against what reports say."""

from __future__ import annotations

from phalanx.records.attempts import Logs, by_attempt
from phalanx.records.events import Stall, Step
from phalanx.records.step_phases import Comparison, StepPhases


def worker_phases(logs: Logs) -> dict[str, StepPhases]:
    """Where each worker's time went, over all attempts; processes without steps are left out."""
    sums: dict[str, StepPhases] = {}
    for workers in by_attempt(logs).values():
        comparison = Comparison(event for events in workers.values() for event in events)
        for process, events in workers.items():
            for event in events:
                if isinstance(event, Step | Stall):
                    before = sums.get(process, StepPhases())
                    sums[process] = before + comparison.phases(event)
    return sums
