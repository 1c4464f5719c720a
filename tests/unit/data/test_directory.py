from __future__ import annotations

import dataclasses
import hashlib

import data_files
from phalanx.data import directory
from phalanx.data.catalogue import CATALOGUE
from phalanx.data.directory import is_present, locate


def test_files_of_another_member_of_the_family_are_not_taken(tmp_path, monkeypatch):
    arrays = data_files.write_mnist(tmp_path)
    labels = data_files.idx_bytes(arrays["t10k-labels-idx1-ubyte"])
    fashion = CATALOGUE["fashion-mnist"]
    last = dataclasses.replace(fashion.files[-1], sha256=hashlib.sha256(labels).hexdigest())
    known = dataclasses.replace(fashion, files=(*fashion.files[:-1], last))
    monkeypatch.setitem(directory.CATALOGUE, "fashion-mnist", known)
    assert is_present(CATALOGUE["mnist"], tmp_path) is None
    assert locate(known, tmp_path).name == "fashion-mnist"


def test_a_plain_file_stands_in_for_a_packed_one(tmp_path):
    data_files.write_mnist(tmp_path / "kmnist", packed=False)
    located = locate(CATALOGUE["kmnist"], tmp_path)
    assert {path.suffix for path in located.files} == {""}


def test_the_tar_is_preferred(tmp_path):
    data_files.write_cifar(tmp_path, as_tar=True)
    data_files.write_cifar(tmp_path, as_tar=False)
    assert locate(CATALOGUE["cifar10"], tmp_path).layout == "cifar-tar"


def test_catalogue_agrees_with_the_spec():
    from phalanx.spec.data import SOURCES

    assert tuple(CATALOGUE) == SOURCES.built_in
