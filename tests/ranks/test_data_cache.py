"""Many processes that open the same data set at once."""

from __future__ import annotations

import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np

import data_files
from phalanx.data.base import Source
from phalanx.data.cache import open_cached
from phalanx.data.sources import open_source
from phalanx.spec.data import DataSpec

NUM_PROCESSES = 4


class _Logged(Source):
    """Passes a source on and leaves a mark on disk for every time that it is decoded."""

    def __init__(self, inner: Source, marks: Path) -> None:
        self._inner, self._marks = inner, marks

    name = "logged"
    location = "test"

    def fingerprint(self) -> str:
        return self._inner.fingerprint()

    def chunks(self, part):
        if part == "train":
            with self._marks.open("a") as file:
                file.write("decoded\n")
        yield from self._inner.chunks(part)


def _open_at_once(root: Path, start: Barrier, results: multiprocessing.Queue) -> None:
    source = open_source(DataSpec(name="mnist"), data_root=root, cache_root=root)
    start.wait(30)
    cached = open_cached(_Logged(source, root / "marks"), cache_root=root / "cache")
    results.put((cached.fingerprint, int(cached.train.inputs.sum()), len(cached.train.targets)))


def test_one_process_decodes_and_all_see_the_same(tmp_path):
    arrays = data_files.write_mnist(tmp_path / "mnist", num_train=3000)
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(NUM_PROCESSES), context.Queue()
    processes = [
        context.Process(target=_open_at_once, args=(tmp_path, start, results))
        for _ in range(NUM_PROCESSES)
    ]
    for process in processes:
        process.start()
    seen = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    total = int(arrays["train-images-idx3-ubyte"].sum(dtype=np.int64))
    assert {(sum_, count) for _, sum_, count in seen} == {(total, 3000)}
    assert len({fingerprint for fingerprint, _, _ in seen}) == 1
    assert (tmp_path / "marks").read_text().count("decoded") == 1
    assert not list((tmp_path / "cache").glob(".*"))
