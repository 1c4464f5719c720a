"""One worker reads, all have it; and nobody waits in an exchange while the chief is busy."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

from phalanx.comm.base import Collective
from phalanx.errors import StoreError
from phalanx.worker import chief_io
from phalanx.worker.checkpoint.async_checkpointer import BackgroundTask
from phalanx.worker.chief_io import ChiefData, broadcast_from_chief, wait_for_chief
from support.ranks import run_ranks


def data() -> ChiefData:
    return ChiefData(
        {"position": "ünïcode"},
        {
            "flat": torch.randn(1001, generator=torch.Generator().manual_seed(1)),
            "half": torch.tensor([[1.5, float("nan")]], dtype=torch.bfloat16),
            "counter": torch.tensor(7),
            "nothing": torch.zeros(0, 3),
            "flags": torch.tensor([True, False, True]),
        },
    )


@pytest.mark.parametrize("size", [1, 3])
def test_all_have_what_the_chief_read(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chief_io, "_BROADCAST_BYTES", 64)
    readers: list[int] = []

    def body(collective: Collective) -> ChiefData | None:
        return broadcast_from_chief(collective, lambda: readers.append(collective.rank) or data())

    wanted = data()
    for found in run_ranks(size, body):
        assert found is not None
        assert found.metadata == wanted.metadata
        assert found.tensors.keys() == wanted.tensors.keys()
        for name, tensor in wanted.tensors.items():
            assert (found.tensors[name].dtype, found.tensors[name].shape) == (
                tensor.dtype,
                tensor.shape,
            )
            same = torch.equal(
                found.tensors[name].reshape(-1).view(torch.uint8),
                tensor.reshape(-1).view(torch.uint8),
            )
            assert same, name
    assert readers == [0]


@pytest.mark.parametrize("size", [1, 2])
def test_nothing_and_errors_reach_all_as_well(size: int) -> None:
    assert run_ranks(size, lambda group: broadcast_from_chief(group, lambda: None)) == [None] * size

    def refuse() -> ChiefData | None:
        raise StoreError("none of the 2 checkpoints can be read")

    def body(collective: Collective) -> str:
        with pytest.raises(StoreError) as caught:
            broadcast_from_chief(collective, refuse)
        return str(caught.value)

    assert run_ranks(size, body) == ["none of the 2 checkpoints can be read"] * size
    # An error holds the frames that it came through, and they hold the group.
    gc.collect()


def test_the_others_meet_until_the_chief_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chief_io, "_ROUND_S", 0.01)
    rounds, busy = [0], BackgroundTask("busy")
    done = threading.Event()
    busy.start(lambda: done.wait(60) and None)

    def is_done(limit_s: float) -> bool:
        rounds[0] += 1
        if rounds[0] == 5:
            done.set()
            busy.wait()
        return busy.wait(limit_s)

    run_ranks(2, lambda group: wait_for_chief(group, is_done))
    assert rounds == [5]


def test_what_a_task_breaks_off_with_is_told_once_it_is_waited_for() -> None:
    background = BackgroundTask("broken")

    def fail() -> None:
        raise StoreError("full")

    background.start(fail)
    with pytest.raises(StoreError, match="full"):
        background.wait()
    with pytest.raises(StoreError, match="full"):
        background.start(lambda: None)
