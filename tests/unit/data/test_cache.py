from __future__ import annotations

import json
import os
import threading
from datetime import timedelta

import numpy as np
import pytest

import data_files
from phalanx.data.base import Samples, Source
from phalanx.data.cache import open_cached
from phalanx.data.file_lock import hold_lock
from phalanx.data.sources import open_source
from phalanx.errors import DataError, StoreError, TimeoutExpired
from phalanx.spec.data import DataSpec


class Counting(Source):
    """A source in memory that counts how often it is decoded."""

    name = "counting"
    location = "memory"

    def __init__(self, *chunks: Samples, test: tuple[Samples, ...] = ()) -> None:
        self.parts = {"train": chunks, "test": test}
        self.decoded = 0

    def fingerprint(self) -> str:
        return "constant"

    def chunks(self, part):
        self.decoded += part == "train"
        yield from self.parts[part]


def _samples(count: int, seed: int = 0, labels: int = 3) -> Samples:
    targets = np.arange(count, dtype=np.int64) % labels
    return Samples(inputs=data_files.images(count, seed=seed), targets=targets)


def test_decodes_once_and_maps(tmp_path):
    source = Counting(_samples(5), _samples(3, 1), test=(_samples(2, 2),))
    first = open_cached(source, cache_root=tmp_path)
    second = open_cached(source, cache_root=tmp_path)
    assert source.decoded == 1
    assert first.fingerprint == second.fingerprint
    assert second.train.file_sizes == (5, 3)
    assert np.array_equal(second.train.inputs[5:], _samples(3, 1).inputs)
    assert second.test is not None
    assert second.num_classes == 3
    assert isinstance(second.train.inputs.base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        second.train.inputs[0] = 0
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        first.folder.name,
        f"{first.folder.name}.lock",
    ]


@pytest.mark.parametrize(
    "name", ["train_inputs.npy", "train_targets.npy", "meta.json", "test_inputs.npy"]
)
@pytest.mark.parametrize("damage", ["truncate", "delete", "empty", "garble"])
def test_a_damaged_cache_is_filled_anew(tmp_path, name, damage):
    source = Counting(_samples(50), test=(_samples(50),))
    whole = open_cached(source, cache_root=tmp_path)
    path = whole.folder / name
    data = path.read_bytes()
    if damage == "delete":
        path.unlink()
    else:
        new = {"truncate": data[:-7], "empty": b"", "garble": b"\xff" * 40 + data[40:]}
        path.write_bytes(new[damage])
    again = open_cached(source, cache_root=tmp_path)
    assert source.decoded == 2
    assert again.fingerprint == whole.fingerprint
    assert np.array_equal(again.train.inputs, _samples(50).inputs)
    assert path.read_bytes() == data
    assert not (again.folder / "replaced").exists()


def test_a_cache_of_the_wrong_length_is_not_used(tmp_path):
    source = Counting(_samples(5))
    folder = open_cached(source, cache_root=tmp_path).folder
    meta = json.loads((folder / "meta.json").read_text())
    meta["parts"]["train"]["file_sizes"] = [4]
    (folder / "meta.json").write_text(json.dumps(meta))
    open_cached(source, cache_root=tmp_path)
    assert source.decoded == 2


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    source = Counting(_samples(5))
    folder = open_cached(source, cache_root=tmp_path).folder
    leftover = tmp_path / f".{folder.name}.0123"
    leftover.mkdir()
    (leftover / "train_inputs.npy").write_bytes(b"half")
    (folder / "meta.json").unlink()
    open_cached(source, cache_root=tmp_path)
    assert not leftover.exists()


def test_failure_while_decoding_leaves_nothing(tmp_path):
    data_files.write_mnist(tmp_path / "mnist")
    path = tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    source = open_source(DataSpec(name="mnist"), data_root=tmp_path, cache_root=tmp_path)
    cache_root = tmp_path / "cache"
    with pytest.raises(DataError, match="t10k-images"):
        open_cached(source, cache_root=cache_root)
    assert [p.suffix for p in cache_root.iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (Counting(), "no training samples"),
        (Counting(_samples(0)), "no training samples"),
        (
            Counting(
                _samples(2), Samples(inputs=data_files.images(2, (5, 5, 3)), targets=np.arange(2))
            ),
            "bring all files to one form",
        ),
    ],
)
def test_refused_sources(tmp_path, source, words):
    with pytest.raises(DataError, match=words):
        open_cached(source, cache_root=tmp_path)


def test_a_label_that_cannot_be(tmp_path):
    source = Counting(_samples(30, labels=11))
    source.num_classes = 10
    with pytest.raises(DataError, match="label 10 does not exist in counting"):
        open_cached(source, cache_root=tmp_path)


def test_values_per_sample_count_as_outputs(tmp_path):
    inputs = np.ones((4, 3), dtype=np.float32)
    source = Counting(Samples(inputs=inputs, targets=np.ones((4, 2), dtype=np.float32)))
    assert open_cached(source, cache_root=tmp_path).num_classes == 2


def test_an_unreadable_source_file_is_named(tmp_path):
    class Vanishing(Counting):
        def chunks(self, part):
            yield from super().chunks(part)
            (tmp_path / "gone").read_bytes()

    with pytest.raises(DataError, match=r"cannot read .*gone"):
        open_cached(Vanishing(_samples(2)), cache_root=tmp_path / "cache")


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="PHALANX_CACHE"):
        open_cached(Counting(_samples(2)), cache_root=tmp_path / "file" / "cache")


def test_waiting_for_the_lock_has_a_deadline(tmp_path):
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with hold_lock(tmp_path / "x.lock", timedelta(seconds=5), "decode the data"):
            held.set()
            release.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(10)
        with (
            pytest.raises(TimeoutExpired) as caught,
            hold_lock(tmp_path / "x.lock", timedelta(milliseconds=10), "decode the data"),
        ):
            pass
        assert "decode" in caught.value.facts["activity"]
    finally:
        release.set()
        thread.join()


def test_times_of_change_matter_but_names_of_folders_do_not_leak(tmp_path):
    path = tmp_path / "odd name (1).npz"
    np.savez(path, x=np.ones((4, 2)), y=np.arange(4))
    source = open_source(DataSpec(name=str(path)), data_root=tmp_path, cache_root=tmp_path)
    first = open_cached(source, cache_root=tmp_path / "cache").folder
    os.utime(path, ns=(1, 1))
    second = open_cached(source, cache_root=tmp_path / "cache").folder
    assert first != second
    assert first.name.startswith("odd_name__1_-")
