from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import data_files
from phalanx.data.pipeline import Dataset, eval_batches, open_dataset, train_batches
from phalanx.errors import DataError, SpecError
from phalanx.spec.data import DataSpec


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data")
    pixels = data_files.images(97, (6, 6, 3))
    np.savez(root / "images.npz", x=pixels, y=np.arange(97) % 5)
    sizes = (30, 20, 25, 12, 10)
    starts = np.cumsum((0, *sizes))
    for number, (start, size) in enumerate(zip(starts, sizes, strict=False)):
        values = np.arange(start, start + size, dtype=np.float64)
        table = pa.table({"x": [[value] for value in values], "y": values})
        (root / "files").mkdir(exist_ok=True)
        pq.write_table(table, root / "files" / f"{number}.parquet")
    return root


def _open(folder: Path, name: str = "images.npz", **settings: object) -> tuple[DataSpec, Dataset]:
    spec = DataSpec(name=str(folder / name), **settings)
    return spec, open_dataset(spec, data_root=folder, cache_root=folder / "cache")


def _epoch(spec: DataSpec, dataset: Dataset, **position: object) -> list:
    place = {"seed": 1, "epoch": 0, "global_batch": 16, "rank": 0, "num_workers": 1, **position}
    with train_batches(dataset, spec=spec, **place) as batches:
        return [batch.copy() for batch in batches]


def _by_sample(epochs: list) -> dict[int, bytes]:
    samples: dict[int, bytes] = {}
    for batches in epochs:
        for batch in batches:
            for index, image in zip(batch.indices.tolist(), batch.inputs, strict=True):
                assert index not in samples
                samples[index] = image.tobytes()
    return samples


@settings(max_examples=25, deadline=None)
@given(
    num_workers=st.integers(1, 6),
    global_batch=st.integers(1, 40),
    prefetch=st.integers(0, 3),
    epoch=st.integers(0, 3),
)
def test_augmented_samples_do_not_depend_on_workers_or_batch(
    folder, num_workers, global_batch, prefetch, epoch
):
    spec, dataset = _open(folder, augment=("flip", "pad-crop"), prefetch=prefetch)
    alone = _by_sample([_epoch(spec, dataset, epoch=epoch)])
    together = _by_sample(
        [
            _epoch(
                spec,
                dataset,
                epoch=epoch,
                rank=rank,
                num_workers=num_workers,
                global_batch=global_batch,
            )
            for rank in range(num_workers)
        ]
    )
    assert together == alone
    assert len(alone) == dataset.train.num_samples


def test_batches_hold_the_samples_they_name(folder):
    spec, dataset = _open(folder, normalize="none")
    for batch in _epoch(spec, dataset):
        rows = dataset.train.rows[batch.indices]
        assert np.array_equal(batch.inputs, dataset.train.inputs[rows])
        assert np.array_equal(batch.targets, rows % 5)
        assert batch.inputs.dtype == np.float32
        assert batch.inputs.flags.c_contiguous
        assert batch.targets.dtype == np.int64


@pytest.mark.parametrize("prefetch", [0, 1, 2, 4])
def test_a_batch_stays_whole_until_the_next_is_asked_for(folder, prefetch):
    spec, dataset = _open(folder, prefetch=prefetch, normalize="none")
    places: list[int] = []
    with train_batches(
        dataset, spec=spec, seed=1, epoch=0, global_batch=3, rank=0, num_workers=1
    ) as batches:
        for batch in batches:
            places.append(batch.inputs.ctypes.data)
            rows = dataset.train.rows[batch.indices]
            assert np.array_equal(batch.inputs, dataset.train.inputs[rows])
    # The one held, those ready and the one in the making all lie in places of their own.
    assert len(set(places)) == prefetch + 2
    assert all(len(set(places[i : i + prefetch + 2])) == prefetch + 2 for i in range(20))


def test_workers_of_a_small_last_batch_get_nothing(folder):
    spec, dataset = _open(folder)  # 78 training samples of 97
    assert dataset.train.num_samples == 78
    for rank in range(4):
        batches = _epoch(spec, dataset, rank=rank, num_workers=4, global_batch=38)
        assert len(batches) == 3
        assert len(batches[-1]) == (1 if rank < 2 else 0)
        assert batches[-1].inputs.shape[1:] == (6, 6, 3)
        assert batches[-1].global_count == 2


def test_continues_at_a_step_and_at_a_sample(folder):
    spec, dataset = _open(folder, augment=("flip",))
    whole = _epoch(spec, dataset)
    for rest in (
        _epoch(spec, dataset, start_step=2),
        _epoch(spec, dataset, start_sample=32),
    ):
        assert [batch.step for batch in rest] == [2, 3, 4]
        for old, new in zip(whole[2:], rest, strict=True):
            assert np.array_equal(old.inputs, new.inputs)
            assert old.global_offset == new.global_offset


def test_stream_knows_its_steps(folder):
    spec, dataset = _open(folder, augment=("flip",))
    with train_batches(
        dataset, spec=spec, seed=1, epoch=0, global_batch=16, rank=0, num_workers=1, start_step=1
    ) as batches:
        assert (batches.first_step, batches.num_steps, len(batches)) == (1, 5, 4)
        assert len(list(batches)) == 4


@pytest.mark.parametrize(("augment", "num_threads"), [((), 1), (("flip",), 2)])
def test_leaving_early_leaves_no_thread(folder, augment, num_threads):
    spec, dataset = _open(folder, augment=augment)
    before = threading.active_count()
    with train_batches(
        dataset, spec=spec, seed=1, epoch=0, global_batch=2, rank=0, num_workers=1
    ) as batches:
        next(iter(batches))
        assert threading.active_count() == before + num_threads
    assert threading.active_count() == before


def test_start_is_given_once(folder):
    spec, dataset = _open(folder)
    with pytest.raises(ValueError, match="not both"):
        _epoch(spec, dataset, start_step=1, start_sample=3)


@pytest.mark.parametrize("shuffle", [True, False])
def test_policy_file_over_a_folder(folder, shuffle):
    spec, dataset = _open(folder, "files", shard="file", shuffle=shuffle, normalize="none")
    assert len(dataset.train.file_sizes) == 5
    epochs = [_epoch(spec, dataset, rank=r, num_workers=3, global_batch=7) for r in range(3)]
    assert sorted(_by_sample(epochs)) == list(range(dataset.train.num_samples))
    assert len({len(epoch) for epoch in epochs}) == 1
    files = [
        {int(np.searchsorted((30, 50, 75, 87), v, "right")) for b in e for v in b.targets}
        for e in epochs
    ]
    assert sum(len(owned) for owned in files) == 5


def test_policy_off_shows_workers_different_samples(folder):
    spec, dataset = _open(folder, shard="off", augment=("flip",))
    first, second = (_epoch(spec, dataset, rank=r, num_workers=2) for r in range(2))
    assert not np.array_equal(first[0].indices, second[0].indices)
    assert first[0].global_count == 16


@settings(max_examples=20, deadline=None)
@given(num_workers=st.integers(1, 100), worker_batch=st.integers(1, 60))
def test_evaluation_sees_each_sample_once_and_in_order(folder, num_workers, worker_batch):
    _, dataset = _open(folder, normalize="none")
    seen: list[int] = []
    counts: dict[int, int] = {}
    promised: dict[int, int] = {}
    for rank in range(num_workers):
        with eval_batches(
            dataset.test, rank=rank, num_workers=num_workers, worker_batch=worker_batch
        ) as batches:
            for batch in batches:
                assert 0 < len(batch) <= worker_batch
                assert np.array_equal(
                    batch.inputs, dataset.test.inputs[dataset.test.rows[batch.indices]]
                )
                seen += batch.indices.tolist()
                counts[batch.step] = counts.get(batch.step, 0) + len(batch)
                promised[batch.step] = batch.global_count
    assert seen == list(range(dataset.test.num_samples))
    assert counts == promised


def test_parts_of_a_data_set_without_test_part(folder):
    _, dataset = _open(folder)
    parts = (dataset.train, dataset.validation, dataset.test)
    assert [part.num_samples for part in parts] == [78, 9, 10]
    assert len(np.unique(np.concatenate([part.rows for part in parts]))) == 97
    assert dataset.num_classes == 5
    assert dataset.input_shape == (6, 6, 3)


def test_parts_of_a_built_in_data_set(tmp_path):
    arrays = data_files.write_mnist(tmp_path / "mnist")
    spec = DataSpec(name="mnist", limit=20)
    dataset = open_dataset(spec, data_root=tmp_path, cache_root=tmp_path / "cache")
    parts = (dataset.train, dataset.validation, dataset.test)
    assert [part.num_samples for part in parts] == [18, 2, 10]
    assert dataset.num_classes == 10
    facts = dataset.describe()
    assert facts["num_samples"] == {"train": 18, "validation": 2, "test": 10}
    assert sum(facts["class_counts"]["train"]) == 18
    assert np.isclose(facts["mean"][0], arrays["train-images-idx3-ubyte"].mean())


@pytest.mark.parametrize("own_test_part", [True, False])
def test_the_test_part_can_be_validated_on_and_nothing_is_held_out(tmp_path, folder, own_test_part):
    if own_test_part:
        data_files.write_mnist(tmp_path / "mnist")
        spec = DataSpec(name="mnist", limit=20, validation="test")
        dataset = open_dataset(spec, data_root=tmp_path, cache_root=tmp_path / "cache")
    else:
        _, dataset = _open(folder, validation="test")
    assert dataset.train.num_samples == (20 if own_test_part else 87)
    assert dataset.validation.num_samples == 10
    assert dataset.validation.targets is dataset.test.targets
    assert np.array_equal(dataset.validation.rows, dataset.test.rows)


def test_float_targets(folder):
    _, dataset = _open(folder, "files")
    assert not dataset.is_classification
    assert dataset.num_classes == 1
    assert dataset.describe()["class_counts"] is None


def test_fingerprint_is_of_the_contents(tmp_path):
    prints = []
    for place in ("a", "b"):
        data_files.write_mnist(tmp_path / place / "mnist", packed=place == "a")
        spec = DataSpec(name="mnist")
        root = tmp_path / place
        prints.append(open_dataset(spec, data_root=root, cache_root=root / "c").fingerprint)
    assert prints[0] == prints[1]


def test_augmentation_needs_images(folder):
    with pytest.raises(SpecError, match=r"data\.augment: flip changes images"):
        _open(folder, "files", augment=("flip",))


def test_parts_of_two_shapes(tmp_path):
    arrays = {"x": np.ones((3, 2)), "y": np.arange(3)}
    np.savez(tmp_path / "a.npz", **arrays, x_test=np.ones((3, 4)), y_test=np.arange(3))
    with pytest.raises(DataError, match="bring both to one shape"):
        _open(tmp_path, "a.npz")


def test_nothing_heavy_is_imported_for_a_filled_cache(tmp_path):
    """A worker that finds its data decoded must not wait for decoders to load."""
    spec = DataSpec(name="digits")
    open_dataset(spec, data_root=tmp_path, cache_root=tmp_path)
    program = f"""
import sys
from pathlib import Path
from phalanx.data.pipeline import open_dataset
from phalanx.spec.data import DataSpec
root = Path({str(tmp_path)!r})
open_dataset(DataSpec(name="digits"), data_root=root, cache_root=root)
print([name for name in ("torch", "sklearn", "pyarrow", "PIL") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
