"""Answer clients of a server: parameters as they are now, pulls of one moment, short notes.

`server` decides who is answered when; here is what a reply contains, and what happens when there is
no memory for another copy: the reply waits, and the worker then reads newer parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from phalanx.paramserver.connection_table import ConnectionTable
from phalanx.paramserver.handshake import ClientIdentity
from phalanx.paramserver.replies import MOST_COPIES, Replies, SegmentCopy
from phalanx.paramserver.shard import Shard, ShardReply
from phalanx.wire.bulk import BulkOp, Flag, Header, Kind


class Answers:
    """Replies of one server; use from its serving thread.

    Args:
        shard: What is read.
        clients: Where replies go.
        generation: Of the run.
        incarnation: Of the server.
        pull_kind: Format of parameters in replies to workers.
    """

    def __init__(
        self,
        shard: Shard,
        clients: ConnectionTable,
        *,
        generation: int,
        incarnation: int,
        pull_kind: Kind,
    ) -> None:
        self._shard = shard
        self._clients = clients
        self._generation = generation
        self._incarnation = incarnation
        parameters, parts = shard.updater.parameters, shard.updater.parts
        self._replies = Replies(parameters, parts, pull_kind, most_copies=MOST_COPIES)
        self._exact = Replies(parameters, parts, Kind.F32)
        self._pulls: dict[ClientIdentity, int] = {}
        self._deferred: dict[tuple[ClientIdentity, int], ShardReply] = {}

    @property
    def are_deferred(self) -> bool:
        """Whether replies wait for memory; call `retry` soon."""
        return bool(self._deferred)

    def send(self, client: ClientIdentity, reply: ShardReply) -> None:
        """Send a segment as it is now, as soon as there is memory for a copy."""
        index, shard = reply.index, self._shard
        copy = self._replies.current(index, shard.applied[index], shard.ledger.of_segment)
        if copy is None:
            self._deferred[client, index] = reply
            return
        self._deferred.pop((client, index), None)
        self._send(client, copy, reply)

    def send_unchanged(self, client: ClientIdentity, reply: ShardReply) -> None:
        """Tell a worker that the segment it holds is current."""
        self._send(client, None, reply)

    def retry(self, is_wanted: Callable[[ClientIdentity, ShardReply], bool]) -> None:
        """Send what had to wait for memory, unless it is no longer wanted."""
        for (client, index), reply in list(self._deferred.items()):
            if is_wanted(client, reply):
                self.send(client, reply)
            else:
                del self._deferred[client, index]

    def pull(self, client: ClientIdentity, clock: int) -> None:
        """Send all segments of one moment to a client, as soon as no update is half applied."""
        self._pulls[client] = clock
        self.answer_pulls()

    def answer_pulls(self) -> None:
        """Answer pulls that had to wait; called after every change of the shard."""
        if not self._pulls:
            return
        # All segments of one moment; where updates are whole, not in the middle of one.
        if self._shard.policy.rule.barrier and not self._shard.is_settled:
            return
        for client, clock in self._pulls.items():
            for index, applied in enumerate(self._shard.applied):
                copy = self._exact.current(index, applied, self._shard.ledger.of_segment)
                version = self._shard.policy.version
                reply = ShardReply(client.rank, clock, version, index, dropped=False)
                self._send(client, copy, reply)
        self._pulls.clear()

    def note(self, client: ClientIdentity, op: BulkOp, asked: Header) -> None:
        """Send a header that answers another one, without parameters."""
        header = Header(
            op=op,
            worker=asked.worker,
            generation=self._generation,
            sender=self._incarnation,
            clock=asked.clock,
            segment=asked.segment,
        )
        self._clients.send(client, header)

    def forget(self) -> None:
        """Drop all copies: the parameters were replaced."""
        self._replies.forget()
        self._exact.forget()

    def give_back(self) -> None:
        """Free the memory of copies that no reply uses; called while there is nothing to do."""
        self._replies.give_back()
        self._exact.give_back()

    def _send(self, client: ClientIdentity, copy: SegmentCopy | None, reply: ShardReply) -> None:
        kind, flags, num_samples = Kind.NOTHING, int(Flag.HELD), self._shard.samples_seen
        if copy is not None:
            kind = Kind.BF16 if copy.values.dtype == torch.bfloat16 else Kind.F32
            flags = int(Flag.DROPPED) if reply.dropped else 0
            num_samples = copy.contents.num_samples
        header = Header(
            op=BulkOp.PARAMS,
            worker=client.rank,
            generation=self._generation,
            sender=self._incarnation,
            clock=reply.clock,
            readver=reply.readver,
            segment=self._shard.segments[reply.index].index,
            kind=kind,
            flags=flags,
            num_samples=num_samples,
            num_bytes=copy.values.nbytes if copy is not None else 0,
            held_s=reply.held_s,
        )
        self._clients.send(client, header, copy)
