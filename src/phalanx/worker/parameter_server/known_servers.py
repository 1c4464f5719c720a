"""Keep the addresses of the servers through their losses; shared by workers and evaluator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from phalanx.wire.parameter_server import ServerAddress


class _Connected(Protocol):
    @property
    def unreachable(self) -> list[int]: ...

    def relocate(self, address: ServerAddress) -> None: ...


ConnectedT = TypeVar("ConnectedT", bound=_Connected)


@dataclass
class KnownServers(Generic[ConnectedT]):
    """Addresses of the servers, which of them are lost, and the client once they are known."""

    addresses: dict[int, ServerAddress] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    """Servers that are being replaced."""
    client: ConnectedT | None = None

    def update(self, addresses: tuple[ServerAddress, ...]) -> None:
        """Take the servers' present addresses; a lost one keeps its old one until it is back."""
        for address in addresses:
            if self.addresses.get(address.server) == address:
                continue
            self.lost.discard(address.server)
            if self.client is not None:
                self.client.relocate(address)
            self.addresses[address.server] = address

    def is_moving(self) -> bool:
        """Return whether an answer is only slow: every server is connected, or being replaced.

        A server that is connected holds an answer back until others have pushed, takes long for a
        great update, or sends over a slow line. Whether all of them stand still is the
        controller's to judge, which sees every process.
        """
        return self.client is not None and self.lost.issuperset(self.client.unreachable)
