"""Train a script's model under the training loop of all workers."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from typing_extensions import override

from phalanx.data.dataset import Dataset, Part
from phalanx.data.normalize import Normalizer, Statistics
from phalanx.data.pipeline import Batch
from phalanx.engine.spans import spanned
from phalanx.errors import EngineError
from phalanx.program.model import ScriptModel
from phalanx.program.own_stream import OwnStream, ended_early
from phalanx.program.session import ScriptSession
from phalanx.program.source import BatchCut, BatchSource
from phalanx.program.turn import ScriptBatch
from phalanx.program.turns import ScriptTurns
from phalanx.records.measures import Measures
from phalanx.records.position import Position
from phalanx.worker.checkpoint.async_checkpointer import AsyncCheckpointer
from phalanx.worker.context import WorkerContext
from phalanx.worker.torch_trainer import TorchTrainer, TrainSetup


def update_batches(
    source: BatchSource, epoch: int, *, accumulate: int, cut: BatchCut, seed: int, start_sample: int
) -> Iterator[ScriptBatch]:
    """Yield this worker's part of every update of an epoch.

    Raises:
        EngineError: The loader gives another number of samples than in its first pass.
    """
    batches = source.open(epoch, cut=cut, seed=seed, start_sample=start_sample)
    usual = accumulate * source.batch_size
    offset = start_sample
    is_counted = source.counts_rows
    while micro := list(islice(batches, accumulate)):
        true_count = sum(one.global_rows for one in micro)
        count = true_count if is_counted else source.batch_size * len(micro)
        yield ScriptBatch.of(micro, count=count, offset=offset, epoch=epoch, step=offset // usual)
        offset += count
    if offset != source.num_samples:
        raise EngineError(
            f"the loader of session.data() gave {offset:,} samples in epoch {epoch + 1}, and "
            f"{source.num_samples:,} before; every epoch must have as many"
        )


class ScriptTrainer(TorchTrainer):
    """Feed a script, let it evaluate, and save what it has declared.

    Args:
        context: This process's place in the run.
        setup: Data, model, strategy and group.
        checkpointer: Writes the chief's checkpoints.
        session: Of the script.
        turns: Takes turns with it.
        seed: Of the script.
    """

    def __init__(
        self,
        context: WorkerContext,
        setup: TrainSetup,
        checkpointer: AsyncCheckpointer,
        *,
        session: ScriptSession,
        turns: ScriptTurns,
        seed: int,
    ) -> None:
        super().__init__(context, setup, checkpointer)
        assert isinstance(setup.replica, ScriptModel)
        self._model = setup.replica
        self._session = session
        self._turns = turns
        self._seed = seed

    @override
    def rate(self, samples_seen: int) -> float:
        return self._model.lr()

    @property
    @override
    def has_ended(self) -> bool:
        return self._turns.has_ended

    @override
    @contextmanager
    def batches(self, epoch: int, *, start_sample: int) -> Iterator[Iterable[Batch]]:
        self._turns.epoch = epoch
        cut = BatchCut.of(self._job, self._share.rank)
        declared = self._session.declared
        yield spanned(
            "input",
            update_batches(
                declared.source,
                epoch,
                accumulate=declared.accumulate,
                cut=cut,
                seed=self._seed,
                start_sample=start_sample,
            ),
        )

    @override
    def measure(self, part: str) -> Measures | None:
        """Let the script run what follows its loop over batches, or over epochs."""
        begin = time.perf_counter()
        if part == "test":
            self._turns.finish()
        else:
            self._turns.end_epoch()
            self._agree_on_end()
            self._check_stream()
            self._model.check()
        spent_s = time.perf_counter() - begin
        return reported(self._session.reports.pop(part, {}), spent_s)

    @override
    def save(self, position: Position, *, best: bool = False) -> None:
        self._model.check()
        super().save(position, best=best)

    def _agree_on_end(self) -> None:
        """Refuse that only some workers have ended: the others would wait for them."""
        ended = torch.tensor([float(self.has_ended)])
        self._collective.all_reduce(ended)
        if 0 < ended.item() < self.num_workers:
            raise EngineError(
                "some workers have left the loop over epochs and others have not; decide by what "
                "session.report() returns, which is the same on all"
            )

    def _check_stream(self) -> None:
        """Refuse streams that all ended early: workers that update alone do not notice it."""
        stream = self._session.declared.source
        if isinstance(stream, OwnStream):
            read = torch.tensor([float(stream.num_read)])
            self._collective.all_reduce(read, "max")
            if read.item() < stream.num_batches:
                raise ended_early(
                    f"after {int(read.item())} of {stream.num_batches} batches on any worker"
                )


def reported(sums: Mapping[str, tuple[float, float]], spent_s: float) -> Measures | None:
    """Turn what a script has reported into measures; None: nothing."""
    if not sums:
        return None
    means = {name: one / count if count else 0.0 for name, (one, count) in sums.items()}
    return Measures(
        loss=means.pop("loss", None),
        accuracy=means.pop("accuracy", None),
        num_samples=int(max(count for _, count in sums.values())),
        duration_s=spent_s,
        metrics=means,
    )


def describe_data(name: str, num_samples: int) -> Dataset:
    """Describe a script's data to the loop, which only asks how much there is."""
    nothing = Statistics((0.0,), (1.0,), (0.0,), (0.0,))
    empty = np.empty((0, 1), dtype=np.float32)

    def part(title: str, count: int) -> Part:
        # A view of one number, however many samples there are.
        rows = np.broadcast_to(np.int64(0), (count,))
        normalizer = Normalizer("none", statistics=nothing, like=empty)
        return Part(title, empty, empty, rows, (count,), normalizer, features={})

    return Dataset(
        name=name,
        location="the script",
        cache_folder=Path(),
        cache_s=0.0,
        fingerprint="",
        train=part("train", num_samples),
        # The script evaluates: the loop gives it the time to.
        validation=part("validation", 1),
        test=part("test", 1),
        num_classes=0,
        statistics=nothing,
    )
