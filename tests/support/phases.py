"""Sum up the phases of each worker's steps, to hold against what reports say."""

from __future__ import annotations

from phalanx.records.attempts import Logs, by_attempt
from phalanx.records.events import Standstill, Step
from phalanx.records.phases import Comparison, Phases


def worker_phases(logs: Logs) -> dict[str, Phases]:
    """Where each worker's time went, over all attempts; processes without steps are left out."""
    sums: dict[str, Phases] = {}
    for workers in by_attempt(logs).values():
        comparison = Comparison(event for events in workers.values() for event in events)
        for process, events in workers.items():
            for event in events:
                if isinstance(event, Step | Standstill):
                    before = sums.get(process, Phases())
                    sums[process] = before + comparison.phases(event)
    return sums
