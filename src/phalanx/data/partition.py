"""Partition the training samples over workers: one function per scheme. Pure.

Every worker computes the whole partition by itself, so each must come to the same bits: chance
comes from `portable_random`, and sizes from whole numbers and fractions. Except for `replicated`
every sample goes to exactly one worker; under `by_modality` to one worker for each part of its
values. `distribution` applies the result to a job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phalanx.data.base import Array
from phalanx.data.order import Indices, random_order, share_sizes
from phalanx.data.portable_random import Draws, dirichlet
from phalanx.errors import SpecError
from phalanx.spec.data import DistributionSpec

_STREAM = 7_000  # keeps these draws apart from orders of epochs, which use the same seed


@dataclass(frozen=True)
class PartitionInput:
    """Hold what is partitioned, and over how many workers."""

    targets: Array
    is_classes: bool
    num_classes: int
    features: Mapping[str, npt.NDArray[np.float64]]
    num_workers: int
    num_modalities: int
    """Sensors of a sample; 0: it has no modalities."""
    seed: int

    @property
    def num_samples(self) -> int:
        """Samples to partition."""
        return len(self.targets)

    def shuffled(self, stream: int = 0) -> Indices:
        """Return all samples in random order."""
        return random_order(self.num_samples, (self.seed, _STREAM, stream))

    def draws(self, stream: int) -> Draws:
        """Return one stream of random numbers."""
        return Draws(self.seed, _STREAM, stream)


def partition(spec: DistributionSpec, given: PartitionInput) -> tuple[Indices, ...]:
    """Return the samples of each worker, in rising order.

    Raises:
        SpecError: The scheme does not fit the data or the number of workers.
    """
    if given.num_samples < given.num_workers:
        raise SpecError(
            f"data.distribution: {given.num_samples} samples cannot be divided over "
            f"{given.num_workers} workers; use fewer workers or more samples"
        )
    owned = _SCHEMES[spec.name](spec, given)
    return tuple(np.sort(own).astype(np.int64) for own in owned)


def _iid(spec: DistributionSpec, given: PartitionInput) -> list[Indices]:
    return _cut(given.shuffled(), share_sizes(given.num_samples, given.num_workers))


def _replicated(spec: DistributionSpec, given: PartitionInput) -> list[Indices]:
    return [np.arange(given.num_samples)] * given.num_workers


def _by_capacity(spec: DistributionSpec, given: PartitionInput) -> list[Indices]:
    assert spec.capacity is not None
    sizes = share_sizes(given.num_samples, given.num_workers, spec.capacity)
    return _cut(given.shuffled(), _at_least_one(sizes))


def _quantity(spec: DistributionSpec, given: PartitionInput) -> list[Indices]:
    if spec.alpha is not None:
        shares = dirichlet([spec.alpha] * given.num_workers, given.draws(1)).tolist()
        # A share may be too small for a float; the smallest size is one sample anyway.
        shares = [max(share, 1e-12) for share in shares]
    else:
        shares = [float(rank) ** -spec.exponent for rank in range(1, given.num_workers + 1)]
        # Powers differ in the last bit between machines; so many digits do not.
        shares = [round(share, 9) for share in shares]
    sizes = share_sizes(given.num_samples, given.num_workers, shares)
    return _cut(given.shuffled(), _at_least_one(sizes))


def _stratified(spec: DistributionSpec, given: PartitionInput) -> list[Indices]:
    _need_classes(spec, given)
    shuffled = given.shuffled()
    by_class = shuffled[np.argsort(given.targets[shuffled], kind="stable")]
    return [by_class[rank :: given.num_workers] for rank in range(given.num_workers)]


def _by_class(spec: DistributionSpec, given: PartitionInput) -> list[Indices]:
    _need_classes(spec, given)
    holders = (
        _one_holder_each(given) if spec.classes is None else _some_classes_each(spec.classes, given)
    )
    owned: list[list[Indices]] = [[] for _ in range(given.num_workers)]
    for label, of_class in enumerate(_classes(given)):
        if holders[label]:
            parts = _cut(of_class, share_sizes(len(of_class), len(holders[label])))
            for rank, part in zip(holders[label], parts, strict=True):
                owned[rank].append(part)
    return [_joined(own) for own in owned]


def _one_holder_each(given: PartitionInput) -> list[list[int]]:
    """Assign each class to one worker: the largest first, to the worker with the fewest samples."""
    sizes = [len(of_class) for of_class in _classes(given)]
    present = sum(size > 0 for size in sizes)
    if present < given.num_workers:
        raise SpecError(
            f"data.distribution: by_class divides {present} classes over {given.num_workers} "
            "workers, so some would have none; set 'classes: 1' to let workers share a class, or "
            "use fewer workers"
        )
    chance = random_order(given.num_classes, (given.seed, _STREAM, 2)).tolist()
    loads = [0] * given.num_workers
    holders: list[list[int]] = [[] for _ in sizes]
    for label in sorted(range(len(sizes)), key=lambda label: (-sizes[label], chance[label])):
        rank = min(range(given.num_workers), key=lambda rank: (loads[rank], rank))
        loads[rank] += sizes[label]
        holders[label].append(rank)
    return holders


def _some_classes_each(count: int, given: PartitionInput) -> list[list[int]]:
    """Assign a number of classes to each worker, and every class to some worker."""
    present = [label for label, of_class in enumerate(_classes(given)) if len(of_class)]
    if not len(present) / given.num_workers <= count <= len(present):
        least = -(-len(present) // given.num_workers)
        raise SpecError(
            f"data.distribution: {given.num_workers} workers with {count} classes each cannot hold "
            f"all {len(present)} classes once; set 'classes' to {least} to {len(present)}"
        )
    chance = random_order(len(present), (given.seed, _STREAM, 2)).tolist()
    holders: list[list[int]] = [[] for _ in range(given.num_classes)]
    for slot in range(given.num_workers * count):
        holders[present[chance[slot % len(present)]]].append(slot // count)
    return holders


def _by_range(spec: DistributionSpec, given: PartitionInput) -> list[Indices]:
    shuffled = given.shuffled()
    if given.targets.ndim != 1:
        raise SpecError("data.distribution: by_range needs one target per sample to sort by")
    rising = shuffled[np.argsort(given.targets[shuffled], kind="stable")]
    blocks = _cut(rising, share_sizes(len(rising), given.num_workers * spec.ranges))
    return [_joined(blocks[rank :: given.num_workers]) for rank in range(given.num_workers)]


def _by_feature(spec: DistributionSpec, given: PartitionInput) -> list[Indices]:
    assert spec.feature is not None
    if spec.feature not in given.features:
        raise SpecError(
            f"data.distribution: the data knows no feature '{spec.feature}' of its samples; it "
            f"knows {', '.join(given.features)}"
        )
    values = given.features[spec.feature]
    shuffled = given.shuffled()
    rising = shuffled[np.argsort(values[shuffled], kind="stable")]
    # A cut is moved to where the value changes, so that equal ones stay together.
    changes = np.flatnonzero(np.diff(values[rising])) + 1
    wanted = np.cumsum(share_sizes(len(rising), given.num_workers))[:-1]
    cuts = _nearest_apart(wanted, changes)
    if cuts is None:
        raise SpecError(
            f"data.distribution: {len(changes) + 1} values of '{spec.feature}' are too few for "
            f"{given.num_workers} workers; use fewer workers or another feature"
        )
    return list(np.split(rising, cuts))


def _nearest_apart(wanted: Indices, places: Indices) -> list[int] | None:
    """Return places near the wanted ones, all different and rising; None: there are too few."""
    chosen: list[int] = []
    for number, target in enumerate(wanted.tolist()):
        left = len(wanted) - number - 1
        first = int(np.searchsorted(places, chosen[-1] + 1)) if chosen else 0
        open_places = places[first : len(places) - left]
        if len(open_places) == 0:
            return None
        chosen.append(int(open_places[np.abs(open_places - target).argmin()]))
    return chosen


def _dirichlet(spec: DistributionSpec, given: PartitionInput) -> list[Indices]:
    _need_classes(spec, given)
    draws = given.draws(3)
    owned: list[list[Indices]] = [[] for _ in range(given.num_workers)]
    for of_class in _classes(given):
        shares = dirichlet([spec.resolved_alpha] * given.num_workers, draws).tolist()
        sizes = share_sizes(len(of_class), given.num_workers, [max(one, 1e-12) for one in shares])
        for own, part in zip(owned, _cut(of_class, sizes), strict=True):
            own.append(part)
    divided = [_joined(own) for own in owned]
    # A worker without any sample could not take part: it gets one of the richest worker's.
    for rank in range(given.num_workers):
        if len(divided[rank]) == 0:
            richest = max(range(len(divided)), key=lambda other: (len(divided[other]), -other))
            rich = divided[richest]
            divided[rank], divided[richest] = rich[-1:], rich[:-1]
    return divided


def _by_modality(spec: DistributionSpec, given: PartitionInput) -> list[Indices]:
    if given.num_modalities == 0:
        raise SpecError(
            "data.distribution: by_modality needs samples of several sensors, which this data has "
            "not; use data of several sensors, such as a .npz file with 'modalities'"
        )
    groups = min(given.num_workers, given.num_modalities)
    owned: list[Indices] = [np.empty(0, dtype=np.int64)] * given.num_workers
    for group in range(groups):
        members = range(group, given.num_workers, groups)
        parts = _cut(given.shuffled(group), share_sizes(given.num_samples, len(members)))
        for rank, part in zip(members, parts, strict=True):
            owned[rank] = part
    return owned


def modalities_held(num_workers: int, num_modalities: int) -> list[tuple[int, ...]]:
    """Return the modalities that each worker holds under `by_modality`, by number."""
    groups = min(num_workers, num_modalities)
    return [tuple(range(rank % groups, num_modalities, groups)) for rank in range(num_workers)]


def _need_classes(spec: DistributionSpec, given: PartitionInput) -> None:
    if not given.is_classes:
        raise SpecError(
            f"data.distribution: {spec.name} divides by class, but the targets are not classes; "
            "use iid, by_range, by_feature or quantity"
        )


def _classes(given: PartitionInput) -> list[Indices]:
    """Return the samples of every class, in random order."""
    shuffled = given.shuffled()
    by_class = shuffled[np.argsort(given.targets[shuffled], kind="stable")]
    sizes = np.bincount(given.targets, minlength=given.num_classes)
    return _cut(by_class, sizes.tolist())


def _cut(order: Indices, sizes: Sequence[int]) -> list[Indices]:
    return list(np.split(order, np.cumsum(sizes)[:-1]))


def _joined(parts: Sequence[Indices]) -> Indices:
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def _at_least_one(sizes: Sequence[int]) -> list[int]:
    """Give each empty part a sample of the largest one."""
    filled = list(sizes)
    for rank, size in enumerate(filled):
        if size == 0:
            filled[filled.index(max(filled))] -= 1
            filled[rank] = 1
    return filled


_SCHEMES: dict[str, Callable[[DistributionSpec, PartitionInput], list[Indices]]] = {
    "iid": _iid,
    "replicated": _replicated,
    "stratified": _stratified,
    "by_class": _by_class,
    "by_range": _by_range,
    "by_capacity": _by_capacity,
    "quantity": _quantity,
    "dirichlet": _dirichlet,
    "by_feature": _by_feature,
    "by_modality": _by_modality,
}


def label_skew(counts: npt.NDArray[np.int64]) -> tuple[list[float], float]:
    """Compute each worker's label skew from samples by worker and class, and the mean over workers.

    The distance is half the sum of absolute differences of shares: 0 for the same mix, near 1 for a
    worker with one class of many.
    """
    mixes = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    overall = counts.sum(axis=0) / max(1, int(counts.sum()))
    distances = [float(one) for one in np.abs(mixes - overall).sum(axis=1) / 2]
    return distances, sum(distances) / len(distances)
