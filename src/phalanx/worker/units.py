"""The batches of the tickets that a served worker is given, prepared ahead of it."""

from __future__ import annotations

import queue
from collections.abc import Iterator

from phalanx.data.pipeline import Batch, BatchStream, Dataset, unit_batches
from phalanx.wire.tickets import TicketPlan
from phalanx.worker.station import Station


class UnitStream:
    """The batches of the tickets that a worker is given, prepared ahead of it.

    Args:
        station: Says which job.
        dataset: What the batches are cut from.
        plan: What tickets stand for.
    """

    def __init__(self, station: Station, dataset: Dataset, plan: TicketPlan) -> None:
        self._station = station
        self._dataset = dataset
        self._plan = plan
        self._epoch = -1
        self._asked: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._stream: BatchStream | None = None
        self._batches: Iterator[Batch] = iter(())

    def ask(self, ticket: int) -> None:
        """Have the batch of a ticket prepared; the epoch before must have been taken whole."""
        unit = self._plan.unit(ticket)
        if unit.epoch != self._epoch:
            self._begin_epoch(unit.epoch)
        self._asked.put((unit.step, unit.part))

    def next(self) -> Batch:
        """The next batch, in the order they were asked for."""
        return next(self._batches)

    def close(self) -> None:
        """End the threads behind it."""
        self._asked.put(None)
        if self._stream is not None:
            self._stream.close()

    def _begin_epoch(self, epoch: int) -> None:
        self.close()
        job = self._station.job
        self._epoch = epoch
        self._asked = queue.SimpleQueue()
        self._stream = unit_batches(
            self._dataset,
            iter(self._asked.get, None),
            spec=job.data,
            seed=job.seed,
            epoch=epoch,
            global_batch=job.global_batch,
            num_parts=job.workers,
            shares=job.batch.shares,
        )
        self._batches = iter(self._stream)
