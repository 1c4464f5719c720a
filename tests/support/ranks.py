"""Ranks as threads of one process, over real Gloo connections: milliseconds instead of seconds."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch.distributed as dist

from phalanx.comm.base import Collective
from phalanx.comm.gloo import GlooCollective
from phalanx.comm.solo import SoloCollective

Result = TypeVar("Result")
LIMIT_S = 60.0


def run_ranks(size: int, body: Callable[[Collective], Result]) -> list[Result]:
    """Run a body once per rank, together; returns their results by rank."""
    if size == 1:
        return [body(SoloCollective())]
    store = dist.HashStore()

    def run(rank: int) -> Result:
        collective = GlooCollective(
            store, rank=rank, size=size, host="127.0.0.1", deadline_s=LIMIT_S
        )
        try:
            return body(collective)
        finally:
            collective.close()

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, rank) for rank in range(size)]
        wait(futures, LIMIT_S)
        return [future.result(timeout=0) for future in futures]
