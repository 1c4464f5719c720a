"""Connect a client to servers: handshake, connect, detect breaks, reconnect.

Nothing blocks here except `ServerConnections.poll`: call `service` whenever something may have
happened, to advance a connection. ZeroMQ never re-establishes a broken bulk connection, because it
would trust any process that took over the port; a new handshake replaces it, in which both sides
authenticate.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from phalanx.consistency.shards import ShardLayout
from phalanx.errors import PeerError
from phalanx.paramserver.compression import payload_bytes
from phalanx.paramserver.handshake import (
    HANDSHAKE_BYTES,
    ConnectAccepted,
    ConnectRejected,
    ConnectRequest,
    HandshakeReply,
    digest_of,
)
from phalanx.wire.bulk import (
    FRAME_SLACK_BYTES,
    HEADER,
    HIGH_WATER,
    Header,
    Kind,
    take,
    ticket_frames,
    tune,
)
from phalanx.wire.deadline import Deadline
from phalanx.wire.keys import KeyPair, secure_client
from phalanx.wire.meter import ByteMeter
from phalanx.wire.parameter_server import ServerAddress
from phalanx.wire.tokens import present_token

_REQUEST_AGAIN_S = 0.5
# A refused socket is reopened after this long at first, then after twice as long each time.
_REOPEN_AFTER_S = 0.05
_LONGEST_PATIENCE_S = 0.5
_CONNECT_WITHIN_S = 3.0
_POLL_MS = 200
# How often a handshake socket that is not connected yet is tried.
_HANDSHAKE_MS = 5
# Precomputed: joining two flags costs as much as packing a header, in every push.
_FIRST_FRAME = int(zmq.NOBLOCK | zmq.SNDMORE)
_BROKEN = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_CLOSED
)


def max_frame_bytes(layout: ShardLayout) -> int:
    """Return the longest frame that servers and clients of a layout have to accept."""
    return payload_bytes(Kind.F32, max(s.size for s in layout.segments)) + FRAME_SLACK_BYTES


@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """Settings that all connections of a client share.

    Attributes:
        keys: Keys of the client.
        generation: Of the run.
        digest: Of the layout.
        max_frame_bytes: Longest frame that the server may send.
        receive_high_water: Frames that may wait to be read.
    """

    keys: KeyPair
    generation: int
    digest: int
    max_frame_bytes: int
    receive_high_water: int

    @classmethod
    def of(
        cls, layout: ShardLayout, *, keys: KeyPair, generation: int, high_water: int = HIGH_WATER
    ) -> ConnectionSettings:
        """Derive what depends on the layout."""
        return cls(
            keys=keys,
            generation=generation,
            digest=digest_of(layout),
            max_frame_bytes=max_frame_bytes(layout),
            receive_high_water=high_water,
        )


class ServerConnection:
    """Connection to one server, replaced as often as it breaks."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: ServerAddress,
        *,
        settings: ConnectionSettings,
        meter: ByteMeter,
    ) -> None:
        self.server = address.server
        self.num_connects = 0
        self._context = context
        self._settings = settings
        self._meter = meter
        self._bulk: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._accepted: ConnectAccepted | None = None
        self._is_up = False
        self._again_s = 0.0
        self._patience_s = _REOPEN_AFTER_S
        self._open_handshake(address)

    @property
    def accepted(self) -> ConnectAccepted | None:
        """Last reply of the server's handshake; None while there is no connection."""
        return self._accepted if self._is_up else None

    @property
    def is_requesting(self) -> bool:
        """Whether the handshake socket is not connected yet: call `service` again soon."""
        return not self._is_up and time.monotonic() >= self._again_s

    @property
    def sources(self) -> list[zmq.Socket[bytes]]:
        """Sockets to poll."""
        return [s for s in (self._handshake, self._bulk, self._monitor) if s is not None]

    @property
    def _name(self) -> str:
        return f"server-{self.server}"

    def service(self) -> bool:
        """Advance without blocking; True: a new connection has just been established.

        Raises:
            PeerError: The server rejects this client for good.
        """
        self._read_handshake()
        came_up = self._read_monitor()
        if not self._is_up and time.monotonic() >= self._again_s:
            self._request()
        return came_up

    def send(self, header: Header, payload: memoryview | None = None, tickets: bytes = b"") -> bool:
        """Pass a message to ZeroMQ; False: there is no connection, or its queue is full.

        The payload is not copied and must not change until the server has replied.
        """
        if self._bulk is None or not self._is_up:
            return False
        try:
            if payload is None:
                self._bulk.send(header.pack(), zmq.NOBLOCK)
            else:
                self._bulk.send(header.pack(), _FIRST_FRAME)
                frames = ticket_frames(tickets)
                self._bulk.send(payload, zmq.SNDMORE if frames else 0, copy=False)
                for frame in frames:
                    self._bulk.send(frame, 0 if frame is frames[-1] else zmq.SNDMORE)
        except zmq.Again:
            return False
        self._meter.sent[self._name] += HEADER.size + header.num_bytes + len(tickets)
        return True

    def receive(self) -> tuple[Header, memoryview | None, bytes] | None:
        """Return header, payload and tickets of the next message; None: there is none."""
        while self._bulk is not None:
            try:
                frames = self._bulk.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return None
            message = take(frames)
            if message is not None:
                size = HEADER.size + message[0].num_bytes + len(message[2])
                self._meter.received[self._name] += size
                return message
        return None

    def renew(self) -> None:
        """Replace the connection by another, to learn the server's present clock."""
        self._break()
        self._again_s = 0.0

    def relocate(self, address: ServerAddress) -> None:
        """Connect to the successor of a server at its new address."""
        self.renew()
        self._handshake.close()
        self._patience_s = _REOPEN_AFTER_S
        self._open_handshake(address)

    def close(self) -> None:
        """Close the connection and its handshake socket."""
        self._break()
        self._handshake.close()

    def _open_handshake(self, address: ServerAddress) -> None:
        self._handshake: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        tune(self._handshake, max_frame_bytes=HANDSHAKE_BYTES)
        self._address = address
        self._opened_s = time.monotonic()
        secure_client(self._handshake, self._settings.keys, address.public_key)
        self._handshake.connect(address.door)

    def _request(self) -> None:
        self._break()
        request = ConnectRequest(generation=self._settings.generation, digest=self._settings.digest)
        if self._handshake.poll(0, zmq.POLLOUT):
            self._handshake.send(msgspec.msgpack.encode(request), zmq.NOBLOCK)
            self._again_s = time.monotonic() + _REQUEST_AGAIN_S
        elif time.monotonic() - self._opened_s > self._patience_s:
            # ZeroMQ does not retry after a refusal, and this client may have connected before the
            # server knew its key.
            self._patience_s = min(2 * self._patience_s, _LONGEST_PATIENCE_S)
            self._handshake.close()
            self._open_handshake(self._address)

    def _read_handshake(self) -> None:
        while self._handshake.poll(0):
            reply = msgspec.msgpack.decode(self._handshake.recv(), type=HandshakeReply)
            if isinstance(reply, ConnectRejected):
                raise PeerError(
                    f"{self._name} refuses this worker: {reply.reason}", server=self.server
                )
            # A repeated request is accepted twice; the first connection may be up by now.
            if not self._is_up:
                self._connect(reply)

    def _connect(self, accepted: ConnectAccepted) -> None:
        self._break()
        self._accepted = accepted
        self._again_s = time.monotonic() + _CONNECT_WITHIN_S
        self._bulk = self._context.socket(zmq.DEALER)
        tune(self._bulk, max_frame_bytes=self._settings.max_frame_bytes)
        self._bulk.setsockopt(zmq.RCVHWM, self._settings.receive_high_water)
        # Never by ZeroMQ: a reconnect would skip the handshake that authenticates the server.
        self._bulk.setsockopt(zmq.RECONNECT_IVL, -1)
        if accepted.token is None:
            secure_client(self._bulk, self._settings.keys, self._address.public_key)
        else:
            present_token(self._bulk, accepted.token)
        # Before `connect`, or the event of a quick handshake would be missed.
        self._monitor = self._bulk.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | _BROKEN)
        self._bulk.connect(accepted.bulk)

    def _read_monitor(self) -> bool:
        came_up = False
        while self._monitor is not None and self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._is_up = came_up = True
                self.num_connects += 1
            else:
                came_up = False
                self._break()
                self._again_s = 0.0
        return came_up

    def _break(self) -> None:
        self._is_up = False
        if self._bulk is not None and self._monitor is not None:
            self._bulk.disable_monitor()
            self._monitor.close(linger=0)
            self._bulk.close()
        self._bulk = self._monitor = None


class ServerConnections:
    """One connection per server that owns a shard; use as a context manager.

    Args:
        addresses: Of all servers; those without a shard are ignored.
        num_servers: Servers that own a shard.
        settings: Of every connection.
    """

    def __init__(
        self, addresses: Sequence[ServerAddress], *, num_servers: int, settings: ConnectionSettings
    ) -> None:
        self.addresses = [one for one in addresses if one.server < num_servers]
        self.meter = ByteMeter()
        self._settings = settings
        self._by_server: dict[int, ServerConnection] = {}

    def __enter__(self) -> ServerConnections:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._by_server = {
            address.server: ServerConnection(
                self._context, address, settings=self._settings, meter=self.meter
            )
            for address in self.addresses
        }
        return self

    def __exit__(self, *exception: object) -> None:
        for connection in self:
            connection.close()
        self._context.term()

    def __iter__(self) -> Iterator[ServerConnection]:
        return iter(self._by_server.values())

    def __getitem__(self, server: int) -> ServerConnection:
        return self._by_server[server]

    @property
    def num_reconnects(self) -> int:
        """Number of connections that were replaced."""
        return max(0, sum(one.num_connects for one in self) - len(self._by_server))

    @property
    def unreachable(self) -> list[int]:
        """Servers without a connection; a server that is reached may still take its time."""
        return [one.server for one in self if one.accepted is None]

    def come_up(self) -> bool:
        """Advance every connection; True: all of them are up."""
        for connection in self:
            connection.service()
        return all(connection.accepted for connection in self)

    def poll(self, deadline: Deadline, limit_ms: int = _POLL_MS) -> None:
        """Wait until a message may have arrived on any connection, or the limit is over.

        Raises:
            TimeoutExpired: The deadline has passed.
        """
        poller = zmq.Poller()
        for connection in self:
            for source in connection.sources:
                poller.register(source, zmq.POLLIN)
            if connection.is_requesting:
                limit_ms = min(limit_ms, _HANDSHAKE_MS)
        poller.poll(min(limit_ms, deadline.remaining_ms))
        deadline.check()
