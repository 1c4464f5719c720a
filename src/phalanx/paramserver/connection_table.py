"""Sockets of a parameter server, and the table of the clients connected to them.

Knows clients, keys, connections and full pipes; `server` interprets messages. Each connection gets
a route from ZeroMQ that no client can choose, and is bound to the client whose key or token opened
it: a header that claims another sender is recognised.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import zmq

from phalanx.paramserver.handshake import (
    HANDSHAKE_BYTES,
    ClientIdentity,
    ConnectRequest,
    HandshakeReply,
)
from phalanx.paramserver.replies import SegmentCopy
from phalanx.wire.auth import AllowList, peer_key
from phalanx.wire.bulk import HEADER, BulkOp, Header, take, ticket_frames, tune
from phalanx.wire.keys import KeyPair, secure_server
from phalanx.wire.meter import ByteMeter
from phalanx.wire.parameter_server import ServerAddress
from phalanx.wire.tokens import TokenGate, guard_server, peer_name

_log = logging.getLogger(__name__)

# Precomputed: joining two flags costs as much as packing a header, in every reply.
_FIRST_FRAME = int(zmq.NOBLOCK | zmq.SNDMORE)


@dataclass(frozen=True)
class _Outgoing:
    """A reply: parameters with the batches behind them, or only a header."""

    header: Header
    copy: SegmentCopy | None

    @property
    def tickets(self) -> bytes:
        return self.copy.tickets if self.copy is not None else b""


@dataclass
class _Session:
    """Owner of a connection, and the replies that a full pipe has not taken yet."""

    client: ClientIdentity
    outbox: deque[_Outgoing] = field(default_factory=deque)


@dataclass(frozen=True)
class ClientMessage:
    """Message of an authenticated client."""

    client: ClientIdentity
    header: Header
    payload: memoryview | None
    tickets: bytes = b""


class ServerSockets:
    """Sockets for handshakes and bulk data; use as a context manager.

    Args:
        keys: Keys of the server.
        host: Address to listen on; ports come from the system.
        encrypt: Whether bulk data is encrypted.
        max_frame_bytes: Longest bulk frame that a client may send.
    """

    def __init__(self, keys: KeyPair, *, host: str, encrypt: bool, max_frame_bytes: int) -> None:
        self.keys = keys
        self.encrypt = encrypt
        self._host = host
        self._max_frame_bytes = max_frame_bytes

    def __enter__(self) -> ServerSockets:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._plain_context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.allow_list = AllowList(self._context).__enter__()
        self.tokens = TokenGate(self._plain_context).__enter__()
        self.handshake: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        tune(self.handshake, max_frame_bytes=HANDSHAKE_BYTES)
        secure_server(self.handshake, self.keys)
        context = self._context if self.encrypt else self._plain_context
        self.bulk: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        tune(self.bulk, max_frame_bytes=self._max_frame_bytes)
        if self.encrypt:
            secure_server(self.bulk, self.keys)
        else:
            guard_server(self.bulk)
        self.bulk_address = self.local_address = self._bind(self.bulk)
        if not self.encrypt:
            # Takes a third less system time than TCP. An abstract name leaves no file behind.
            self.local_address = f"ipc://@phalanx-{secrets.token_hex(16)}"
            self.bulk.bind(self.local_address)
        # Last, so that no client is accepted before the bulk socket listens.
        self.handshake_address = self._bind(self.handshake)
        return self

    def __exit__(self, *exception: object) -> None:
        self.handshake.close()
        self.bulk.close()
        self.allow_list.__exit__(None, None, None)
        self.tokens.__exit__(None, None, None)
        self._context.term()
        self._plain_context.term()

    def _bind(self, socket: zmq.Socket[bytes]) -> str:
        return f"tcp://{self._host}:{socket.bind_to_random_port(f'tcp://{self._host}')}"


class ConnectionTable:
    """Clients of a server and their connections; use from one thread.

    Args:
        sockets: The server's; opened before anything is sent or received.
    """

    def __init__(self, sockets: ServerSockets) -> None:
        self._sockets = sockets
        self._by_key: dict[str, ClientIdentity] = {}
        self._by_label: dict[str, ClientIdentity] = {}
        self._sessions: dict[bytes, _Session] = {}
        self._routes: dict[ClientIdentity, bytes] = {}
        self._full: set[bytes] = set()
        self.meter = ByteMeter()
        self.num_refused = 0

    @property
    def is_full(self) -> bool:
        """Whether replies wait for room in a pipe; call `retry` soon."""
        return bool(self._full)

    def address(self, server: int) -> ServerAddress:
        """Return the address and key that clients connect with."""
        return ServerAddress(server, self._sockets.handshake_address, self._sockets.keys.public)

    def admit(self, public_key: str, client: ClientIdentity) -> None:
        """Accept a client from now on, and no earlier incarnation of it."""
        # Earlier incarnations first: two of them are never accepted at the same time.
        self.dismiss(client.name)
        self._by_key[public_key] = client
        self._by_label[client.label] = client
        self._sockets.allow_list.add(public_key)

    def dismiss(self, name: str) -> None:
        """Reject a client from now on, connected or not."""
        for key, client in list(self._by_key.items()):
            if client.name == name:
                del self._by_key[key]
                del self._by_label[client.label]
                self._sockets.allow_list.remove(key)

    def answer_request(
        self, decide: Callable[[ClientIdentity, ConnectRequest, bool], HandshakeReply]
    ) -> None:
        """Answer one handshake; `decide` also learns whether the client is on this machine."""
        socket = self._sockets.handshake
        route, *frames = socket.recv_multipart(copy=False)
        client = self._by_key.get(peer_key(frames[0])) if len(frames) == 1 else None
        if client is None:
            self.num_refused += 1
            return
        try:
            request = msgspec.msgpack.decode(frames[0].buffer, type=ConnectRequest)
            is_local = str(frames[0].get("Peer-Address")).startswith("127.")
            reply = msgspec.msgpack.encode(decide(client, request, is_local))
            socket.send_multipart([route.bytes, reply], zmq.NOBLOCK)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.num_refused += 1
        except zmq.ZMQError as error:
            # The client is gone, or will repeat its request.
            _log.debug("the answer to %s went nowhere: %s", client.name, error)

    def issue(self, client: ClientIdentity, *, is_local: bool) -> tuple[str, str | None]:
        """Return the address of the bulk socket, and a token if it is a plain one."""
        sockets = self._sockets
        address = sockets.local_address if is_local else sockets.bulk_address
        return address, None if sockets.encrypt else sockets.tokens.issue(client.label)

    def receive(self) -> ClientMessage | None:
        """Return the next message of a known client; None: it was refused.

        Raises:
            zmq.Again: There is none.
        """
        frames = self._sockets.bulk.recv_multipart(zmq.NOBLOCK, copy=False)
        route = frames[0].bytes
        session = self._sessions.get(route) or self._begin_session(route, frames[-1])
        message = take(frames[1:])
        if message is None or session is None:
            self.num_refused += 1
            return None
        if session.client.label not in self._by_label:
            # Dismissed while connected: it has to learn of it.
            self.num_refused += 1
            self.send(session.client, Header(op=BulkOp.REFUSED, worker=session.client.rank))
            return None
        header, payload, tickets = message
        size = HEADER.size + header.num_bytes + len(tickets)
        self.meter.received[session.client.name] += size
        return ClientMessage(session.client, header, payload, tickets)

    def send(self, client: ClientIdentity, header: Header, copy: SegmentCopy | None = None) -> None:
        """Send now, or as soon as the pipe has room; dropped if the client is not connected."""
        route = self._routes.get(client)
        if route is None:
            return
        session = self._sessions[route]
        if copy is not None:
            copy.num_queued += 1
        # Through the outbox: replies must not overtake those that a full pipe has not taken.
        session.outbox.append(_Outgoing(header, copy))
        if route not in self._full:
            self._flush(route, session)

    def retry(self) -> None:
        """Send what full pipes did not take before."""
        for route in list(self._full):
            self._full.discard(route)
            self._flush(route, self._sessions[route])

    def _begin_session(self, route: bytes, frame: zmq.Frame) -> _Session | None:
        client = (
            self._by_key.get(peer_key(frame))
            if self._sockets.encrypt
            else self._by_label.get(peer_name(frame))
        )
        if client is None:
            return None
        # One connection per client: replies queued on the older are dropped, and asked for again.
        older = self._routes.get(client)
        if older is not None:
            self._end_session(older)
        self._routes[client] = route
        session = self._sessions[route] = _Session(client)
        return session

    def _end_session(self, route: bytes) -> None:
        session = self._sessions.pop(route)
        for outgoing in session.outbox:
            if outgoing.copy is not None:
                outgoing.copy.num_queued -= 1
        self._full.discard(route)
        del self._routes[session.client]

    def _flush(self, route: bytes, session: _Session) -> None:
        while session.outbox:
            try:
                self._sockets.bulk.send(route, _FIRST_FRAME)
            except zmq.Again:
                self._full.add(route)
                return
            except zmq.ZMQError:
                # The connection is gone; the client will reconnect and ask.
                self._end_session(route)
                return
            outgoing = session.outbox.popleft()
            self._send_frames(outgoing)
            size = HEADER.size + outgoing.header.num_bytes + len(outgoing.tickets)
            self.meter.sent[session.client.name] += size

    def _send_frames(self, outgoing: _Outgoing) -> None:
        bulk, copy = self._sockets.bulk, outgoing.copy
        if copy is None:
            bulk.send(outgoing.header.pack())
            return
        bulk.send(outgoing.header.pack(), zmq.SNDMORE)
        frames = ticket_frames(outgoing.tickets)
        bulk.send(copy.lend(), zmq.SNDMORE if frames else 0, copy=False)
        for frame in frames:
            bulk.send(frame, 0 if frame is frames[-1] else zmq.SNDMORE)
        copy.num_queued -= 1
