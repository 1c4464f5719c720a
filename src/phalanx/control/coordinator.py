"""Define the interface between the controller and the coordinator of a strategy.

The controller supervises processes the same way for every strategy; a coordinator knows what they
are for. It decides and asks the `ControllerApi` to act; it never touches a process or a socket.
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
    """A process that a run has."""

    role: str
    rank: int

    @property
    def name(self) -> str:
        """As in logs and messages, such as worker-0."""
        return f"{self.role}-{self.rank}"


@dataclass(frozen=True)
class Identity:
    """Who a process is at the moment; a restart gives it new keys and the next incarnation."""

    public_key: str
    incarnation: int


@dataclass(frozen=True)
class Splitting:
    """What is known of a split run once it has finished."""

    placed: Placed
    facts: Mapping[str, SplitFacts]
    """By process."""


@dataclass(frozen=True)
class PhaseEnd:
    """What one phase of a run leaves to the next."""

    position: Position
    statistics: bytes
    """Batch-norm statistics to go on from, as float32; empty: each worker's own."""
    snapshot: str
    """Name of the checkpoint of this moment; empty: the state is in the workers' memory only."""
    is_unsaved: bool
    """Whether the next phase has to write the state that it begins with."""


class ControllerApi(Protocol):
    """Act for a coordinator; the controller implements it."""

    def send(self, process: str, message: FromController) -> None:
        """Send a message to a process; lost if the process is."""

    def record(self, event: Event) -> None:
        """Write an event into the controller's log."""

    def announce(self, report: EpochFigures) -> None:
        """Tell those who follow the run that an epoch is over."""

    def progress(self, process: str) -> Progress:
        """What a process's last heartbeat said."""

    def identity(self, process: str) -> Identity:
        """The present keys and incarnation of a process."""


class Coordinator(ABC):
    """One strategy's side of the controller.

    Attributes:
        times: What each finished worker spent its time on, by process.
        switches: Changes of strategy so far.
        splitting: What was expected of a split network, and what its workers saw.
        successor: Who takes the run over with new processes, once those of this one have left.
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
            job: What is to be done.
            api: Acts.
            found: Where the resumed checkpoint is; None: the run begins.
        """

    @property
    def serving(self) -> ServingSummary | None:
        """What the servers saw, in a run that has some; asked once it has finished."""
        return None

    @property
    def can_shrink(self) -> bool:
        """Whether the run may go on without a worker for whom there is no machine any more."""
        return False

    @abstractmethod
    def processes(self) -> Sequence[Process]:
        """The processes to start."""

    @abstractmethod
    def take(self, process: str, message: FromWorker) -> None:
        """A process has said something; heartbeats and failures do not come here."""

    @abstractmethod
    def judge(self, processes: Sequence[ProcessFacts]) -> RunVerdict:
        """What the state of the processes means; called several times a second."""

    @abstractmethod
    def left(self, process: str) -> None:
        """A process that `judge` gave up is gone; its successor is about to be started."""

    @abstractmethod
    def resize(self, num_workers: int) -> Sequence[Process]:
        """The user wants more workers: those to start, or none if this strategy cannot."""

    @abstractmethod
    def outcome(self) -> RunOutcome:
        """What the run came to; asked once it has finished."""
