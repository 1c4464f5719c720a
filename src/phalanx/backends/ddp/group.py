"""Form torch's default process group over the run's control channel.

As `torchrun` does it, but without its open rendezvous port: addresses pass through the
authenticated channel, and Gloo listens at the address that the run gave this worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import ProcessGroupGloo

from phalanx.comm.rendezvous import RendezvousStore
from phalanx.errors import PeerError
from phalanx.worker.context import WorkerContext

_BACKEND = "gloo_at_address"


@contextmanager
def default_group(context: WorkerContext) -> Iterator[None]:
    """Join torch's default group inside the block."""
    job = context.job

    def make(
        store: dist.Store,  # type: ignore[name-defined]  # no stubs in torch
        rank: int,
        size: int,
        timeout: timedelta,
    ) -> ProcessGroupGloo:
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=context.spec.address)]
        options._timeout = timeout
        return ProcessGroupGloo(store, rank, size, options)

    dist.Backend.register_backend(_BACKEND, make, devices=["cpu"])
    store = RendezvousStore(context.control, prefix="ddp/", limit_s=job.deadlines.start_s)
    try:
        dist.init_process_group(
            _BACKEND,
            store=store,
            rank=context.spec.rank,
            world_size=job.workers,
            timeout=timedelta(seconds=job.deadlines.exchange_s),
        )
    except RuntimeError as error:
        raise PeerError(f"the group of {job.workers} workers did not form: {error}") from error
    try:
        yield
    finally:
        dist.destroy_process_group()
