"""Tables, text and folders of images: what becomes a sample, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from phalanx.data.dataset import Dataset, open_dataset
from phalanx.errors import PhalanxError
from phalanx.spec.data import DataSpec

NUMBER = 3
TABLE = "size,rooms,city,price\n50,2,Ulm,1.5\n80,3,Bonn,2.5\n65,3,Ulm,2.0\n"


def opened(path: Path, **fields: Any) -> Dataset:
    spec = DataSpec.model_validate({"name": str(path), "validation": 0} | fields)
    root = path.parent
    return open_dataset(spec, data_root=root, cache_root=root / "cache", whole_numbers=True)


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


class Letters:
    """A tokenizer of two letters."""

    vocab_size = 7

    def encode(self, text: str) -> list[int]:
        return ["ab".index(letter) for letter in text]


def fractions(text: str) -> list[float]:
    return [0.5 for _ in text]


def refuses(text: str) -> list[int]:
    raise KeyError(text[0])


class TestCsv:
    def test_values(self, tmp_path):
        path = write(tmp_path, "a.csv", TABLE)
        found = opened(path, target_key="price", args={"columns": ["rooms", "size"]})
        assert found.train.inputs.tolist() == [[2, 50], [3, 80], [3, 65]]
        assert found.train.targets.tolist() == [1.5, 2.5, 2.0]
        assert found.num_classes == 1

    def test_words_are_classes(self, tmp_path):
        path = write(tmp_path, "a.tsv", TABLE.replace(",", "\t"))
        found = opened(path, target_key="city")
        assert found.train.inputs.shape == (3, 3)
        assert found.train.targets.tolist() == [1, 0, 1]
        assert found.class_names == ("Bonn", "Ulm")

    def test_whole_numbers_are_classes_unless_said_otherwise(self, tmp_path):
        path = write(tmp_path, "a.csv", TABLE)
        columns = ["size", "price"]
        classes = opened(path, target_key="rooms", args={"columns": columns})
        assert classes.train.targets.dtype == np.int64
        values = opened(path, target_key="rooms", args={"columns": columns, "target": "values"})
        assert values.train.targets.tolist() == [2.0, 3.0, 3.0]

    def test_several_targets(self, tmp_path):
        path = write(tmp_path, "a.csv", TABLE)
        found = opened(path, args={"columns": ["size"], "targets": ["rooms", "price"]})
        assert found.train.targets.tolist() == [[2, 1.5], [3, 2.5], [3, 2.0]]

    @pytest.mark.parametrize(
        ("text", "fields", "words"),
        [
            (TABLE, {}, "no column 'y' (it has: size, rooms, city, price)"),
            (TABLE, {"target_key": "price"}, "column 'city' holds text"),
            (TABLE.replace("80", ""), {"target_key": "price"}, "no value in row 2"),
            ("a,b\n1\n", {"target_key": "b"}, "cannot be read as a table"),
            (TABLE, {"target_key": "city", "args": {"target": "values"}}, "not values"),
            (TABLE, {"args": {"colums": ["a"]}}, "did you mean 'columns'"),
        ],
    )
    def test_refused(self, tmp_path, text, fields, words):
        with pytest.raises((PhalanxError, ValueError)) as caught:
            opened(write(tmp_path, "a.csv", text), **fields)
        assert words in str(caught.value)


class TestText:
    def test_each_byte_is_followed_by_its_target(self, tmp_path):
        found = opened(write(tmp_path, "a.txt", "hello, world"), args={"block": 4})
        assert found.train.inputs.dtype == np.int32
        assert bytes(found.train.inputs.reshape(-1)[:11].astype(np.uint8)) == b"hello, worl"
        labels = found.train.targets.reshape(-1)
        assert bytes(labels[:11].astype(np.uint8)) == b"ello, world"
        assert labels[11:].tolist() == [-100]
        assert (found.num_classes, found.has_labels, found.is_classification) == (256, True, False)

    def test_a_tokenizer_of_the_users(self, tmp_path):
        path = write(tmp_path, "a.txt", "abba")
        found = opened(path, args={"block": 3, "tokenizer": f"{__name__}:Letters"})
        assert found.train.inputs.tolist() == [[0, 1, 1]]
        assert found.num_classes == 7

    @pytest.mark.parametrize(
        ("text", "tokenizer", "words"),
        [
            ("a", "bytes", "fewer than two tokens"),
            ("abc", f"{__name__}:fractions", "a row of whole numbers"),
            ("abc", f"{__name__}:refuses", "raised KeyError"),
            ("abc", "letters", "unknown tokenizer 'letters'"),
            ("abc", f"{__name__}:NUMBER", "it must be a function of a text"),
        ],
    )
    def test_refused(self, tmp_path, text, tokenizer, words):
        with pytest.raises((PhalanxError, ValueError)) as caught:
            opened(write(tmp_path, "a.txt", text), args={"tokenizer": tokenizer})
        assert words in str(caught.value)


def draw(path: Path, *, size: tuple[int, int] = (5, 4), value: int = 7) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, 0, 0)).save(path)


class TestImageFolder:
    def test_classes_are_folders(self, tmp_path):
        for name in ("cat/1.png", "cat/2.png", "ant/1.png"):
            draw(tmp_path / "pets" / name, value=len(name))
        found = opened(tmp_path / "pets")
        assert found.input_shape == (4, 5, 3)
        assert found.class_names == ("ant", "cat")
        assert found.train.targets.tolist() == [0, 1, 1]

    def test_parts_are_folders_above(self, tmp_path):
        for name in ("train/a/1.png", "train/b/2.png", "val/b/1.png"):
            draw(tmp_path / "pets" / name, size=(9, 9))
        found = opened(
            tmp_path / "pets", args={"size": [6, 3], "colour": "grey"}, validation="auto"
        )
        assert found.input_shape == (6, 3, 1)
        sizes = [one.num_samples for one in (found.train, found.validation, found.test)]
        assert sizes == [2, 1, 0]
        assert found.validation.targets.tolist() == [1]

    def test_refused(self, tmp_path):
        draw(tmp_path / "pets" / "cat" / "deep" / "1.png")
        with pytest.raises(PhalanxError, match="not in a folder of its class"):
            opened(tmp_path / "pets")
        draw(tmp_path / "two" / "cat" / "1.png")
        draw(tmp_path / "two" / "cat" / "2.png", size=(2, 2))
        with pytest.raises(PhalanxError, match="bring all images to one size"):
            opened(tmp_path / "two")
        draw(tmp_path / "late" / "test" / "cat" / "1.png")
        with pytest.raises(PhalanxError, match="no folder 'train'"):
            opened(tmp_path / "late")
