"""Define what every way of starting processes can do: `Launcher` and `WorkerGroup`.

A launcher knows commands and machines, never strategies: it is told which processes to start by
their specs. Which launchers there are is in `catalogue`; `local` and `ssh` are built in.
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
    from phalanx.records.rundir import RunDir
    from phalanx.spec.job import JobSpec
    from phalanx.spec.pool import PoolSpec
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
    """The processes of one run, from start to the certainty that they are gone.

    Called by one thread. A process that dies at once is started all the same: `poll` tells.
    """

    @abstractmethod
    def add(self, spec: WorkerSpec) -> None:
        """Start one more process, or start an ended one again.

        Raises:
            LaunchError: It cannot be started here; a machine that is lost is told by `poll`.
        """

    @abstractmethod
    def poll(self) -> list[ProcessStatus]:
        """Return the state of every process since its last start; never blocks.

        What an ended process printed is at hand in `log_tail` once its exit code is.
        """

    @abstractmethod
    def log_tail(self, process: str, num_lines: int = 30) -> str:
        """Return the last lines that a process printed; empty: nothing, or it is not known."""

    @abstractmethod
    def kill(self, process: str) -> None:
        """End one process at once and wait until it is gone, frozen or not; others go on."""

    @abstractmethod
    def stop(self, grace_s: float) -> None:
        """End all processes: ask, wait that long, kill, and wait until every one is gone.

        May be called again; then it does nothing.
        """


@dataclass(frozen=True)
class PoolRequest:
    """On which machines a job is to run.

    Attributes:
        pool: The machines that may be used, in the order of ranks.
        source: The file that they come from.
        assignments: What a plan gives to each; none: workers are spread over the slots.
        needs_bytes: Memory that each needs, as a plan has predicted.
        build_env: Whether an environment is built there.
    """

    pool: PoolSpec
    source: str
    assignments: tuple[HostAssignment, ...] = ()
    needs_bytes: Mapping[str, int] = field(default_factory=dict)
    build_env: bool = False

    @property
    def machines(self) -> list[str]:
        """Names of the machines that may be used."""
        return [one.title for one in self.pool.machines]


def _ignore(text: str) -> None:
    pass


@dataclass(frozen=True)
class LaunchRequest:
    """What a launcher is asked for.

    Attributes:
        job: What is to be run.
        data_root: Where data sets lie here.
        cache_root: Where decoded data is kept here.
        pool: The machines; None: the launcher decides, the built-in ones take this machine.
        on_progress: Told in a few words how machines are made ready; called from any thread.
    """

    job: JobSpec
    data_root: Path
    cache_root: Path
    pool: PoolRequest | None = None
    on_progress: Callable[[str], None] = _ignore


class Launcher(ABC):
    """Start the processes of one run somewhere.

    The façade calls `check` before there is a run directory, so that nothing is left of a run that
    cannot begin; then `allocate` with the run directory; the controller calls `start`, again for
    each set of processes if the run changes them; `close` comes last, on every way out. Making a
    launcher starts nothing.

    Args:
        request: The job, and where its data and machines are.
    """

    notes: Sequence[str] = ()
    """After `check`: what is odd about the machines, though no obstacle; one sentence each."""

    def __init__(self, request: LaunchRequest) -> None:
        self.request = request

    @abstractmethod
    def check(self) -> None:
        """Make sure that the job can run, and make its machines ready.

        Raises:
            PhalanxError: It cannot; one sentence names the machine or file, and the remedy.
        """

    @abstractmethod
    def allocate(self, run: RunDir) -> Allocation:
        """Give every process of a run its slot; called once, after `check`.

        Raises:
            LaunchError: A machine is gone, or cannot take the run.
        """

    @abstractmethod
    def start(self, specs: Sequence[WorkerSpec]) -> WorkerGroup:
        """Start one process per spec, after `allocate`; on failure none is left behind.

        Every process finds its spec as one line of JSON on standard input, which stays open as long
        as the controller lives, and runs `python -m` the spec's module.

        Raises:
            LaunchError: A process could not be started.
        """

    def close(self) -> None:  # noqa: B027 (most have nothing to release)
        """Leave nothing behind on any machine but caches; may be called without `check`."""
