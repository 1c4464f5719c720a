"""The state at a switch is written as it was, whatever the next phase does meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from phalanx.errors import StoreError
from phalanx.records.events import Checkpoint
from phalanx.records.log import EventLog, read_events
from phalanx.records.position import Position
from phalanx.spec.job import CheckpointSpec
from phalanx.worker.checkpoint import NEWEST, Checkpoints
from phalanx.worker.depot import LocalDepot
from phalanx.worker.keeper import Keeper

AT = Position(epoch=2, samples=640, updates=10)


def state() -> dict[str, torch.Tensor]:
    return {
        "replica.parameters": torch.arange(5.0),
        "replica.buffers": torch.ones(2),
        "replica.optimizer/momentum_buffer": torch.full((5,), 0.5),
        "worker.epoch_sums": torch.zeros(1, 3, dtype=torch.float64),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


@pytest.fixture
def checkpoints(folder: Path) -> Checkpoints:
    return Checkpoints(LocalDepot(folder.parent), CheckpointSpec(keep=1))


@pytest.fixture
def keeper(checkpoints: Checkpoints, tmp_path: Path) -> Iterator[Keeper]:
    with EventLog(tmp_path / "log.jsonl") as log:
        yield Keeper(checkpoints, log)


@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("serving", [True, False])
def test_what_the_next_phase_changes_is_copied_first(
    keeper: Keeper, checkpoints: Checkpoints, prepared: bool, serving: bool
) -> None:
    live, wanted = state(), state()
    if prepared:
        keeper.prepare({name.removeprefix("replica."): live[name] for name in list(live)[:3]})
    name = keeper.take(AT, live)
    keeper.copy(serving=serving)
    for key, tensor in live.items():
        if key.startswith("replica.") and not (serving and "optimizer" in key):
            tensor.fill_(-1)
    keeper.write()
    keeper.wait()
    assert name == "switch-000000000640.safetensors"
    for one in (name, "samples-000000000640.safetensors"):
        found = checkpoints.take(one)
        assert found is not None
        assert found.position == AT
        assert found.tensors.keys() == wanted.keys()
        for key in wanted:
            assert torch.equal(found.tensors[key], wanted[key]), key


def test_it_is_recorded_and_outlives_later_checkpoints(
    keeper: Keeper, checkpoints: Checkpoints, folder: Path, tmp_path: Path
) -> None:
    name = keeper.take(AT, state())
    keeper.write()
    keeper.wait()
    keeper._scribe._log.flush()
    [event] = [e for e in read_events(tmp_path / "log.jsonl") if isinstance(e, Checkpoint)]
    assert (event.path, event.samples) == ("samples-000000000640.safetensors", 640)
    checkpoints.write(Position(samples=700), state())
    assert sorted(path.name for path in folder.iterdir()) == [
        "samples-000000000700.safetensors",
        name,
    ]


def test_going_back_gives_up_what_came_after(
    keeper: Keeper, checkpoints: Checkpoints, folder: Path
) -> None:
    name = keeper.take(AT, state())
    keeper.write()
    keeper.wait()
    checkpoints.write(Position(samples=700), state())
    checkpoints.go_back_to(name)
    found = checkpoints.take(NEWEST)
    assert found is not None
    assert found.position == AT
    assert not (folder / "samples-000000000700.safetensors").exists()


def test_a_full_disk_is_told_at_the_next_occasion(keeper: Keeper, folder: Path) -> None:
    folder.rmdir()
    folder.touch()  # in the way of every file in it
    keeper.take(AT, state())
    keeper.write()
    with pytest.raises(StoreError):
        keeper.wait()
