from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import msgspec
import pytest
import torch

from phalanx.errors import StoreError
from phalanx.records.position import Position, newest_position, read_position
from phalanx.spec.job import CheckpointSpec
from phalanx.store.local import LocalStore
from phalanx.worker.checkpoint.checkpoints import NEWEST, Checkpoints
from phalanx.worker.checkpoint.torch_tensors import TorchAdapter

TorchCheckpoints = Checkpoints[torch.Tensor]


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {
        "replica.parameters": torch.full((100,), value),
        "replica.optimizer/step": torch.tensor(value),
        "replica.buffers": torch.empty(0),
        "strategy.residual": torch.full((2, 3), value, dtype=torch.bfloat16),
        "worker.epoch_sums": torch.full((2, 3), value, dtype=torch.float64),
    }


def bytes_of(tensor: torch.Tensor) -> bytes:
    """Compares where == would not: NaN, minus zero, denormals."""
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def write(checkpoints: TorchCheckpoints, *samples: int) -> list[str]:
    return [
        checkpoints.write(Position(samples=count), tensors(float(count))).name for count in samples
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


@pytest.fixture
def checkpoints(folder: Path) -> TorchCheckpoints:
    return Checkpoints(LocalStore(folder.parent, TorchAdapter()), CheckpointSpec(keep=2))


def far_position() -> Position:
    """A position with an awkward value in every field."""
    awkward: dict[object, object] = {int: 1_000_017, float: 0.1 + 0.2, bool: True, str: "ünïcode"}
    awkward[dict[str, float]] = {"ünï": 1e-40}
    values = {}
    for field in msgspec.structs.fields(Position):
        kinds = [kind for kind in (field.type, *get_args(field.type)) if kind in awkward]
        assert kinds, f"give {field.name} a value here"
        values[field.name] = awkward[kinds[0]]
    return Position(**values)


def test_state_and_position_survive_bit_by_bit(checkpoints: TorchCheckpoints) -> None:
    position = far_position()
    given = tensors(float("nan")) | {"odd": torch.tensor([0.1, -0.0, torch.inf, 1e-40])}
    written = checkpoints.write(position, given)
    found = checkpoints.load(written.name)
    assert found is not None
    assert (found.name, found.position) == (written.name, position)
    assert found.tensors.keys() == given.keys()
    for name, tensor in given.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert bytes_of(found.tensors[name]) == bytes_of(tensor)


def test_the_newest_few_are_kept(checkpoints: TorchCheckpoints, folder: Path) -> None:
    names = write(checkpoints, 9, 10, 200, 1000)
    assert sorted(os.listdir(folder)) == names[-2:]


def test_an_unreadable_one_of_a_later_moment_keeps_no_good_one_out(folder: Path) -> None:
    checkpoints = Checkpoints(LocalStore(folder.parent, TorchAdapter()), CheckpointSpec(keep=1))
    [first] = write(checkpoints, 100)
    later = folder / "samples-000000000200.safetensors"
    later.write_bytes(b"damaged")
    found = checkpoints.load(NEWEST)
    assert found is not None
    assert found.name == first
    [next_one] = write(checkpoints, 150)
    assert os.listdir(folder) == [next_one]


def test_the_newest_is_read(checkpoints: TorchCheckpoints) -> None:
    assert checkpoints.load(NEWEST) is None
    names = write(checkpoints, 9, 10, 200)
    found = checkpoints.load(NEWEST)
    assert found is not None
    assert (found.name, found.position.samples) == (names[-1], 200)
    assert found.tensors["replica.parameters"][0].item() == 200.0


def test_the_best_stays_when_newer_ones_push_it_out(
    checkpoints: TorchCheckpoints, folder: Path
) -> None:
    best = folder / "best.safetensors"
    [first] = write(checkpoints, 1)
    checkpoints.mark_best(first)
    write(checkpoints, 2, 3, 4)
    assert not checkpoints.has(first)
    assert read_position(best).samples == 1
    [fifth] = write(checkpoints, 5)
    checkpoints.mark_best(fifth)
    write(checkpoints, 6, 7)
    assert read_position(best).samples == 5
    assert len(os.listdir(folder)) == 3


def test_the_best_is_never_taken_for_the_newest(checkpoints: TorchCheckpoints) -> None:
    first, *_ = write(checkpoints, 1, 2)
    checkpoints.mark_best(first)
    found = checkpoints.load(NEWEST)
    assert found is not None
    assert found.position.samples == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: b"\xff" * len(data),
        lambda data: data.replace(b'\\"samples\\":2', b'\\"samples\\":x'),
    ],
    ids=["empty", "cut", "noise", "other position"],
)
def test_a_corrupt_newest_one_falls_back_to_the_one_before(
    checkpoints: TorchCheckpoints, folder: Path, damage: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(damage)
    first, second = write(checkpoints, 1, 2)
    path = folder / second
    before = path.read_bytes()
    path.write_bytes(damage(before))
    assert path.read_bytes() != before, "the damage did nothing"
    found = checkpoints.load(NEWEST)
    assert found is not None
    assert found.name == first
    assert str(path) in caplog.text
    # The controller, which reads headers only, takes the same one.
    position = newest_position(folder)
    assert position is not None
    assert position.samples == 1


def test_if_none_can_be_read_the_run_does_not_quietly_start_anew(
    checkpoints: TorchCheckpoints, folder: Path
) -> None:
    for name in write(checkpoints, 1, 2):
        (folder / name).write_bytes(b"")
    with pytest.raises(StoreError, match=r"none of the 2 checkpoints in .*checkpoints can be read"):
        checkpoints.load(NEWEST)
    assert newest_position(folder) is None


def test_a_file_without_position_is_named(checkpoints: TorchCheckpoints, folder: Path) -> None:
    checkpoints._store.save("checkpoints/strange.safetensors", tensors(1.0), {})
    for name in ("strange", "absent"):
        match = rf"cannot read the checkpoint .*{name}\.safetensors"
        with pytest.raises(StoreError, match=match):
            checkpoints.load(f"{name}.safetensors")


def test_a_temporary_file_of_a_crash_is_not_a_checkpoint(
    checkpoints: TorchCheckpoints, folder: Path
) -> None:
    (folder / ".samples-000000000009.safetensors.x7").write_bytes(b"half")
    write(checkpoints, 1)
    found = checkpoints.load(NEWEST)
    assert found is not None
    assert found.position.samples == 1
