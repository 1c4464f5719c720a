"""Ranks as threads of one process, over real connections: milliseconds instead of seconds."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import Any, TypeVar

import msgspec
import torch.distributed as dist

from phalanx.comm.base import Collective
from phalanx.comm.gloo import GlooCollective
from phalanx.comm.mesh import MeshCollective
from phalanx.comm.pairing import MemberCard
from phalanx.comm.solo import SoloCollective
from phalanx.wire.deadline import Deadline
from phalanx.wire.messages import StoredValues
from phalanx.wire.rendezvous import PublishedValues
from support.relay import Relay

Result = TypeVar("Result")
LIMIT_S = 60.0


def over_gloo(size: int) -> Callable[[int], Collective]:
    """Return what makes each rank's end of a group over Gloo."""
    store = dist.HashStore()
    return lambda rank: GlooCollective(
        store, rank=rank, size=size, host="127.0.0.1", deadline_s=LIMIT_S
    )


def over_mesh(size: int, **settings: Any) -> Callable[[int], MeshCollective]:
    """Return what makes each rank's end of a group over links of its own."""
    channel = settings.pop("channel", None) or PublishedCards()
    names = [f"worker-{rank}" for rank in range(size)]
    given = {"host": "127.0.0.1", "start_s": LIMIT_S, "exchange_s": LIMIT_S} | settings
    return lambda rank: MeshCollective(channel, group="workers", members=names, rank=rank, **given)


class PublishedCards:
    """A control channel of one process: what one thread publishes, the others get."""

    def __init__(self) -> None:
        self.values = PublishedValues()

    def put(self, key: str, value: bytes) -> None:
        """Publish a value."""
        self.values.put(StoredValues({key: value}))

    def get(self, key: str, deadline: Deadline) -> bytes:
        """Wait for a value."""
        return self.values.get(key, deadline)


class CardsByRelay(PublishedCards):
    """Published cards with a relay before the port of worker-0, which the others connect to.

    Args:
        stack: Closes the relay.
        **settings: Of the relay.
    """

    def __init__(self, stack: ExitStack, **settings: Any) -> None:
        super().__init__()
        self._stack = stack
        self._settings = settings
        self.relay: Relay | None = None

    def put(self, key: str, value: bytes) -> None:
        """Publish a value, with the relay's port instead of worker-0's own."""
        card = MemberCard.unpack(value)
        if card.name == "worker-0":
            self.relay = self._stack.enter_context(Relay(card.port, **self._settings))
            port = int(self.relay.address.rpartition(":")[2])
            value = msgspec.structs.replace(card, port=port).pack()
        super().put(key, value)


def run_ranks(
    size: int,
    body: Callable[[Any], Result],
    group: Callable[[int], Callable[[int], Collective]] = over_gloo,
) -> list[Result]:
    """Run a body once per rank, together; returns their results by rank."""
    if size == 1:
        return [body(SoloCollective())]
    make = group(size)

    def run(rank: int) -> Result:
        collective = make(rank)
        try:
            return body(collective)
        finally:
            collective.close()

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, rank) for rank in range(size)]
        wait(futures, LIMIT_S)
        return [future.result(timeout=0) for future in futures]
