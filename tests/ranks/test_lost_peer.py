"""Groups of real processes, one of which is killed while the others count on it."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from phalanx.comm.base import Collective
from phalanx.comm.gloo import GlooCollective
from phalanx.comm.mesh import MeshCollective
from phalanx.errors import PeerError
from phalanx.wire.deadline import Deadline

LIMIT_S = 90.0
# Far beyond what the test may take: the loss must be noticed by the broken connection.
EXCHANGE_S = 600.0


class CardsInFile:
    """A control channel of a test: what one process publishes, the others read from a file."""

    def __init__(self, store: dist.FileStore) -> None:
        self._store = store

    def put(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str, deadline: Deadline) -> bytes:
        return bytes(self._store.get(key))


def join(kind: str, rank: int, size: int, path: Path) -> Collective:
    store, host = dist.FileStore(str(path), size), "127.0.0.1"
    if kind == "gloo":
        return GlooCollective(store, rank=rank, size=size, host=host, deadline_s=EXCHANGE_S)
    return MeshCollective(
        CardsInFile(store),
        group="workers",
        members=[f"worker-{one}" for one in range(size)],
        rank=rank,
        host=host,
        start_s=LIMIT_S,
        exchange_s=EXCHANGE_S,
        encrypt="always",
    )


def take_part(kind: str, rank: int, size: int, store: Path, report: Connection) -> None:
    """Exchange until a peer is lost, then say how that looked; runs in a process of its own."""
    group = join(kind, rank, size, store)
    tensor = torch.ones(100_000)
    group.all_reduce(tensor)
    report.send(("joined", tensor[0].item()))
    try:
        while True:
            group.all_reduce(tensor.fill_(1.0))
    except PeerError as error:
        report.send(("PeerError", str(error)))
    group.close()


@pytest.mark.parametrize(
    ("kind", "size", "said"),
    [
        ("gloo", 2, "all-reduce with 1 peers broke off"),
        ("gloo", 3, "all-reduce with 2 peers broke off"),
        # All name the one that was lost, and not one another.
        ("mesh", 3, "all-reduce broke off: worker-0: "),
    ],
)
def test_a_killed_peer_is_a_peer_error_at_once(
    tmp_path: Path, kind: str, size: int, said: str
) -> None:
    spawn = multiprocessing.get_context("spawn")
    deadline = Deadline.after(LIMIT_S, "the survivors to notice")
    workers, reports = [], []
    try:
        for rank in range(size):
            receiver, sender = spawn.Pipe(duplex=False)
            worker = spawn.Process(
                target=take_part, args=(kind, rank, size, tmp_path / "store", sender)
            )
            worker.start()
            sender.close()
            workers.append(worker)
            reports.append(receiver)
        for report in reports:
            assert report.poll(deadline.remaining_s), "a rank did not join"
            assert report.recv() == ("joined", float(size))
        victim, *survivors = workers
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        for report in reports[1:]:
            assert report.poll(deadline.remaining_s), "a survivor did not notice"
            kind, message = report.recv()
            assert kind == "PeerError"
            assert message.startswith(said)
        for survivor in survivors:
            survivor.join(deadline.remaining_s)
            assert survivor.exitcode == 0
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
            worker.close()
        for report in reports:
            report.close()


def test_a_group_that_does_not_form_is_a_peer_error(tmp_path: Path) -> None:
    store = dist.FileStore(str(tmp_path / "store"), 2)
    with pytest.raises(PeerError, match="the group of 2 workers did not form"):
        GlooCollective(store, rank=0, size=2, host="127.0.0.1", deadline_s=0.5)
