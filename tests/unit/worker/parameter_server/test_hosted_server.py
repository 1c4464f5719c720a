"""A server's state in the store, and the thread that serves it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from phalanx.errors import TimeoutExpired
from phalanx.paramserver.call_queue import CallQueue
from phalanx.paramserver.ledger import Ledger
from phalanx.store.local import LocalStore
from phalanx.worker.checkpoint.torch_tensors import TorchAdapter
from phalanx.worker.parameter_server.server import HostedServer
from phalanx.worker.parameter_server.server_file import ServerFile, ServerState


def test_the_ledger_of_a_long_epoch_is_kept_whole_and_small(tmp_path: Path) -> None:
    ledger = Ledger(2, num_parts=3)
    for ticket in range(1, 30_001):
        for segment in range(2):
            ledger.claim(ticket, segment)
            ledger.apply(segment, [(ticket, 1)])
    ledger.claim(40_000, 1)
    ledger.apply(1, [(40_000, 1)])
    file = ServerFile(LocalStore(tmp_path, TorchAdapter()), 0, every_s=30.0)
    file.write(
        ServerState(
            version=30_000,
            samples_seen=30_000,
            parameters=torch.zeros(4),
            optimizer={"momentum": torch.ones(4)},
            tickets=ledger.state(),
        )
    )
    assert sum(one.stat().st_size for one in tmp_path.rglob("*.safetensors")) < 4096
    found = file.read()
    assert found is not None
    assert found.tickets == ledger.state()
    assert set(found.optimizer) == {"momentum"}


def test_a_failed_serving_thread_ends_its_process_with_the_cause() -> None:
    def serve() -> None:
        raise MemoryError("no room for a copy")

    host = object.__new__(HostedServer)
    host._server = SimpleNamespace(serve=serve)  # type: ignore[assignment]
    host._error = None
    host._serve()
    with pytest.raises(MemoryError, match="no room"):
        host.tick()


def test_a_serving_thread_that_does_not_answer_is_told_with_the_setting() -> None:
    with CallQueue() as calls:
        host = object.__new__(HostedServer)
        host._server = SimpleNamespace(call=calls.put, facts=None)  # type: ignore[assignment]  # never run
        deadlines = SimpleNamespace(exchange_s=0.05)
        host._context = SimpleNamespace(job=SimpleNamespace(deadlines=deadlines))  # type: ignore[assignment]
        with pytest.raises(TimeoutExpired, match=r"the serving thread.*deadlines\.exchange_s"):
            host.finish()
