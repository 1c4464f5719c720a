"""A depot on loopback with real sockets, and clients of it, without any process of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from phalanx.control.depot import Depot
from phalanx.wire.control import ControlServer
from phalanx.wire.depot_client import DepotClient
from phalanx.wire.keys import KeyPair


@dataclass
class DepotHouse:
    """A controller's side: the control channel, which knows the keys, and the depot beside it."""

    control: ControlServer
    depot: Depot
    root: Path

    @property
    def address(self) -> str:
        """Where the depot listens."""
        return f"tcp://127.0.0.1:{self.depot.port}"

    def client(
        self,
        name: str = "worker-0",
        *,
        keys: KeyPair | None = None,
        address: str | None = None,
        limit_s: float = 20.0,
    ) -> DepotClient:
        """A process of the run; asking again for the same name replaces the one before."""
        return DepotClient(
            address=address or self.address,
            server_key=self.control.public_key,
            keys=keys or self.control.admit(name),
            limit_s=limit_s,
        )


@contextmanager
def open_house(root: Path) -> Iterator[DepotHouse]:
    """A depot for the run directory `root`."""
    for folder in ("checkpoints", "servers"):
        (root / folder).mkdir(exist_ok=True)
    with ControlServer() as control, Depot(control, root) as depot:
        yield DepotHouse(control, depot, root)
