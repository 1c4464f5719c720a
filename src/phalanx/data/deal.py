"""Dealing samples out to workers: one function per scheme. Pure.

Every worker computes the whole deal by itself, so each must come to the same bits: chance comes
from `exact`, and sizes from whole numbers and fractions. Except for `replicated` every sample goes
to exactly one worker; under `by_modality` to one worker for each part of its values.
`allotment` applies the result to a job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from phalanx.data.base import Array
from phalanx.data.exact import Draws, dirichlet
from phalanx.data.order import Indices, random_order, share_sizes
from phalanx.errors import SpecError
from phalanx.spec.distribution import DistributionSpec

_STREAM = 7_000  # keeps these draws apart from orders of epochs, which use the same seed


@dataclass(frozen=True)
class Deck:
    """What is dealt, and to how many.

    Attributes:
        targets: Of each sample.
        is_classes: Whether they are class labels.
        num_classes: How many classes there are.
        features: Facts about each sample.
        num_workers: To how many it is dealt.
        num_modalities: Sensors that a sample is made of; 0: it is of one piece.
        seed: Decides all chance.
    """

    targets: Array
    is_classes: bool
    num_classes: int
    features: Mapping[str, npt.NDArray[np.float64]]
    num_workers: int
    num_modalities: int
    seed: int

    @property
    def num_samples(self) -> int:
        """Samples to deal."""
        return len(self.targets)

    def shuffled(self, stream: int = 0) -> Indices:
        """All samples in random order."""
        return random_order(self.num_samples, (self.seed, _STREAM, stream))

    def draws(self, stream: int) -> Draws:
        """Chance of one's own."""
        return Draws(self.seed, _STREAM, stream)


def deal(spec: DistributionSpec, deck: Deck) -> tuple[Indices, ...]:
    """The samples of each worker, in rising order.

    Raises:
        SpecError: The scheme does not fit the data or the number of workers.
    """
    if deck.num_samples < deck.num_workers:
        raise SpecError(
            f"data.distribution: {deck.num_samples} samples cannot be dealt to {deck.num_workers} "
            "workers; use fewer workers or more samples"
        )
    hands = _SCHEMES[spec.name](spec, deck)
    return tuple(np.sort(hand).astype(np.int64) for hand in hands)


def _iid(spec: DistributionSpec, deck: Deck) -> list[Indices]:
    return _cut(deck.shuffled(), share_sizes(deck.num_samples, deck.num_workers))


def _replicated(spec: DistributionSpec, deck: Deck) -> list[Indices]:
    return [np.arange(deck.num_samples)] * deck.num_workers


def _by_capacity(spec: DistributionSpec, deck: Deck) -> list[Indices]:
    assert spec.capacity is not None
    sizes = share_sizes(deck.num_samples, deck.num_workers, spec.capacity)
    return _cut(deck.shuffled(), _at_least_one(sizes))


def _quantity(spec: DistributionSpec, deck: Deck) -> list[Indices]:
    if spec.alpha is not None:
        shares = dirichlet([spec.alpha] * deck.num_workers, deck.draws(1)).tolist()
        # A share may be too small for a float; the smallest size is one sample anyway.
        shares = [max(share, 1e-12) for share in shares]
    else:
        shares = [float(rank) ** -spec.exponent for rank in range(1, deck.num_workers + 1)]
        # Powers differ in the last bit between machines; so many digits do not.
        shares = [round(share, 9) for share in shares]
    sizes = share_sizes(deck.num_samples, deck.num_workers, shares)
    return _cut(deck.shuffled(), _at_least_one(sizes))


def _stratified(spec: DistributionSpec, deck: Deck) -> list[Indices]:
    _need_classes(spec, deck)
    shuffled = deck.shuffled()
    by_class = shuffled[np.argsort(deck.targets[shuffled], kind="stable")]
    return [by_class[rank :: deck.num_workers] for rank in range(deck.num_workers)]


def _by_class(spec: DistributionSpec, deck: Deck) -> list[Indices]:
    _need_classes(spec, deck)
    holders = (
        _one_holder_each(deck) if spec.classes is None else _some_classes_each(spec.classes, deck)
    )
    hands: list[list[Indices]] = [[] for _ in range(deck.num_workers)]
    for label, of_class in enumerate(_classes(deck)):
        if holders[label]:
            parts = _cut(of_class, share_sizes(len(of_class), len(holders[label])))
            for rank, part in zip(holders[label], parts, strict=True):
                hands[rank].append(part)
    return [_joined(hand) for hand in hands]


def _one_holder_each(deck: Deck) -> list[list[int]]:
    """Each class to one worker: the largest first, to whoever has the fewest samples."""
    sizes = [len(of_class) for of_class in _classes(deck)]
    present = sum(size > 0 for size in sizes)
    if present < deck.num_workers:
        raise SpecError(
            f"data.distribution: by_class deals {present} classes to {deck.num_workers} workers, "
            "so some would have none; set 'classes: 1' to let workers share a class, or use fewer "
            "workers"
        )
    chance = random_order(deck.num_classes, (deck.seed, _STREAM, 2)).tolist()
    loads = [0] * deck.num_workers
    holders: list[list[int]] = [[] for _ in sizes]
    for label in sorted(range(len(sizes)), key=lambda label: (-sizes[label], chance[label])):
        rank = min(range(deck.num_workers), key=lambda rank: (loads[rank], rank))
        loads[rank] += sizes[label]
        holders[label].append(rank)
    return holders


def _some_classes_each(count: int, deck: Deck) -> list[list[int]]:
    """So many classes to each worker, every class to somebody."""
    present = [label for label, of_class in enumerate(_classes(deck)) if len(of_class)]
    if not len(present) / deck.num_workers <= count <= len(present):
        least = -(-len(present) // deck.num_workers)
        raise SpecError(
            f"data.distribution: {deck.num_workers} workers with {count} classes each cannot hold "
            f"all {len(present)} classes once; set 'classes' to {least} to {len(present)}"
        )
    chance = random_order(len(present), (deck.seed, _STREAM, 2)).tolist()
    holders: list[list[int]] = [[] for _ in range(deck.num_classes)]
    for slot in range(deck.num_workers * count):
        holders[present[chance[slot % len(present)]]].append(slot // count)
    return holders


def _by_range(spec: DistributionSpec, deck: Deck) -> list[Indices]:
    shuffled = deck.shuffled()
    if deck.targets.ndim != 1:
        raise SpecError("data.distribution: by_range needs one target per sample to sort by")
    rising = shuffled[np.argsort(deck.targets[shuffled], kind="stable")]
    blocks = _cut(rising, share_sizes(len(rising), deck.num_workers * spec.ranges))
    return [_joined(blocks[rank :: deck.num_workers]) for rank in range(deck.num_workers)]


def _by_feature(spec: DistributionSpec, deck: Deck) -> list[Indices]:
    assert spec.feature is not None
    if spec.feature not in deck.features:
        raise SpecError(
            f"data.distribution: the data knows no feature '{spec.feature}' of its samples; it "
            f"knows {', '.join(deck.features)}"
        )
    values = deck.features[spec.feature]
    shuffled = deck.shuffled()
    rising = shuffled[np.argsort(values[shuffled], kind="stable")]
    # A cut is moved to where the value changes, so that equal ones stay together.
    changes = np.flatnonzero(np.diff(values[rising])) + 1
    wanted = np.cumsum(share_sizes(len(rising), deck.num_workers))[:-1]
    cuts = _nearest_apart(wanted, changes)
    if cuts is None:
        raise SpecError(
            f"data.distribution: {len(changes) + 1} values of '{spec.feature}' are too few for "
            f"{deck.num_workers} workers; use fewer workers or another feature"
        )
    return list(np.split(rising, cuts))


def _nearest_apart(wanted: Indices, places: Indices) -> list[int] | None:
    """For each wish a place near it, all different and rising; None: there are too few places."""
    chosen: list[int] = []
    for number, wish in enumerate(wanted.tolist()):
        left = len(wanted) - number - 1
        first = int(np.searchsorted(places, chosen[-1] + 1)) if chosen else 0
        open_places = places[first : len(places) - left]
        if len(open_places) == 0:
            return None
        chosen.append(int(open_places[np.abs(open_places - wish).argmin()]))
    return chosen


def _dirichlet(spec: DistributionSpec, deck: Deck) -> list[Indices]:
    _need_classes(spec, deck)
    draws = deck.draws(3)
    hands: list[list[Indices]] = [[] for _ in range(deck.num_workers)]
    for of_class in _classes(deck):
        shares = dirichlet([spec.resolved_alpha] * deck.num_workers, draws).tolist()
        sizes = share_sizes(len(of_class), deck.num_workers, [max(one, 1e-12) for one in shares])
        for hand, part in zip(hands, _cut(of_class, sizes), strict=True):
            hand.append(part)
    dealt = [_joined(hand) for hand in hands]
    # A worker without any sample could not take part: it gets one of the richest worker's.
    for rank in range(deck.num_workers):
        if len(dealt[rank]) == 0:
            richest = max(range(len(dealt)), key=lambda other: (len(dealt[other]), -other))
            rich = dealt[richest]
            dealt[rank], dealt[richest] = rich[-1:], rich[:-1]
    return dealt


def _by_modality(spec: DistributionSpec, deck: Deck) -> list[Indices]:
    if deck.num_modalities == 0:
        raise SpecError(
            "data.distribution: by_modality needs samples of several sensors, which this data has "
            "not; use data such as land-cover"
        )
    groups = min(deck.num_workers, deck.num_modalities)
    hands: list[Indices] = [np.empty(0, dtype=np.int64)] * deck.num_workers
    for group in range(groups):
        members = range(group, deck.num_workers, groups)
        parts = _cut(deck.shuffled(group), share_sizes(deck.num_samples, len(members)))
        for rank, part in zip(members, parts, strict=True):
            hands[rank] = part
    return hands


def modalities_held(num_workers: int, num_modalities: int) -> list[tuple[int, ...]]:
    """Under `by_modality`: the numbers of the modalities that each worker holds."""
    groups = min(num_workers, num_modalities)
    return [tuple(range(rank % groups, num_modalities, groups)) for rank in range(num_workers)]


def _need_classes(spec: DistributionSpec, deck: Deck) -> None:
    if not deck.is_classes:
        raise SpecError(
            f"data.distribution: {spec.name} deals by class, but the targets are not classes; use "
            "iid, by_range, by_feature or quantity"
        )


def _classes(deck: Deck) -> list[Indices]:
    """The samples of every class, in random order."""
    shuffled = deck.shuffled()
    by_class = shuffled[np.argsort(deck.targets[shuffled], kind="stable")]
    sizes = np.bincount(deck.targets, minlength=deck.num_classes)
    return _cut(by_class, sizes.tolist())


def _cut(order: Indices, sizes: Sequence[int]) -> list[Indices]:
    return list(np.split(order, np.cumsum(sizes)[:-1]))


def _joined(parts: Sequence[Indices]) -> Indices:
    return np.concatenate([np.empty(0, dtype=np.int64), *parts])


def _at_least_one(sizes: Sequence[int]) -> list[int]:
    """Take from the largest what the empty need."""
    given = list(sizes)
    for rank, size in enumerate(given):
        if size == 0:
            given[given.index(max(given))] -= 1
            given[rank] = 1
    return given


_SCHEMES: dict[str, Callable[[DistributionSpec, Deck], list[Indices]]] = {
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
    """How far each worker's mix of classes is from that of all, and the mean over workers.

    The distance is half the sum of absolute differences of shares: 0 for the same mix, near 1 for a
    worker with one class of many.

    Args:
        counts: Samples by worker and class.
    """
    mixes = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    overall = counts.sum(axis=0) / max(1, int(counts.sum()))
    distances = [float(one) for one in np.abs(mixes - overall).sum(axis=1) / 2]
    return distances, sum(distances) / len(distances)
