"""Group of workers over direct links between all pairs, each of which has proved itself.

The caller's threads post exchanges and wait; one thread per group moves the bytes. Failures, also
`abort` and expired deadlines, take effect in that thread: once a wait has raised, nothing touches a
tensor any more.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import torch
from typing_extensions import override

from phalanx.comm.base import Collective, Pending, Reduction
from phalanx.comm.exchanges import (
    DirectCopies,
    Exchange,
    IncomingMessage,
    OutgoingMessage,
    SlicedBroadcast,
    StagingBuffers,
    gathered_reduction,
)
from phalanx.comm.group_traffic import ANSWER_S, GroupTraffic
from phalanx.comm.io_loop import IoLoop
from phalanx.comm.link_maker import LinkMaker
from phalanx.comm.pairing import GroupSecret, ProvenPeer, make_pairs
from phalanx.comm.rendezvous import CHECK_S, CheckedChannel, RendezvousChannel, swap_cards
from phalanx.comm.tree_reduction import TreeReduction
from phalanx.errors import PeerError
from phalanx.spec.strategy import Encryption
from phalanx.topology.sum_tree import distinct_topologies, plan_trees
from phalanx.wire.deadline import Deadline

# Below this every member adds for itself, whatever the topology: one hop instead of two or more.
_SMALL_BYTES = 1 << 14


class MeshCollective(Collective):
    """A group over links of its own; `abort` breaks it off from any thread.

    Args:
        channel: Control channel, over which members publish their cards.
        group: Name of the group, the same on all members and used once.
        members: Names of the processes, by rank.
        rank: This worker's index.
        host: The local address that this worker listens at.
        start_s: Time limit for the group to form.
        exchange_s: Time in which nothing moves, after which an exchange has failed.
        encrypt: Whether frames are encrypted; auto: between machines.
        on_refused: Called by the group's thread with the number of strangers that were turned away
            so far, by reason.
        check: Called again and again while the group forms; what it raises ends that.

    Raises:
        TimeoutExpired: Not all members came in time.
    """

    def __init__(
        self,
        channel: RendezvousChannel,
        *,
        group: str,
        members: Sequence[str],
        rank: int,
        host: str,
        start_s: float,
        exchange_s: float,
        encrypt: Encryption = "auto",
        on_refused: Callable[[Counter[str]], None] = lambda refused: None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.rank = rank
        self.size = len(members)
        self._exchange_s = exchange_s
        self._next_number = 0
        self._sent_beside = 0
        self._staging = StagingBuffers()
        self._loop = IoLoop()
        self._maker = LinkMaker(self._loop, host, on_refused)
        self._traffic = GroupTraffic(self._loop, members, rank)
        self._formed = threading.Event()
        self._machines: list[int] = []
        try:
            self._form(CheckedChannel(channel, check), group, members, encrypt, start_s)
            self.use_topology("direct")
        except BaseException:
            self.close()
            raise

    @property
    def sent_bytes(self) -> int:  # type: ignore[override]  # counted, not set
        """Bytes that this worker has handed to its links, and those counted beside them."""
        return self._traffic.sent_bytes + self._sent_beside

    @override
    def count_beside(self, num_bytes: int) -> None:
        self._sent_beside += num_bytes

    @property
    def refused(self) -> Counter[str]:
        """Strangers that were turned away so far, by reason."""
        return self._maker.refused

    @override
    def use_topology(self, name: str) -> None:
        self._trees = plan_trees(name, self._machines)
        self._staging.forget()

    @override
    def topologies(self) -> tuple[str, ...]:
        return tuple(distinct_topologies(self._machines))

    @override
    def start_all_reduce(self, tensor: torch.Tensor, reduction: Reduction = "sum") -> Pending:
        number = self._number()
        if tensor.nbytes <= _SMALL_BYTES:
            exchange = gathered_reduction(number, tensor, reduction, rank=self.rank, size=self.size)
        else:
            exchange = TreeReduction(
                number,
                tensor,
                reduction,
                rank=self.rank,
                trees=self._trees,
                staging=self._staging,
            )
        return self._post(exchange)

    @override
    def broadcast(self, tensor: torch.Tensor, *, source: int = 0) -> None:
        self._post(
            SlicedBroadcast(self._number(), tensor, source=source, rank=self.rank, size=self.size)
        ).wait()

    @override
    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        tensor = tensor.contiguous()
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        parts[self.rank].copy_(tensor)
        self._copy([tensor] * self.size, parts, "all-gather")
        return parts

    @override
    def all_to_all(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.contiguous()
        received = torch.empty_like(tensor)
        received[self.rank].copy_(tensor[self.rank])
        self._copy(list(tensor), list(received), "all-to-all")
        return received

    @override
    def start_send(self, tensor: torch.Tensor, *, target: int, tag: int) -> Pending:
        message = OutgoingMessage(tag, tensor, target=target, name=self._traffic.names[target])
        self._traffic.check()
        self._loop.call(partial(self._traffic.send, message, target))
        return self._pending(message)

    @override
    def start_receive(self, tensor: torch.Tensor, *, source: int, tag: int) -> Pending:
        message = IncomingMessage(tag, tensor, source=source, name=self._traffic.names[source])
        self._traffic.check()
        self._loop.call(partial(self._traffic.receive, message, source))
        return self._pending(message)

    def abort(self, reason: str) -> None:
        """Break off everything under way, at once and for good; from any thread."""
        self._loop.call(lambda: self._traffic.fail(PeerError(reason, rank=self.rank, suspects=())))

    @override
    def close(self) -> None:
        self._loop.call(self._maker.close)
        self._loop.call(self._traffic.close)
        self._loop.close()

    def _form(
        self,
        channel: CheckedChannel,
        group: str,
        members: Sequence[str],
        encrypt: Encryption,
        start_s: float,
    ) -> None:
        secret = GroupSecret(members[self.rank], host=self._maker.host, port=self._maker.port)
        deadline = Deadline.after(start_s, "the group to form", setting="deadlines.start_s")
        cards = swap_cards(channel, group, secret.card, members, deadline)
        pairs = make_pairs(secret, self.rank, cards, group=group, encrypt=encrypt)
        hosts = [(cards | {self.rank: secret.card})[rank].host for rank in range(self.size)]
        self._machines = [sorted(set(hosts)).index(one) for one in hosts]
        self._loop.call(lambda: self._maker.start(self.rank, pairs, cards, self._take_link))
        while not self._formed.wait(min(deadline.remaining_s, CHECK_S)):
            self._traffic.check()
            channel.check()
            if deadline.expired:
                missing = [members[rank] for rank in self._traffic.missing() if rank != self.rank]
                deadline.activity = f"a connection with {', '.join(missing)}"
                raise deadline.error()

    def _take_link(self, peer: ProvenPeer, sock: socket.socket) -> None:
        if self._traffic.add(peer, sock):
            self._maker.admit_nobody()
            self._formed.set()

    def _copy(
        self, sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], activity: str
    ) -> None:
        self._post(
            DirectCopies(self._number(), sources, targets, rank=self.rank, activity=activity)
        ).wait()

    def _number(self) -> int:
        number, self._next_number = self._next_number, self._next_number + 1
        return number

    def _post(self, exchange: Exchange) -> Pending:
        self._traffic.check()
        self._loop.call(partial(self._traffic.begin, exchange))
        return self._pending(exchange)

    def _pending(self, exchange: Exchange) -> Pending:
        return _MeshPending(exchange, self._loop, self._traffic, self._exchange_s)


class _MeshPending:
    def __init__(
        self, exchange: Exchange, loop: IoLoop, traffic: GroupTraffic, limit_s: float
    ) -> None:
        self._exchange = exchange
        self._loop = loop
        self._traffic = traffic
        self._limit_s = limit_s

    def wait(self) -> None:
        """Block until done; the deadline begins anew with every byte that moves."""
        exchange, began_s = self._exchange, time.monotonic()
        finished = exchange.finished
        while not finished.is_set():
            idle_s = time.monotonic() - max(began_s, self._traffic.moved_s)
            if idle_s >= self._limit_s:
                self._loop.call(partial(self._traffic.expire, exchange, self._limit_s))
                # In the thread of the exchange, so that it touches the tensor no more.
                if not finished.wait(self._limit_s + 2 * ANSWER_S):
                    raise PeerError(f"{exchange.activity} cannot be ended", suspects=())
            else:
                finished.wait(self._limit_s - idle_s)
        if exchange.error is not None:
            raise exchange.error

    def is_done(self) -> bool:
        """Return whether the exchange is over, with or without success."""
        return self._exchange.finished.is_set()
