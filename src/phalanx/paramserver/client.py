"""Client of parameter servers: push a gradient by segments, pull parameters, reconnect.

One push is outstanding at a time. Its reply is its acknowledgement: the client asks about a segment
without a reply, and sends it again if the server never received it. No threads; not thread-safe.
States are in `client_state`, outgoing segments in `push`, replies in `pulled`, sockets in
`connection`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from torch import Tensor

from phalanx.consistency.shards import ShardLayout
from phalanx.errors import PeerError
from phalanx.paramserver.client_settings import ClientSettings
from phalanx.paramserver.client_state import (
    Attached,
    Awaiting,
    ClientEvent,
    ClientState,
    Connecting,
    Detached,
    Detaching,
    Entering,
    Pulling,
    PullingDetached,
    Pushing,
    check_transition,
)
from phalanx.paramserver.connection import ConnectionSettings, ServerConnection, ServerConnections
from phalanx.paramserver.donation import Donations
from phalanx.paramserver.pulled import PulledParameters
from phalanx.paramserver.push import OutgoingPush
from phalanx.wire.bulk import HIGH_WATER, BulkOp, Flag, Header
from phalanx.wire.deadline import Deadline
from phalanx.wire.parameter_server import ServerAddress
from phalanx.wire.server_stats import ClientStats

# Silence after which the client asks about a segment.
_ASK_AFTER_S = 1.0
_POLL_MS = 200
# How soon a full pipe is tried again.
_RETRY_MS = 1

OnIdle = Callable[[], None]


class Client:
    """Exchange one worker's gradients for parameters; use as a context manager.

    Args:
        layout: Shards and segments; the same on every process.
        parameters: The flat buffer; written to by `connect` and `wait`.
        gradients: The flat buffer; must not change between `ready` and the end of `wait`, unless
            overlapping.
        servers: Their addresses.
        settings: The rest.
    """

    def __init__(
        self,
        layout: ShardLayout,
        *,
        parameters: Tensor,
        gradients: Tensor,
        servers: Sequence[ServerAddress],
        settings: ClientSettings,
    ) -> None:
        self.state: ClientState = Detached(holds=settings.holds)
        self.clock = 0
        """Number of the present push."""
        self.held_s = 0.0
        """The part of the last `wait` in which the servers' rule held this worker back."""
        self._layout = layout
        self._settings = settings
        most = max(len(layout.of_server(server)) for server in range(layout.num_servers))
        self._connections = ServerConnections(
            servers,
            num_servers=layout.num_servers,
            settings=ConnectionSettings.of(
                layout,
                keys=settings.keys,
                generation=settings.generation,
                # Replies arrive while the next gradient is computed, and are read only after it.
                high_water=max(HIGH_WATER, most) if settings.overlap else HIGH_WATER,
            ),
        )
        self._push = OutgoingPush(
            layout, gradients, compression=settings.compression, overlap=settings.overlap
        )
        self._pulled = PulledParameters(
            layout,
            parameters,
            whole=settings.whole,
            version=settings.version,
            samples_seen=settings.samples_seen,
        )
        self._leaving: set[int] = set()
        self._ticket = 0
        self._donations = Donations(self._connections, self._pulled)
        self._entered_s = dict.fromkeys(range(layout.num_servers), 0.0)
        self._unconfirmed: set[int] = set()  # servers that may not have taken note of a rejoin
        self._progress_s = 0.0
        self._wait_s = 0.0

    def __enter__(self) -> Client:
        self._connections.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._connections.__exit__(*exception)

    @property
    def versions(self) -> Mapping[int, int]:
        """Version of each server's parameters that is held here."""
        return dict(self._pulled.versions)

    @property
    def samples_seen(self) -> int:
        """Samples as the servers count them; schedules by samples use it."""
        return self._pulled.samples_seen

    @property
    def unreachable(self) -> list[int]:
        """Servers without a connection."""
        return self._connections.unreachable

    @property
    def first_sent_s(self) -> float | None:
        """Time at which the present push began to be sent, by `time.perf_counter`."""
        return self._push.first_sent_s

    @property
    def sent_bytes(self) -> int:
        """Bytes sent to all servers so far."""
        return sum(self._connections.meter.sent.values())

    def connect(self, deadline: Deadline, on_idle: OnIdle | None = None) -> None:
        """Enter at every server and pull all parameters, also after `leave`; see `wait`."""
        holds = isinstance(self.state, Detached) and self.state.holds
        self._advance(ClientEvent.CONNECT, Connecting(holds=holds))
        for connection in self._connections:
            if connection.accepted:
                # The clock that the server proposed with the old connection is out of date.
                connection.renew()
        while not self._connections.come_up():
            self._poll(deadline, on_idle)
        # The same clock at every server, or they would count this worker's pushes differently.
        self.clock = max(one.accepted.clock for one in self._connections if one.accepted)
        self._advance(ClientEvent.CONNECTED, Entering())
        self._pulled.expect_all()
        for connection in self._connections:
            self._enter(connection, self.clock, holds=holds)
        self.wait(deadline, on_idle)

    def begin(
        self,
        *,
        num_samples: int,
        weight: float = 1.0,
        ticket: int = 0,
        options: bytes = b"",
        continues: bool = False,
        ends: bool = True,
    ) -> None:
        """Start a push; `wait` must have returned for the one before.

        Args:
            num_samples: Samples behind the gradient.
            weight: The gradient is this times the mean over the samples.
            ticket: Batch that it was computed from, if the coordinator assigned it.
            options: Of the update, where the servers do not know them.
            continues: Whether the push before was of the same batch.
            ends: Whether this is the last push of its batch.
        """
        push = msgspec.structs.replace(
            self._header(BulkOp.PUSH, 0, self.clock + 1),
            ticket=ticket,
            num_samples=num_samples,
            weight=weight,
            flags=Flag.CONTINUES if continues else 0,
        )
        self._advance(ClientEvent.BEGIN, Pushing(push))
        self._unconfirmed.clear()  # whoever does not know this worker will ask who pushes
        self.clock += 1
        self._ticket = ticket if ends else 0
        self._push.begin(options, continues=continues)
        self._pulled.expect_all()
        self._progress_s = time.monotonic()

    def ready(self, start: int, stop: int) -> None:
        """Mark a slice of the gradients as final; complete segments are sent at once.

        Each entry of the buffer must be marked once per push.
        """
        self._push.ready(start, stop)
        self._send_push()

    def finish(self) -> None:
        """Mark all other gradients as final."""
        self._push.finish()
        self._send_push()

    def set_aside(self) -> None:
        """Leave all other gradients to the next push of the same batch."""
        self._push.set_aside()
        self._send_push()

    def skip(
        self,
        *,
        ticket: int = 0,
        num_samples: int = 0,
        continues: bool = False,
        ends: bool = True,
    ) -> None:
        """Push without a gradient, as this worker had no samples or made no step of them."""
        self.begin(
            num_samples=num_samples, weight=0.0, ticket=ticket, continues=continues, ends=ends
        )
        self._push.skip()
        self._send_push()

    def wait(self, deadline: Deadline, on_idle: OnIdle | None = None) -> None:
        """Wait until every server has replied; the parameters are then up to date.

        `held_s` is then the part of the wait that the rule caused. A server reports how long it has
        held a reply since the push was complete; that time began when the last segment left here,
        and only what of it lies within this call counts. The rest of the call is communication.

        Args:
            deadline: When to give up.
            on_idle: Called several times a second meanwhile; may call `relocate` and `donate`.

        Raises:
            TimeoutExpired: A server did not reply in time.
            PeerError: A server refuses this worker; it has been dismissed.
        """
        started = time.perf_counter()
        self._progress_s = time.monotonic()
        self.attend()
        while self._pulled.awaited:
            self._poll(deadline, on_idle)
            self.attend()
        ended = time.perf_counter()
        self._wait_s += ended - started
        self.held_s = max(0.0, min(ended, self._push.held_until_s) - started)

    def pull(self, deadline: Deadline, on_idle: OnIdle | None = None) -> None:
        """Pull all parameters exactly as the servers hold them, whatever format replies have.

        `wait` must have returned for the push before. Does not require to have entered.
        """
        detached = isinstance(self.state, Detached)
        self._advance(ClientEvent.PULL, PullingDetached() if detached else Pulling())
        self.clock += 1  # so that late replies to the push before are ignored
        self._pulled.expect_all()
        self._ask()
        self.wait(deadline, on_idle)

    def leave(self, deadline: Deadline, on_idle: OnIdle | None = None) -> None:
        """Leave every server, so that no update waits for this worker.

        `wait` must have returned for the push before. Also waits for a server that cannot be
        reached: one that comes back must not expect this worker.
        """
        self._advance(ClientEvent.LEAVE, Detaching())
        self._leaving = {connection.server for connection in self._connections}
        # No progress since time 0: `attend` sends LEAVE at once.
        self._progress_s = 0.0
        self.attend()
        while self._leaving:
            self._poll(deadline, on_idle)
            self.attend()

    def relocate(self, address: ServerAddress) -> None:
        """Connect to a server's successor; unanswered segments are sent again."""
        self._connections[address.server].relocate(address)

    def donate(self, server: int, number: int) -> None:
        """Restore a server that lost its parameters from the copy that is held here.

        May be called during a push. The copy is made at once, with the version and the batches
        that it contains; it is sent by `attend`, `wait` and `leave`, until the server has it.
        `number` is that of the coordinator's request.
        """
        self._donations.begin(server, number, self._header(BulkOp.LOAD, 0, 0))
        self.attend()

    def acknowledged(self, server: int) -> int:
        """Return the ticket that a server has answered all of with the last push; 0: none."""
        return 0 if self._pulled.awaits(server) else self._ticket

    def attend(self) -> None:
        """Send and receive without waiting; not while the parameters are being read."""
        for connection in self._connections:
            if connection.service():
                self._donations.reconnected(connection.server)
                self._rejoin(connection)
            while (message := connection.receive()) is not None:
                self._take(*message)
        self._send_push()
        self._donations.attend()
        match self.state:
            case Entering() | Awaiting() | Pulling() if not self._pulled.awaited:
                self._advance(ClientEvent.ANSWERED, Attached())
            case PullingDetached() if not self._pulled.awaited:
                self._advance(ClientEvent.ANSWERED, Detached())
            case Detaching() if not self._leaving:
                self._advance(ClientEvent.LEFT, Detached())
        if time.monotonic() - self._progress_s > _ASK_AFTER_S:
            self._ask()

    def facts(self) -> ClientStats:
        """Return the totals so far."""
        meter = self._connections.meter
        return ClientStats(
            worker=self._settings.worker,
            pushes=self._push.num_begun,
            dropped=self._pulled.num_dropped,
            wait_s=self._wait_s,
            resent=self._push.num_resent,
            reconnects=self._connections.num_reconnects,
            sent_bytes=dict(meter.sent),
            received_bytes=dict(meter.received),
        )

    def _advance(self, event: ClientEvent, after: ClientState) -> None:
        """Change the state; the only place that does."""
        check_transition(self.state, event, after)
        self.state = after

    def _send_push(self) -> None:
        if isinstance(self.state, Pushing) and self._push.is_final:
            self._advance(ClientEvent.FINAL, Awaiting(self.state.push))
        if isinstance(self.state, Pushing | Awaiting):
            self._push.send(self.state.push, self._connections, self._pulled.versions)

    def _take(self, header: Header, payload: memoryview | None, tickets: bytes) -> None:
        index = header.segment
        if index >= len(self._layout.segments):
            return
        if header.op == BulkOp.REFUSED:
            raise PeerError(
                f"worker {self._settings.worker} has been dismissed from the run by a server",
                worker=self._settings.worker,
            )
        server = self._layout.segments[index].server
        if header.op in (BulkOp.LOADED, BulkOp.UNEXPECTED):
            self._donations.take(server, header)
            return
        if header.op == BulkOp.LEFT:
            self._leaving.discard(server)
        # Every pushed segment is answered with WHO: entering once is enough.
        if header.op != BulkOp.WHO:
            self._unconfirmed.discard(server)
        elif time.monotonic() - self._entered_s[server] > _ASK_AFTER_S / 2:
            self._rejoin(self._connections[server], known=False)
        # A late or repeated reply, to an earlier request or to a segment that was answered.
        if header.clock != self.clock or index not in self._pulled.awaited:
            return
        self._progress_s = time.monotonic()
        if header.op == BulkOp.AGAIN:
            self._push.resend([index])
        elif header.op == BulkOp.PARAMS and payload is not None:
            self._push.note_held(server, header.held_s)
            self._pulled.take(header, payload, tickets)
            self._push.drop(index)
        elif header.op == BulkOp.PARAMS and header.flags & Flag.HELD:
            self._pulled.settle(header)
            self._push.drop(index)

    def _ask(self) -> None:
        self._progress_s = time.monotonic()
        # A server drops what comes before it is restored, and holds others back for this worker.
        for server in self._unconfirmed:
            self._connections[server].send(self._first_header(BulkOp.ASK, server))
        match self.state:
            case Detaching():
                for server in self._leaving:
                    self._connections[server].send(self._first_header(BulkOp.LEAVE, server))
            case Pulling() | PullingDetached():
                for server in self._pulled.awaited_servers:
                    self._connections[server].send(self._first_header(BulkOp.PULL, server))
            case Entering():
                self._ask_about(self._pulled.awaited)
            case Pushing() | Awaiting():
                self._ask_about(i for i in self._pulled.awaited if self._push.is_sent(i))

    def _ask_about(self, segments: Iterable[int]) -> None:
        for index in segments:
            connection = self._connections[self._layout.segments[index].server]
            connection.send(self._header(BulkOp.ASK, index, self.clock))

    def _enter(self, connection: ServerConnection, clock: int, *, holds: bool = False) -> None:
        self._entered_s[connection.server] = time.monotonic()
        header = self._first_header(BulkOp.ENTER, connection.server, clock)
        if holds:
            version = self._pulled.versions[connection.server]
            header = msgspec.structs.replace(header, flags=Flag.HELD, readver=version)
        connection.send(header)  # if it cannot, the server answers the next ASK with WHO

    def _rejoin(self, connection: ServerConnection, *, known: bool | None = None) -> None:
        """Enter again at a server that has forgotten this worker."""
        # What was in flight when the connection broke may be lost: ask at once.
        self._progress_s = 0.0
        if not isinstance(self.state, Entering | Attached | Pushing | Awaiting | Pulling):
            return  # it had not entered
        accepted = connection.accepted
        if accepted is None or (accepted.known if known is None else known):
            return
        server = connection.server
        if isinstance(self.state, Pushing | Awaiting) and self._pulled.awaits(server):
            # One clock back: a server ignores pushes at the clock at which a worker entered.
            self._enter(connection, self.clock - 1)
            # A restarted server needs the whole push, or none of it.
            self._pulled.expect_again(server)
            self._push.resend(segment.index for segment in self._layout.of_server(server))
        else:
            self._enter(connection, self.clock)
            self._unconfirmed.add(server)

    def _first_header(self, op: BulkOp, server: int, clock: int | None = None) -> Header:
        first = self._layout.of_server(server)[0].index
        return self._header(op, first, self.clock if clock is None else clock)

    def _header(self, op: BulkOp, segment: int, clock: int) -> Header:
        return Header(
            op=op,
            worker=self._settings.worker,
            generation=self._settings.generation,
            incarnation=self._settings.incarnation,
            clock=clock,
            segment=segment,
        )

    def _poll(self, deadline: Deadline, on_idle: OnIdle | None) -> None:
        self._connections.poll(deadline, _RETRY_MS if self._push.has_unsent else _POLL_MS)
        if on_idle is not None:
            on_idle()
