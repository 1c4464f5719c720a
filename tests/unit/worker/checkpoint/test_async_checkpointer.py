"""A state is written as it was, whatever training does with its tensors meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from phalanx.errors import StoreError
from phalanx.records.events import Checkpoint
from phalanx.records.log import EventLog, read_events
from phalanx.records.position import Position
from phalanx.spec.job import CheckpointSpec
from phalanx.store.local import LocalStore
from phalanx.store.remote import RemoteStore
from phalanx.worker.checkpoint.async_checkpointer import AsyncCheckpointer
from phalanx.worker.checkpoint.checkpoints import NEWEST, Checkpoints
from phalanx.worker.checkpoint.torch_tensors import TorchAdapter, TorchStore
from support.stores import serve_store

TorchCheckpoints = Checkpoints[torch.Tensor]
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
def checkpoints(folder: Path) -> TorchCheckpoints:
    return Checkpoints(LocalStore(folder.parent, TorchAdapter()), CheckpointSpec(keep=1))


@pytest.fixture
def checkpointer(checkpoints: TorchCheckpoints, tmp_path: Path) -> Iterator[AsyncCheckpointer]:
    with EventLog(tmp_path / "log.jsonl") as log:
        yield AsyncCheckpointer(checkpoints, log)


@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize("serving", [True, False])
def test_what_the_next_phase_changes_is_copied_first(
    checkpointer: AsyncCheckpointer, checkpoints: TorchCheckpoints, prepared: bool, serving: bool
) -> None:
    live, wanted = state(), state()
    if prepared:
        checkpointer.reserve_memory(
            {name.removeprefix("replica."): live[name] for name in list(live)[:3]}
        )
    name = checkpointer.stage(AT, live)
    checkpointer.copy_staged(serving=serving)
    for key, tensor in live.items():
        if key.startswith("replica.") and not (serving and "optimizer" in key):
            tensor.fill_(-1)
    checkpointer.write_staged()
    checkpointer.wait()
    assert name == "switch-000000000640.safetensors"
    for one in (name, "samples-000000000640.safetensors"):
        found = checkpoints.load(one)
        assert found is not None
        assert found.position == AT
        assert found.tensors.keys() == wanted.keys()
        for key in wanted:
            assert torch.equal(found.tensors[key], wanted[key]), key


def test_it_is_recorded_and_outlives_later_checkpoints(
    checkpointer: AsyncCheckpointer, checkpoints: TorchCheckpoints, folder: Path, tmp_path: Path
) -> None:
    name = checkpointer.stage(AT, state())
    checkpointer.write_staged()
    checkpointer.wait()
    checkpointer._log.flush()
    [event] = [e for e in read_events(tmp_path / "log.jsonl") if isinstance(e, Checkpoint)]
    assert (event.path, event.samples) == ("samples-000000000640.safetensors", 640)
    checkpoints.write(Position(samples=700), state())
    assert sorted(path.name for path in folder.iterdir()) == [
        "samples-000000000700.safetensors",
        name,
    ]


def test_going_back_gives_up_what_came_after(
    checkpointer: AsyncCheckpointer, checkpoints: TorchCheckpoints, folder: Path
) -> None:
    name = checkpointer.stage(AT, state())
    checkpointer.write_staged()
    checkpointer.wait()
    checkpoints.write(Position(samples=700), state())
    checkpoints.go_back_to(name)
    found = checkpoints.load(NEWEST)
    assert found is not None
    assert found.position == AT
    assert not (folder / "samples-000000000700.safetensors").exists()


def test_a_full_disk_is_told_at_the_next_occasion(
    checkpointer: AsyncCheckpointer, folder: Path
) -> None:
    folder.rmdir()
    folder.touch()  # in the way of every file in it
    checkpointer.stage(AT, state())
    checkpointer.write_staged()
    with pytest.raises(StoreError):
        checkpointer.wait()


@pytest.mark.parametrize("remote", [False, True])
def test_a_saved_state_may_change_once_it_is_free(tmp_path: Path, remote: bool) -> None:
    with serve_store(tmp_path) as served, EventLog(tmp_path / "log.jsonl") as log:
        adapter = TorchAdapter()
        store: TorchStore = LocalStore(tmp_path, adapter)
        if remote:
            store = RemoteStore(served.client(), adapter)
        checkpoints = Checkpoints(store, CheckpointSpec(keep=2))
        checkpointer = AsyncCheckpointer(checkpoints, log)
        live, position = state(), msgspec.structs.replace(AT)
        for samples, best in ((640, True), (700, False)):
            position.samples = samples
            checkpointer.save(position, live, best=best, begun=time.perf_counter())
            assert checkpointer.wait_until_free(60.0)
            position.samples = -1
            for tensor in live.values():
                tensor.add_(1)
        checkpointer.wait()
        for name, added in (("best", 0), ("samples-000000000640", 0), ("samples-000000000700", 1)):
            found = checkpoints.load(f"{name}.safetensors")
            assert found is not None
            assert found.position.samples == 640 + 60 * added
            for key, tensor in state().items():
                assert torch.equal(found.tensors[key], tensor + added), (name, key)
