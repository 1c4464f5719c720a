"""Who is connected to a server: the door, the bulk socket, and what waits to be sent.

Knows peers, keys, connections and full pipes; what a message means is `server`'s business. Each
connection gets a route from ZeroMQ that nobody can choose, and is tied to the peer whose key or
token opened it: a header that claims to come from somebody else is seen through.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

import msgspec
import zmq

from phalanx.paramserver.door import FromServer, Knock, Peer
from phalanx.paramserver.replies import Copy
from phalanx.wire.auth import AllowList, peer_key
from phalanx.wire.bulk import HEADER, Header, Op, take, tune
from phalanx.wire.keys import KeyPair, secure_server
from phalanx.wire.meter import ByteMeter
from phalanx.wire.serving import ServerAddress
from phalanx.wire.tokens import TokenGate, guard_server, peer_name

_log = logging.getLogger(__name__)

_DOOR_MESSAGE_BYTES = 1 << 12
# Joining two flags costs as much as packing a header, and this is on the way of every answer.
_FIRST_FRAME = int(zmq.NOBLOCK | zmq.SNDMORE)


@dataclass
class _Session:
    """A connection whose owner is known, and its answers that a full pipe has not taken yet."""

    peer: Peer
    outbox: deque[tuple[Header, Copy | None]] = field(default_factory=deque)


@dataclass(frozen=True)
class Message:
    """What a peer sent."""

    peer: Peer
    header: Header
    payload: memoryview | None


class Reception:
    """The sockets of a server; use as a context manager, from one thread.

    Args:
        keys: The server's own.
        host: Address to listen on; ports come from the system.
        encrypt: Whether bulk data is encrypted.
        max_frame_bytes: Longest bulk frame that a peer may send.
    """

    def __init__(self, keys: KeyPair, *, host: str, encrypt: bool, max_frame_bytes: int) -> None:
        self._keys = keys
        self._host = host
        self._encrypt = encrypt
        self._max_frame_bytes = max_frame_bytes
        self._by_key: dict[str, Peer] = {}
        self._by_label: dict[str, Peer] = {}
        self._sessions: dict[bytes, _Session] = {}
        self._routes: dict[Peer, bytes] = {}
        self._full: set[bytes] = set()
        self.meter = ByteMeter()
        self.num_refused = 0

    def __enter__(self) -> Reception:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._plain_context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._allow_list = AllowList(self._context).__enter__()
        self._gate = TokenGate(self._plain_context).__enter__()
        self.door: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        tune(self.door, max_frame_bytes=_DOOR_MESSAGE_BYTES)
        secure_server(self.door, self._keys)
        context = self._context if self._encrypt else self._plain_context
        self.bulk: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        tune(self.bulk, max_frame_bytes=self._max_frame_bytes)
        if self._encrypt:
            secure_server(self.bulk, self._keys)
        else:
            guard_server(self.bulk)
        self._bulk_address = self._near_address = self._bind(self.bulk)
        if not self._encrypt:
            # A third less system time than TCP takes. An abstract name leaves no file behind.
            self._near_address = f"ipc://@phalanx-{secrets.token_hex(16)}"
            self.bulk.bind(self._near_address)
        self._door_address = self._bind(self.door)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.door.close()
        self.bulk.close()
        self._allow_list.__exit__(kind, error, traceback)
        self._gate.__exit__(kind, error, traceback)
        self._context.term()
        self._plain_context.term()

    @property
    def is_full(self) -> bool:
        """Whether answers wait for room in a pipe; call `retry` soon."""
        return bool(self._full)

    def address(self, server: int) -> ServerAddress:
        """What clients need in order to connect."""
        return ServerAddress(server, self._door_address, self._keys.public)

    def admit(self, public_key: str, peer: Peer) -> None:
        """Let a peer in from now on, and its earlier incarnations no longer."""
        self.shut_out(peer.name)
        self._by_key[public_key] = peer
        self._by_label[_label(peer)] = peer
        self._allow_list.add(public_key)

    def shut_out(self, name: str) -> Peer | None:
        """Listen no longer to a peer, connected or not; returns it if it was known."""
        found = [(key, peer) for key, peer in self._by_key.items() if peer.name == name]
        for key, peer in found:
            del self._by_key[key]
            del self._by_label[_label(peer)]
            self._allow_list.remove(key)
        return found[-1][1] if found else None

    def open_door(self, judge: Callable[[Peer, Knock, bool], FromServer]) -> None:
        """Answer one knock; the judge is told, too, whether the peer is on this machine."""
        route, *frames = self.door.recv_multipart(copy=False)
        peer = self._by_key.get(peer_key(frames[0])) if len(frames) == 1 else None
        if peer is None:
            self.num_refused += 1
            return
        try:
            knock = msgspec.msgpack.decode(frames[0].buffer, type=Knock)
            is_near = str(frames[0].get("Peer-Address")).startswith("127.")
            answer = msgspec.msgpack.encode(judge(peer, knock, is_near))
            self.door.send_multipart([route.bytes, answer], zmq.NOBLOCK)
        except msgspec.DecodeError:
            self.num_refused += 1
        except zmq.ZMQError as error:
            _log.debug("the answer to %s went nowhere: %s", peer.name, error)

    def issue(self, peer: Peer, *, is_near: bool) -> tuple[str, str | None]:
        """Address of the bulk socket, and the token for it if it is a plain one."""
        address = self._near_address if is_near else self._bulk_address
        return address, None if self._encrypt else self._gate.issue(_label(peer))

    def receive(self) -> Message | None:
        """The next message of a known peer, or None if it was not worth passing on.

        Raises:
            zmq.Again: There is none.
        """
        frames = self.bulk.recv_multipart(zmq.NOBLOCK, copy=False)
        route = frames[0].bytes
        session = self._sessions.get(route) or self._begin_session(route, frames[-1])
        message = take(frames[1:])
        if message is None or session is None:
            self.num_refused += 1
            return None
        if _label(session.peer) not in self._by_label:
            # Dismissed, and does not know it yet.
            self.num_refused += 1
            self.send(session.peer, Header(op=Op.REFUSED, worker=session.peer.rank))
            return None
        header, payload = message
        self.meter.received[session.peer.name] += HEADER.size + header.num_bytes
        return Message(session.peer, header, payload)

    def send(self, peer: Peer, header: Header, copy: Copy | None = None) -> None:
        """Send now, or as soon as the pipe has room; dropped if the peer is not connected."""
        route = self._routes.get(peer)
        if route is None:
            return
        session = self._sessions[route]
        if copy is not None:
            copy.num_queued += 1
        session.outbox.append((header, copy))
        if route not in self._full:
            self._flush(route, session)

    def retry(self) -> None:
        """Try again to send what a full pipe did not take."""
        for route in list(self._full):
            self._full.discard(route)
            self._flush(route, self._sessions[route])

    def _bind(self, socket: zmq.Socket[bytes]) -> str:
        return f"tcp://{self._host}:{socket.bind_to_random_port(f'tcp://{self._host}')}"

    def _begin_session(self, route: bytes, frame: zmq.Frame) -> _Session | None:
        peer = (
            self._by_key.get(peer_key(frame))
            if self._encrypt
            else self._by_label.get(peer_name(frame))
        )
        if peer is None:
            return None
        older = self._routes.get(peer)
        if older is not None:
            self._end_session(older)
        self._routes[peer] = route
        session = self._sessions[route] = _Session(peer)
        return session

    def _end_session(self, route: bytes) -> None:
        session = self._sessions.pop(route)
        for _, copy in session.outbox:
            if copy is not None:
                copy.num_queued -= 1
        self._full.discard(route)
        del self._routes[session.peer]

    def _flush(self, route: bytes, session: _Session) -> None:
        while session.outbox:
            header, copy = session.outbox[0]
            try:
                self.bulk.send(route, _FIRST_FRAME)
            except zmq.Again:
                self._full.add(route)
                return
            except zmq.ZMQError:
                # The connection is gone; the peer will come back and ask.
                self._end_session(route)
                return
            if copy is None:
                self.bulk.send(header.pack())
            else:
                self.bulk.send(header.pack(), zmq.SNDMORE)
                self.bulk.send(copy.lend(), copy=False)
                copy.num_queued -= 1
            session.outbox.popleft()
            self.meter.sent[session.peer.name] += HEADER.size + header.num_bytes


def _label(peer: Peer) -> str:
    return f"{peer.name}/{peer.incarnation}"
