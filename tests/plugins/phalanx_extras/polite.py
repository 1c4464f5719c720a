"""Start workers at the lowest priority, so that the owner of a PC does not notice them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from phalanx.errors import LaunchError
from phalanx.launch.allocation import Allocation, LocalAllocation
from phalanx.launch.base import Launcher, ProcessStatus, WorkerGroup
from phalanx.launch.catalogue import LauncherKind
from phalanx.records.rundir import RunDir
from phalanx.spec.worker import WorkerSpec

_GONE_S = 10.0


class PoliteLauncher(Launcher):
    """Processes of this machine, behind `nice`."""

    _logs = Path()

    def check(self) -> None:
        """Need nothing but this machine."""

    def allocate(self, run: RunDir) -> Allocation:
        """Give every process its share of this machine's cores."""
        self._logs = run.path / "logs"
        return LocalAllocation(
            self.request.job,
            run_dir=run.path,
            data_root=self.request.data_root,
            cache_root=self.request.cache_root,
        )

    def start(self, specs: Sequence[WorkerSpec]) -> WorkerGroup:
        """Start all of them, or none."""
        group = PoliteGroup(self._logs)
        try:
            for spec in specs:
                group.add(spec)
        except BaseException:
            group.stop(grace_s=0.0)
            raise
        return group


class PoliteGroup(WorkerGroup):
    """The processes of one run."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def add(self, spec: WorkerSpec) -> None:
        """Start one process; its spec is the first line that it reads."""
        command = ["nice", "-n", "19", sys.executable, "-m", spec.module]
        try:
            with (self._logs / f"{spec.process}.log").open("ab") as log:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise LaunchError(f"cannot start {spec.process}: {error.strerror}") from error
        self._processes[spec.process] = process
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(spec.model_dump_json(by_alias=True).encode() + b"\n")
            process.stdin.flush()

    def poll(self) -> list[ProcessStatus]:
        """Return what has become of every process."""
        return [ProcessStatus(name, one.poll()) for name, one in self._processes.items()]

    def log_tail(self, process: str, num_lines: int = 30) -> str:
        """Return the last lines of a process's log."""
        path = self._logs / f"{process}.log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return "\n".join(lines[-num_lines:])

    def kill(self, process: str) -> None:
        """End one process at once."""
        self._processes[process].kill()
        self._reap(self._processes[process])

    def stop(self, grace_s: float) -> None:
        """Ask all processes to end, and kill those that do not."""
        for one in self._processes.values():
            if one.poll() is None:
                one.terminate()
        for one in self._processes.values():
            try:
                one.wait(grace_s)
            except subprocess.TimeoutExpired:
                one.kill()
            self._reap(one)

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        process.wait(_GONE_S)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


POLITE = LauncherKind(
    "polite",
    "phalanx_extras.polite:PoliteLauncher",
    "this machine, at the lowest priority",
    takes_pool=False,
)
