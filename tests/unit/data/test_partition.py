"""Every scheme partitions every sample as promised, the same way from the same seed."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.data.order import EpochOrder
from phalanx.data.ownership import OwnedShards, SampleOwnership, divide
from phalanx.data.partition import PartitionInput, label_skew, modalities_held, partition
from phalanx.errors import SpecError
from phalanx.spec.data import DistributionSpec

ONCE = [
    {"name": "iid"},
    {"name": "stratified"},
    {"name": "by_class", "classes": 4},
    {"name": "by_range"},
    {"name": "by_range", "ranges": 3},
    {"name": "quantity"},
    {"name": "quantity", "alpha": 0.05},
    {"name": "dirichlet", "alpha": 0.05},
    {"name": "dirichlet"},
    {"name": "by_feature", "feature": "flux"},
]


def made(
    num_samples: int = 400, *, workers: int = 4, classes: int = 8, seed: int = 1
) -> PartitionInput:
    chance = np.random.Generator(np.random.Philox(num_samples + 17 * classes))
    return PartitionInput(
        targets=chance.integers(0, classes, num_samples),
        is_classes=True,
        num_classes=classes,
        features={
            "flux": chance.random(num_samples),
            "parent": np.floor(chance.random(num_samples) * 9),
        },
        num_workers=workers,
        num_modalities=4,
        seed=seed,
    )


def partitioned(of: PartitionInput, **scheme: object) -> tuple[np.ndarray, ...]:
    return partition(DistributionSpec.model_validate(scheme), of)


def counts(of: PartitionInput, owned: tuple[np.ndarray, ...]) -> np.ndarray:
    return np.stack([np.bincount(of.targets[own], minlength=of.num_classes) for own in owned])


@pytest.mark.parametrize("scheme", ONCE, ids=str)
@given(num_samples=st.integers(40, 300), workers=st.integers(2, 6), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_every_sample_goes_to_exactly_one_worker(
    scheme: dict[str, object], num_samples: int, workers: int, seed: int
) -> None:
    owned = partitioned(made(num_samples, workers=workers, seed=seed), **scheme)
    assert len(owned) == workers
    assert sorted(np.concatenate(owned).tolist()) == list(range(num_samples))
    assert all(len(own) > 0 for own in owned)
    assert all((np.diff(own) > 0).all() for own in owned)


@pytest.mark.parametrize("scheme", [*ONCE, {"name": "by_modality"}], ids=str)
def test_the_seed_decides_and_nothing_else(scheme: dict[str, object]) -> None:
    def digest(seed: int) -> str:
        owned = partitioned(made(seed=seed), **scheme)
        return hashlib.sha256(b"|".join(own.tobytes() for own in owned)).hexdigest()

    assert digest(3) == digest(3)
    # Distinct values, or a sensor for each worker, leave nothing to chance.
    if scheme["name"] not in ("by_feature", "by_modality"):
        assert digest(3) != digest(4)


def test_sizes_are_as_the_schemes_say() -> None:
    even = [len(own) for own in partitioned(made(402), name="iid")]
    assert even == [101, 101, 100, 100]
    by_cores = partitioned(made(400, workers=5), name="by_capacity", capacity=[8.0, 4, 4, 4, 4])
    assert [len(own) for own in by_cores] == [133, 67, 67, 67, 66]
    power = [len(own) for own in partitioned(made(400), name="quantity")]
    assert power == [192, 96, 64, 48]
    assert [len(own) for own in partitioned(made(), name="replicated")] == [400] * 4


def test_stratified_gives_all_the_same_mix_and_iid_nearly() -> None:
    of = made(800)
    mixes = counts(of, partitioned(of, name="stratified"))
    assert (mixes.max(axis=0) - mixes.min(axis=0)).max() <= 1
    assert label_skew(mixes)[1] < label_skew(counts(of, partitioned(of, name="iid")))[1] < 0.15


def test_whole_classes_have_one_holder() -> None:
    of = made()
    table = counts(of, partitioned(of, name="by_class"))
    assert ((table > 0).sum(axis=0) == 1).all()
    assert ((table > 0).sum(axis=1) == 2).all()
    shared = counts(of, partitioned(of, name="by_class", classes=3))
    assert ((shared > 0).sum(axis=1) == 3).all()
    assert ((shared > 0).sum(axis=0) >= 1).all()
    assert label_skew(table)[1] == pytest.approx(0.75, abs=0.02)


def test_ranges_follow_each_other() -> None:
    of = made()
    owned = partitioned(of, name="by_range")
    for before, after in pairwise(owned):
        assert of.targets[before].max() <= of.targets[after].min()
    spread = counts(of, partitioned(of, name="by_range", ranges=4))
    assert ((spread > 0).sum(axis=1) > (counts(of, owned) > 0).sum(axis=1)).all()


def test_equal_features_stay_together() -> None:
    of = made()
    owned = partitioned(of, name="by_feature", feature="parent")
    owners = [set(of.features["parent"][own].tolist()) for own in owned]
    assert sum(len(one) for one in owners) == len(set.union(*owners)) == 9


def test_a_smaller_alpha_is_more_uneven() -> None:
    of = made(2000, workers=5)
    skews = [
        label_skew(counts(of, partitioned(of, name="dirichlet", alpha=alpha)))[1]
        for alpha in (0.05, 0.5, 5.0, 100.0)
    ]
    assert skews == sorted(skews, reverse=True)
    assert skews[0] > 0.5
    assert skews[-1] < 0.1


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 6, 9])
def test_each_sensor_of_each_sample_is_with_one_worker(workers: int) -> None:
    owned = partitioned(made(workers=workers), name="by_modality")
    held = modalities_held(workers, 4)
    for modality in range(4):
        holders = [own for own, mine in zip(owned, held, strict=True) if modality in mine]
        assert sorted(np.concatenate(holders).tolist()) == list(range(400))


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        ({"name": "by_class", "classes": 1}, "set 'classes' to 2 to 8"),
        ({"name": "by_feature", "feature": "size"}, "it knows flux, parent"),
    ],
)
def test_what_cannot_be_partitioned_is_refused(scheme: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        partitioned(made(), **scheme)


def test_too_few_samples_classes_or_values_are_refused() -> None:
    with pytest.raises(SpecError, match="3 samples cannot be divided over 4"):
        partitioned(made(3), name="iid")
    with pytest.raises(SpecError, match="divides 2 classes over 4 workers"):
        partitioned(made(classes=2), name="by_class")
    with pytest.raises(SpecError, match="9 values of 'parent' are too few for 12"):
        partitioned(made(workers=12), name="by_feature", feature="parent")


SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=6)


@given(
    sizes=SIZES,
    rows=st.lists(st.integers(0, 9), min_size=6, max_size=6),
    at_end=st.sampled_from(["join", "drop", "wrap"]),
    shuffle=st.booleans(),
)
def test_an_epoch_ends_for_all_workers_at_once(sizes, rows, at_end, shuffle) -> None:
    total = sum(sizes)
    starts = np.cumsum([0, *sizes])
    owned = tuple(np.arange(a, b) for a, b in pairwise(starts))
    quota = divide(sizes, rows[: len(sizes)], at_end)
    shards = OwnedShards(
        EpochOrder(num_samples=total, seed=2, shuffle=shuffle),
        ownership=SampleOwnership(owned=owned, quota=quota),
        num_workers=len(sizes),
    )
    cuts = [list(shards.batches(0, rank)) for rank in range(len(sizes))]
    assert {len(one) for one in cuts} == {quota.num_steps}
    offset = 0
    for step, together in enumerate(zip(*cuts, strict=True)):
        count = sum(len(cut.indices) for cut in together)
        assert count > 0
        assert {cut.global_count for cut in together} == {count}
        assert {cut.global_offset for cut in together} == {offset} == {shards.offset_of(step)}
        offset += count
    assert offset == quota.samples
    seen = [np.concatenate([cut.indices for cut in one]) for one in cuts]
    for rank, own in enumerate(seen):
        assert set(own.tolist()) <= set(owned[rank].tolist())
        times = np.bincount(own - starts[rank], minlength=sizes[rank])
        if at_end == "join":
            assert (times == 1).all()
        elif at_end == "drop":
            assert (times <= 1).all()
        else:
            assert times.max() - times.min() <= 1
            assert times.min() >= 1


@given(sizes=SIZES, data=st.data())
def test_an_epoch_goes_on_where_it_stopped_and_part_by_part(sizes, data) -> None:
    starts = np.cumsum([0, *sizes])
    owned = tuple(np.arange(a, b) for a, b in pairwise(starts))
    quota = divide(sizes, [3] * len(sizes), "join")
    order = EpochOrder(num_samples=sum(sizes), seed=2, shuffle=True)
    shards = OwnedShards(
        order, ownership=SampleOwnership(owned=owned, quota=quota), num_workers=len(sizes)
    )
    step = data.draw(st.integers(0, quota.num_steps))
    rank = data.draw(st.integers(0, len(sizes) - 1))
    whole = list(shards.batches(4, rank))
    rest = list(shards.batches(4, rank, start_sample=shards.offset_of(step)))
    assert [cut.step for cut in rest] == list(range(step, quota.num_steps))
    for one, other in zip(whole[step:], rest, strict=True):
        assert one.indices.tolist() == other.indices.tolist()
    asked = [(cut.step, rank) for cut in whole]
    for one, other in zip(whole, shards.cuts(4, asked), strict=True):
        assert one.indices.tolist() == other.indices.tolist()
        assert quota.has_samples(rank, one.step) == (len(one.indices) > 0)


def test_other_workers_cannot_go_on_with_a_partition() -> None:
    ownership = SampleOwnership(owned=(np.arange(4),), quota=divide([4], [2], "join"))
    order = EpochOrder(num_samples=4, seed=1, shuffle=True)
    with pytest.raises(SpecError, match="divided over 1 workers, not over 2"):
        OwnedShards(order, ownership=ownership, num_workers=2)
    with pytest.raises(SpecError, match="cannot continue at sample 3"):
        OwnedShards(order, ownership=ownership, num_workers=1).steps(3)
