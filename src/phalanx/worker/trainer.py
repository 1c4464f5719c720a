"""Interface between the training loop and a framework.

`TrainLoop` decides when something is done; a `Trainer` does it with the tensors of its framework.
Imports no framework.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Generic, Protocol, TypeVar

from phalanx.data.pipeline import Dataset
from phalanx.records.measures import Measures, ModelFigures
from phalanx.records.position import Position
from phalanx.strategy.base import StepFacts
from phalanx.worker.profile_window import WindowProfiler
from phalanx.worker.run_state import ResumePoint


class GlobalBatch(Protocol):
    """One process's part of a global batch."""

    @property
    def global_count(self) -> int:
        """Samples of all workers in the step."""


BatchT = TypeVar("BatchT", bound=GlobalBatch)


class Trainer(ABC, Generic[BatchT]):
    """Train, evaluate and save the model of one process, together with the others of its group.

    Unless noted otherwise, all processes of the group make the same calls in the same order.

    Args:
        dataset: What is learnt.
        profiler: Takes the times of the framework's operators.
        rank: Of this process in the group; 0 is the chief, which writes for all.
        num_workers: Of the whole group.
    """

    def __init__(
        self, dataset: Dataset, *, profiler: WindowProfiler, rank: int, num_workers: int
    ) -> None:
        self.dataset = dataset
        self.profiler = profiler
        self.rank = rank
        self.num_workers = num_workers

    def rate(self, samples_seen: int) -> float | None:
        """Return the learning rate of the next step; None: the job's schedule decides."""
        return None

    @property
    def has_ended(self) -> bool:
        """Whether the user's script has ended its loop before the last epoch."""
        return False

    @property
    def is_elastic(self) -> bool:
        """Whether the group may lose and gain workers while it trains."""
        return False

    def unit_done(self) -> None:
        """Note that a step, the end of an epoch or a checkpoint is complete on this process."""

    @property
    @abstractmethod
    def sent_bytes(self) -> int:
        """Everything that this process has sent so far in this phase."""

    @abstractmethod
    def batches(self, epoch: int, *, start_sample: int) -> AbstractContextManager[Iterable[BatchT]]:
        """Open this process's batches of an epoch, from a sample of all workers on."""

    @abstractmethod
    def step(self, batch: BatchT, *, lr: float, step_index: int) -> StepFacts:
        """Train on this process's part of a batch."""

    @abstractmethod
    def synchronize(self) -> None:
        """Bring all replicas to one defined state."""

    @abstractmethod
    def total(self, values: Sequence[float]) -> Sequence[float]:
        """Add each value over all processes."""

    @abstractmethod
    def minimum(self, values: Sequence[float]) -> Sequence[float]:
        """Return the minimum of each value over all processes."""

    @abstractmethod
    def measure(self, part: str) -> Measures | None:
        """Evaluate `validation` or `test` over all processes, after `synchronize`.

        None: the user's script, which evaluates by itself, has reported nothing.
        """

    @abstractmethod
    def regularisation(self) -> float:
        """Return the present value of the L2 regulariser; no call to others."""

    @abstractmethod
    def model_figures(self) -> ModelFigures:
        """Identify the trained model; no call to others."""

    @abstractmethod
    def save(self, position: Position, *, best: bool = False) -> None:
        """Write a checkpoint; replicas are synchronized here if the epoch is under way."""

    @abstractmethod
    def restore(self, name: str) -> ResumePoint | None:
        """Restore a checkpoint, the epoch's running sums included; None: there is none."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until all pending work is done and no other process needs this one."""
