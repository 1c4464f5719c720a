"""Count the samples, epochs, updates and losses of a parameter-server run."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from phalanx.control.parameter_server.evaluation import EvaluationScheduler
from phalanx.control.summarize import summarise_servers
from phalanx.records.measures import ModelFigures
from phalanx.records.position import Position
from phalanx.records.summary import ServingSummary
from phalanx.spec.parameter_server import ParameterServerSpec
from phalanx.wire.messages import RunOutcome
from phalanx.wire.parameter_server import CompletedTicket
from phalanx.wire.server_stats import ServerStats


class RunCounts:
    """Totals of a run, or of one phase of it.

    Args:
        position: Where the run begins; advanced with every batch.
        now: The time.
    """

    def __init__(self, position: Position, *, now: float) -> None:
        self.position = position
        self._begun_at = msgspec.structs.replace(position)
        self._made_at = now
        self._startup_s: float | None = None
        self.precision = ""
        self.has_classes = True
        self.num_lost = 0
        """Processes that were lost."""

    def gate_opened(self, now: float) -> None:
        """Note that training goes on; the first call ends the start-up time."""
        if self._startup_s is None:
            self._startup_s = now - self._made_at

    def count(self, completed: Iterable[CompletedTicket]) -> None:
        """Add completed tickets."""
        position = self.position
        for one in completed:
            if one.weight is not None:
                position.epoch_weight = position.epoch_divisor + one.weight
            position.samples += one.num_samples
            position.epoch_samples += one.num_samples
            position.epoch_loss_sum += one.loss_sum
            position.epoch_correct += one.num_correct

    def end_epoch(self) -> None:
        """Turn the sums of the epoch into means, and begin the next epoch."""
        position = self.position
        weight = position.epoch_divisor or 1
        position.train_loss = position.epoch_loss_sum / weight
        correct = position.epoch_correct / weight
        position.train_accuracy = correct if self.has_classes else None
        position.begin_next_epoch()

    def summary(self, spec: ParameterServerSpec, servers: ServerCounts) -> ServingSummary:
        """Summarise the servers' totals under this strategy."""
        return summarise_servers(
            spec,
            servers.facts,
            updates=self.position.updates - self._begun_at.updates,
            train_s=self.position.train_s - self._begun_at.train_s,
            updates_lost=servers.num_lost_updates,
            processes_replaced=self.num_lost,
        )

    def outcome(self, evaluation: EvaluationScheduler) -> RunOutcome:
        """Return the outcome of the run; called once it has finished."""
        position, saved, test = self.position, evaluation.saved, evaluation.test
        assert saved is not None, "a run with parameter servers ends with a checkpoint"
        return position.outcome(
            ModelFigures(saved.parameters, saved.parameters_sha256, evaluation.regularisation),
            test=test if test is not None and test.has_figures else None,
            precision=self.precision,
            startup_s=self._startup_s or 0.0,
        )


class ServerCounts:
    """Versions of all servers, through losses."""

    def __init__(self) -> None:
        self.facts: dict[str, ServerStats] = {}
        """Totals that servers reported at their end, by process."""
        self.num_lost_updates = 0
        self._versions: dict[int, int] = {}
        self._lost_at: dict[int, int] = {}

    @property
    def updates(self) -> int:
        """Updates of the server that has made the most."""
        return max(self._versions.values(), default=0)

    def flushed(self, server: int, version: int) -> None:
        """Note the version at which a server was flushed."""
        self._versions[server] = version

    def lost(self, server: int, last_seen: int) -> None:
        """Note the last known version of a lost server."""
        last = max(self._versions.get(server, 0), last_seen)
        self._lost_at[server] = self._versions[server] = last

    def restored(self, server: int, version: int) -> int:
        """Count the updates that a restored server lacks; returns how many."""
        num_lost = max(0, self._lost_at.pop(server, 0) - version)
        self.num_lost_updates += num_lost
        return num_lost


class NormStatistics:
    """Mean of the workers' batch-norm statistics, as float32; empty if the model has none."""

    def __init__(self) -> None:
        self._by_worker: dict[int, bytes] = {}
        self.mean = b""
        """The mean at the last gate."""

    def note(self, worker: int, statistics: bytes) -> None:
        """Note the statistics of a paused worker."""
        self._by_worker[worker] = statistics

    def forget(self, worker: int) -> None:
        """Drop the statistics of a lost worker."""
        self._by_worker.pop(worker, None)

    def average(self) -> None:
        """Take the mean over the workers that are paused now."""
        arrays = [np.frombuffer(one, dtype=np.float32) for one in self._by_worker.values() if one]
        if not arrays:
            self.mean = b""
            return
        self.mean = np.mean(arrays, axis=0, dtype=np.float64).astype(np.float32).tobytes()
