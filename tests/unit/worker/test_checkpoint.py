from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import msgspec
import pytest
import torch

from phalanx.errors import StoreError
from phalanx.records.position import Position
from phalanx.spec.job import CheckpointSpec
from phalanx.worker.checkpoint import Checkpoints, read_checkpoint


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


def write(checkpoints: Checkpoints, *samples: int) -> list[Path]:
    return [checkpoints.write(Position(samples=count), tensors(float(count))) for count in samples]


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path, CheckpointSpec(keep=2))


def far_position() -> Position:
    """A position with an awkward value in every field."""
    awkward: dict[object, object] = {int: 1_000_017, float: 0.1 + 0.2, bool: True, str: "ünïcode"}
    values = {}
    for field in msgspec.structs.fields(Position):
        kinds = [kind for kind in (*get_args(field.type), field.type) if kind in awkward]
        assert kinds, f"give {field.name} a value here"
        values[field.name] = awkward[kinds[0]]
    return Position(**values)


def test_state_and_position_survive_bit_by_bit(checkpoints: Checkpoints) -> None:
    position = far_position()
    given = tensors(float("nan")) | {"odd": torch.tensor([0.1, -0.0, torch.inf, 1e-40])}
    path = checkpoints.write(position, given)
    found_position, found = read_checkpoint(path)
    assert found_position == position
    assert found.keys() == given.keys()
    for name, tensor in given.items():
        assert found[name].dtype == tensor.dtype
        assert bytes_of(found[name]) == bytes_of(tensor)


def test_the_newest_few_are_kept(checkpoints: Checkpoints, tmp_path: Path) -> None:
    paths = write(checkpoints, 9, 10, 200, 1000)
    assert sorted(os.listdir(tmp_path)) == [path.name for path in paths[-2:]]


def test_an_unreadable_one_of_a_later_moment_keeps_no_good_one_out(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, CheckpointSpec(keep=1))
    [first] = write(checkpoints, 100)
    later = tmp_path / "samples-000000000200.safetensors"
    later.write_bytes(b"damaged")
    found = checkpoints.read_newest()
    assert found is not None
    assert found[0] == first
    [next_one] = write(checkpoints, 150)
    assert [path.name for path in tmp_path.iterdir()] == [next_one.name]


def test_the_newest_is_read(checkpoints: Checkpoints) -> None:
    assert checkpoints.read_newest() is None
    paths = write(checkpoints, 9, 10, 200)
    found = checkpoints.read_newest()
    assert found is not None
    path, position, state = found
    assert (path, position.samples) == (paths[-1], 200)
    assert state["replica.parameters"][0].item() == 200.0


def test_the_best_stays_when_newer_ones_push_it_out(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    [first] = write(checkpoints, 1)
    checkpoints.mark_best(first)
    write(checkpoints, 2, 3, 4)
    assert not first.exists()
    assert read_checkpoint(tmp_path / "best.safetensors")[0].samples == 1
    [fifth] = write(checkpoints, 5)
    checkpoints.mark_best(fifth)
    write(checkpoints, 6, 7)
    assert read_checkpoint(tmp_path / "best.safetensors")[0].samples == 5
    assert len(os.listdir(tmp_path)) == 3


def test_the_best_is_never_taken_for_the_newest(checkpoints: Checkpoints) -> None:
    first, *_ = write(checkpoints, 1, 2)
    checkpoints.mark_best(first)
    found = checkpoints.read_newest()
    assert found is not None
    assert found[1].samples == 2


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
    checkpoints: Checkpoints, damage: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(damage)
    first, second = write(checkpoints, 1, 2)
    before = second.read_bytes()
    second.write_bytes(damage(before))
    assert second.read_bytes() != before, "the damage did nothing"
    found = checkpoints.read_newest()
    assert found is not None
    assert found[0] == first
    assert str(second) in caplog.text


def test_if_none_can_be_read_the_run_does_not_quietly_start_anew(
    checkpoints: Checkpoints,
) -> None:
    for path in write(checkpoints, 1, 2):
        path.write_bytes(b"")
    with pytest.raises(StoreError, match=r"none of the 2 checkpoints in .* can be read"):
        checkpoints.read_newest()


def test_a_file_without_position_is_named(tmp_path: Path) -> None:
    path = tmp_path / "strange.safetensors"
    with pytest.raises(StoreError, match=r"cannot read the checkpoint .*strange\.safetensors"):
        read_checkpoint(path)


def test_a_temporary_file_of_a_crash_is_not_a_checkpoint(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    (tmp_path / ".samples-000000000009.safetensors.x7").write_bytes(b"half")
    write(checkpoints, 1)
    found = checkpoints.read_newest()
    assert found is not None
    assert found[1].samples == 1
