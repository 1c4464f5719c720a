"""A store server on loopback with real sockets, and clients of it, without any process of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from phalanx.store.client import StoreClient
from phalanx.store.server import StoreServer
from phalanx.wire.control import ControlServer
from phalanx.wire.keys import KeyPair


@dataclass
class ServedStore:
    """The controller's side: the control channel, which knows the keys, and the store server."""

    control: ControlServer
    port: int
    root: Path

    @property
    def address(self) -> str:
        """Where the store server listens."""
        return f"tcp://127.0.0.1:{self.port}"

    def client(
        self,
        name: str = "worker-0",
        *,
        keys: KeyPair | None = None,
        address: str | None = None,
        limit_s: float = 20.0,
    ) -> StoreClient:
        """Admit a process of the run; asking again for the same name replaces the one before."""
        return StoreClient(
            address=address or self.address,
            server_key=self.control.public_key,
            keys=keys or self.control.admit(name),
            limit_s=limit_s,
        )


@contextmanager
def serve_store(root: Path) -> Iterator[ServedStore]:
    """Serve the run directory `root`."""
    for folder in ("checkpoints", "servers"):
        (root / folder).mkdir(exist_ok=True)
    with ControlServer() as control, StoreServer(control, root) as server:
        yield ServedStore(control, server.start(), root)
