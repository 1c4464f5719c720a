"""Track which servers, workers and evaluator take part, and introduce them to each other.

A server accepts only clients that were announced to it, and clients know only announced servers;
both hold through every restart on either side. A restarted server gets the freshest copy of its
parameters that a worker holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from phalanx.control.coordinator import ControllerApi, Process
from phalanx.wire.parameter_server import (
    Admit,
    Connect,
    Dismiss,
    QueryVersion,
    RestoreFromDisk,
    SendParameters,
    ServerAddress,
    ServerLost,
)

_READER = "reader"  # what servers call the evaluator


class Membership:
    """Members of a parameter-server run.

    Args:
        num_servers: Server processes that were started.
        api: Sends messages and knows identities.
        num_workers: Workers that the run starts with.
        incarnations: Of processes that were replaced before this run or phase began.
    """

    def __init__(
        self,
        num_servers: int,
        api: ControllerApi,
        *,
        num_workers: int,
        incarnations: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        self._api = api
        self._num_workers = self._num_started = num_workers
        self._incarnations = incarnations
        self._addresses: dict[int, ServerAddress] = {}
        self._expected = set(range(num_servers))
        self._peers: set[Process] = set()
        self._offers: dict[int, dict[str, int | None]] = {}
        self._donors: dict[int, str] = {}
        self._hosts: dict[int, str] = {}
        self._left: set[Process] = set()
        self._waiting: set[int] = set()
        self._connected: set[int] = set()
        self._joining: set[int] = set()

    @property
    def workers(self) -> set[int]:
        """Ranks of the workers that take part."""
        return {peer.rank for peer in self._peers if peer.role == "worker"}

    @property
    def connected(self) -> frozenset[int]:
        """Ranks of the workers that are connected to every server."""
        return frozenset(self._connected)

    @property
    def is_joining(self) -> bool:
        """Whether workers admitted at this gate are not connected yet."""
        return bool(self._joining)

    @property
    def everyone(self) -> list[str]:
        """All running processes, workers that wait for admission included; each once."""
        waiting = [f"worker-{rank}" for rank in self._waiting]
        return list(dict.fromkeys((*self.hosts, *self.peers, *waiting)))

    @property
    def hosts(self) -> list[str]:
        """Processes that host a server."""
        return [self._hosts[server] for server in sorted(self._addresses)]

    @property
    def peers(self) -> list[str]:
        """Workers and evaluator that take part."""
        return [peer.name for peer in self._peers]

    def host_of(self, server: int) -> str | None:
        """Return the process that hosts a server, or did last; None: it was never up."""
        return self._hosts.get(server)

    @property
    def is_complete(self) -> bool:
        """Whether every server that owns parameters is up."""
        return bool(self._addresses) and self._expected <= self._addresses.keys()

    @property
    def missing(self) -> list[int]:
        """Servers that own parameters and are not up."""
        return sorted(self._expected - self._addresses.keys())

    def server_up(self, host: str, address: ServerAddress, *, restoring: bool) -> None:
        """Introduce a listening server, and find a copy for it if it lost its parameters."""
        self._hosts[address.server] = host
        self._addresses[address.server] = address
        for peer in self._left - self._peers:
            # Otherwise it would wait for all workers that the run began with.
            self._api.send(host, Dismiss(role=_role(peer), rank=peer.rank))
        for peer in self._peers:
            self._admit(peer, host)
        # After `Admit`: a client that connects before its key is known is refused and must retry.
        self._connect_all()
        if restoring:
            self._ask_for_copies(address.server)

    def server_restored(self, server: int) -> None:
        """Note that a server has its parameters again."""
        self._donors.pop(server, None)

    def server_without_slice(self, server: int) -> None:
        """Stop waiting for a server that owns no shard: the model is too small for it."""
        self._expected.discard(server)
        self._connect_all()

    def server_left(self, server: int) -> None:
        """Forget a lost server; clients keep its old address until the new one is known."""
        self._addresses.pop(server, None)
        self._offers.pop(server, None)
        self._donors.pop(server, None)
        # Those who wait for it must not give up before its successor is there.
        for peer in self._peers:
            self._api.send(peer.name, ServerLost(server))

    def grow(self, num_workers: int) -> list[Process]:
        """Extend the run to so many workers; returns the ones to start."""
        first, self._num_started = self._num_started, max(self._num_started, num_workers)
        return [Process("worker", rank) for rank in range(first, self._num_started)]

    def is_newcomer(self, worker: int) -> bool:
        """Return whether a worker was started after the run or phase began."""
        name = f"worker-{worker}"
        before = self._incarnations.get(name, 1)
        return worker >= self._num_workers or self._api.identity(name).incarnation > before

    def wait_for_gate(self, worker: int) -> None:
        """Hold a ready worker back until `admit_waiting`."""
        self._waiting.add(worker)

    def admit_waiting(self) -> None:
        """Admit workers that were held back; called only while no update is being made."""
        for rank in self._waiting:
            self._joining.add(rank)
            self.peer_up(Process("worker", rank))
        self._waiting.clear()

    def worker_connected(self, worker: int) -> None:
        """Note that a worker has connected to every server."""
        self._connected.add(worker)
        self._joining.discard(worker)

    def peer_up(self, peer: Process) -> None:
        """Introduce a worker or the evaluator that is ready to connect."""
        self._peers.add(peer)
        for host in self.hosts:
            self._admit(peer, host)
        self._connect(peer.name)

    def peer_left(self, peer: Process) -> None:
        """Have servers dismiss a lost worker or evaluator and stop waiting for it."""
        if peer.role == "worker":
            for group in (self._waiting, self._joining, self._connected):
                group.discard(peer.rank)
        self._peers.discard(peer)
        # Remembered, because a server that restarts later must not expect it.
        self._left.add(peer)
        for host in self.hosts:
            self._api.send(host, Dismiss(role=_role(peer), rank=peer.rank))
        for server, offers in list(self._offers.items()):
            if peer.name in offers:
                del offers[peer.name]
                self._choose_donor(server)
        for server, donor in list(self._donors.items()):
            if donor == peer.name:
                # It may have been lost before all of its copy was sent.
                self._ask_for_copies(server)

    def copy_offered(self, process: str, server: int, version: int) -> None:
        """Note which version of a server's parameters a worker holds."""
        offers = self._offers.get(server)
        if offers is not None and process in offers:
            offers[process] = version
            self._choose_donor(server)

    def _ask_for_copies(self, server: int) -> None:
        holders = [peer.name for peer in self._peers if peer.role == "worker"]
        self._donors.pop(server, None)
        self._offers[server] = dict.fromkeys(holders)
        for name in holders:
            self._api.send(name, QueryVersion(server))
        self._choose_donor(server)

    def _choose_donor(self, server: int) -> None:
        """Have the freshest copy sent to the server, once all workers have answered."""
        offers = self._offers[server]
        if any(version is None for version in offers.values()):
            return
        held = {name: version for name, version in offers.items() if version is not None}
        best = max(held, key=lambda name: held[name], default=None)
        if best is not None and held[best] >= 0:
            self._donors[server] = best
            self._api.send(best, SendParameters(server))
        else:
            self._api.send(self._hosts[server], RestoreFromDisk())
        del self._offers[server]

    def _admit(self, peer: Process, host: str) -> None:
        identity = self._api.identity(peer.name)
        admit = Admit(
            public_key=identity.public_key,
            role=_role(peer),
            rank=peer.rank,
            incarnation=identity.incarnation,
        )
        self._api.send(host, admit)

    def _connect_all(self) -> None:
        for peer in self._peers:
            self._connect(peer.name)

    def _connect(self, process: str) -> None:
        if self.is_complete:
            addresses = tuple(self._addresses[server] for server in sorted(self._addresses))
            self._api.send(process, Connect(addresses))


def _role(peer: Process) -> str:
    return "worker" if peer.role == "worker" else _READER
