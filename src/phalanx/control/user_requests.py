"""Carry out what a user asks of a running run: stop, more workers, the next phase.

Commands and the dashboard leave requests in the run directory (`records.stop_request`,
`records.scale_request`, `records.switch_request`); the controller looks at them several times a
second, and each is answered once.
"""

from __future__ import annotations

from collections.abc import Callable

from phalanx.control.coordinator import Coordinator
from phalanx.control.process_table import ProcessTable
from phalanx.control.run_end import stopped
from phalanx.records.events import Decision, Event
from phalanx.records.rundir import RunDir
from phalanx.records.stop_request import is_stop_requested
from phalanx.records.switch_request import requested_switch

ASKED = "a user asked for it"


class UserRequests:
    """Requests to one attempt of a run.

    Args:
        run: Holds the requests.
        attempt: Of this controller; requests to earlier ones are void.
        record: Writes an event into the controller's log.
    """

    def __init__(self, run: RunDir, attempt: int, record: Callable[[Event], None]) -> None:
        self._run = run
        self._attempt = attempt
        self._record = record
        # What was asked before this attempt began is done, or void.
        self._workers = run.requested_workers()
        self._switch = requested_switch(run, attempt)

    def check_stop(self) -> None:
        """Raise `Interrupted` if the end of the run was requested."""
        if is_stop_requested(self._run, self._attempt):
            raise stopped(self._run.path)

    def carry_out(self, coordinator: Coordinator, processes: ProcessTable) -> None:
        """Carry out the requests that are new."""
        self._grow(coordinator, processes)
        self._begin_next_phase(coordinator)

    def _grow(self, coordinator: Coordinator, processes: ProcessTable) -> None:
        wanted = self._run.requested_workers()
        if wanted is None or wanted == self._workers:
            return
        self._workers = wanted
        started = [one for one in coordinator.resize(wanted) if processes.has_room(one)]
        for process in started:
            processes.add(process)
        names = ", ".join(process.name for process in started) or "no worker"
        self._record(Decision(what=f"start {names}", reason=f"{wanted} workers are wanted"))

    def _begin_next_phase(self, coordinator: Coordinator) -> None:
        wanted = requested_switch(self._run, self._attempt)
        if wanted is None or wanted == self._switch:
            return
        self._switch = wanted
        if not coordinator.begin_next_phase(ASKED):
            reason = "a switch was asked for, but the run is in no phase that another one follows"
            self._record(Decision(what="stay in this phase", reason=reason))
