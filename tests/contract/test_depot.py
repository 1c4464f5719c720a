"""What every depot promises, whether its files are here or on the controller's machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from phalanx.errors import StoreError
from phalanx.wire.depot import PART_BYTES, WINDOW
from phalanx.worker.depot import Depot, LocalDepot
from phalanx.worker.remote_depot import RemoteDepot
from phalanx.worker.tensorfile import bytes_of
from support.depots import open_house

NAME = "checkpoints/samples-000000000064.safetensors"
METADATA = {"position": '{"epoch": 3}', "é": '\n"quotes"'}


@pytest.fixture(params=["near", "far"])
def depot(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Depot]:
    with open_house(tmp_path) as house:
        yield RemoteDepot(house.client()) if request.param == "far" else LocalDepot(tmp_path)


def tensors() -> dict[str, torch.Tensor]:
    """Several windows of parts, and everything that is awkward."""
    count = (WINDOW + 3) * PART_BYTES // 4 + 17
    return {
        "replica.parameters": torch.randn(count, generator=torch.Generator().manual_seed(1)),
        "replica.optimizer/momentum": torch.arange(count, dtype=torch.float32),
        "replica.optimizer/step": torch.tensor(7.0),
        "strided": torch.arange(12, dtype=torch.float32).reshape(3, 4).t(),
        "double": torch.tensor([1e-300, float("nan"), -0.0], dtype=torch.float64),
        "half": torch.tensor([[1.5, -2.0], [0.0, 3.0]], dtype=torch.bfloat16),
        "counter": torch.tensor(7),
        "nothing": torch.zeros(0),
        "flags": torch.tensor([True, False, True]),
    }


def test_everything_reads_back_bit_by_bit(depot: Depot) -> None:
    given = tensors()
    size = depot.save(NAME, given, METADATA)
    found = depot.load(NAME)
    assert size > sum(one.nbytes for one in given.values())
    assert found.metadata == METADATA
    assert found.tensors.keys() == given.keys()
    for name, tensor in given.items():
        assert (found.tensors[name].dtype, found.tensors[name].shape) == (
            tensor.dtype,
            tensor.shape,
        )
        assert bytes(bytes_of(found.tensors[name])) == bytes(bytes_of(tensor.contiguous()))


def test_both_write_the_same_bytes(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    (near / "checkpoints").mkdir(parents=True)
    far.mkdir()
    LocalDepot(near).save(NAME, tensors(), METADATA)
    with open_house(far) as house:
        RemoteDepot(house.client()).save(NAME, tensors(), METADATA)
    assert (near / NAME).read_bytes() == (far / NAME).read_bytes()


def test_only_some_rows_of_some_tensors_are_read(depot: Depot) -> None:
    given = tensors()
    depot.save(NAME, given, METADATA)
    begin, end = PART_BYTES // 4 - 5, 3 * PART_BYTES // 4 + 11
    found = depot.load(NAME, only=["replica.optimizer/", "half"], part=(begin, end)).tensors
    assert found.keys() == {"replica.optimizer/momentum", "replica.optimizer/step", "half"}
    assert torch.equal(
        found["replica.optimizer/momentum"], given["replica.optimizer/momentum"][begin:end]
    )
    assert found["replica.optimizer/step"].item() == 7.0
    assert found["half"].shape == (0, 2)
    [row] = depot.load(NAME, only=["half"], part=(1, 2)).tensors.values()
    assert torch.equal(row, given["half"][1:2])


def test_names_links_and_removal(depot: Depot) -> None:
    assert depot.names("checkpoints") == []
    one, two, best = (f"checkpoints/{name}.safetensors" for name in ("one", "two", "best"))
    depot.save(two, {"a": torch.ones(3)}, {})
    depot.save(one, {"a": torch.zeros(3)}, {})
    depot.save("servers/server-0.safetensors", {"a": torch.zeros(3)}, {})
    assert depot.names("checkpoints") == [one, two]
    depot.keep_as(one, best)
    depot.keep_as(two, best)
    depot.drop([two, "checkpoints/never.safetensors"])
    depot.drop([])
    assert depot.names("checkpoints") == [best, one]
    assert depot.load(best).tensors["a"].tolist() == [1.0, 1.0, 1.0]
    assert (depot.has(best), depot.has(two), depot.is_coming(one)) == (True, False, False)


def test_what_is_not_there_is_named(depot: Depot) -> None:
    with pytest.raises(StoreError, match=r"cannot read .*checkpoints/gone\.safetensors"):
        depot.load("checkpoints/gone.safetensors")
    with pytest.raises(StoreError, match=r"cannot write .*other\.safetensors"):
        depot.keep_as("checkpoints/gone.safetensors", "checkpoints/other.safetensors")


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data + b"more",
        lambda data: b"\xff" * len(data),
        lambda data: data.replace(b'"dtype":"F32"', b'"dtype":"F99"'),
        lambda data: data.replace(b'"data_offsets"', b'"data_0ffsets"'),
    ],
    ids=["empty", "cut", "long", "noise", "dtype", "header"],
)
def test_a_damaged_file_is_refused(depot: Depot, tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    depot.save(NAME, tensors(), METADATA)
    path = tmp_path / NAME
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(StoreError, match=r"cannot read .*samples-000000000064\.safetensors"):
        depot.load(NAME)


def test_a_writer_that_breaks_off_leaves_the_old_file(depot: Depot, tmp_path: Path) -> None:
    depot.save(NAME, {"a": torch.ones(3)}, {})
    strange = {"a": torch.zeros(PART_BYTES), "b": torch.zeros(3, dtype=torch.complex64)}
    with pytest.raises(KeyError):
        depot.save(NAME, strange, {})
    assert depot.load(NAME).tensors["a"].tolist() == [1.0, 1.0, 1.0]
