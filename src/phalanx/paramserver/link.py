"""One client's connection to one server: knock, connect, notice when it breaks, knock again.

Nothing blocks here: `service` is called whenever something may have happened, and moves the link
along. The bulk connection is never re-established behind our back; a broken one is replaced by way
of the door, where both sides prove who they are.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from phalanx.errors import PeerError
from phalanx.paramserver.door import FromServer, Knock, Refusal, Welcome
from phalanx.wire.bulk import HEADER, Header, take, tune
from phalanx.wire.keys import KeyPair, secure_client
from phalanx.wire.meter import ByteMeter
from phalanx.wire.serving import ServerAddress
from phalanx.wire.tokens import present_token

_KNOCK_AGAIN_S = 0.5
# A door that refused is tried anew after this long at first, and after twice as long each time.
_REOPEN_AFTER_S = 0.05
_LONGEST_PATIENCE_S = 0.5
_CONNECT_WITHIN_S = 3.0
_DOOR_MESSAGE_BYTES = 1 << 12
# Joining two flags costs as much as packing a header, and this is on the way of every push.
_FIRST_FRAME = int(zmq.NOBLOCK | zmq.SNDMORE)
_BROKEN = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_CLOSED
)


@dataclass(frozen=True, kw_only=True)
class LinkSettings:
    """What all links of a client have in common.

    Attributes:
        keys: The client's own.
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


class Link:
    """Keeps one server reachable.

    Args:
        context: Of the client.
        address: Where the server's door is.
        settings: The rest.
        meter: Counts bytes.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: ServerAddress,
        *,
        settings: LinkSettings,
        meter: ByteMeter,
    ) -> None:
        self.server = address.server
        self.num_connects = 0
        self._context = context
        self._settings = settings
        self._meter = meter
        self._name = f"server-{address.server}"
        self._bulk: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._welcome: Welcome | None = None
        self._is_up = False
        self._again_s = 0.0
        self._patience_s = _REOPEN_AFTER_S
        self._open_door(address)

    @property
    def welcome(self) -> Welcome | None:
        """What the server said last; None while there is no connection."""
        return self._welcome if self._is_up else None

    @property
    def is_knocking(self) -> bool:
        """Whether the door itself is not open yet: call `service` again soon."""
        return not self._is_up and time.monotonic() >= self._again_s

    @property
    def sources(self) -> list[zmq.Socket[bytes]]:
        """Sockets on which something may arrive."""
        return [s for s in (self._door, self._bulk, self._monitor) if s is not None]

    def service(self) -> bool:
        """Move along without blocking; True: a new connection has just come up.

        Raises:
            PeerError: The server refuses this client for good.
        """
        self._hear_door()
        came_up = self._hear_monitor()
        if not self._is_up and time.monotonic() >= self._again_s:
            self._knock()
        return came_up

    def send(self, header: Header, payload: memoryview | None = None) -> bool:
        """Hand a message to ZeroMQ; False: there is no connection, or its queue is full.

        The payload is not copied and must stay as it is until the server has answered.
        """
        if self._bulk is None or not self._is_up:
            return False
        try:
            if payload is None:
                self._bulk.send(header.pack(), zmq.NOBLOCK)
            else:
                self._bulk.send(header.pack(), _FIRST_FRAME)
                self._bulk.send(payload, copy=False)
        except zmq.Again:
            return False
        self._meter.sent[self._name] += HEADER.size + header.num_bytes
        return True

    def receive(self) -> tuple[Header, memoryview | None] | None:
        """The next message, or None if there is none."""
        while self._bulk is not None:
            try:
                frames = self._bulk.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return None
            message = take(frames)
            if message is not None:
                self._meter.received[self._name] += HEADER.size + message[0].num_bytes
                return message
        return None

    def renew(self) -> None:
        """Give up the connection and knock again, to hear how things stand by now."""
        self._break()
        self._again_s = 0.0

    def relocate(self, address: ServerAddress) -> None:
        """The server has been started anew elsewhere."""
        self.renew()
        self._door.close()
        self._patience_s = _REOPEN_AFTER_S
        self._open_door(address)

    def close(self) -> None:
        """Give up the connection."""
        self._break()
        self._door.close()

    def _open_door(self, address: ServerAddress) -> None:
        self._door: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        tune(self._door, max_frame_bytes=_DOOR_MESSAGE_BYTES)
        self._address = address
        self._opened_s = time.monotonic()
        secure_client(self._door, self._settings.keys, address.public_key)
        self._door.connect(address.door)

    def _knock(self) -> None:
        self._break()
        knock = Knock(generation=self._settings.generation, digest=self._settings.digest)
        if self._door.poll(0, zmq.POLLOUT):
            self._door.send(msgspec.msgpack.encode(knock), zmq.NOBLOCK)
            self._again_s = time.monotonic() + _KNOCK_AGAIN_S
        elif time.monotonic() - self._opened_s > self._patience_s:
            # ZeroMQ does not try again after a refusal, and this client may have come before the
            # server had heard of it.
            self._patience_s = min(2 * self._patience_s, _LONGEST_PATIENCE_S)
            self._door.close()
            self._open_door(self._address)

    def _hear_door(self) -> None:
        while self._door.poll(0):
            answer = msgspec.msgpack.decode(self._door.recv(), type=FromServer)
            if isinstance(answer, Refusal):
                raise PeerError(
                    f"{self._name} refuses this worker: {answer.reason}", server=self.server
                )
            if not self._is_up:
                self._connect(answer)

    def _connect(self, welcome: Welcome) -> None:
        self._break()
        self._welcome = welcome
        self._again_s = time.monotonic() + _CONNECT_WITHIN_S
        self._bulk = self._context.socket(zmq.DEALER)
        tune(self._bulk, max_frame_bytes=self._settings.max_frame_bytes)
        self._bulk.setsockopt(zmq.RCVHWM, self._settings.receive_high_water)
        self._bulk.setsockopt(zmq.RECONNECT_IVL, -1)
        if welcome.token is None:
            secure_client(self._bulk, self._settings.keys, self._address.public_key)
        else:
            present_token(self._bulk, welcome.token)
        self._monitor = self._bulk.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | _BROKEN)
        self._bulk.connect(welcome.bulk)

    def _hear_monitor(self) -> bool:
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
