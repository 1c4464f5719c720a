"""Snapshots of a server: a slow or silent store neither holds it up nor ends it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from phalanx.errors import StoreError, TimeoutExpired
from phalanx.store.local import LocalStore
from phalanx.worker.checkpoint.torch_tensors import TorchAdapter
from phalanx.worker.parameter_server.server_file import ServerFile, ServerState
from support.waiting import wait_until


class _TroubledStore(LocalStore[torch.Tensor]):
    """Fails with `trouble`, or waits until it is let go."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, TorchAdapter())
        self.trouble: Exception | None = None
        self.go_on = threading.Event()

    def save(self, *args: Any) -> int:
        assert self.go_on.wait(60), "never let go"
        if self.trouble is not None:
            raise self.trouble
        return super().save(*args)


def state(version: int) -> ServerState:
    return ServerState(version, 64 * version, torch.full((3,), float(version)), {}, {})


def test_a_server_goes_on_while_the_disk_takes_its_snapshot(tmp_path: Path) -> None:
    store = _TroubledStore(tmp_path)
    file = ServerFile(store, 0, every_s=0.0)
    file.write_meanwhile(state(1))
    assert not file.is_due, "the snapshot before is not written yet"
    store.go_on.set()
    wait_until(lambda: file.is_due, "the snapshot")
    file.write(state(2))
    found = file.read()
    assert found is not None
    assert found.version == 2


def test_a_silent_store_costs_a_snapshot_and_not_the_server(tmp_path: Path) -> None:
    store = _TroubledStore(tmp_path)
    store.go_on.set()
    store.trouble = TimeoutExpired("waited 60 s for the store, then gave up")
    file = ServerFile(store, 0, every_s=0.0)
    file.write_meanwhile(state(1))
    wait_until(lambda: file.is_due, "the next occasion")
    store.trouble = None
    file.write_meanwhile(state(2))
    file.close()
    found = file.read()
    assert found is not None
    assert found.version == 2


def test_a_store_that_refuses_is_told(tmp_path: Path) -> None:
    store = _TroubledStore(tmp_path)
    store.go_on.set()
    store.trouble = StoreError("No space left on device")
    file = ServerFile(store, 0, every_s=0.0)
    file.write_meanwhile(state(1))
    with pytest.raises(StoreError, match="No space left"):
        wait_until(lambda: file.is_due, "the refusal")
