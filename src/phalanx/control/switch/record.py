"""Record the switches of a run with their pauses; passed from a coordinator to its successor."""

from __future__ import annotations

import time
from collections.abc import Mapping

from phalanx.control.coordinator import ControllerApi, Coordinator
from phalanx.control.work_times import add_times
from phalanx.records.events import Switched
from phalanx.wire.messages import WorkTimes


class SwitchRecord:
    """Facts that outlive phases and processes."""

    def __init__(self, api: ControllerApi, num_workers: int) -> None:
        self._api = api
        self._num_workers = num_workers
        self._made_at = time.monotonic()
        self._announced: Switched | None = None
        self._pauses: dict[str, float] = {}
        self._left_at: float | None = None
        self._times: dict[str, WorkTimes] = {}
        self.startup_s: float | None = None
        self.switches: list[Switched] = []
        self.last_served: Coordinator | None = None
        """Coordinator of the last phase with servers."""

    def announce(self, switch: Switched) -> None:
        """Hold a switch under way until all workers have begun the new phase."""
        self._announced = switch

    def processes_leave(self) -> None:
        """Start the pause now: the next phase has new processes."""
        self._left_at = time.monotonic()

    def phase_begins(self) -> None:
        """Wait for all workers again."""
        self._pauses.clear()

    def worker_began(self, process: str, pause_s: float) -> float | None:
        """Note that a worker trains in its new phase.

        Returns:
            The pause of the switch, once it is complete; it is recorded then.
        """
        self._pauses[process] = pause_s
        if self.startup_s is None:
            self.startup_s = time.monotonic() - self._made_at
        announced, left_at = self._announced, self._left_at
        if announced is None or len(self._pauses) < self._num_workers:
            return None
        longest = max(self._pauses.values())
        announced.pause_s = longest if left_at is None else time.monotonic() - left_at
        self._announced = self._left_at = None
        self._api.record(announced)
        self.switches.append(announced)
        return announced.pause_s

    def process_ended(self, process: str, times: WorkTimes | None) -> None:
        """Add the times of a worker that a new process replaces."""
        if times is not None:
            self._times = add_times(self._times, {process: times})

    def total_times(self, last: Mapping[str, WorkTimes]) -> dict[str, WorkTimes]:
        """Add the times of the last processes to those of all before."""
        return add_times(self._times, last)
