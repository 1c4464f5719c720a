"""Carry a line on which the other side calls: an agent in a place that an engine has lent.

Every seat has a port of this machine and a key for one call. The other side is `dial`, which
an engine starts there. Authenticated and encrypted by CURVE, with keys that only this process and
the engine's message to the seat hold. One thread per port owns its socket.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import zmq
from typing_extensions import override
from zmq.utils.monitor import recv_monitor_message

from phalanx.agent.dial import END, GONE, HELLO, Pump
from phalanx.agent.line import LOADER, AgentLine, Fault, FaultKind, machine_fault
from phalanx.errors import printable
from phalanx.spec.machine import MachineSpec
from phalanx.wire.auth import AllowList
from phalanx.wire.keys import KeyPair, secure_server

ANY_ADDRESS = "0.0.0.0"
_HIGH_WATER = 64
_MAX_FRAME_BYTES = 1 << 20
_MAX_FACTS_BYTES = 1 << 14
_TICK_MS = 200
_VERDICT_S = 2.0


def dial_source() -> str:
    """Return the source of `dial`, for a process that has no Phalanx."""
    return resources.files("phalanx.agent").joinpath("dial.py").read_text("utf-8")


class CallDesk:
    """Ports at which the seats of one pool call; use as a context manager.

    Args:
        listen: Address to listen on.
    """

    def __init__(self, listen: str = ANY_ADDRESS) -> None:
        self._listen = listen
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._allow_list = AllowList(self._context)
        self._ports: list[CallPort] = []

    def __enter__(self) -> CallDesk:
        self._allow_list.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for port in self._ports:
            port.close()
        self._allow_list.__exit__(None, None, None)
        self._context.term()

    def open_port(self, title: str, addresses: Sequence[str], python: str = "") -> CallPort:
        """Open the port of one seat.

        Args:
            title: Name of the seat.
            addresses: Addresses of this machine that the seat tries, the most likely first.
            python: Interpreter of the agent there; empty: that of whoever calls.
        """
        own, server = KeyPair.make(), KeyPair.make()
        wire: zmq.Socket[bytes] = self._context.socket(zmq.PAIR)
        wire.setsockopt(zmq.MAXMSGSIZE, _MAX_FRAME_BYTES)
        wire.sndhwm = wire.rcvhwm = _HIGH_WATER
        secure_server(wire, server)
        number = wire.bind_to_random_port(f"tcp://{self._listen}")
        self._allow_list.add(own.public)
        ticket = {
            "addresses": list(addresses),
            "port": number,
            "server": server.public,
            "public": own.public,
            "secret": own.secret,
            "loader": LOADER,
            "python": python,
        }
        port = CallPort(title, wire, ticket)
        self._ports.append(port)
        return port


class CallPort:
    """Port of one seat; a thread carries bytes between its socket and the line's end.

    Attributes:
        title: Name of the seat.
        ticket: What `dial` needs to call; secret.
        facts: What the caller says of its place; empty before it has called.
        reason: Why the line is over; empty: not known, or it is not.
    """

    def __init__(self, title: str, wire: zmq.Socket[bytes], ticket: dict[str, Any]) -> None:
        self.title = title
        self.ticket = ticket
        self.facts: dict[str, str] = {}
        self.reason = ""
        self.ours, self._theirs = socket.socketpair()
        self._wire = wire
        self._monitor = wire.get_monitor_socket(
            zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        self._connections: set[int] = set()
        self._was_let_in = False
        self._called = threading.Event()
        self._over = threading.Event()
        self._has_reason = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"port-{title}", daemon=True)
        self._thread.start()

    def lose(self, reason: str) -> None:
        """Note that the engine no longer runs the seat: the line is over."""
        self._note(reason)
        self.break_off()

    def break_off(self) -> None:
        """End the line at once; the caller notices and ends its agent."""
        self._closing = True
        with contextlib.suppress(OSError):
            # Wakes the thread, and everybody who reads or writes.
            self.ours.shutdown(socket.SHUT_RDWR)

    def await_call(self, limit_s: float) -> bool:
        """Wait for the call; returns whether it came."""
        return self._called.wait(limit_s) and not self._over.is_set()

    def await_end(self, limit_s: float) -> bool:
        """Wait for the end of the line; returns whether it came."""
        return self._over.wait(limit_s)

    def await_reason(self, limit_s: float) -> None:
        """Wait until caller or engine says why the line is over."""
        self._has_reason.wait(limit_s)

    def close(self) -> None:
        """End the line and close the port."""
        self.break_off()
        self._thread.join()
        self.ours.close()

    def _run(self) -> None:
        end = self._theirs
        pump = Pump(self._wire, end.fileno(), end.fileno(), lambda: _shut(end, socket.SHUT_WR))
        try:
            ended_input = False
            while pump.sink_is_open:
                self._take(pump, pump.turn(_TICK_MS, self._monitor))
                if self._closing:
                    break  # at once: an end that is sent would look like one that was asked for
                if not (pump.source_is_open or ended_input) and pump.is_sent:
                    ended_input = self._send_end()
                # What it had sent before is still read.
                if self._is_caller_gone() and not self._wire.poll(0) and pump.is_written:
                    break
        finally:
            self._over.set()
            self._called.set()
            _shut(end, socket.SHUT_RDWR)
            end.close()
            self._wire.disable_monitor()
            self._monitor.close(linger=0)
            self._wire.close(linger=0)

    def _is_caller_gone(self) -> bool:
        """Whether a caller was let in, and no connection is left; one that is killed says nothing.

        Connections that prove nothing come and go as well.
        """
        while self._monitor.poll(0):
            news = recv_monitor_message(self._monitor)
            if news["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._was_let_in = True
            elif news["event"] == zmq.EVENT_ACCEPTED:
                self._connections.add(news["value"])
            else:
                self._connections.discard(news["value"])
        return self._was_let_in and not self._connections

    def _take(self, pump: Pump, frame: tuple[int, bytes] | None) -> None:
        if frame is None:
            return
        kind, content = frame
        if kind == HELLO and not self._called.is_set():
            self.facts = _to_facts(content)
            self._called.set()
        elif kind == GONE:
            self._note(printable(content.decode(errors="replace")))
            pump.end_sink()

    def _note(self, reason: str) -> None:
        self.reason = self.reason or reason
        self._has_reason.set()

    def _send_end(self) -> bool:
        """Tell the other side that the agent's input has ended; returns whether it went out."""
        try:
            self._wire.send(bytes([END]), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True


class DialledLine(AgentLine):
    """Line to whoever calls at a seat's port.

    Args:
        route: The way to the seat.
    """

    def __init__(self, route: SeatRoute) -> None:
        self._route = route
        self._port = route.port

    @override
    def open(self) -> None:
        if not self._port.await_call(self._route.call_s):
            raise machine_fault(self.explain(has_answered=False))

    @override
    def write(self, data: bytes) -> None:
        self._port.ours.sendall(data)

    @override
    def read(self) -> bytes:
        try:
            return self._port.ours.recv(1 << 16)
        except OSError:
            return b""

    @override
    def end_input(self) -> None:
        _shut(self._port.ours, socket.SHUT_WR)

    @override
    def wait(self, limit_s: float) -> bool:
        return self._port.await_end(limit_s)

    @override
    def cut(self) -> None:
        self._port.break_off()

    @override
    def close(self) -> None:
        self._port.close()

    @override
    def explain(self, *, has_answered: bool) -> Fault:
        port = self._port
        # The engine may say what has become of the seat a moment after the line has ended.
        if not port.reason:
            port.await_reason(self._route.verdict_s)
        if not has_answered:
            usual = f"it did not call within {self._route.call_s:g} s"
            if port.facts:
                usual = "it has called, but its agent did not answer"
            kind: FaultKind = "broken" if port.reason else "slow"
            return Fault(machine=port.title, kind=kind, reason=port.reason or usual)
        place = ", ".join(f"{key} {value}" for key, value in port.facts.items())
        reason = f"the connection to it broke off ({place})"
        reason += f": {port.reason}" if port.reason else ""
        return Fault(machine=port.title, kind="broken", reason=reason)


@dataclass(frozen=True)
class SeatRoute:
    """Way to a seat: it calls.

    Attributes:
        machine: The seat as a machine.
        port: Where it calls.
        call_s: How long its call is awaited.
        verdict_s: How long the engine's word on a line that is over is awaited.
    """

    machine: MachineSpec
    port: CallPort
    call_s: float
    verdict_s: float = _VERDICT_S

    def line(self) -> DialledLine:
        """Make the line; it is open when the seat has called."""
        return DialledLine(self)

    def again(self, connect_s: int) -> None:
        """Return nothing: what does not call cannot be called."""


def _shut(end: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(how)


def _to_facts(content: bytes) -> dict[str, str]:
    """Return what a caller says of itself; it may say nonsense."""
    try:
        facts = json.loads(content[:_MAX_FACTS_BYTES])
    except ValueError:
        return {"caller": "unknown"}
    if not isinstance(facts, dict):
        return {"caller": "unknown"}
    return {printable(str(key)): printable(str(value)) for key, value in facts.items()}
