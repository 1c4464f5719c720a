"""The sources against tiny files of each format, whole and damaged."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import data_files
from phalanx.data.base import Samples, Source
from phalanx.data.sources import open_source
from phalanx.errors import DataError, PhalanxError, SpecError
from phalanx.spec.data import DataSpec


def _open(name: str, root: Path, **settings: object) -> Source:
    return open_source(DataSpec(name=name, **settings), data_root=root, cache_root=root)


def _whole(source: Source, part: str = "train") -> Samples:
    chunks = list(source.chunks(part))
    return Samples(
        inputs=np.concatenate([chunk.inputs for chunk in chunks]),
        targets=np.concatenate([chunk.targets for chunk in chunks]),
    )


def _fails(source: Source, part: str = "train") -> str:
    with pytest.raises(DataError) as caught:
        list(source.chunks(part))
    return str(caught.value)


class TestDigits:
    def test_images_fill_a_byte(self, tmp_path):
        samples = _whole(_open("digits", tmp_path))
        assert samples.inputs.shape == (1797, 8, 8, 1)
        assert samples.inputs.dtype == np.uint8
        assert samples.inputs.max() == 240
        assert sorted(set(samples.targets.tolist())) == list(range(10))


class TestIdx:
    @pytest.mark.parametrize("packed", [True, False])
    @pytest.mark.parametrize("folder", ["mnist", "MNIST/raw", "."])
    def test_reads_both_parts(self, tmp_path, packed, folder):
        arrays = data_files.write_mnist(tmp_path / folder, packed=packed)
        source = _open("mnist", tmp_path)
        train, test = _whole(source), _whole(source, "test")
        assert np.array_equal(train.inputs[..., 0], arrays["train-images-idx3-ubyte"])
        assert np.array_equal(test.inputs[..., 0], arrays["t10k-images-idx3-ubyte"])
        assert np.array_equal(train.targets, arrays["train-labels-idx1-ubyte"])
        assert train.targets.dtype == np.int64

    def test_truncated_gzip(self, tmp_path):
        data_files.write_mnist(tmp_path / "mnist")
        path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
        path.write_bytes(path.read_bytes()[:-20])
        message = _fails(_open("mnist", tmp_path))
        assert str(path) in message
        assert "truncated or corrupt" in message
        assert "phalanx data fetch mnist" in message

    def test_flipped_bit_in_gzip(self, tmp_path):
        data_files.write_mnist(tmp_path / "mnist")
        path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        assert str(path) in _fails(_open("mnist", tmp_path))

    def test_wrong_magic(self, tmp_path):
        data_files.write_mnist(tmp_path / "mnist", packed=False)
        path = tmp_path / "mnist" / "train-images-idx3-ubyte"
        path.write_bytes(b"<html>not found</html>")
        message = _fails(_open("mnist", tmp_path))
        assert f"{path} is not an IDX file" in message

    def test_wrong_count(self, tmp_path):
        data_files.write_mnist(tmp_path / "mnist", packed=False)
        path = tmp_path / "mnist" / "train-images-idx3-ubyte"
        path.write_bytes(path.read_bytes()[:-1])
        message = _fails(_open("mnist", tmp_path))
        assert f"{path} declares 1,440 bytes of data and holds 1,439" in message

    def test_images_and_labels_of_different_length(self, tmp_path):
        data_files.write_mnist(tmp_path / "mnist")
        path = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
        path.write_bytes(gzip.compress(data_files.idx_bytes(np.zeros(7, dtype=np.uint8))))
        assert "do not belong together" in _fails(_open("mnist", tmp_path))


class TestCifarBatches:
    @pytest.mark.parametrize("old", [True, False])
    @pytest.mark.parametrize("as_tar", [True, False])
    def test_reads_batches_in_order(self, tmp_path, as_tar, old):
        data_files.write_cifar(tmp_path / "cifar10", as_tar=as_tar, old=old)
        source = _open("cifar10", tmp_path)
        chunks = list(source.chunks("train"))
        assert [len(chunk) for chunk in chunks] == [4] * 5
        for seed, chunk in enumerate(chunks):
            rows = data_files.cifar_rows(4, seed).reshape(4, 3, 32, 32)
            assert np.array_equal(chunk.inputs, rows.transpose(0, 2, 3, 1))
            assert chunk.targets.tolist() == [(seed + i) % 10 for i in range(4)]
        assert len(_whole(source, "test")) == 4

    def test_truncated_tar(self, tmp_path):
        data_files.write_cifar(tmp_path, as_tar=True)
        path = tmp_path / "cifar-10-python.tar.gz"
        path.write_bytes(path.read_bytes()[:-1000])
        assert str(path) in _fails(_open("cifar10", tmp_path))

    def test_truncated_batch(self, tmp_path):
        data_files.write_cifar(tmp_path, as_tar=False)
        path = tmp_path / "cifar-10-batches-py" / "data_batch_3"
        path.write_bytes(path.read_bytes()[:-5])
        assert str(path) in _fails(_open("cifar10", tmp_path))

    def test_batch_of_another_shape(self, tmp_path):
        data_files.write_cifar(tmp_path, as_tar=False)
        path = tmp_path / "cifar-10-batches-py" / "data_batch_1"
        path.write_bytes(data_files.old_pickle(data_files.images(2, (3000,)), [1, 2]))
        assert "(2, 3000)" in _fails(_open("cifar10", tmp_path))

    def test_a_pickle_cannot_run_code(self, tmp_path):
        data_files.write_cifar(tmp_path, as_tar=False)
        path = tmp_path / "cifar-10-batches-py" / "data_batch_1"
        marker = tmp_path / "marker"
        path.write_bytes(b"cos\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR.")
        assert "os.system" in _fails(_open("cifar10", tmp_path))
        assert not marker.exists()


class TestParquet:
    @pytest.mark.parametrize("as_struct", [True, False])
    @pytest.mark.parametrize(
        "names",
        [
            ("cifar10-train.parquet", "cifar10-test.parquet"),
            ("train-00000-of-00001.parquet", "test-00000-of-00001.parquet"),
            ("plain_text/train-00000-of-00001.parquet", "plain_text/test-00000-of-00001.parquet"),
        ],
    )
    def test_cifar_as_exported(self, tmp_path, names, as_struct):
        pixels = data_files.images(6)
        folder = tmp_path / "cifar10"
        columns = ("img", "label") if as_struct else ("image", "label")
        for name, part in zip(names, (pixels[:4], pixels[4:]), strict=True):
            data_files.write_image_parquet(
                folder / name, part, range(len(part)), as_struct=as_struct, columns=columns
            )
        source = _open("cifar10", tmp_path)
        assert source.num_classes == 10
        assert np.array_equal(_whole(source).inputs, pixels[:4])
        assert np.array_equal(_whole(source, "test").inputs, pixels[4:])

    def test_row_groups_of_a_single_file_are_its_files(self, tmp_path):
        path = tmp_path / "one.parquet"
        data_files.write_image_parquet(path, data_files.images(10), range(10), row_group_size=4)
        assert [len(c) for c in _open(str(path), tmp_path).chunks("train")] == [4, 4, 2]

    def test_files_of_a_folder(self, tmp_path):
        folder = tmp_path / "mine"
        for number in range(3):
            data_files.write_image_parquet(
                folder / f"part-{number}.parquet",
                data_files.images(5, (4, 4, 1), number),
                range(5),
                row_group_size=2,
            )
        source = _open(str(folder), tmp_path)
        assert [len(chunk) for chunk in source.chunks("train")] == [5, 5, 5]
        assert list(source.chunks("test")) == []
        assert _whole(source).inputs.shape == (15, 4, 4, 1)

    def test_columns_of_numbers_and_lists(self, tmp_path):
        values = np.arange(12, dtype=np.float64).reshape(4, 3)
        table = pa.table({"features": values.tolist(), "price": [0.5, 1.5, 2.5, 3.5]})
        pq.write_table(table, tmp_path / "a.parquet")
        source = _open(
            str(tmp_path / "a.parquet"), tmp_path, input_key="features", target_key="price"
        )
        samples = _whole(source)
        assert samples.inputs.dtype == samples.targets.dtype == np.float32
        assert np.array_equal(samples.inputs, values.astype(np.float32))

    def test_nested_and_fixed_size_lists(self, tmp_path):
        grid = np.arange(16, dtype=np.uint8).reshape(2, 2, 2, 2)
        fixed = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(6.0)), 3)
        table = pa.table({"x": grid.tolist(), "z": fixed, "y": [0, 1]})
        pq.write_table(table, tmp_path / "a.parquet")
        path = str(tmp_path / "a.parquet")
        assert np.array_equal(_whole(_open(path, tmp_path)).inputs, grid)
        fixed_inputs = _whole(_open(path, tmp_path, input_key="z")).inputs
        assert fixed_inputs.tolist() == [[0, 1, 2], [3, 4, 5]]

    def test_missing_column(self, tmp_path):
        path = tmp_path / "a.parquet"
        pq.write_table(pa.table({"picture": [1.0], "label": [1]}), path)
        message = _fails(_open(str(path), tmp_path))
        assert f"{path} has no column 'x' (it has: picture, label)" in message
        assert "data.input_key" in message

    def test_bad_image(self, tmp_path):
        path = tmp_path / "a.parquet"
        good = data_files.encoded(data_files.images(1)[0], "JPEG")
        pq.write_table(pa.table({"image": [good, good[: len(good) // 2]], "label": [0, 1]}), path)
        message = _fails(_open(str(path), tmp_path))
        assert f"{path}: the image in row 1 is corrupt" in message

    def test_images_of_two_sizes(self, tmp_path):
        path = tmp_path / "a.parquet"
        data = [data_files.encoded(data_files.images(1, (n, 4, 3))[0]) for n in (4, 5)]
        pq.write_table(pa.table({"image": data, "label": [0, 1]}), path)
        assert "row 1 has shape (5, 4, 3)" in _fails(_open(str(path), tmp_path))

    def test_lists_of_two_lengths(self, tmp_path):
        path = tmp_path / "a.parquet"
        pq.write_table(pa.table({"x": [[1.0], [1.0, 2.0]], "y": [0, 1]}), path)
        assert "differ in length" in _fails(_open(str(path), tmp_path))

    def test_empty_values(self, tmp_path):
        path = tmp_path / "a.parquet"
        pq.write_table(pa.table({"x": [1.0, None], "y": [0, 1]}), path)
        assert "1 empty values" in _fails(_open(str(path), tmp_path))

    @pytest.mark.parametrize("keep", [0.5, 0.0])
    def test_truncated(self, tmp_path, keep):
        path = tmp_path / "a.parquet"
        data_files.write_image_parquet(path, data_files.images(5), range(5))
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * keep)])
        assert f"{path} is truncated" in _fails(_open(str(path), tmp_path))

    def test_flipped_bits(self, tmp_path):
        path = tmp_path / "a.parquet"
        data_files.write_image_parquet(path, data_files.images(50), range(50))
        data = bytearray(path.read_bytes())
        for position in range(200, 400):
            data[position] ^= 0xFF
        path.write_bytes(data)
        assert str(path) in _fails(_open(str(path), tmp_path))


class TestNpz:
    def test_two_arrays(self, tmp_path):
        path = tmp_path / "a.npz"
        pixels = data_files.images(5, (4, 4))
        np.savez(path, x=pixels, y=np.arange(5, dtype=np.int32))
        source = _open(str(path), tmp_path)
        assert np.array_equal(_whole(source).inputs, pixels[..., None])
        assert list(source.chunks("test")) == []

    def test_own_names_and_test_part(self, tmp_path):
        path = tmp_path / "a.npz"
        arrays = {"in": np.ones((5, 3)), "out": np.zeros((5, 2))}
        np.savez(path, **arrays, in_test=np.ones((2, 3)), out_test=np.zeros((2, 2)))
        source = _open(str(path), tmp_path, input_key="in", target_key="out")
        assert _whole(source, "test").targets.shape == (2, 2)

    def test_missing_array(self, tmp_path):
        path = tmp_path / "a.npz"
        np.savez(path, a=np.ones(3), y=np.ones(3))
        assert f"{path} has no array 'x' (it has: a, y)" in _fails(_open(str(path), tmp_path))

    def test_truncated(self, tmp_path):
        path = tmp_path / "a.npz"
        np.savez(path, x=np.ones((50, 3)), y=np.ones(50))
        path.write_bytes(path.read_bytes()[:300])
        assert f"{path} is truncated" in _fails(_open(str(path), tmp_path))

    @pytest.mark.parametrize(
        ("inputs", "targets", "words"),
        [
            (np.ones((3, 2)), np.zeros(4, dtype=int), "one row per sample"),
            (np.array(["a", "b"]), np.zeros(2, dtype=int), "are not numbers"),
            (np.array([[1.0], [np.nan]]), np.zeros(2, dtype=int), "row 1"),
            (np.ones((2, 2)), np.array([0, -1]), "label -1 is negative"),
            (np.ones((2, 2)), np.array([0, np.inf]), "targets are not finite"),
            (np.ones((2, 2)), np.array(["a", "b"]), "neither"),
        ],
    )
    def test_refused_arrays(self, tmp_path, inputs, targets, words):
        path = tmp_path / "a.npz"
        np.savez(path, x=inputs, y=targets)
        message = _fails(_open(str(path), tmp_path))
        assert str(path) in message
        assert words in message

    def test_channels_in_front_are_moved_to_the_end(self, tmp_path):
        path = tmp_path / "a.npz"
        pixels = data_files.images(2, (3, 8, 8))
        np.savez(path, x=pixels, y=np.arange(2))
        inputs = _whole(_open(str(path), tmp_path)).inputs
        assert np.array_equal(inputs, pixels.transpose(0, 2, 3, 1))


class TestNames:
    def test_missing_files(self, tmp_path):
        with pytest.raises(DataError) as caught:
            _open("mnist", tmp_path)
        message = str(caught.value)
        assert "train-images-idx3-ubyte.gz was not found" in message
        assert str(tmp_path / "mnist") in message
        assert "phalanx data fetch mnist --from DIR" in message

    def test_one_file_missing(self, tmp_path):
        data_files.write_mnist(tmp_path / "mnist")
        (tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz").unlink()
        with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte\.gz was not found"):
            _open("mnist", tmp_path)

    def test_half_of_cifar(self, tmp_path):
        data_files.write_cifar(tmp_path, as_tar=False)
        (tmp_path / "cifar-10-batches-py" / "data_batch_2").unlink()
        with pytest.raises(DataError, match="data_batch_2 was not found"):
            _open("cifar10", tmp_path)
        data_files.write_image_parquet(
            tmp_path / "other" / "train-0.parquet", data_files.images(2), [0, 1]
        )
        with pytest.raises(DataError, match="the test part of the Parquet files"):
            _open("cifar10", tmp_path / "other")

    def test_the_spec_names_another_directory(self, tmp_path):
        data_files.write_mnist(tmp_path / "there" / "mnist")
        source = _open("mnist", tmp_path / "nowhere", directory=str(tmp_path / "there"))
        assert source.location == str(tmp_path / "there" / "mnist")

    def test_a_path_below_the_data_directory(self, tmp_path):
        (tmp_path / "sub").mkdir()
        np.savez(tmp_path / "sub" / "a.npz", x=np.ones((2, 2)), y=np.arange(2))
        assert _open("sub/a.npz", tmp_path).name == "a"

    def test_no_such_path(self, tmp_path):
        with pytest.raises(SpecError, match="there is no file or folder"):
            _open("nowhere/a.npz", tmp_path)

    def test_a_folder_without_data(self, tmp_path):
        with pytest.raises(PhalanxError, match=r"neither a \.npz, "):
            _open(f"{tmp_path}/", tmp_path)

    def test_fingerprint_follows_the_files(self, tmp_path):
        path = tmp_path / "a.npz"
        np.savez(path, x=np.ones((2, 2)), y=np.arange(2))
        before = _open(str(path), tmp_path).fingerprint()
        assert _open(str(path), tmp_path).fingerprint() == before
        np.savez(path, x=np.ones((3, 2)), y=np.arange(3))
        assert _open(str(path), tmp_path).fingerprint() != before
        assert _open(str(path), tmp_path, input_key="y").fingerprint() != before
