"""Checkpoints of a group of workers, written by the chief while all wait together."""

from __future__ import annotations

import hashlib
import threading
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from phalanx.comm.base import Collective
from phalanx.records.log import EventLog
from phalanx.records.position import Position
from phalanx.spec.job import CheckpointSpec
from phalanx.store.local import LocalStore
from phalanx.worker import chief_io
from phalanx.worker.checkpoint.async_checkpointer import AsyncCheckpointer
from phalanx.worker.checkpoint.checkpoints import Checkpoints
from phalanx.worker.checkpoint.torch_tensors import TorchAdapter
from phalanx.worker.torch_trainer import TorchTrainer
from support.ranks import run_ranks


class _SlowStore(LocalStore[torch.Tensor]):
    """Saves only when it is let go."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, TorchAdapter())
        self.go_on = threading.Event()

    def save(self, *args: Any) -> int:
        assert self.go_on.wait(60), "never let go"
        return super().save(*args)


class _Trainer(TorchTrainer):
    def state(self) -> dict[str, torch.Tensor]:
        return {"replica.parameters": torch.arange(4.0)}


def make_trainer(
    collective: Collective, store: LocalStore[torch.Tensor], log: EventLog
) -> _Trainer:
    parameters = torch.zeros(1 << 18)
    context: Any = SimpleNamespace(job=None, metrics=None, profiler=None, log=log)
    setup: Any = SimpleNamespace(
        dataset=None,
        replica=SimpleNamespace(parameters=parameters, regularisation=lambda: 0.0),
        strategy=None,
        collective=collective,
        share=None,
    )
    return _Trainer(context, setup, AsyncCheckpointer(Checkpoints(store, CheckpointSpec()), log))


def test_nobody_waits_for_a_slow_disk_inside_an_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chief_io, "_ROUND_S", 0.01)
    store = _SlowStore(tmp_path)

    def body(collective: Collective) -> int:
        exchanges = 0

        def counted(*args: Any) -> None:
            nonlocal exchanges
            exchanges += 1
            # The others meet again and again while the disk is busy, each time within a deadline.
            if exchanges == 20:
                store.go_on.set()
            collective.all_reduce(*args)

        group: Any = SimpleNamespace(rank=collective.rank, size=2, all_reduce=counted)
        with EventLog(tmp_path / f"log-{collective.rank}.jsonl") as log:
            make_trainer(group, store, log).save(Position(samples=64))
        # Everybody goes on only once the file is whole: the state was written from live memory.
        assert (tmp_path / "checkpoints" / "samples-000000000064.safetensors").exists()
        return exchanges

    chief, other = run_ranks(2, body)
    assert chief == other >= 20


def test_the_digest_of_the_parameters_needs_no_copy_of_them(tmp_path: Path) -> None:
    def body(collective: Collective) -> None:
        with EventLog(tmp_path / "log.jsonl") as log:
            trainer = make_trainer(collective, LocalStore(tmp_path, TorchAdapter()), log)
            tracemalloc.start()
            try:
                figures = trainer.model_figures()
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
        assert figures.digest == hashlib.sha256(bytes(4 << 18)).hexdigest()
        assert peak < 1 << 18, "a quarter of the parameters"

    run_ranks(1, body)
