"""What every way of starting processes can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.spec.worker import WorkerSpec


@dataclass(frozen=True)
class ProcessStatus:
    """Whether a process still runs, and how it ended if not."""

    process: str
    exit_code: int | None  # None while it runs; minus the signal's number if a signal ended it
    lost: str | None = None  # why nothing is known of it any more: its machine is gone

    @property
    def running(self) -> bool:
        """Whether the process is still there."""
        return self.exit_code is None


class WorkerGroup(ABC):
    """The processes of one run, from start to the certainty that they are gone."""

    @abstractmethod
    def add(self, spec: WorkerSpec) -> None:
        """Start one more process, or start an ended one again."""

    @abstractmethod
    def poll(self) -> list[ProcessStatus]:
        """The state of every process now; never blocks."""

    @abstractmethod
    def log_tail(self, process: str, num_lines: int = 30) -> str:
        """The last lines that a process printed."""

    @abstractmethod
    def kill(self, process: str) -> None:
        """End one process at once and wait until it is gone."""

    @abstractmethod
    def stop(self, grace_s: float) -> None:
        """End all processes: ask, wait that long, kill, and wait until every one is gone."""


class Launcher(ABC):
    """Starts processes somewhere."""

    @abstractmethod
    def start(self, specs: Sequence[WorkerSpec]) -> WorkerGroup:
        """Start one process per spec; on failure none is left behind."""
