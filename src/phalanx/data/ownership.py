"""Cut epochs of samples that workers own. Pure.

Notation as in `spec.epoch_quota`. Where the T_r / s_r differ, some workers run out before others:
`join` lets them take part without samples, `drop` ends the epoch with the first to run out, `wrap`
lets all begin again until the last is done. No worker ever waits for samples that never come.
`distribution` creates ownerships, `pipeline` requests their batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from typing_extensions import override

from phalanx.data.order import EpochOrder, Indices, random_order
from phalanx.data.shards import Cut, QuotaShards, ceil_div
from phalanx.errors import SpecError
from phalanx.spec.epoch_quota import EpochQuota


@dataclass(frozen=True)
class SampleOwnership:
    """The samples of each worker for a whole run."""

    owned: tuple[Indices, ...]
    """Positions in the training part, by worker."""
    quota: EpochQuota
    hidden: tuple[tuple[slice, ...], ...] = ()
    """Columns that each worker does not have; empty: all have all."""

    def hidden_from(self, worker: int) -> tuple[slice, ...]:
        """Return the columns that a worker does not have."""
        return self.hidden[worker] if self.hidden else ()


def divide(
    sizes: Sequence[int], rows: Sequence[int], at_end: Literal["join", "drop", "wrap"]
) -> EpochQuota:
    """Divide an epoch over workers that own `sizes` samples and take `rows` per step, at least one.

    `at_end` is the rule for workers that have none left.
    """
    taken = tuple(max(1, one) for one in rows)
    needed = [ceil_div(size, one) for size, one in zip(sizes, taken, strict=True)]
    num_steps = min(needed) if at_end == "drop" else max(needed)
    if at_end == "join":
        totals = tuple(sizes)
    elif at_end == "drop":
        totals = tuple(min(size, num_steps * one) for size, one in zip(sizes, taken, strict=True))
    else:
        totals = tuple(num_steps * one for one in taken)
    return EpochQuota(totals=totals, rows=taken, num_steps=num_steps)


class OwnedShards(QuotaShards):
    """Shards where every worker visits its own samples, in its own order."""

    _fixed = (
        "an epoch of samples that are owned cannot continue at sample {sample}: no step of these "
        "workers and this batch begins there; continue with the workers, the batch and the "
        "'data.distribution' it began with"
    )

    def __init__(self, order: EpochOrder, *, ownership: SampleOwnership, num_workers: int) -> None:
        rows = ownership.quota.rows
        super().__init__(order, global_batch=sum(rows), num_workers=len(rows))
        if num_workers != len(rows):
            raise SpecError(
                f"the samples are divided over {len(rows)} workers, not over {num_workers}; go on "
                "with the workers that the run began with, or without 'data.distribution'"
            )
        self._ownership = ownership
        self._quota = ownership.quota

    @override
    def batches(self, epoch: int, rank: int, *, start_sample: int = 0) -> Iterator[Cut]:
        order = self._order_of(epoch, rank)
        for step in self.steps(start_sample):
            yield self._cut(order, epoch, step, rank)

    def cuts(self, epoch: int, units: Iterable[tuple[int, int]]) -> Iterator[Cut]:
        """Yield the requested parts of steps, each given as (step, worker)."""
        orders: dict[int, Indices] = {}
        for step, worker in units:
            if worker not in orders:
                orders[worker] = self._order_of(epoch, worker)
            yield self._cut(orders[worker], epoch, step, worker)

    def _order_of(self, epoch: int, worker: int) -> Indices:
        """Return a worker's order of samples in an epoch, lap by lap."""
        owned, total = self._ownership.owned[worker], self._quota.totals[worker]
        laps = [
            owned[random_order(len(owned), (self._order.seed, epoch, 1 + worker, lap))]
            if self._order.shuffle
            else owned
            for lap in range(ceil_div(total, len(owned)))
        ]
        return np.concatenate(laps)[:total]
