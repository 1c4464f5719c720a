"""Control channel, the controller's end: authenticated, encrypted, and driven by its loop.

Messages arrive once and in order, whatever becomes of the connection (`delivery`); heartbeats and
clock readings may be lost. The other end is in `control_client`.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType

import msgspec
import zmq

from phalanx.errors import PeerError
from phalanx.wire.auth import AllowList, peer_key
from phalanx.wire.deadline import Deadline
from phalanx.wire.delivery import MAX_SOCKET_BYTES, Delivery
from phalanx.wire.keys import KeyPair, secure_server
from phalanx.wire.messages import (
    FromController,
    FromWorker,
    Heartbeat,
    Ping,
    Pong,
    PutValue,
    WantValues,
)
from phalanx.wire.rendezvous import ValueBoard

# Frames taken in a row before the caller gets a turn.
_MOST_FRAMES = 1000


@dataclass(frozen=True)
class Violation:
    """What a process did against the protocol; nothing that it says can be relied on."""

    reason: str


@dataclass
class _Member:
    """The channel to one incarnation of a process; without a route until it has connected."""

    delivery: Delivery = field(default_factory=Delivery)
    route: bytes | None = None
    is_blamed: bool = False


class ControlServer:
    """The controller's end of the channel; use as a context manager.

    Also the rendezvous store: values that processes publish for one another before they have
    connections among themselves.

    Args:
        host: Address to listen on; the port comes from the system. Only this machine reaches the
            default.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._host = host
        self._keys = KeyPair.make()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._allow_list = AllowList(self._context)
        self._names: dict[str, str] = {}
        self._members: dict[str, _Member] = {}
        self._board = ValueBoard()
        self._heard: set[str] = set()
        self._unanswered: set[str] = set()
        self._violations: deque[tuple[str, Violation]] = deque()
        self._decoder = msgspec.msgpack.Decoder(FromWorker)
        self._port = 0

    def address_at(self, host: str | None = None) -> str:
        """Return the address to connect to, for machines that reach the controller at `host`."""
        return f"tcp://{host or self._host}:{self._port}"

    @property
    def address(self) -> str:
        """Address to connect to."""
        return self.address_at()

    @property
    def public_key(self) -> str:
        """Public key that clients authenticate this server by."""
        return self._keys.public

    def __enter__(self) -> ControlServer:
        self._allow_list.__enter__()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_SOCKET_BYTES)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        secure_server(self._socket, self._keys)
        self._port = self._socket.bind_to_random_port(f"tcp://{self._host}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()
        self._allow_list.__exit__(kind, error, traceback)
        self._context.term()

    def admit(self, name: str) -> KeyPair:
        """Make keys for a process that is about to start; its earlier keys are revoked.

        Messages for its predecessor are dropped; messages from now on wait until it connects.
        """
        for key in [key for key, known in self._names.items() if known == name]:
            del self._names[key]
            self._allow_list.remove(key)
        keys = KeyPair.make()
        self._names[keys.public] = name
        self._members[name] = _Member()
        self._board.forget(name)
        self._allow_list.add(keys.public)
        return keys

    def name_of(self, public_key: str) -> str | None:
        """Return the process that holds a key; None: unknown, or revoked."""
        return self._names.get(public_key)

    def listen_beside(
        self, *, max_message_bytes: int, high_water: int
    ) -> tuple[zmq.Socket[bytes], int]:
        """Open another listening socket for the same processes; returns it with its port.

        The caller closes it.

        Args:
            max_message_bytes: A longer frame ends the connection.
            high_water: Messages that wait in a queue.
        """
        socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        socket.linger = 0
        socket.setsockopt(zmq.MAXMSGSIZE, max_message_bytes)
        socket.setsockopt(zmq.SNDHWM, high_water)
        socket.setsockopt(zmq.RCVHWM, high_water)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        secure_server(socket, self._keys)
        return socket, socket.bind_to_random_port(f"tcp://{self._host}")

    def receive(self, timeout_s: float) -> tuple[str, FromWorker | Violation] | None:
        """Return the next message for the controller; None: none came in time.

        Rendezvous and clock messages are answered here and never returned. A process that breaks
        the protocol is reported once, with what it did.
        """
        deadline = Deadline.after(timeout_s, "a message")
        for _ in range(_MOST_FRAMES):
            if self._violations:
                return self._violations.popleft()
            if not self._socket.poll(0):
                self._answer()
                if not self._socket.poll(deadline.remaining_ms):
                    return None
            received = self._take_frame()
            if received is not None:
                return received
        return None

    def take_heard(self) -> set[str]:
        """Return the processes of which anything came since the last call, parts included."""
        heard, self._heard = self._heard, set()
        return heard

    def send(self, name: str, message: FromController) -> None:
        """Send to a process; what it cannot take now waits until it can.

        A process that takes nothing any more is reported by `receive`. Messages for unknown ones
        are dropped.

        Raises:
            MessageTooLarge: The message is above the limit of the channel.
        """
        member = self._members.get(name)
        if member is None:
            return
        try:
            member.delivery.put(msgspec.msgpack.encode(message))
        except PeerError as error:
            self._blame(name, str(error))
            return
        self._flush(member)

    def _take_frame(self) -> tuple[str, FromWorker] | None:
        route, frame, *surplus = self._socket.recv_multipart(copy=False)
        # For every frame: revoked keys do not close the connection of a replaced process.
        name = self._names.get(peer_key(frame))
        if name is None:
            return None
        member = self._members[name]
        self._heard.add(name)
        if member.route != route.bytes:
            # A new connection: what was on its way over the old one may be lost.
            member.route = route.bytes
            member.delivery.repeat()
        try:
            if surplus:
                raise PeerError("a message of several frames is none of the control channel")
            body = member.delivery.take(frame.buffer)
            message = self._decoder.decode(body) if body is not None else None
            kept = self._keep(name, member, message) if message is not None else None
        # Text that is not UTF-8 has an error of its own.
        except (PeerError, msgspec.DecodeError, UnicodeDecodeError) as error:
            self._blame(name, str(error))
            return None
        if member.delivery.is_stuck:
            waiting = member.delivery.num_unacknowledged
            self._blame(name, f"it lives, but takes none of {waiting} messages that wait for it")
        self._flush(member)
        if member.delivery.must_answer:
            self._send_frame(member, member.delivery.note())
        elif member.delivery.has_news:
            self._unanswered.add(name)
        return (name, kept) if kept is not None else None

    def _keep(self, name: str, member: _Member, message: FromWorker) -> FromWorker | None:
        """Answer a message of the channel itself; return one that is for the controller."""
        match message:
            case Ping():
                pong = Pong(message.asked_s, time.monotonic())
                self._send_frame(member, member.delivery.note(msgspec.msgpack.encode(pong)))
            case PutValue():
                self._board.put(name, message.key, message.value)
            case WantValues():
                self._board.want(name, message.group)
            case Heartbeat() if member.delivery.num_unacknowledged:
                # Tells the process what was sent, so that it notices a loss.
                self._send_frame(member, member.delivery.note())
                return message
            case _:
                return message
        return None

    def _answer(self) -> None:
        """Send what can be sent together, as nothing else is to be read: values, then news."""
        for name, values in self._board.take_unsent():
            self.send(name, values)
        unanswered, self._unanswered = self._unanswered, set()
        for name in unanswered:
            member = self._members[name]
            if member.delivery.has_news:
                self._send_frame(member, member.delivery.note())

    def _blame(self, name: str, reason: str) -> None:
        member = self._members[name]
        if not member.is_blamed:
            member.is_blamed = True
            self._violations.append((name, Violation(reason)))

    def _flush(self, member: _Member) -> None:
        if member.route is not None:
            for frame in member.delivery.frames():
                self._send_frame(member, frame)

    def _send_frame(self, member: _Member, frame: bytes) -> None:
        # Dropped if the connection is gone or its queue is full: the process will ask for it.
        if member.route is not None:
            self._socket.send_multipart([member.route, frame])
