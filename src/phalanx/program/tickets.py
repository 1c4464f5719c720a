"""Read the batches of tickets: parts of a script's updates, in the order that servers' work takes.

A ticket is one part of one update, and may be anybody's: the worker it is assigned to reads its
rows, by number where samples have numbers. A stream is read on to the update, by every worker.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from phalanx.data.order import share_sizes
from phalanx.errors import DataError
from phalanx.program.rows import take_rows
from phalanx.program.source import (
    STAND_IN_ROWS,
    BatchCut,
    BatchSource,
    IndexedSource,
    MicroBatch,
)
from phalanx.program.turn import ScriptBatch
from phalanx.spec.job import JobSpec
from phalanx.wire.tickets import TicketPlan


@dataclass(frozen=True, kw_only=True)
class TicketBatch(ScriptBatch):
    """One part of one update, of whichever worker.

    Attributes:
        part: Which part.
        update: Number of the update in the run.
        counted: Samples that are counted for it.
    """

    part: int
    update: int
    counted: int

    def __len__(self) -> int:
        return self.counted


def counted_samples(source: BatchSource) -> int:
    """Return the samples of an epoch as tickets count them.

    Where batches differ in their samples, such as those of a stream, all count as many.
    """
    return source.num_samples if source.is_even else source.num_batches * source.batch_size


class UpdateReader(ABC):
    """Read parts of updates by their numbers."""

    @abstractmethod
    def read(self, epoch: int, batches: range, cut: BatchCut) -> list[MicroBatch]:
        """Return a worker's rows of some batches of an epoch, which has all of them."""


class IndexedReader(UpdateReader):
    """Read samples that have numbers: only the rows of the part are touched."""

    def __init__(self, source: IndexedSource, *, seed: int) -> None:
        self._source = source
        self._seed = seed
        self._epoch = -1
        self._batches: Sequence[tuple[int, list[int]]] = ()

    @override
    def read(self, epoch: int, batches: range, cut: BatchCut) -> list[MicroBatch]:
        if epoch != self._epoch:
            self._batches = self._source.numbered(epoch, seed=self._seed)
            self._epoch = epoch
        found = []
        for index in batches:
            number, samples = self._batches[index]
            start, stop = cut.bounds(len(samples))
            rows = samples[start:stop] or samples[:STAND_IN_ROWS]
            payload = self._source.fetch(rows, number, seed=self._seed)
            found.append(MicroBatch(payload, stop - start, len(samples)))
        return found


class StreamReader(UpdateReader):
    """Read a stream on, whole batches at a time; one that lies behind is read again."""

    def __init__(self, source: BatchSource, *, seed: int) -> None:
        self._source = source
        self._seed = seed
        self._epoch = -1
        self._next = 0
        self._opened: Iterator[MicroBatch] = iter(())
        self._kept: dict[int, MicroBatch] = {}
        self._states = _states()

    @override
    def read(self, epoch: int, batches: range, cut: BatchCut) -> list[MicroBatch]:
        behind = any(index < self._next and index not in self._kept for index in batches)
        if epoch != self._epoch or behind:
            self._epoch, self._next = epoch, 0
            self._kept.clear()
            self._opened = self._source.open(epoch, cut=BatchCut(), seed=self._seed, start_sample=0)
        # The other part of the same update may be asked for next.
        self._kept = {index: one for index, one in self._kept.items() if index in batches}
        with self._own_random_numbers():
            while self._next < batches.stop:
                batch = next(self._opened, None)
                if batch is None:
                    raise DataError("the stream given to session.data() has ended within an epoch")
                if self._next in batches:
                    self._kept[self._next] = batch
                self._next += 1
        return [_part_of(self._kept[index], cut) for index in batches]

    @contextmanager
    def _own_random_numbers(self) -> Iterator[None]:
        # A stream draws while it is read: the same on every worker, whatever its script draws.
        states = _states()
        _set_states(self._states)
        try:
            yield
        finally:
            self._states = _states()
            _set_states(states)


def _part_of(batch: MicroBatch, cut: BatchCut) -> MicroBatch:
    start, stop = cut.bounds(batch.global_rows)
    own = (start, stop) if stop > start else (0, min(batch.global_rows, STAND_IN_ROWS))
    return MicroBatch(take_rows(batch.payload, *own), stop - start, batch.global_rows)


def _states() -> tuple[Any, Any, Any]:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002


def _set_states(states: tuple[Any, Any, Any]) -> None:
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002 (the user's code draws from it)
    random.setstate(states[2])


class ScriptTicketLoader:
    """Load the batches of a worker's tickets from a script's data.

    Args:
        source: The data.
        plan: What tickets stand for.
        job: Completed by what the script declared.
        accumulate: Batches of the loader in one update.
        seed: Of the script.
        in_rounds: Whether every update takes a part of every worker.
    """

    def __init__(
        self,
        source: BatchSource,
        plan: TicketPlan,
        job: JobSpec,
        *,
        accumulate: int,
        seed: int,
        in_rounds: bool,
    ) -> None:
        self.plan = plan
        self._source = source
        self._job = job
        self._accumulate = accumulate
        self._in_rounds = in_rounds
        self._tickets: deque[int] = deque()
        self._reader: UpdateReader = (
            IndexedReader(source, seed=seed)
            if isinstance(source, IndexedSource)
            else StreamReader(source, seed=seed)
        )

    def prepare(self, ticket: int) -> None:
        """Note that a ticket is next; read when it is computed, as scripts draw random numbers."""
        self._tickets.append(ticket)

    def next(self) -> TicketBatch:
        """Return the batch of the next ticket."""
        unit, accumulate = self.plan.unit(self._tickets.popleft()), self._accumulate
        cut = BatchCut.of(self._job, unit.part)
        first = unit.step * accumulate
        last = min(first + accumulate, self._source.num_batches)
        micro = self._reader.read(unit.epoch, range(first, last), cut)
        rows = sum(one.num_rows for one in micro)
        usual, whole = self._job.global_batch, sum(one.global_rows for one in micro)
        counted = rows
        if not self._source.is_even:
            sizes = share_sizes(self._source.batch_size * len(micro), cut.size, cut.shares)
            counted = sizes[cut.rank]
        return TicketBatch(
            inputs=_NOTHING,
            targets=_NOTHING,
            indices=_NO_INDICES,
            # Gradients of several updates may meet in one: one divisor for all makes a sample of
            # the last, smaller batch weigh there as much as any other.
            global_count=whole if self._in_rounds else usual,
            global_offset=unit.step * usual,
            epoch=unit.epoch,
            step=unit.step,
            micro=tuple(micro),
            part=unit.part,
            update=unit.epoch * self.plan.num_steps + unit.step,
            counted=counted,
        )

    def close(self) -> None:
        """Drop the tickets."""
        self._tickets.clear()


_NOTHING = np.empty(0, dtype=np.float32)
_NO_INDICES = np.empty(0, dtype=np.int64)
