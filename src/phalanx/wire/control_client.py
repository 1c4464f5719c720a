"""Control channel, a process's end, with a thread that also sends its heartbeats.

They continue while the process computes: silence then means that the process is frozen or gone,
never that it is busy. Messages arrive once and in order (`delivery`); `control` is the other end.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from types import TracebackType

import msgspec
import zmq

from phalanx.wire.clock import ClockProbe, ClockReading
from phalanx.wire.deadline import Deadline
from phalanx.wire.delivery import MAX_SOCKET_BYTES, Delivery
from phalanx.wire.keys import KeyPair, secure_client
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
    StoredValues,
    WantValues,
)
from phalanx.wire.rendezvous import PublishedValues, group_of

HEARTBEAT_INTERVAL_S = 0.5
# How long a closing channel waits for the controller to take another of its last messages.
_LAST_MESSAGE_S = 30.0
# A connection that the network has forgotten is replaced before its process counts as frozen.
_PROBE_MS = 1000
_DEAD_MS = 4000
# Frames taken in a row before heartbeats get a turn.
_MOST_FRAMES = 1000


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
        self._delivery = Delivery()
        # The caller's threads queue messages, the channel's thread sends them.
        self._lock = threading.Lock()
        self.inbox: queue.SimpleQueue[FromCoordinator] = queue.SimpleQueue()
        """Messages of the coordinator that have not been handled yet."""
        self._published = PublishedValues()
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
        """Close once the controller has all messages, or has taken none for half a minute."""
        self._closing.set()
        self._wakeup.ring()
        self._thread.join()
        self._wakeup.close()
        self._context.term()

    @property
    def num_undelivered(self) -> int:
        """Frames that the controller is not known to have; after closing, those that it missed."""
        return self._delivery.num_unacknowledged

    def send(self, message: FromWorker) -> None:
        """Queue a message; it arrives once and in order, also after a reconnect.

        Raises:
            MessageTooLarge: It is above the limit of the channel; nothing was sent.
            PeerError: The controller has taken nothing for so long that the queue is full.
        """
        with self._lock:
            self._delivery.put(msgspec.msgpack.encode(message))
        self._wakeup.ring()

    def put(self, key: str, value: bytes) -> None:
        """Publish a value for the other processes of the run."""
        self.send(PutValue(key, value))

    def get(self, key: str, deadline: Deadline) -> bytes:
        """Wait for a value that another process of the run publishes."""
        if self._published.wants(key):
            self.send(WantValues(group_of(key)))
        return self._published.get(key, deadline)

    def _serve(self) -> None:
        with self._context.socket(zmq.DEALER) as socket, self._context.socket(zmq.PAIR) as wakeup:
            # Long enough for the last acknowledgement, short enough not to delay the exit.
            socket.linger = 1000
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_SOCKET_BYTES)
            socket.setsockopt(zmq.HEARTBEAT_IVL, _PROBE_MS)
            socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _DEAD_MS)
            secure_client(socket, self._keys, self._server_key)
            socket.connect(self._address)
            self._wakeup.connect(wakeup)
            poller = zmq.Poller()
            poller.register(socket, zmq.POLLIN)
            poller.register(wakeup, zmq.POLLIN)
            beat = last = Deadline.after(0.0, "a heartbeat")
            num_left = -1
            while True:
                ready = dict(poller.poll(beat.remaining_ms))
                if wakeup in ready:
                    wakeup.recv()
                if socket in ready:
                    self._read(socket)
                # Read before the queue is emptied: messages queued before closing are still sent.
                closing = self._closing.is_set()
                self._write(socket)
                if closing and num_left != self.num_undelivered:
                    num_left = self.num_undelivered
                    last = Deadline.after(_LAST_MESSAGE_S, "the controller to take a message")
                if closing and (num_left == 0 or last.expired):
                    return
                if beat.expired:
                    self._send_note(socket, Heartbeat(self._progress()))
                    beat = Deadline.after(HEARTBEAT_INTERVAL_S, "a heartbeat")

    def _read(self, socket: zmq.Socket[bytes]) -> None:
        decoder = msgspec.msgpack.Decoder(FromController)
        for _ in range(_MOST_FRAMES):
            try:
                frame = socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            with self._lock:
                body = self._delivery.take(frame)
            if body is not None:
                self._take(decoder.decode(body))

    def _write(self, socket: zmq.Socket[bytes]) -> None:
        with self._lock:
            frames = list(self._delivery.frames())
            if self._delivery.must_answer:
                frames.append(self._delivery.note())
        for frame in frames:
            # A full queue means no connection: the controller will ask for what it misses.
            with contextlib.suppress(zmq.Again):
                socket.send(frame, zmq.NOBLOCK)
        now_s = time.monotonic()
        if self._on_clock is not None and self._probe.ask(now_s):
            self._send_note(socket, Ping(now_s))

    def _send_note(self, socket: zmq.Socket[bytes], message: Heartbeat | Ping) -> None:
        with self._lock:
            frame = self._delivery.note(msgspec.msgpack.encode(message))
        with contextlib.suppress(zmq.Again):
            socket.send(frame, zmq.NOBLOCK)

    def _take(self, message: FromController) -> None:
        if isinstance(message, StoredValues):
            self._published.put(message)
        elif isinstance(message, Pong):
            reading = self._probe.take(message.asked_s, message.clock_s, time.monotonic())
            if reading is not None and self._on_clock is not None:
                self._on_clock(reading)
        elif isinstance(message, Stop):
            self._on_stop(message.reason)
        else:
            self.inbox.put(message)
