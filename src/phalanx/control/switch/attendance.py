"""Track which processes of a switching run are idle, lost, or in which phases."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping

from phalanx.control.switch.phases import PhaseRun


class Attendance:
    """Phases of every process.

    A process may be assigned its next phase while it still ends the one before (the evaluator
    writes, a server reports). Its messages belong to the first of its phases.

    Args:
        group: Number of the first group of workers.
    """

    def __init__(self, *, group: int) -> None:
        self.idle: set[str] = set()
        self.missing: set[str] = set()
        """Lost, and not restarted yet."""
        self.group = group
        self._grouped: dict[str, int] = {}
        self._phases: dict[str, deque[PhaseRun]] = defaultdict(deque)

    def phase_of(self, process: str) -> PhaseRun | None:
        """Return the phase that a process is in; None: it is idle, or was replaced."""
        phases = self._phases[process]
        return phases[0] if phases else None

    def came(self, process: str) -> None:
        """Note that a process has started and waits for a phase."""
        self.missing.discard(process)
        self.idle.add(process)

    def begins(self, process: str, phase: PhaseRun) -> None:
        """Note that a process is assigned a phase."""
        self.idle.discard(process)
        self._phases[process].append(phase)

    def ends(self, process: str) -> None:
        """Note that a process has left the first of its phases."""
        self._phases[process].popleft()
        if not self._phases[process]:
            self.idle.add(process)

    def lose(self, process: str) -> Iterable[PhaseRun]:
        """Note that a process is lost; returns its phases."""
        self.idle.discard(process)
        self.missing.add(process)
        return self._phases.pop(process, ())

    def regroup(self, incarnations: Mapping[str, int]) -> None:
        """Number a new group of workers if one was replaced since the last was formed."""
        present = {name: one for name, one in incarnations.items() if name.startswith("worker-")}
        if self._grouped and self._grouped != present:
            self.group += 1
        self._grouped = present
