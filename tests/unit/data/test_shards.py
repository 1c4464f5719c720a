from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.data.order import EpochOrder, random_order, share_sizes
from phalanx.data.shards import (
    FileShards,
    OffShards,
    SampleShards,
    Shards,
    assign_files,
    choose_policy,
    file_sizes_of,
)
from phalanx.errors import SpecError


@st.composite
def settings(draw: st.DrawFn) -> dict[str, object]:
    num_workers = draw(st.integers(1, 9))
    shares = st.lists(st.floats(0.05, 20), min_size=num_workers, max_size=num_workers)
    return {
        "global_batch": draw(st.integers(1, 50)),
        "num_workers": num_workers,
        "shares": draw(st.none() | shares),
    }


def _order(num_samples: int, *, shuffle: bool = True, seed: int = 3) -> EpochOrder:
    return EpochOrder(num_samples=num_samples, seed=seed, shuffle=shuffle)


def _all_cuts(shards: Shards, num_workers: int, epoch: int = 0, start_sample: int = 0) -> list:
    return [list(shards.batches(epoch, r, start_sample=start_sample)) for r in range(num_workers)]


def _check_steps(cuts: list, shards: Shards, num_samples: int, start_sample: int = 0) -> None:
    """What holds under every policy that shows each sample once."""
    expected = list(shards.steps(start_sample))
    offset = start_sample
    for worker in cuts:
        assert [cut.step for cut in worker] == expected
    for together in zip(*cuts, strict=True):
        count = sum(len(cut.indices) for cut in together)
        assert {cut.global_count for cut in together} == {count}
        assert {cut.global_offset for cut in together} == {offset}
        assert count > 0
        offset += count
    assert offset == num_samples


def _seen(cuts: list) -> list[int]:
    return sorted(index for worker in cuts for cut in worker for index in cut.indices.tolist())


@given(num_samples=st.integers(1, 300), shuffle=st.booleans(), given_settings=settings())
def test_sample_shows_each_sample_once(num_samples, shuffle, given_settings):
    shards = SampleShards(_order(num_samples, shuffle=shuffle), **given_settings)
    cuts = _all_cuts(shards, given_settings["num_workers"])
    assert _seen(cuts) == list(range(num_samples))
    _check_steps(cuts, shards, num_samples)
    for rank, worker in enumerate(cuts):
        assert all(len(cut.indices) <= shards.max_rows(rank) for cut in worker)


@given(
    file_sizes=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    shuffle=st.booleans(),
    given_settings=settings(),
)
def test_file_shows_each_sample_once(file_sizes, shuffle, given_settings):
    num_samples = sum(file_sizes)
    shards = FileShards(
        _order(num_samples, shuffle=shuffle), file_sizes=file_sizes, **given_settings
    )
    cuts = _all_cuts(shards, given_settings["num_workers"])
    assert _seen(cuts) == list(range(num_samples))
    _check_steps(cuts, shards, num_samples)
    ends = np.cumsum(file_sizes)
    owners: dict[int, int] = {}
    for rank, worker in enumerate(cuts):
        for cut in worker:
            assert len(cut.indices) <= shards.max_rows(rank)
            for file in np.searchsorted(ends, cut.indices, side="right"):
                assert owners.setdefault(int(file), rank) == rank


@given(num_samples=st.integers(1, 200), given_settings=settings())
def test_off_gives_each_worker_its_share_of_each_step(num_samples, given_settings):
    shards = OffShards(_order(num_samples), **given_settings)
    cuts = _all_cuts(shards, given_settings["num_workers"])
    _check_steps(cuts, shards, num_samples)
    for worker in cuts:
        own = [index for cut in worker for index in cut.indices.tolist()]
        assert len(own) == len(set(own))


def test_off_orders_differ_between_workers():
    shards = OffShards(_order(100), global_batch=20, num_workers=2)
    first, second = (next(shards.batches(0, rank)).indices.tolist() for rank in range(2))
    assert first != second


@given(
    num_samples=st.integers(1, 200),
    epoch=st.integers(0, 50),
    global_batch=st.integers(1, 40),
    workers=st.lists(st.integers(1, 7), min_size=2, max_size=2),
)
def test_global_batches_do_not_depend_on_the_number_of_workers(
    num_samples, epoch, global_batch, workers
):
    def global_batches(num_workers: int) -> list[list[int]]:
        shards = SampleShards(
            _order(num_samples), global_batch=global_batch, num_workers=num_workers
        )
        cuts = _all_cuts(shards, num_workers, epoch)
        return [[i for cut in one for i in cut.indices.tolist()] for one in zip(*cuts, strict=True)]

    assert global_batches(workers[0]) == global_batches(workers[1])


@given(
    num_samples=st.integers(1, 200),
    before=settings(),
    after=settings(),
    steps_done=st.integers(0, 20),
)
def test_an_epoch_continues_with_other_workers_and_batch(num_samples, before, after, steps_done):
    old = SampleShards(_order(num_samples), **before)
    new = SampleShards(_order(num_samples), **after)
    start = old.offset_of(steps_done)
    done = [worker[:steps_done] for worker in _all_cuts(old, before["num_workers"])]
    rest = _all_cuts(new, after["num_workers"], start_sample=start)
    assert sorted(_seen(done) + _seen(rest)) == list(range(num_samples))
    _check_steps(rest, new, num_samples, start)


@given(
    file_sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    given_settings=settings(),
    steps_done=st.integers(0, 10),
)
def test_file_continues_at_a_step(file_sizes, given_settings, steps_done):
    order = _order(sum(file_sizes))
    shards = FileShards(order, file_sizes=file_sizes, **given_settings)
    start = shards.offset_of(steps_done)
    whole = _all_cuts(shards, given_settings["num_workers"])
    rest = _all_cuts(shards, given_settings["num_workers"], start_sample=start)
    assert [[c.indices.tolist() for c in worker[steps_done:]] for worker in whole] == [
        [c.indices.tolist() for c in worker] for worker in rest
    ]


def test_file_refuses_a_sample_at_which_no_step_begins():
    shards = FileShards(_order(20), file_sizes=(10, 10), global_batch=4, num_workers=2)
    with pytest.raises(SpecError, match="shard: sample"):
        next(shards.batches(0, 0, start_sample=3))


def test_order_depends_on_seed_and_epoch_only():
    order = _order(1000)
    assert np.array_equal(order.permutation(4), _order(1000).permutation(4))
    assert not np.array_equal(order.permutation(4), order.permutation(5))
    assert not np.array_equal(order.permutation(4), _order(1000, seed=4).permutation(4))
    assert np.array_equal(_order(5, shuffle=False).permutation(4), np.arange(5))


def test_random_order_is_what_it_was():
    """A run that is resumed after an upgrade must find the order it began with."""
    assert random_order(8, (1, 0)).tolist() == [2, 0, 1, 4, 5, 6, 7, 3]


@given(count=st.integers(0, 1000), given_settings=settings())
def test_share_sizes_are_within_one_of_the_quota(count, given_settings):
    num_workers: int = given_settings["num_workers"]
    shares: Sequence[float] | None = given_settings["shares"]
    sizes = share_sizes(count, num_workers, shares)
    assert sum(sizes) == count
    weights = shares or [1.0] * num_workers
    for size, weight in zip(sizes, weights, strict=True):
        assert abs(size - count * weight / sum(weights)) < 1 + 1e-6


def test_equal_remainders_go_to_the_first_ranks():
    assert share_sizes(7, 3) == share_sizes(7, 3, [2.0, 2.0, 2.0]) == (3, 2, 2)
    assert share_sizes(2, 4) == (1, 1, 0, 0)
    assert share_sizes(10, 2, [3.0, 1.0]) == (8, 2)


def test_shares_must_be_as_many_as_workers():
    with pytest.raises(ValueError, match="2 shares for 3 workers"):
        share_sizes(7, 3, [1.0, 1.0])


def test_files_are_balanced_by_size_and_share():
    assert assign_files((10, 10, 10, 10), 2).tolist() == [0, 1, 0, 1]
    assert assign_files((9, 5, 4), 2).tolist() == [0, 1, 1]
    owners = assign_files((10,) * 8, 2, (3.0, 1.0))
    assert (owners == 0).sum() == 6


def test_file_sizes_of_a_subset():
    assert file_sizes_of(np.array([0, 2, 3, 9]), (3, 4, 1, 2)) == (2, 1, 1)


@pytest.mark.parametrize(
    ("policy", "num_files", "shuffle", "chosen"),
    [
        ("auto", 8, False, "file"),
        ("auto", 8, True, "sample"),
        ("auto", 3, False, "sample"),
        ("off", 8, True, "off"),
        ("file", 1, True, "file"),
    ],
)
def test_choose_policy(policy, num_files, shuffle, chosen):
    assert choose_policy(policy, num_files=num_files, num_workers=4, shuffle=shuffle) == chosen
