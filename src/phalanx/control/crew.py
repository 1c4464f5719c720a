"""The servers, workers and evaluator of a parameter server: who is there, and who knows whom.

Keeps the introductions right: a server lets in only peers that it has been told of, and peers can
only find servers that they have been told of, through every restart on either side.
"""

from __future__ import annotations

from phalanx.control.coordinator import Desk, Process
from phalanx.wire.serving import Admit, Connect, Dismiss, Donate, Offer, Recall, ServerAddress

_READER = "reader"  # what servers call the evaluator


class Crew:
    """Introduces processes to one another.

    Args:
        num_servers: Server processes that were started.
        desk: Who sends.
    """

    def __init__(self, num_servers: int, desk: Desk) -> None:
        self._desk = desk
        self._addresses: dict[int, ServerAddress] = {}
        self._expected = set(range(num_servers))
        self._peers: set[Process] = set()
        self._offers: dict[int, dict[str, int | None]] = {}
        self._donors: dict[int, str] = {}
        self._hosts: dict[int, str] = {}
        self._left: set[Process] = set()

    @property
    def workers(self) -> set[int]:
        """Ranks of the workers that take part."""
        return {peer.rank for peer in self._peers if peer.role == "worker"}

    @property
    def hosts(self) -> list[str]:
        """The processes in which servers serve."""
        return [self._hosts[server] for server in sorted(self._addresses)]

    @property
    def peers(self) -> list[str]:
        """Workers and evaluator that take part."""
        return [peer.name for peer in self._peers]

    def host_of(self, server: int) -> str | None:
        """The process in which a server is, or was last; None: it has never been there."""
        return self._hosts.get(server)

    @property
    def is_complete(self) -> bool:
        """Whether every server that has a slice is there."""
        return bool(self._addresses) and self._expected <= self._addresses.keys()

    def server_up(self, host: str, address: ServerAddress, *, restoring: bool) -> None:
        """A server listens: introduce everybody, and find it a copy if it lost its memory."""
        self._hosts[address.server] = host
        self._addresses[address.server] = address
        for peer in self._left - self._peers:
            # It would wait for everybody that the run began with.
            self._desk.send(host, Dismiss(role=_role(peer), rank=peer.rank))
        for peer in self._peers:
            self._admit(peer, host)
        self._connect_all()
        if restoring:
            self._ask_for_copies(address.server)

    def server_restored(self, server: int) -> None:
        """A server has its parameters again."""
        self._donors.pop(server, None)

    def server_without_slice(self, server: int) -> None:
        """The model is too small for this one."""
        self._expected.discard(server)
        self._connect_all()

    def server_left(self, server: int) -> None:
        """A server is gone; peers keep its old address until the new one is known."""
        self._addresses.pop(server, None)
        self._offers.pop(server, None)
        self._donors.pop(server, None)

    def peer_up(self, peer: Process) -> None:
        """A worker or the evaluator is ready for the servers."""
        self._peers.add(peer)
        for host in self.hosts:
            self._admit(peer, host)
        self._connect(peer.name)

    def peer_left(self, peer: Process) -> None:
        """A worker or the evaluator is gone: nobody is to wait for it, or to believe it."""
        self._peers.discard(peer)
        self._left.add(peer)
        for host in self.hosts:
            self._desk.send(host, Dismiss(role=_role(peer), rank=peer.rank))
        for server, offers in list(self._offers.items()):
            if peer.name in offers:
                del offers[peer.name]
                self._choose_donor(server)
        for server, donor in list(self._donors.items()):
            if donor == peer.name:
                # It may have gone before all of its copy had left.
                self._ask_for_copies(server)

    def copy_offered(self, process: str, server: int, version: int) -> None:
        """A worker says which version of a server's parameters it holds."""
        offers = self._offers.get(server)
        if offers is not None and process in offers:
            offers[process] = version
            self._choose_donor(server)

    def _ask_for_copies(self, server: int) -> None:
        holders = [peer.name for peer in self._peers if peer.role == "worker"]
        self._donors.pop(server, None)
        self._offers[server] = dict.fromkeys(holders)
        for name in holders:
            self._desk.send(name, Offer(server))
        self._choose_donor(server)

    def _choose_donor(self, server: int) -> None:
        """Once all have answered, the freshest copy becomes the server's new start."""
        offers = self._offers[server]
        if any(version is None for version in offers.values()):
            return
        held = {name: version for name, version in offers.items() if version is not None}
        best = max(held, key=lambda name: held[name], default=None)
        if best is not None and held[best] >= 0:
            self._donors[server] = best
            self._desk.send(best, Donate(server))
        else:
            self._desk.send(self._hosts[server], Recall())
        del self._offers[server]

    def _admit(self, peer: Process, host: str) -> None:
        identity = self._desk.identity(peer.name)
        admit = Admit(
            public_key=identity.public_key,
            role=_role(peer),
            rank=peer.rank,
            incarnation=identity.incarnation,
        )
        self._desk.send(host, admit)

    def _connect_all(self) -> None:
        for peer in self._peers:
            self._connect(peer.name)

    def _connect(self, process: str) -> None:
        if self.is_complete:
            addresses = tuple(self._addresses[server] for server in sorted(self._addresses))
            self._desk.send(process, Connect(addresses))


def _role(peer: Process) -> str:
    return "worker" if peer.role == "worker" else _READER
