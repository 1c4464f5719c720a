"""Track which servers, workers and evaluator take part, and introduce them to each other.

A server accepts only clients that were announced to it, and clients know only announced servers;
both hold through every restart on either side. `restoring` decides where the parameters of a
restarted server come from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from phalanx.control.coordinator import ControllerApi, Process
from phalanx.control.parameter_server.restoring import Order, Restorations
from phalanx.wire.parameter_server import (
    Admit,
    Connect,
    Dismiss,
    HeldVersion,
    RestoreProgress,
    ServerAddress,
    ServerLost,
    ServerUp,
)

_READER = "reader"  # what servers call the evaluator


@dataclass
class _ServerPlace:
    """Where a server is, or was last."""

    host: str
    address: ServerAddress
    is_up: bool = True


class Membership:
    """Members of a parameter-server run.

    Args:
        num_servers: Server processes that were started.
        api: Sends messages and knows identities.
        num_workers: Workers that the run starts with.
        incarnations: Of processes that were replaced before this run or phase began.
        clock: Returns the time in seconds.
        patience_s: A copy for a restarted server that does not move for so long is given up.
    """

    def __init__(
        self,
        num_servers: int,
        api: ControllerApi,
        *,
        num_workers: int,
        incarnations: Mapping[str, int] = MappingProxyType({}),
        clock: Callable[[], float] = time.monotonic,
        patience_s: float = 60.0,
    ) -> None:
        self._api = api
        self._num_workers = self._num_started = num_workers
        self._incarnations = incarnations
        self._servers: dict[int, _ServerPlace] = {}
        self._expected = set(range(num_servers))
        self._peers: set[Process] = set()
        self._introduced: set[str] = set()
        self._clock = clock
        self.restorations = Restorations(api.identity, patience_s=patience_s)
        """Servers that are being restored."""
        self._left: set[Process] = set()
        self._waiting: set[int] = set()
        self._connected: set[int] = set()
        self._joining: set[int] = set()
        self._away: set[int] = set()

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
        return [place.host for _, place in sorted(self._servers.items()) if place.is_up]

    @property
    def peers(self) -> list[str]:
        """Workers and evaluator that take part."""
        return [peer.name for peer in self._peers]

    def host_of(self, server: int) -> str | None:
        """Return the process that hosts a server, or did last; None: it was never up."""
        place = self._servers.get(server)
        return place.host if place is not None else None

    @property
    def is_complete(self) -> bool:
        """Whether every server that owns parameters is up."""
        up = {server for server, place in self._servers.items() if place.is_up}
        return bool(up) and self._expected <= up

    @property
    def is_whole(self) -> bool:
        """Whether every server is up and has its parameters."""
        return self.is_complete and self.restorations.is_over

    @property
    def missing(self) -> list[int]:
        """Servers that own parameters and are not up."""
        up = {server for server, place in self._servers.items() if place.is_up}
        return sorted(self._expected - up)

    def server_up(self, host: str, up: ServerUp) -> None:
        """Introduce a listening server, and find a copy for it if it lost its parameters."""
        address = up.address
        self._servers[address.server] = _ServerPlace(host, address)
        for peer in self._left - self._peers:
            # Otherwise it would wait for all workers that the run began with.
            self._api.send(host, Dismiss(role=_role(peer), rank=peer.rank))
        for peer in self._peers:
            self._admit(peer, host)
        # After `Admit`: a client that connects before its key is known is refused and must retry.
        self._connect_all()
        if up.restoring:
            # After `Connect`: a worker that says what it holds has left the lost server for good.
            self._send(
                self.restorations.begin(
                    address.server,
                    host,
                    self._workers,
                    saved_version=up.saved_version,
                    now_s=self._clock(),
                )
            )

    def server_restored(self, server: int) -> bool:
        """Note that a server has its parameters again; False: that was known."""
        return self.restorations.restored(server)

    def restore_moved(self, progress: RestoreProgress) -> None:
        """Note that a copy is arriving at a server."""
        self.restorations.moved(
            progress.server, progress.number, progress.num_loaded, self._clock()
        )

    def tick(self) -> None:
        """Repeat what had no effect; called several times a second."""
        self._send(self.restorations.tick(self._workers, self._clock()))

    def server_without_slice(self, server: int) -> None:
        """Stop waiting for a server that owns no shard: the model is too small for it."""
        self._expected.discard(server)
        self._connect_all()

    def server_left(self, server: int) -> None:
        """Forget a lost server; clients keep its old address until the new one is known."""
        if server in self._servers:
            self._servers[server].is_up = False
        self.restorations.server_left(server)
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

    def worker_left_servers(self, worker: int) -> None:
        """Note that a worker was told to leave the servers until it gets tickets again."""
        self._away.add(worker)

    def worker_called(self, worker: int) -> None:
        """Note that a worker got tickets, for which it enters at every server."""
        self._away.discard(worker)

    def peer_up(self, peer: Process) -> None:
        """Introduce a worker or the evaluator that is ready to connect."""
        self._peers.add(peer)
        for host in self.hosts:
            self._admit(peer, host)
        self._connect(peer.name)

    def peer_left(self, peer: Process) -> None:
        """Have servers dismiss a lost worker or evaluator and stop waiting for it."""
        if peer.role == "worker":
            for group in (self._waiting, self._joining, self._connected, self._away):
                group.discard(peer.rank)
        self._peers.discard(peer)
        # Remembered, because a server that restarts later must not expect it.
        self._left.add(peer)
        for host in self.hosts:
            self._api.send(host, Dismiss(role=_role(peer), rank=peer.rank))
        self._introduced.discard(peer.name)
        self._send(self.restorations.worker_left(peer.name, self._workers, self._clock()))

    def copy_offered(self, process: str, offer: HeldVersion) -> None:
        """Note which version of a server's parameters a worker holds."""
        self._send(self.restorations.offered(process, offer, self._clock()))

    @property
    def _workers(self) -> list[str]:
        return [peer.name for peer in self._peers if peer.role == "worker"]

    def _send(self, orders: Iterable[Order]) -> None:
        for process, order in orders:
            self._api.send(process, order)

    def _admit(self, peer: Process, host: str) -> None:
        identity = self._api.identity(peer.name)
        admit = Admit(
            public_key=identity.public_key,
            role=_role(peer),
            rank=peer.rank,
            incarnation=identity.incarnation,
            expected=peer.role == "worker" and peer.rank not in self._away,
        )
        self._api.send(host, admit)

    def _connect_all(self) -> None:
        for peer in self._peers:
            self._connect(peer.name)

    def _connect(self, process: str) -> None:
        # One that has connected before learns of each successor at once, also while other servers
        # are still away: its copy may be what the successor waits for.
        if self.is_complete or process in self._introduced:
            self._introduced.add(process)
            addresses = tuple(place.address for _, place in sorted(self._servers.items()))
            self._api.send(process, Connect(addresses))


def _role(peer: Process) -> str:
    return "worker" if peer.role == "worker" else _READER
