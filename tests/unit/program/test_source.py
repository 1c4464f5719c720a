"""Batches of a script's data: the same for any number of workers, and from any sample on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from phalanx.errors import DataError, SpecError
from phalanx.program.own_stream import OwnStream, check_strategy
from phalanx.program.passes import Passes
from phalanx.program.rows import count_rows, take_rows
from phalanx.program.source import BatchCut, BatchSource, MicroBatch, open_source
from phalanx.spec.lockstep import LocalSgdSpec
from phalanx.spec.parameter_server import ParameterServerSpec


def loader(count: int = 23, batch: int = 5, **settings: object) -> DataLoader[object]:
    return DataLoader(TensorDataset(torch.arange(count)), batch, **settings)  # type: ignore[arg-type]


def drawn(source: BatchSource, epoch: int, *, size: int = 1, start: int = 0) -> list[list[int]]:
    """The samples of each global batch, put together from all workers."""
    parts = [
        list(source.open(epoch, cut=BatchCut(rank, size), seed=7, start_sample=start))
        for rank in range(size)
    ]
    return [flat([rows_of(one) for one in batch]) for batch in zip(*parts, strict=True)]


def flat(batches: Sequence[list[int]]) -> list[int]:
    return list(chain.from_iterable(batches))


def rows_of(batch: MicroBatch) -> list[int]:
    (numbers,) = batch.payload  # type: ignore[misc]
    return numbers.tolist()[: batch.num_rows]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_every_sample_is_used_once_in_an_epoch_in_the_same_batches(size: int) -> None:
    source = open_source(loader(shuffle=True), steps=None, accumulate=1)
    assert drawn(source, 2, size=size) == drawn(source, 2)
    assert sorted(flat(drawn(source, 2, size=size))) == list(range(23))


def test_epochs_have_orders_of_their_own() -> None:
    source = open_source(loader(shuffle=True), steps=None, accumulate=1)
    assert drawn(source, 0) != drawn(source, 1)


def test_a_pass_goes_on_at_any_batch() -> None:
    source = open_source(loader(shuffle=True), steps=None, accumulate=1)
    assert drawn(source, 1, size=2, start=10) == drawn(source, 1)[2:]


def test_steps_take_as_many_passes_as_they_need() -> None:
    source = open_source(loader(shuffle=True), steps=7, accumulate=2)
    batches = drawn(source, 0)
    assert len(batches) == source.num_batches == 14
    assert sum(map(len, batches)) == source.num_samples
    assert sorted(flat(batches[:5])) == sorted(flat(batches[5:10])) == list(range(23))
    assert batches[:5] != batches[5:10]
    assert drawn(source, 0, start=sum(map(len, batches[:6]))) == batches[6:]


def test_drop_last_and_an_own_generator_are_honoured() -> None:
    generator = torch.Generator().manual_seed(99)
    source = open_source(
        loader(shuffle=True, drop_last=True, generator=generator), steps=None, accumulate=1
    )
    assert source.num_samples == 20
    assert drawn(source, 3) == drawn(source, 3)


class Augmented(Dataset[tuple[torch.Tensor]]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        return (torch.rand(1) + index,)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_augmentation_depends_on_the_sample_not_on_the_worker(num_workers: int) -> None:
    source = open_source(
        DataLoader(Augmented(), 4, num_workers=num_workers), steps=None, accumulate=1
    )

    def values(size: int) -> list[float]:
        found: dict[int, float] = {}
        for rank in range(size):
            for one in source.open(1, cut=BatchCut(rank, size), seed=3, start_sample=0):
                (part,) = one.payload  # type: ignore[misc]
                found |= {int(value): float(value) for value in part.flatten()[: one.num_rows]}
        return [found[index] for index in range(6)]

    assert values(1) == values(2) == values(3)


class Letters(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.arange(12)


def test_workers_take_rows_of_a_stream_which_is_read_again() -> None:
    source = open_source(DataLoader(Letters(), 4), steps=5, accumulate=1)
    cut = [BatchCut(rank, 3) for rank in range(3)]
    parts = [list(source.open(0, cut=one, seed=0, start_sample=8)) for one in cut]
    assert [one.num_rows for one in parts[0]] == [2, 2, 2]
    together = torch.cat([part[0].payload for part in parts])  # type: ignore[arg-type]
    assert together.tolist() == [8, 9, 10, 11]


def test_a_generator_that_ends_too_early_is_named() -> None:
    source = open_source(iter([torch.zeros(4)] * 3), steps=5, accumulate=1)
    with pytest.raises(DataError, match="has ended before"):
        list(source.open(0, cut=BatchCut(), seed=0, start_sample=0))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (DataLoader(Letters(), 4), "without a length"),
        (lambda: iter([]), "without a length"),
        (TensorDataset(torch.zeros(3)), "wrap it in a DataLoader"),
        (3, "give a DataLoader"),
    ],
)
def test_data_that_cannot_be_cut_is_refused(given: object, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        open_source(given, steps=None, accumulate=1)


def test_rows_of_nested_batches() -> None:
    batch = {"x": torch.arange(6).view(3, 2), "names": ["a", "b", "c"], "scale": 2.0}
    assert count_rows(batch) == 3
    taken = take_rows(batch, 1, 3)
    assert taken["x"].tolist() == [[2, 3], [4, 5]]
    assert taken["names"] == ["b", "c"]
    assert taken["scale"] == 2.0
    with pytest.raises(DataError, match="must hold tensors"):
        count_rows("text")


def test_an_own_stream_that_ends_first_goes_on_with_rows_that_count_nothing() -> None:
    cut = BatchCut(1, 2)
    stream = OwnStream(Passes.over(loader(count=7), has_steps=False), cut, None)
    assert (stream.batch_size, stream.num_batches, stream.has_steps) == (10, 2, False)
    stream.agree(4)
    batches = list(stream.open(0, cut=cut, seed=0, start_sample=0))
    assert [one.num_rows for one in batches] == [5, 2, 0, 0]
    assert [count_rows(one.payload) for one in batches] == [5, 2, 2, 2]
    resumed = list(stream.open(0, cut=cut, seed=0, start_sample=10))
    assert [one.num_rows for one in resumed] == [2, 0, 0]


def test_an_own_stream_of_one_worker_must_last_for_its_steps() -> None:
    stream = OwnStream(Passes.over(loader(count=7), has_steps=True), BatchCut(), 4)
    with pytest.raises(DataError, match="no batch left after 2 of 4 batches"):
        list(stream.open(0, cut=BatchCut(), seed=0, start_sample=0))


def test_own_streams_are_refused_where_servers_hand_out_batches() -> None:
    check_strategy(LocalSgdSpec())
    with pytest.raises(SpecError, match="not 'parameter_server'"):
        check_strategy(ParameterServerSpec())


def test_a_trial_may_compute_a_part_of_each_batch() -> None:
    cuts = [BatchCut(rank, 2, None, 0.25) for rank in range(2)]
    assert [cut.bounds(32) for cut in cuts] == [(0, 4), (4, 8)]
    # Two rows each where there are as many: batch norm refuses one.
    assert [cut.bounds(8) for cut in cuts] == [(0, 2), (2, 4)]
    assert [cut.bounds(3) for cut in cuts] == [(0, 2), (2, 3)]


def test_a_trial_computes_a_part_of_own_streams_too() -> None:
    cut = BatchCut(0, 2, None, 0.5)
    stream = OwnStream(Passes.over(loader(count=8, batch=8), has_steps=False), cut, None)
    (batch,) = stream.open(0, cut=cut, seed=0, start_sample=0)
    assert (batch.num_rows, count_rows(batch.payload)) == (4, 4)
