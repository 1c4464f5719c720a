"""Define the interface between the controller and the coordinator of a strategy.

The controller supervises processes the same way for every strategy; a coordinator knows their
roles. It decides and asks the `ControllerApi` to act; it never touches a process or a socket.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from phalanx.control.failure_policy import ProcessFacts, RunVerdict
from phalanx.records.events import Event, Placed, Switched
from phalanx.records.position import Position
from phalanx.records.summary import ServingSummary
from phalanx.spec.job import JobSpec
from phalanx.wire.messages import (
    EpochFigures,
    FromController,
    FromWorker,
    Progress,
    RunOutcome,
    WorkTimes,
)
from phalanx.wire.split import SplitFacts


@dataclass(frozen=True)
class Process:
    """A process of a run, by role and rank."""

    role: str
    rank: int

    @property
    def name(self) -> str:
        """The name in logs and messages, such as worker-0."""
        return f"{self.role}-{self.rank}"


@dataclass(frozen=True)
class Identity:
    """Keys and incarnation of a process; a restart gives it new keys and the next incarnation."""

    public_key: str
    incarnation: int


@dataclass(frozen=True)
class Awaited:
    """What a coordinator waits for, in words that fit after "waits for"."""

    process: str
    what: str


@dataclass(frozen=True)
class Splitting:
    """Facts about a split run once it has finished."""

    placed: Placed
    facts: Mapping[str, SplitFacts]
    """By process."""


@dataclass(frozen=True)
class PhaseEnd:
    """State that one phase of a run leaves to the next."""

    position: Position
    statistics: bytes
    """Batch-norm statistics to continue with, as float32; empty: each worker's own."""
    snapshot: str
    """Name of the checkpoint of this moment; empty: the state is in the workers' memory only."""
    is_unsaved: bool
    """Whether the next phase has to write the state that it begins with."""


class ControllerApi(Protocol):
    """Act for a coordinator; the controller implements it."""

    def send(self, process: str, message: FromController) -> None:
        """Send a message to a process; dropped if the process is lost."""

    def record(self, event: Event) -> None:
        """Write an event into the controller's log."""

    def note(self, what: str, reason: str) -> None:
        """Record a decision, and tell the observers."""

    def announce(self, report: EpochFigures) -> None:
        """Notify the observers of a finished epoch."""

    def declare(self, job: JobSpec) -> None:
        """Complete the job by what the user's script has declared."""

    def show(self, text: str) -> None:
        """Show the observers what the user's script has printed."""

    def progress(self, process: str) -> Progress:
        """Return the progress in a process's last heartbeat, also once it has left the run."""

    def learning_rate(self) -> float:
        """Return the learning rate of the worker that is furthest, whichever are left."""

    def identity(self, process: str) -> Identity:
        """Return the present keys and incarnation of a process."""


class Coordinator(ABC):
    """Coordinate the processes of one strategy, for the controller.

    Attributes:
        times: Time breakdown of each finished worker, by process.
        switches: Changes of strategy so far.
        splitting: Forecast of a split network, and what its workers measured.
        successor: Coordinator that continues the run with new processes, once these have ended.
    """

    times: dict[str, WorkTimes]
    switches: Sequence[Switched] = ()
    splitting: Splitting | None = None
    successor: Coordinator | None = None

    @classmethod
    @abstractmethod
    def begin(cls, job: JobSpec, api: ControllerApi, found: Position | None) -> Coordinator:
        """Make the coordinator of a run.

        Args:
            job: The job.
            api: Acts.
            found: Position of the checkpoint to resume; None: the run begins.
        """

    @property
    def serving(self) -> ServingSummary | None:
        """Totals of the servers once the run has finished; None: it has none."""
        return None

    @property
    def can_shrink(self) -> bool:
        """Whether the run may go on without a worker that no machine has room for."""
        return False

    @abstractmethod
    def processes(self) -> Sequence[Process]:
        """Return the processes to start."""

    @abstractmethod
    def take(self, process: str, message: FromWorker) -> None:
        """Handle a message of a process; heartbeats and failures do not come here.

        Raises:
            ProtocolError: The process must not send it; so does a part that cannot be decoded.
        """

    @abstractmethod
    def judge(self, processes: Sequence[ProcessFacts]) -> RunVerdict:
        """Decide what the state of the processes means; called several times a second."""

    def awaited(self) -> Sequence[Awaited]:
        """Return what has to come before the run moves on; empty: all that are not done."""
        return ()

    @abstractmethod
    def left(self, process: str) -> None:
        """Note that a process which `judge` gave up is gone; its successor starts afterwards."""

    @abstractmethod
    def resize(self, num_workers: int) -> Sequence[Process]:
        """Return the workers to start for a larger run; none if this strategy cannot grow."""

    def begin_next_phase(self, cause: str) -> bool:
        """End the present phase for the next one; False: none follows, or it is ending already.

        Args:
            cause: Why, for the records.
        """
        return False

    @abstractmethod
    def outcome(self) -> RunOutcome:
        """Return the outcome of the run; called once it has finished."""
