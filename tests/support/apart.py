"""The `phalanx` command whose processes share nothing: each has a run directory of its own.

As on several machines without a common file system, but on this one. A process that is lost takes
its directory along. Only event logs are collected, as a launcher over a network does. Processes
that are named in the file `sharing` of the current directory share the controller's directory, as
those on its own machine do. Run as a program; `ApartPlace` does so.
"""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from typing_extensions import override

from phalanx.cli.main import run
from phalanx.launch import local
from phalanx.launch.allocation import LocalAllocation, ProcessSlot
from phalanx.launch.base import WorkerGroup
from phalanx.launch.local import LocalGroup, LocalLauncher
from phalanx.spec.worker import WorkerSpec
from support.runs import Place

MACHINES, SHARING, PID = "machines", "sharing", "pid"


class ApartPlace(Place):
    """A folder whose trainings have processes that share nothing."""

    @override
    def command(self, *arguments: str) -> list[str]:
        head = super().command()[:-1]
        tests = Path(__file__).parents[1]
        return [*head, f"PYTHONPATH={_path(tests)}", sys.executable, "-m", __name__, *arguments]

    @property
    def machines(self) -> Path:
        """Where the directories of the processes are."""
        return self.folder / MACHINES

    def let_share(self, *processes: str) -> None:
        """Let these processes have the controller's run directory."""
        (self.folder / SHARING).write_text("\n".join(processes))

    def folder_of(self, process: str) -> Path:
        """The directory of a process that has been started once."""
        [found] = self.machines.glob(f"{process}.*")
        return found

    def pids(self) -> list[int]:
        """Of all processes that have been started."""
        return [int(path.read_text()) for path in self.machines.glob(f"*/{PID}")]

    def files_of_processes(self) -> set[str]:
        """Everything that processes have left in directories of their own, below those."""
        files = (path for path in self.machines.rglob("*") if path.is_file() and path.name != PID)
        return {str(Path(*path.relative_to(self.machines).parts[1:])) for path in files}


def _path(tests: Path) -> str:
    """The modules of the tests, and whatever this process finds modules by."""
    return ":".join([str(tests), *(one for one in sys.path if one)])


class ApartAllocation(LocalAllocation):
    """This machine, whose processes do not share the controller's run directory."""

    @override
    def slot(self, role: str, rank: int) -> ProcessSlot:
        sharing = Path(SHARING)
        shares = sharing.exists() and f"{role}-{rank}" in sharing.read_text().split()
        return replace(super().slot(role, rank), shares_run_dir=shares)


class ApartLauncher(LocalLauncher):
    """Gives each process a directory of its own."""

    @override
    def start(self, specs: Sequence[WorkerSpec]) -> WorkerGroup:
        group = ApartGroup(self._logs)
        for spec in specs:
            group.add(spec)
        return group


class ApartGroup(LocalGroup):
    """Processes of this machine that act as if they were on others."""

    def __init__(self, logs: Path) -> None:
        super().__init__(logs)
        self._folders: dict[str, Path] = {}

    @override
    def add(self, spec: WorkerSpec) -> None:
        if spec.shared_run_dir:
            super().add(spec)
            return
        folder = Path(MACHINES) / f"{spec.process}.{secrets.token_hex(4)}"
        (folder / "events").mkdir(parents=True)
        self._folders[spec.process] = folder
        super().add(spec.model_copy(update={"run_dir": str(folder.resolve())}))
        (folder / PID).write_text(str(self._children[spec.process].pid))

    @override
    def kill(self, process: str) -> None:
        super().kill(process)
        if process in self._folders:
            folder = self._folders.pop(process)
            self._collect(process, folder)
            shutil.rmtree(folder)

    @override
    def stop(self, grace_s: float) -> None:
        super().stop(grace_s)
        for process, folder in self._folders.items():
            self._collect(process, folder)
        self._folders.clear()

    def _collect(self, process: str, folder: Path) -> None:
        """Add what a process has recorded to what its predecessors have."""
        name = f"events/{process}.jsonl"
        if (folder / name).exists():
            with (self._logs.parent / name).open("ab") as log:
                log.write((folder / name).read_bytes())


if __name__ == "__main__":
    local.LocalLauncher = ApartLauncher  # type: ignore[misc]
    local.LocalAllocation = ApartAllocation  # type: ignore[misc]
    run()
