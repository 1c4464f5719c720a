"""A launcher that starts nothing: its processes are entries in memory that do as a test says.

For the contract of launchers, and for tests of the controller that need no process at all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from phalanx.errors import LaunchError, PhalanxError
from phalanx.launch.allocation import Allocation, LocalAllocation
from phalanx.launch.base import Launcher, LaunchRequest, ProcessStatus, WorkerGroup
from phalanx.records.rundir import RunDir
from phalanx.spec.worker import WorkerSpec

KILLED, TERMINATED = -9, -15


@dataclass
class Script:
    """What happens to processes, by name.

    Attributes:
        exits: Exit codes of the starts of a process, one after the other; after those it runs on.
        logs: What a process prints.
        refused: Processes that cannot be started.
        obstacle: What `check` raises; None: nothing.
        on_start: Told of every process that was started.
    """

    exits: Mapping[str, Sequence[int]] = field(default_factory=dict)
    logs: Mapping[str, str] = field(default_factory=dict)
    refused: Collection[str] = ()
    obstacle: PhalanxError | None = None
    on_start: Callable[[WorkerSpec], None] = lambda spec: None


class FakeLauncher(Launcher):
    """Keeps processes in memory.

    Attributes:
        groups: What was started, in order.
        is_closed: Whether it was closed.
    """

    def __init__(self, request: LaunchRequest, script: Script | None = None) -> None:
        super().__init__(request)
        self.script = script or Script()
        self.groups: list[FakeGroup] = []
        self.is_closed = False

    @override
    def check(self) -> None:
        if self.script.obstacle is not None:
            raise self.script.obstacle

    @override
    def allocate(self, run: RunDir) -> Allocation:
        request = self.request
        return LocalAllocation(
            request.job,
            run_dir=run.path,
            data_root=request.data_root,
            cache_root=request.cache_root,
        )

    @override
    def start(self, specs: Sequence[WorkerSpec]) -> FakeGroup:
        group = FakeGroup(self.script)
        self.groups.append(group)
        try:
            for spec in specs:
                group.add(spec)
        except BaseException:
            group.stop(0.0)
            raise
        return group

    @override
    def close(self) -> None:
        self.is_closed = True


@dataclass
class FakeProcess:
    """One process since its last start."""

    spec: WorkerSpec
    exit_code: int | None = None
    lost: str | None = None


class FakeGroup(WorkerGroup):
    """Processes in memory.

    Attributes:
        processes: By name, as they are now.
        starts: Names of all that were started, in order.
        graces: What `stop` was called with.
    """

    def __init__(self, script: Script) -> None:
        self.processes: dict[str, FakeProcess] = {}
        self.starts: list[str] = []
        self.graces: list[float] = []
        self._script = script

    @override
    def add(self, spec: WorkerSpec) -> None:
        name = spec.process
        if name in self._script.refused:
            raise LaunchError(f"cannot start {name}: the script says so", process=name)
        codes = self._script.exits.get(name, ())
        turn = self.starts.count(name)
        self.processes[name] = FakeProcess(spec, codes[turn] if turn < len(codes) else None)
        self.starts.append(name)
        self._script.on_start(spec)

    @override
    def poll(self) -> list[ProcessStatus]:
        return [ProcessStatus(name, p.exit_code, p.lost) for name, p in self.processes.items()]

    @override
    def log_tail(self, process: str, num_lines: int = 30) -> str:
        return "\n".join(self._script.logs.get(process, "").splitlines()[-num_lines:])

    @override
    def kill(self, process: str) -> None:
        self.end(process, KILLED)

    @override
    def stop(self, grace_s: float) -> None:
        self.graces.append(grace_s)
        for name in self.processes:
            self.end(name, TERMINATED)

    def end(self, process: str, exit_code: int) -> None:
        """Let a process end, unless it has."""
        found = self.processes[process]
        if found.exit_code is None:
            found.exit_code = exit_code

    def lose(self, process: str, reason: str) -> None:
        """Let a process be lost with its machine."""
        self.processes[process].lost = reason
