"""Call the controller from a place that an engine has lent, and run the agent there.

An engine such as Ray starts a Python process on its machines but makes no connection to it: so that
process calls home. This module is sent as source, needs pyzmq and the standard library alone, and
starts the agent as a child whose input and output it carries. `dial` returns when either side ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import zmq
from zmq.utils.monitor import recv_monitor_message

if TYPE_CHECKING:
    from collections.abc import Callable

HELLO, DATA, END, GONE = b"HDEG"
"""First byte of a frame: facts of a caller, bytes, end of input, end of the agent with a reason."""
ANSWER_S = 15.0
"""After so long without a byte of the controller a caller gives up."""
_CONNECT_S = 4.0
_HANDSHAKE_MS = 5000
_TICK_MS = 200
_NEVER_MS = 3_600_000
_READ_BYTES = 1 << 16
_HIGH_WATER = 64
_AGENT_END_S = 20.0
_LAST_WORDS_MS = 2000


class LineBroken(Exception):
    """The controller cannot be reached, or no longer."""


class Pump:
    """Carry bytes between a ZeroMQ socket and two descriptors; neither way holds up the other.

    Args:
        wire: Connected to the other side; used by the thread that calls `turn` alone.
        source: Descriptor whose bytes are sent.
        sink: Descriptor that received bytes are written to.
        close_sink: Called once, when nothing more is to be written.
    """

    def __init__(
        self,
        wire: zmq.Socket[bytes],
        source: int,
        sink: int,
        close_sink: Callable[[], None],
    ) -> None:
        self._wire = wire
        self._source = source
        self._sink = sink
        self._close_sink = close_sink
        self._to_wire: bytes | None = None
        self._to_sink = b""
        self._sink_ends = False
        self.has_received = False
        self.source_is_open = True
        self.sink_is_open = True
        os.set_blocking(source, False)
        os.set_blocking(sink, False)

    def turn(self, limit_ms: int, *others: zmq.Socket[bytes]) -> tuple[int, bytes] | None:
        """Wait until something can be carried, and carry it.

        Args:
            limit_ms: Return after so long.
            *others: Sockets that end the wait as well.

        Returns:
            A frame that is not of the stream, as kind and content; None: there was none.
        """
        poller = zmq.Poller()
        for other in others:
            poller.register(other, zmq.POLLIN)
        for end, flags in self._wanted().items():
            poller.register(end, flags)
        ready = dict(poller.poll(limit_ms))
        if ready.get(self._source, 0) & ~zmq.POLLOUT:
            self._take_source()
        self._send()
        frame = None
        if ready.get(self._wire, 0) & zmq.POLLIN:
            frame = self._take_wire()
        self._write()
        return frame

    def _wanted(self) -> dict[zmq.Socket[bytes] | int, int]:
        """Return what to wait for; source and sink may be the same descriptor."""
        wanted: dict[zmq.Socket[bytes] | int, int] = {}
        if not self._to_sink:
            wanted[self._wire] = zmq.POLLIN
        elif self.sink_is_open:
            wanted[self._sink] = zmq.POLLOUT
        if self._to_wire is not None:
            wanted[self._wire] = wanted.get(self._wire, 0) | zmq.POLLOUT
        elif self.source_is_open:
            wanted[self._source] = wanted.get(self._source, 0) | zmq.POLLIN
        return wanted

    def end_sink(self) -> None:
        """Close the sink after what was received for it."""
        self._sink_ends = True
        self._write()

    def _take_source(self) -> None:
        try:
            part = os.read(self._source, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if part:
            self._to_wire = bytes([DATA]) + part
        else:
            self.source_is_open = False

    def _send(self) -> None:
        if self._to_wire is not None:
            with contextlib.suppress(zmq.Again):
                self._wire.send(self._to_wire, zmq.NOBLOCK)
                self._to_wire = None

    @property
    def is_sent(self) -> bool:
        """Whether nothing of the source waits to be sent."""
        return self._to_wire is None

    @property
    def is_written(self) -> bool:
        """Whether nothing that was received waits for the sink."""
        return not self._to_sink

    def _take_wire(self) -> tuple[int, bytes] | None:
        try:
            frame = self._wire.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        if not frame:
            return None
        if frame[0] != DATA:
            return frame[0], frame[1:]
        self.has_received = True
        self._to_sink = frame[1:]
        return None

    def _write(self) -> None:
        if not self.sink_is_open:
            self._to_sink = b""
            return
        try:
            while self._to_sink:
                self._to_sink = self._to_sink[os.write(self._sink, self._to_sink) :]
        except BlockingIOError:
            return
        except OSError:
            # Nobody reads any more: the rest is for nobody.
            self._to_sink, self._sink_ends = b"", True
        if self._sink_ends:
            self.sink_is_open = False
            self._close_sink()


def dial(ticket: dict[str, Any], facts: dict[str, Any]) -> str:
    """Serve a seat: call the controller and run one agent for it.

    Args:
        ticket: Addresses, port and keys by which the controller is reached; secret.
        facts: What the engine says of this place.

    Returns:
        Why it has ended.

    Raises:
        LineBroken: The controller cannot be reached, or is gone.
    """
    address, own = _reachable(ticket)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    home: zmq.Socket[bytes] = context.socket(zmq.PAIR)
    home.curve_publickey = ticket["public"].encode()
    home.curve_secretkey = ticket["secret"].encode()
    home.curve_serverkey = ticket["server"].encode()
    home.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    # What was on its way when a connection broke is lost: a stream cannot go on over another. Not
    # never (-1), with which a context whose handshake failed does not end.
    home.setsockopt(zmq.RECONNECT_IVL, _NEVER_MS)
    home.sndhwm = home.rcvhwm = _HIGH_WATER
    monitor = home.get_monitor_socket(
        zmq.EVENT_DISCONNECTED
        | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    )
    try:
        home.connect(f"tcp://{address}:{ticket['port']}")
        home.send(bytes([HELLO]) + json.dumps({**facts, "address": own}).encode())
        # In the form of sshd, which tells the agent of an ssh login the same.
        call = {"PHALANX_CALL": f"{address} {ticket['port']} {own} 0"}
        environment = {**os.environ, **call}  # noqa: TID251 (what a child would inherit)
        reason = _run_agent(home, monitor, ticket, environment)
        # The controller closes its end when it has read the last words.
        monitor.poll(_LAST_WORDS_MS)
        return reason
    finally:
        home.disable_monitor()
        monitor.close(linger=0)
        # Whatever is left is for nobody; a context with messages to be sent might never end.
        home.close(linger=0)
        context.term()


def _reachable(ticket: dict[str, Any]) -> tuple[str, str]:
    """Return the controller's address that answers, and the own address on the way there."""
    reasons = []
    for address in ticket["addresses"]:
        try:
            with socket.create_connection((address, ticket["port"]), _CONNECT_S) as probe:
                return address, probe.getsockname()[0]
        except OSError as error:
            reasons.append(f"{address} ({error.strerror or error})")
    raise LineBroken(
        f"it cannot connect to the controller at {', '.join(reasons)}; let that machine's firewall "
        "accept connections from it, on all ports above 1023"
    )


def _run_agent(
    home: zmq.Socket[bytes],
    monitor: zmq.Socket[bytes],
    ticket: dict[str, Any],
    environment: dict[str, str],
) -> str:
    """Run one agent as a child between its pipes and the controller."""
    python = ticket["python"] or sys.executable
    with tempfile.TemporaryFile() as errors:
        try:
            child = subprocess.Popen(
                [python, "-u", "-c", ticket["loader"]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            advice = "set 'defaults: {python: ...}' of the pool to an interpreter that is there"
            return _say_gone(home, f"{python}: {error.strerror}; {advice}")
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            _carry(home, monitor, child)
        finally:
            # Its closed input ends an agent and all that it has started.
            with contextlib.suppress(OSError):
                child.stdin.close()
            _await_end(child)
            child.stdout.close()
        errors.seek(0)
        said = errors.read()[-2000:].decode(errors="replace").strip().splitlines()
        reason = said[-1] if said else f"its agent ended with code {child.returncode}"
    return _say_gone(home, reason)


def _say_gone(home: zmq.Socket[bytes], reason: str) -> str:
    # The controller may have gone just now, and then takes nothing.
    home.sndtimeo = _LAST_WORDS_MS
    with contextlib.suppress(zmq.Again):
        home.send(bytes([GONE]) + reason.encode())
    return reason


def _carry(
    home: zmq.Socket[bytes], monitor: zmq.Socket[bytes], child: subprocess.Popen[bytes]
) -> None:
    """Carry bytes both ways until the agent has ended."""
    assert child.stdin is not None
    assert child.stdout is not None
    pump = Pump(home, child.stdout.fileno(), child.stdin.fileno(), child.stdin.close)
    begun, heard = time.monotonic(), False
    while pump.source_is_open or not pump.is_sent:
        frame = pump.turn(_TICK_MS, monitor)
        if frame is not None and frame[0] == END:
            pump.end_sink()
        heard = heard or pump.has_received
        if not heard and time.monotonic() - begun > ANSWER_S:
            raise LineBroken("the controller does not answer; it has ended")
        while monitor.poll(0):
            event = recv_monitor_message(monitor)["event"]
            if event == zmq.EVENT_DISCONNECTED:
                raise LineBroken("the connection to the controller broke off")
            raise LineBroken("the controller does not know this seat's key: its run is over")


def _await_end(child: subprocess.Popen[bytes]) -> None:
    try:
        child.wait(_AGENT_END_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
