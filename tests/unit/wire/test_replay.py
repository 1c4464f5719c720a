"""A stranger who has recorded a conversation plays it again, while its owner is there."""

from __future__ import annotations

import socket

from phalanx.wire.control import ControlServer, Violation
from phalanx.wire.control_client import ControlClient
from phalanx.wire.keys import KeyPair
from phalanx.wire.messages import FromWorker, Heartbeat, Hello, Progress
from phalanx.wire.parameter_server import RequestWork
from support.relay import Relay
from support.waiting import wait_until

LIMIT_S = 30.0


def words(server: ControlServer, seen: list[FromWorker | Violation]) -> int:
    """Take what has come; returns how many messages besides heartbeats that were so far."""
    while (received := server.receive(0.01)) is not None:
        if not isinstance(received[1], Heartbeat):
            seen.append(received[1])
    return len(seen)


def connected(server: ControlServer, keys: KeyPair, address: str) -> ControlClient:
    return ControlClient(
        address,
        server_key=server.public_key,
        keys=keys,
        progress=Progress,
        on_stop=lambda reason: None,
    )


def test_a_recorded_conversation_played_again_does_nothing() -> None:
    seen: list[FromWorker | Violation] = []
    with ControlServer() as server:
        port = int(server.address.rpartition(":")[2])
        keys = server.admit("worker-0")
        with Relay(port) as relay, connected(server, keys, relay.address) as worker:
            for message in (Hello(pid=1, host="here"), RequestWork(3)):
                worker.send(message)
            wait_until(lambda: words(server, seen) == 2, "both messages", limit_s=LIMIT_S)
            recorded = bytes(relay.recorded[0])
            assert len(recorded) > 500, "greeting, handshake and messages"
            server.take_heard()
            # While its owner is there, and again and again.
            for _ in range(3):
                with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as stranger:
                    stranger.sendall(recorded)
                    # The server's first answer is another than the recorded one: it hangs up.
                    wait_until(lambda one=stranger: not one.recv(4096), "the end", limit_s=LIMIT_S)
            assert words(server, seen) == 2
            worker.send(RequestWork(4))
            wait_until(lambda: words(server, seen) == 3, "its owner", limit_s=LIMIT_S)
            wait_until(lambda: _is_acknowledged(server, worker), "the answer", limit_s=LIMIT_S)
        assert not any(isinstance(one, Violation) for one in seen), "its owner is not to blame"


def _is_acknowledged(server: ControlServer, worker: ControlClient) -> bool:
    server.receive(0.01)
    return worker.num_undelivered == 0
