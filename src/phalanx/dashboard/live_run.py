"""Follow one run directory: read what its processes appended, and keep the state that follows.

Only reads. Shared by all who look at a run; `poll` is called by one thread at a time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.dashboard.follow import LogFollower
from phalanx.dashboard.observed_run import ObservedRun, ProcessTime
from phalanx.dashboard.series import Thinning
from phalanx.records.events import AnyEvent
from phalanx.records.manifest import Manifest, read_manifest
from phalanx.records.rundir import RunDir, Status

POLL_BUDGET_S = 0.5
# Small, so that the logs of all workers advance together: their steps are compared.
_CHUNK_BYTES = 256 * 1024
_UNUSED = (b'{"kind":"processsample"', b'{"kind":"networkbuilt"')
_HOST_SAMPLE = b'{"kind":"hostsample"'
_CONTROLLER = "controller"


@dataclass
class _ProcessLog:
    """The log of one process, and what is needed to place its events in time."""

    path: Path
    thinning: Thinning = field(default_factory=Thinning)
    places: Thinning = field(default_factory=lambda: Thinning(every=1000))
    time: ProcessTime = field(default_factory=ProcessTime)
    is_controller: bool = field(init=False)
    """Whether its clock is that of all others."""
    follower: LogFollower = field(init=False)

    def __post_init__(self) -> None:
        self.is_controller = self.path.stem == _CONTROLLER
        self.follower = LogFollower(self.path, self._is_wanted)

    def _is_wanted(self, line: bytes) -> bool:
        if line.startswith(_UNUSED):
            # The controller's tell the attempt that its other events belong to, and of each
            # process the first tells its machine.
            return self.is_controller or self.places.choose()
        return self.thinning.choose() if line.startswith(_HOST_SAMPLE) else True


class LiveRun:
    """One run as its records show it so far.

    Args:
        run: The run directory.
    """

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.manifest: Manifest = read_manifest(run)
        self.state = ObservedRun(self._num_workers)
        self.status: Status = run.read_status()
        self.num_bytes_left = 0
        self._logs: dict[str, _ProcessLog] = {}
        self._wall_less_mono_s: dict[int, float] = {}
        self._begin_s: float | None = None

    @property
    def _num_workers(self) -> int:
        return int(self.manifest.job["workers"])

    @property
    def is_live(self) -> bool:
        """Whether more records may come."""
        return self.status.state == "running"

    def poll(self, budget_s: float = POLL_BUDGET_S) -> bool:
        """Read what is new, for about so many seconds at most; tell whether there was anything."""
        before = self.status
        # Read before the logs: whoever sees the end has everything that was written before it.
        self.status = self.run.read_status()
        changed = self.status != before
        deadline_s = time.monotonic() + budget_s
        self._find_logs()
        is_reading = True
        while is_reading and time.monotonic() < deadline_s:
            is_reading = False
            for name, log in self._logs.items():
                offset = log.follower.offset
                for event in log.follower.read(_CHUNK_BYTES):
                    self._take(name, log, event)
                is_reading |= log.follower.offset > offset
                if time.monotonic() >= deadline_s:
                    break
            changed |= is_reading
        if any(log.follower.was_replaced for log in self._logs.values()):
            self._begin_again()
            return True
        self.num_bytes_left = sum(log.follower.num_bytes_left for log in self._logs.values())
        if not self.is_live and self.num_bytes_left == 0:
            self.state.finish()
        return changed

    @property
    def num_bytes_read(self) -> int:
        """Bytes of the logs that have been read."""
        return sum(log.follower.offset for log in self._logs.values())

    def _find_logs(self) -> None:
        folder = self.run.path / "events"
        found = {path.stem: path for path in folder.glob("*.jsonl")} if folder.is_dir() else {}
        # The controller's first: its clock is that of all others.
        for name in sorted(found, key=lambda one: (one != _CONTROLLER, one)):
            if name not in self._logs:
                self._logs[name] = _ProcessLog(found[name])

    def _begin_again(self) -> None:
        self.state = ObservedRun(self._num_workers)
        self._logs.clear()
        self._wall_less_mono_s.clear()
        self._begin_s = None

    def _take(self, name: str, log: _ProcessLog, event: AnyEvent) -> None:
        log.time.take(event)
        wall_s = self._wall_s(log, event)
        if self._begin_s is None:
            self._begin_s = wall_s
        self.state.take(name, log.time.attempt, max(0.0, wall_s - self._begin_s), event)

    def _wall_s(self, log: _ProcessLog, event: AnyEvent) -> float:
        """Return the time of day of an event, on the controller's clock.

        Clocks of machines may differ by minutes: of other processes only monotonic time is taken,
        whose offset is measured.
        """
        attempt, mono_s = log.time.attempt, event.mono_s + log.time.offset_s
        if log.is_controller or attempt not in self._wall_less_mono_s:
            self._wall_less_mono_s[attempt] = event.wall_s - mono_s
        return self._wall_less_mono_s[attempt] + mono_s
