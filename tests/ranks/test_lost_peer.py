"""Gloo groups of real processes, one of which is killed while the others count on it."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from phalanx.comm.gloo import GlooCollective
from phalanx.errors import PeerError
from phalanx.wire.deadline import Deadline

LIMIT_S = 90.0
# Far beyond what the test may take: the loss must be noticed by the broken connection.
EXCHANGE_S = 600.0


def take_part(rank: int, size: int, store: Path, report: Connection) -> None:
    """Exchange until a peer is lost, then say how that looked; runs in a process of its own."""
    group = GlooCollective(
        dist.FileStore(str(store), size),
        rank=rank,
        size=size,
        host="127.0.0.1",
        deadline_s=EXCHANGE_S,
    )
    tensor = torch.ones(100_000)
    group.all_reduce(tensor)
    report.send(("joined", tensor[0].item()))
    try:
        while True:
            group.all_reduce(tensor.fill_(1.0))
    except PeerError as error:
        report.send(("PeerError", str(error)))
    group.close()


@pytest.mark.parametrize("size", [2, 3])
def test_a_killed_peer_is_a_peer_error_at_once(tmp_path: Path, size: int) -> None:
    spawn = multiprocessing.get_context("spawn")
    deadline = Deadline.after(LIMIT_S, "the survivors to notice")
    workers, reports = [], []
    try:
        for rank in range(size):
            receiver, sender = spawn.Pipe(duplex=False)
            worker = spawn.Process(target=take_part, args=(rank, size, tmp_path / "store", sender))
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
            assert message.startswith(f"all-reduce with {size - 1} peers broke off")
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
