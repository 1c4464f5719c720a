"""Run one phase of a switch: request its end, and take one `PhaseEnd` from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

import msgspec
from typing_extensions import override

from phalanx.control.coordinator import ControllerApi, Coordinator, PhaseEnd
from phalanx.control.parameter_server.coordinator import ParameterServerCoordinator
from phalanx.control.parameter_server.training_progress import PhaseBound
from phalanx.control.switch.transition import PhaseTransition
from phalanx.control.synchronous import SynchronousCoordinator
from phalanx.records.position import Position
from phalanx.spec.job import JobSpec
from phalanx.wire.messages import Done, FromWorker, PhaseOver
from phalanx.wire.switch import EndPhase


class PhaseRun(ABC):
    """One phase while it lasts.

    Attributes:
        coordinator: Of its strategy.
        position: Where the run stands, as far as known.
        has_servers: Whether servers own the parameters.
    """

    coordinator: Coordinator
    position: Position
    has_servers: bool

    @property
    @abstractmethod
    def is_committed(self) -> bool:
        """Whether the rules of the next phase hold, though processes have not left this one."""

    @property
    def replaces_losses(self) -> bool:
        """Whether lost processes rejoin the phase; otherwise a lost worker ends the run."""
        return self.has_servers and not self.is_committed

    @property
    @abstractmethod
    def is_job_done(self) -> bool:
        """Whether the job ended with this phase."""

    @property
    @abstractmethod
    def end(self) -> PhaseEnd | None:
        """State that the phase leaves to the next; None: processes are still in it."""

    @property
    def awaited_processes(self) -> Collection[str]:
        """Processes that have to leave the phase before the next one begins."""
        return ()

    @abstractmethod
    def enter(self, process: str) -> None:
        """Note that a process is asked to begin the phase."""

    @abstractmethod
    def leave(self, transition: PhaseTransition) -> None:
        """End the phase early."""

    @abstractmethod
    def take(self, process: str, message: FromWorker) -> None:
        """Handle a message of a process in this phase."""

    @abstractmethod
    def left(self, process: str) -> None:
        """Note that a process is lost, whether or not it was in this phase."""


class LockstepPhase(PhaseRun):
    """A phase whose workers exchange in every step."""

    has_servers = False

    def __init__(self, job: JobSpec, api: ControllerApi, position: Position) -> None:
        self.coordinator = SynchronousCoordinator(job, api)
        self.position = position
        self._api = api
        self._over: dict[str, tuple[Position, str]] = {}
        """Position and snapshot of each worker that has left the phase."""
        self._is_job_done = False

    @property
    @override
    def is_committed(self) -> bool:
        return False  # all leave it at once: its end is the commitment

    @property
    @override
    def is_job_done(self) -> bool:
        return self._is_job_done

    @property
    @override
    def end(self) -> PhaseEnd | None:
        """Combine the chief's position with the sums of all workers, once all have left."""
        workers = [one.name for one in self.coordinator.processes()]
        if not all(one in self._over for one in workers):
            return None
        positions = [msgspec.structs.replace(self._over[one][0]) for one in workers]
        position, snapshot = positions[0], self._over[workers[0]][1]
        position.epoch_loss_sum = sum(one.epoch_loss_sum for one in positions)
        position.epoch_correct = sum(one.epoch_correct for one in positions)
        position.epoch_weight = sum(one.epoch_weight or 0.0 for one in positions) or None
        return PhaseEnd(position, statistics=b"", snapshot=snapshot, is_unsaved=False)

    @override
    def enter(self, process: str) -> None:
        """Do nothing: every worker is in the phase from its first step to its last."""

    @override
    def leave(self, transition: PhaseTransition) -> None:
        self._api.send("worker-0", EndPhase(stay=transition.kind == "reshare"))

    @override
    def take(self, process: str, message: FromWorker) -> None:
        if isinstance(message, PhaseOver):
            # Decoded here, where a malformed one can still be refused with its sender's name.
            position = msgspec.json.decode(message.position, type=Position)
            self._over[process] = (position, message.snapshot)
            return
        self.coordinator.take(process, message)
        self._is_job_done |= isinstance(message, Done) and process == "worker-0"

    @override
    def left(self, process: str) -> None:
        """Do nothing: a lost worker ends the run, and other processes are not in the phase."""


class ServedPhase(PhaseRun):
    """A phase with parameter servers.

    Args:
        job: The job as the phase sees it.
        api: Acts.
        position: Where it begins; advanced by the coordinator.
        bound: Where it ends by plan.
        incarnations: Of processes that were replaced before it began.
    """

    has_servers = True

    def __init__(
        self,
        job: JobSpec,
        api: ControllerApi,
        position: Position,
        *,
        bound: PhaseBound,
        incarnations: Mapping[str, int],
    ) -> None:
        self.coordinator = self._servers = ParameterServerCoordinator(
            job, api, position, bound=bound, incarnations=incarnations
        )
        self.position = position
        self._inside: set[str] = set()

    @property
    @override
    def is_committed(self) -> bool:
        return self._servers.end is not None

    @property
    @override
    def is_job_done(self) -> bool:
        return self._servers.is_job_done

    @property
    @override
    def end(self) -> PhaseEnd | None:
        return None if self.awaited_processes else self._servers.end

    @property
    @override
    def awaited_processes(self) -> Collection[str]:
        end = self._servers.end
        if end is not None and not end.snapshot:
            # Only workers hold the state that goes on; servers and evaluator may still be busy.
            return {process for process in self._inside if process.startswith("worker-")}
        return self._inside

    @override
    def enter(self, process: str) -> None:
        self._inside.add(process)

    @override
    def leave(self, transition: PhaseTransition) -> None:
        self._servers.leave(discard=transition.kind == "rollback")

    @override
    def take(self, process: str, message: FromWorker) -> None:
        if isinstance(message, PhaseOver):
            self._inside.discard(process)
        self._servers.take(process, message)

    @override
    def left(self, process: str) -> None:
        self._inside.discard(process)
        self._servers.left(process)
