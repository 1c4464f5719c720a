"""Control channel: an authenticated, encrypted connection between controller and process.

`ControlServer` belongs to the controller and is driven by its loop. `ControlClient` belongs to a
process of the run and has a thread, so that heartbeats continue while the process computes: silence
then means that the process is frozen or gone, never that it is busy.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from types import TracebackType

import msgspec
import zmq

from phalanx.wire.auth import AllowList, peer_key
from phalanx.wire.clock import ClockProbe, ClockReading
from phalanx.wire.deadline import Deadline
from phalanx.wire.keys import KeyPair, secure_client, secure_server
from phalanx.wire.messages import (
    FromController,
    FromCoordinator,
    FromWorker,
    Heartbeat,
    Ping,
    Pong,
    Progress,
    PutValue,
    Stop,
    StoredValue,
    WantValue,
)

HEARTBEAT_INTERVAL_S = 0.5
_MAX_MESSAGE_BYTES = 1 << 20


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
        self._routes: dict[str, bytes] = {}
        self._board: dict[str, bytes] = {}
        self._wanted: dict[str, set[str]] = {}
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
        self._socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_BYTES)
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
        """Make keys for a process that is about to start; its earlier keys are revoked."""
        for key in [key for key, known in self._names.items() if known == name]:
            del self._names[key]
            self._allow_list.remove(key)
        keys = KeyPair.make()
        self._names[keys.public] = name
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

    def receive(self, timeout_s: float) -> tuple[str, FromWorker] | None:
        """Return the next message for the controller; None: none came in time.

        Rendezvous and clock messages are answered here and never returned.
        """
        deadline = Deadline.after(timeout_s, "a message")
        while self._socket.poll(deadline.remaining_ms):
            route, body, *surplus = self._socket.recv_multipart(copy=False)
            # For every message: revoked keys do not close the connection of a replaced process.
            name = self._names.get(peer_key(body))
            if name is None or surplus:
                continue
            self._routes[name] = route.bytes
            try:
                message = self._decoder.decode(body.buffer)
            except msgspec.DecodeError:
                continue
            if isinstance(message, Ping):
                self.send(name, Pong(message.asked_s, time.monotonic()))
            elif isinstance(message, PutValue):
                self._publish(message)
            elif isinstance(message, WantValue):
                self._want(name, message.key)
            else:
                return name, message
        return None

    def send(self, name: str, message: FromController) -> None:
        """Send to a process, or drop the message if it never connected or its queue is full."""
        route = self._routes.get(name)
        if route is not None:
            self._socket.send_multipart([route, msgspec.msgpack.encode(message)])

    def _publish(self, message: PutValue) -> None:
        self._board[message.key] = message.value
        for name in self._wanted.pop(message.key, ()):
            self.send(name, StoredValue(message.key, message.value))

    def _want(self, name: str, key: str) -> None:
        if key in self._board:
            self.send(name, StoredValue(key, self._board[key]))
        else:
            # Processes start in any order: a value may be requested before it is published.
            self._wanted.setdefault(key, set()).add(name)


class _Published:
    """Values of the rendezvous store that have arrived; one thread writes, another waits."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def put(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, deadline: Deadline) -> bytes:
        with self._changed:
            while key not in self._values:
                if not self._changed.wait(deadline.remaining_s):
                    raise deadline.error()
            return self._values[key]


class _Wakeup:
    """Wake a thread out of its poll; safe from any thread."""

    _ADDRESS = "inproc://wakeup"

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._socket: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self._socket.linger = 0
        self._socket.bind(self._ADDRESS)
        # A ZeroMQ socket is not safe for several threads at a time.
        self._lock = threading.Lock()

    def connect(self, socket: zmq.Socket[bytes]) -> None:
        """Make a socket of the polling thread readable at every wake-up."""
        socket.linger = 0
        socket.connect(self._ADDRESS)

    def ring(self) -> None:
        with self._lock:
            self._socket.send(b"")

    def close(self) -> None:
        self._socket.close()


class ControlClient:
    """A process's end of the channel; use as a context manager.

    Args:
        address: Where the controller listens.
        server_key: The controller's public key.
        keys: Keys of this process.
        progress: Called by the channel's thread for each heartbeat; must be quick and not block.
        on_stop: Called by the channel's thread when the controller asks this process to end.
        on_clock: Called by the channel's thread with each estimate of the controller's clock; None:
            no estimates are made.
    """

    def __init__(
        self,
        address: str,
        *,
        server_key: str,
        keys: KeyPair,
        progress: Callable[[], Progress],
        on_stop: Callable[[str], None],
        on_clock: Callable[[ClockReading], None] | None = None,
    ) -> None:
        self._address = address
        self._server_key = server_key
        self._keys = keys
        self._progress = progress
        self._on_stop = on_stop
        self._on_clock = on_clock
        self._probe = ClockProbe()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._outgoing: queue.SimpleQueue[FromWorker] = queue.SimpleQueue()
        self.inbox: queue.SimpleQueue[FromCoordinator] = queue.SimpleQueue()
        """Messages of the coordinator that have not been handled yet."""
        self._published = _Published()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="control")

    def __enter__(self) -> ControlClient:
        self._wakeup = _Wakeup(self._context)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._wakeup.ring()
        self._thread.join()
        self._wakeup.close()
        self._context.term()

    def send(self, message: FromWorker) -> None:
        """Queue a message for the channel's thread; all are sent before the channel closes."""
        self._outgoing.put(message)
        self._wakeup.ring()

    def put(self, key: str, value: bytes) -> None:
        """Publish a value for the other processes of the run."""
        self.send(PutValue(key, value))

    def get(self, key: str, deadline: Deadline) -> bytes:
        """Wait for a value that another process of the run publishes."""
        if key not in self._published:
            self.send(WantValue(key))
        return self._published.get(key, deadline)

    def _serve(self) -> None:
        decoder = msgspec.msgpack.Decoder(FromController)
        with self._context.socket(zmq.DEALER) as socket, self._context.socket(zmq.PAIR) as wakeup:
            # Long enough for the final report to be sent, short enough not to delay the exit.
            socket.linger = 1000
            secure_client(socket, self._keys, self._server_key)
            socket.connect(self._address)
            self._wakeup.connect(wakeup)
            poller = zmq.Poller()
            poller.register(socket, zmq.POLLIN)
            poller.register(wakeup, zmq.POLLIN)
            beat = Deadline.after(0.0, "a heartbeat")
            while True:
                ready = dict(poller.poll(beat.remaining_ms))
                if wakeup in ready:
                    wakeup.recv()
                if socket in ready:
                    self._take(decoder.decode(socket.recv()))
                # Read before the queue is emptied: messages queued before closing are still sent.
                closing = self._closing.is_set()
                while not self._outgoing.empty():
                    socket.send(msgspec.msgpack.encode(self._outgoing.get()))
                if closing:
                    return
                now_s = time.monotonic()
                if self._on_clock is not None and self._probe.ask(now_s):
                    socket.send(msgspec.msgpack.encode(Ping(now_s)))
                if beat.expired:
                    socket.send(msgspec.msgpack.encode(Heartbeat(self._progress())))
                    beat = Deadline.after(HEARTBEAT_INTERVAL_S, "a heartbeat")

    def _take(self, message: FromController) -> None:
        if isinstance(message, StoredValue):
            self._published.put(message.key, message.value)
        elif isinstance(message, Pong):
            reading = self._probe.take(message.asked_s, message.clock_s, time.monotonic())
            if reading is not None and self._on_clock is not None:
                self._on_clock(reading)
        elif isinstance(message, Stop):
            self._on_stop(message.reason)
        else:
            self.inbox.put(message)
