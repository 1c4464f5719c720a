"""Train with torch tensors under the training loop: engine replicas, and `backends.ddp` models.

Decides what a checkpoint holds, and how the chief writes it in background.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter

import msgspec
import torch
from typing_extensions import override

from phalanx.comm.base import Collective, Reduction
from phalanx.data.pipeline import Batch, Dataset, train_batches
from phalanx.engine.replica import Replica
from phalanx.engine.spans import spanned
from phalanx.records.events import Warned
from phalanx.records.measures import Measures, ModelFigures
from phalanx.records.position import Position
from phalanx.strategy.base import StepFacts, Strategy
from phalanx.worker.checkpoint.async_checkpointer import AsyncCheckpointer
from phalanx.worker.checkpoint.state import collect_state, restore_state
from phalanx.worker.chief_io import ChiefData, broadcast_from_chief, wait_for_chief
from phalanx.worker.context import WorkerContext
from phalanx.worker.evaluate import EvaluationShare, evaluate, judge_of
from phalanx.worker.run_state import ResumePoint
from phalanx.worker.trainable import Trainable
from phalanx.worker.trainer import Trainer


@dataclass(frozen=True)
class TrainSetup:
    """Data, model, strategy and group of a worker."""

    dataset: Dataset
    replica: Trainable
    strategy: Strategy
    collective: Collective
    share: EvaluationShare | None = None
    """The share of samples that this worker takes; None: its own."""


class TorchTrainer(Trainer[Batch]):
    """Train a replica under a strategy that is attached already.

    Args:
        context: This process's place in the run.
        setup: Data, replica, strategy and group.
        checkpointer: Writes the chief's checkpoints.
    """

    def __init__(
        self, context: WorkerContext, setup: TrainSetup, checkpointer: AsyncCheckpointer
    ) -> None:
        collective = setup.collective
        super().__init__(
            setup.dataset,
            profiler=context.profiler,
            rank=collective.rank,
            num_workers=collective.size,
        )
        self._job = context.job
        self._log = context.log
        self._metrics = context.metrics
        self._replica = setup.replica
        self._strategy = setup.strategy
        self._collective = collective
        self._share = setup.share or EvaluationShare(collective.rank, collective.size)
        self._checkpointer = checkpointer

    @property
    @override
    def sent_bytes(self) -> int:
        return self._collective.sent_bytes

    @override
    @contextmanager
    def batches(self, epoch: int, *, start_sample: int) -> Iterator[Iterable[Batch]]:
        with train_batches(
            self.dataset,
            spec=self._job.data,
            seed=self._job.seed,
            epoch=epoch,
            global_batch=self._job.global_batch,
            rank=self._share.rank,
            num_workers=self._share.num_workers,
            shares=self._job.batch.shares,
            start_sample=start_sample,
        ) as batches:
            yield spanned("input", batches)

    @override
    def step(self, batch: Batch, *, lr: float, step_index: int) -> StepFacts:
        facts = self._strategy.step(batch, lr=lr, step_index=step_index)
        note = self._strategy.take_note()
        if note is not None and self.rank == 0:
            self._log.record(Warned(message=note))
        return facts

    @override
    def synchronize(self) -> None:
        self._strategy.synchronize()

    @override
    def total(self, values: Sequence[float]) -> Sequence[float]:
        return self._reduce(values, "sum")

    @override
    def minimum(self, values: Sequence[float]) -> Sequence[float]:
        return self._reduce(values, "min")

    @override
    def measure(self, part: str) -> Measures | None:
        data = self.dataset.test if part == "test" else self.dataset.validation
        with self._replica.averaged() if isinstance(self._replica, Replica) else nullcontext():
            return evaluate(
                self._replica,
                self._collective,
                data,
                self._share,
                judge=judge_of(self.dataset),
                metrics=self._job.metrics,
            )

    @override
    def regularisation(self) -> float:
        return self._replica.regularisation()

    @override
    def model_figures(self) -> ModelFigures:
        parameters = self._replica.parameters
        return ModelFigures(
            num_parameters=parameters.numel(),
            digest=hashlib.sha256(parameters.numpy().data).hexdigest(),
            regularisation=self._replica.regularisation(),
        )

    def state(self) -> dict[str, torch.Tensor]:
        """Collect the live state for a checkpoint; all workers call it together."""
        return collect_state(self._replica, self._strategy, self._collective, self._metrics)

    @override
    def save(self, position: Position, *, best: bool = False) -> None:
        begin = perf_counter()
        if position.epoch_samples > 0:
            self._strategy.synchronize()
        state = self.state()
        # The previous one may still be under way.
        wait_for_chief(self._collective, self._checkpointer.wait)
        if self.rank == 0:
            self._checkpointer.save(position, state, best=best, begun=begin)
        # Together, because the others would wait for a slow disk in the exchange of the next step.
        wait_for_chief(self._collective, self._checkpointer.wait_until_free)

    @override
    def restore(self, name: str) -> ResumePoint | None:
        found = broadcast_from_chief(self._collective, lambda: self._read(name))
        if found is None:
            return None
        restore_state(found.tensors, self._replica, self._strategy, self._collective, self._metrics)
        position = msgspec.json.decode(found.metadata["position"], type=Position)
        return ResumePoint(position, found.metadata["path"])

    @override
    def finish(self) -> None:
        self._checkpointer.wait()

    def _read(self, name: str) -> ChiefData | None:
        # The newest may still be under way.
        self._checkpointer.wait()
        checkpoints = self._checkpointer.checkpoints
        found = checkpoints.load(name)
        if found is None:
            return None
        position = msgspec.json.encode(found.position).decode()
        metadata = {"path": checkpoints.where(found.name), "position": position}
        return ChiefData(metadata, found.tensors)

    def _reduce(self, values: Sequence[float], reduction: Reduction) -> list[float]:
        shared = torch.tensor(values, dtype=torch.float64)
        self._collective.all_reduce(shared, reduction)
        reduced: list[float] = shared.tolist()
        return reduced
