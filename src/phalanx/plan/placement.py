"""Define candidates, and split a batch over unequal machines.

Objective of the split: minimise the slowest worker's mean time a_i + c_i n_i over whole n_i that
add up to B. Assigning the next sample to the worker that would finish it first is optimal, because
times only grow; all but the last few are assigned at once by solving for the common time.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import msgspec

from phalanx.plan.facts import ComputeFit
from phalanx.spec.job import JobSpec
from phalanx.spec.loader import job_from_mapping
from phalanx.spec.render import to_mapping
from phalanx.spec.strategy import StrategySpec


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """Assignment of a candidate to one machine."""

    machine: str
    batches: tuple[int, ...] = ()
    """Batch size of each of its workers."""
    threads: int = 1
    servers: int = 0
    evaluator: bool = False

    @property
    def workers(self) -> int:
        """Return the number of workers."""
        return len(self.batches)


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One combination of machines, strategy and batch split for the job."""

    seats: tuple[Seat, ...]
    strategy: StrategySpec
    precision: str = "fp32"

    @property
    def num_workers(self) -> int:
        """Return the number of workers on all machines."""
        return sum(seat.workers for seat in self.seats)

    @property
    def global_batch(self) -> int:
        """Return the samples per step over all workers."""
        return sum(sum(seat.batches) for seat in self.seats)


def split_batch(global_batch: int, fits: Sequence[ComputeFit]) -> tuple[int, ...]:
    """Split a batch so that the slowest worker finishes as early as possible; some may get none."""
    time_s = _common_time(global_batch, fits)
    sizes = [max(0, int((time_s - fit.fixed_s) / fit.per_sample_s)) for fit in fits]
    # Rounding errors must not assign more than there is.
    while sum(sizes) > global_batch:
        sizes[max(range(len(sizes)), key=lambda i: fits[i].seconds(sizes[i]))] -= 1
    heap = [(fit.seconds(sizes[i] + 1), i) for i, fit in enumerate(fits)]
    heapq.heapify(heap)
    for _ in range(global_batch - sum(sizes)):
        _, i = heap[0]
        sizes[i] += 1
        heapq.heapreplace(heap, (fits[i].seconds(sizes[i] + 1), i))
    return tuple(sizes)


def equal_split(global_batch: int, num_workers: int) -> tuple[int, ...]:
    """Split a batch equally; the first workers take one more if it does not divide."""
    size, rest = divmod(global_batch, num_workers)
    return tuple(size + (worker < rest) for worker in range(num_workers))


def _common_time(global_batch: int, fits: Sequence[ComputeFit]) -> float:
    """Return the time at which B samples are done if fractions could be assigned.

    Workers join in the order of their fixed part; the total is linear between two of them.
    """
    rate, shift, time_s = 0.0, 0.0, 0.0
    ordered = sorted(fits, key=lambda fit: fit.fixed_s)
    for number, fit in enumerate(ordered):
        rate += 1 / fit.per_sample_s
        shift += fit.fixed_s / fit.per_sample_s
        time_s = (global_batch + shift) / rate
        if number + 1 == len(ordered) or time_s <= ordered[number + 1].fixed_s:
            break
    return time_s


def job_of(job: JobSpec, candidate: Candidate) -> JobSpec:
    """Return the job with the settings of a candidate.

    Raises:
        SpecError: The job and the candidate's strategy are incompatible.
    """
    mapping: dict[str, object] = dict(to_mapping(job))
    mapping |= {
        "workers": candidate.num_workers,
        "strategy": to_mapping(candidate.strategy),
    }
    shares = _shares(candidate)
    if job.program is not None:
        # Its script says the rest.
        mapping["program"] = {**to_mapping(job.program), "shares": shares}
    else:
        batch: dict[str, object] = {"global": candidate.global_batch}
        mapping["batch"] = batch if shares is None else batch | {"shares": shares}
        mapping["precision"] = candidate.precision
    return job_from_mapping(mapping)


def _shares(candidate: Candidate) -> list[float] | None:
    """Return the share of each worker; None: equal ones."""
    sizes = [size for seat in candidate.seats for size in seat.batches]
    if max(sizes) - min(sizes) > 1 and not candidate.strategy.hands_out_batches:
        return [float(size) for size in sizes]
    return None
