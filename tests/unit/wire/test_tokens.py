"""Who gets a message through to a plain socket, and who does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import zmq

from phalanx.wire.tokens import TokenGate, guard_server, peer_name, present_token

Socket = zmq.Socket[bytes]


class Guarded:
    """A guarded socket and its gate."""

    def __init__(self, context: zmq.Context[Socket], gate: TokenGate) -> None:
        self.gate = gate
        self.socket: Socket = context.socket(zmq.ROUTER)
        self.socket.linger = 0
        guard_server(self.socket)
        port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.address = f"tcp://127.0.0.1:{port}"


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    context: zmq.Context[Socket] = zmq.Context()
    with TokenGate(context) as gate:
        guarded = Guarded(context, gate)
        yield guarded
        guarded.socket.close()
    context.term()


@pytest.fixture
def caller() -> Iterator[ExitStack]:
    """Keeps a caller's sockets open until the end of the test."""
    with ExitStack() as stack:
        yield stack


def handshake(caller: ExitStack, address: str, token: str | None) -> bool:
    """Connect, say hello, and tell whether the handshake succeeded."""
    context: zmq.Context[Socket] = zmq.Context()
    caller.callback(context.term)
    socket = caller.enter_context(context.socket(zmq.DEALER))
    socket.linger = 0
    socket.setsockopt(zmq.RECONNECT_IVL, -1)
    if token is not None:
        present_token(socket, token)
    monitor = socket.get_monitor_socket(
        zmq.EVENT_HANDSHAKE_SUCCEEDED
        | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        | zmq.EVENT_DISCONNECTED
    )
    socket.connect(address)
    socket.send(b"hello")
    assert monitor.poll(10_000), "nothing happened"
    event = int.from_bytes(monitor.recv_multipart()[0][:2], "little")
    socket.disable_monitor()
    monitor.close()
    return event == zmq.EVENT_HANDSHAKE_SUCCEEDED


def test_a_token_opens_one_connection_under_its_name(guarded: Guarded, caller: ExitStack) -> None:
    token = guarded.gate.issue("worker-3")
    assert handshake(caller, guarded.address, token)
    assert guarded.socket.poll(10_000)
    frames = guarded.socket.recv_multipart(copy=False)
    assert peer_name(frames[-1]) == "worker-3"
    assert not handshake(caller, guarded.address, token), "a token must die with its use"


@pytest.mark.parametrize("token", [None, "guess", "0" * 64])
def test_without_a_valid_token_nothing_gets_through(
    guarded: Guarded, caller: ExitStack, token: str | None
) -> None:
    guarded.gate.issue("worker-3")
    assert not handshake(caller, guarded.address, token)
    assert handshake(caller, guarded.address, guarded.gate.issue("worker-4"))
    frames = guarded.socket.recv_multipart(copy=False)
    assert peer_name(frames[-1]) == "worker-4"
    assert not guarded.socket.poll(0)
