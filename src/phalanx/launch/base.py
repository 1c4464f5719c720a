"""Define the interface of launchers: `Launcher` and `WorkerGroup`.

A launcher knows commands and machines, never strategies: specs name the processes to start. The
table of launchers is in `catalogue`; `local` and `ssh` are built in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx.launch.allocation import Allocation
    from phalanx.launch.placement import HostAssignment
    from phalanx.records.manifest import Manifest
    from phalanx.records.rundir import RunDir
    from phalanx.spec.job import JobSpec
    from phalanx.spec.pool import PoolSpec
    from phalanx.spec.worker import WorkerSpec


@dataclass(frozen=True)
class ProcessStatus:
    """State of a process: running, exited or lost."""

    process: str
    exit_code: int | None  # None while it runs; minus the signal's number if a signal ended it
    lost: str | None = None  # why its state is unknown: its machine is gone

    @property
    def running(self) -> bool:
        """Return whether the process still runs."""
        return self.exit_code is None


class WorkerGroup(ABC):
    """Processes of one run, from start until they have verifiably ended.

    Called by one thread. A process that exits immediately is not an error here: `poll` reports it.
    """

    @abstractmethod
    def add(self, spec: WorkerSpec) -> None:
        """Start another process, or restart one that has ended.

        Raises:
            LaunchError: It cannot be started here; a lost machine is reported by `poll`.
        """

    @abstractmethod
    def poll(self) -> list[ProcessStatus]:
        """Return the state of every process since its last start, without blocking.

        Once an exit code is returned, `log_tail` holds all output of that process.
        """

    @abstractmethod
    def log_tail(self, process: str, num_lines: int = 30) -> str:
        """Return the last lines of a process's output; empty: none, or the process is unknown."""

    @abstractmethod
    def kill(self, process: str) -> None:
        """Kill one process, frozen or not, and wait for its end; others continue."""

    @abstractmethod
    def stop(self, grace_s: float) -> None:
        """Terminate all processes, kill those left after `grace_s`, await their end; idempotent."""


@dataclass(frozen=True)
class PoolRequest:
    """Machines on which a job is to run.

    Attributes:
        pool: The machines that may be used, in rank order.
        source: The pool file.
        assignments: A plan's assignment per machine; empty: workers are spread over the slots.
        needs_bytes: Memory that each machine needs, as predicted by a plan.
        build_env: Whether to build an environment on the machines.
        lease: What the scheduler of the pool has lent; None: nothing that it may start again.
    """

    pool: PoolSpec
    source: str
    assignments: tuple[HostAssignment, ...] = ()
    needs_bytes: Mapping[str, int] = field(default_factory=dict)
    build_env: bool = False
    lease: str | None = None

    @property
    def machines(self) -> list[str]:
        """Return the names of the machines that may be used."""
        return [one.title for one in self.pool.machines]

    def are_those_of(self, manifest: Manifest) -> bool:
        """Return whether a run with this manifest had the same machines, lent by the same job."""
        return (self.machines, self.lease) == (manifest.machines, manifest.lease)


def _ignore(text: str) -> None:
    pass


@dataclass(frozen=True)
class LaunchRequest:
    """Input of a launcher.

    Attributes:
        job: The job to run.
        data_root: Directory of data sets on this machine.
        cache_root: Directory of decoded data on this machine.
        pool: The machines; None: the launcher decides, the built-in ones take this machine.
        on_progress: Called with a short text at each stage of preparation, from any thread.
        state_bytes: Parameters and moments of one worker, where a checkpoint tells; 0: unknown.
        force: Whether to start although the memory of this machine does not suffice.
    """

    job: JobSpec
    data_root: Path
    cache_root: Path
    pool: PoolRequest | None = None
    on_progress: Callable[[str], None] = _ignore
    state_bytes: int = 0
    force: bool = False


class Launcher(ABC):
    """Start the processes of one run somewhere.

    The façade calls `check` before it creates a run directory, so that a run that cannot begin
    leaves nothing behind; then `allocate` with the run directory. The controller calls `start`,
    again for each set of processes if the run changes them. `close` comes last, on every exit path.
    Constructing a launcher starts nothing.

    Args:
        request: The job, and where its data and machines are.
    """

    notes: Sequence[str] = ()
    """Warnings about the machines, set by `check`; one sentence each."""

    def __init__(self, request: LaunchRequest) -> None:
        self.request = request

    @abstractmethod
    def check(self) -> None:
        """Verify that the job can run, and prepare its machines.

        Raises:
            PhalanxError: It cannot; one sentence names the machine or file, and the remedy.
        """

    @abstractmethod
    def allocate(self, run: RunDir) -> Allocation:
        """Assign a slot to every process of a run; called once, after `check`.

        Raises:
            LaunchError: A machine is gone, or cannot create the run directory.
        """

    @abstractmethod
    def start(self, specs: Sequence[WorkerSpec]) -> WorkerGroup:
        """Start one process per spec, after `allocate`; on failure no process remains.

        Every process runs `python -m` the spec's module and reads its spec as one line of JSON from
        standard input, which stays open until the controller ends.

        Raises:
            LaunchError: A process could not be started.
        """

    def close(self) -> None:  # noqa: B027 (most have nothing to release)
        """Remove all files of the run but caches from its machines; valid without `check`."""
