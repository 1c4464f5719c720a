"""Calls at the port of a seat: who is let in, who is not, and what ends when either side does."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing

import psutil
import pytest
import zmq

from phalanx.agent.dial import HELLO, LineBroken, dial
from phalanx.agent.dialled import CallDesk, CallPort, SeatRoute, dial_source
from phalanx.agent.line import MachineFault
from phalanx.agent.session import Session
from phalanx.spec.machine import MachineSpec
from phalanx.spec.worker import LOOPBACK
from phalanx.wire.keys import KeyPair
from support.there import children_of
from support.waiting import wait_until


@pytest.fixture
def desk() -> Iterator[CallDesk]:
    with CallDesk(LOOPBACK) as desk:
        yield desk


@pytest.fixture
def port(desk: CallDesk) -> CallPort:
    return desk.open_port("seat-0", [LOOPBACK])


class Caller(threading.Thread):
    """What an engine runs in the seat."""

    def __init__(self, port: CallPort, **changes: object) -> None:
        super().__init__(name="caller")
        self.ticket = {**port.ticket, **changes}
        self.outcome: str | Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            self.outcome = dial(self.ticket, {"node": "192.0.2.7"})
        except LineBroken as error:
            self.outcome = error


def session_to(port: CallPort, call_s: float = 30.0) -> Session:
    return Session(SeatRoute(MachineSpec(host="seat-0"), port, call_s=call_s))


def test_the_caller_is_told_where_it_came_from_and_returns_at_the_end(port: CallPort) -> None:
    caller = Caller(port)
    with closing(session_to(port)) as session:
        assert session.open().came_from == LOOPBACK
        assert port.facts == {"node": "192.0.2.7", "address": LOOPBACK}
    caller.join()
    assert caller.outcome == "its agent ended with code 0"


def test_a_caller_without_the_key_is_not_let_in(port: CallPort) -> None:
    stranger = KeyPair.make()
    caller = Caller(port, public=stranger.public, secret=stranger.secret)
    caller.join()
    assert isinstance(caller.outcome, LineBroken)
    with (
        closing(session_to(port, call_s=0.2)) as session,
        pytest.raises(MachineFault, match=r"^seat-0: it did not call within 0\.2 s$"),
    ):
        session.open()
    assert port.facts == {}


def test_the_key_of_one_seat_opens_no_other(
    desk: CallDesk, port: CallPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phalanx.agent.dial.ANSWER_S", 1.0)
    other = desk.open_port("seat-1", [LOOPBACK])
    caller = Caller(port, server=other.ticket["server"])
    caller.join()
    assert isinstance(caller.outcome, LineBroken)
    assert port.facts == {}


def test_who_connects_to_the_port_and_goes_disturbs_nobody(port: CallPort) -> None:
    caller = Caller(port)
    with closing(session_to(port)) as session:
        session.open()
        for _ in range(3):
            with socket.create_connection((LOOPBACK, port.ticket["port"])) as stranger:
                stranger.sendall(b"GET / HTTP/1.0\r\n\r\n")
        second = Caller(port)
        assert session.ask({"do": "clock"}, 10.0) > 0
        assert session.fault is None
    caller.join()
    second.join()
    assert isinstance(second.outcome, LineBroken), "a seat that was started twice has one line"


def test_an_agent_ends_when_the_controller_is_gone(desk: CallDesk, port: CallPort) -> None:
    caller = Caller(port)
    session = session_to(port)
    with closing(session):
        info = session.open()
        assert info.pid in children_of(psutil.Process().pid)
        port.break_off()
        wait_until(lambda: not psutil.pid_exists(info.pid), "the agent to end")
        wait_until(lambda: session.fault is not None, "the session to notice")
    caller.join()
    assert isinstance(caller.outcome, LineBroken)


def test_a_caller_that_is_killed_ends_the_line_at_once(port: CallPort) -> None:
    """It has no last words, and its engine may take long to notice."""
    code = "import json, sys; exec(sys.argv[1]); dial(json.loads(sys.stdin.read()), {})"
    caller = subprocess.Popen([sys.executable, "-c", code, dial_source()], stdin=subprocess.PIPE)
    assert caller.stdin is not None
    with caller.stdin as pipe:
        pipe.write(json.dumps(port.ticket).encode())
    with closing(session_to(port)) as session:
        session.open()
        caller.kill()
        caller.wait(10.0)
        wait_until(lambda: session.fault is not None, "the line to end", limit_s=10.0)
        assert session.fault is not None
        assert session.fault.reason.startswith("the connection to it broke off")


def test_what_the_engine_says_is_the_reason(port: CallPort) -> None:
    caller = Caller(port)
    with closing(session_to(port)) as session:
        session.open()
        port.lose("Ray says: the actor died")
        wait_until(lambda: session.fault is not None, "the session to notice")
        assert session.fault is not None
        assert session.fault.reason == (
            f"the connection to it broke off (node 192.0.2.7, address {LOOPBACK}): Ray says: the "
            "actor died"
        )
    caller.join()


def test_a_seat_that_the_engine_cannot_start_is_not_waited_for(port: CallPort) -> None:
    port.lose("Ray says: no room")
    with (
        closing(session_to(port)) as session,
        pytest.raises(MachineFault, match=r"^seat-0: Ray says: no room$"),
    ):
        session.open()


def test_a_controller_that_cannot_be_reached_is_named(port: CallPort) -> None:
    with socket.socket() as unused:
        unused.bind((LOOPBACK, 0))
        with pytest.raises(LineBroken, match=r"cannot connect to the controller at 127\.0\.0\.1"):
            dial({**port.ticket, "port": unused.getsockname()[1]}, {})


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b'{"a": "\\u001b[2J"}'])
def test_a_caller_that_speaks_nonsense_harms_nobody(port: CallPort, content: bytes) -> None:
    with zmq.Context() as context, context.socket(zmq.PAIR) as wire:
        wire.linger = 0
        wire.curve_publickey = port.ticket["public"].encode()
        wire.curve_secretkey = port.ticket["secret"].encode()
        wire.curve_serverkey = port.ticket["server"].encode()
        wire.connect(f"tcp://{LOOPBACK}:{port.ticket['port']}")
        for frame in (b"", b"?" + content, bytes([HELLO]) + content):
            wire.send(frame)
        assert port.await_call(30.0)
        assert "\x1b" not in json.dumps(port.facts, ensure_ascii=False)
