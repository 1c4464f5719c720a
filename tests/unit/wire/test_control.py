"""The control channel over real loopback connections, driven as by the controller."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest
import zmq

from phalanx.errors import TimeoutExpired
from phalanx.wire.clock import ClockReading
from phalanx.wire.control import ControlClient, ControlServer
from phalanx.wire.deadline import Deadline
from phalanx.wire.keys import KeyPair, secure_client
from phalanx.wire.messages import Failed, FromWorker, Heartbeat, Hello, Progress, PutValue, Stop
from support.waiting import wait_until

LIMIT_S = 20.0


@pytest.fixture
def server() -> Iterator[ControlServer]:
    with ControlServer() as server:
        yield server


@contextmanager
def client(
    server: ControlServer,
    keys: KeyPair,
    *,
    progress: Callable[[], Progress] = Progress,
    on_stop: Callable[[str], None] = lambda reason: None,
    on_clock: Callable[[ClockReading], None] | None = None,
) -> Iterator[ControlClient]:
    with ControlClient(
        server.address,
        server_key=server.public_key,
        keys=keys,
        progress=progress,
        on_stop=on_stop,
        on_clock=on_clock,
    ) as client:
        yield client


@contextmanager
def raw_socket(address: str, keys: KeyPair | None, server_key: str) -> Iterator[zmq.Socket[bytes]]:
    """A peer that speaks the protocol below the messages, or not even that."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        if keys is not None:
            secure_client(socket, keys, server_key)
        socket.connect(address)
        yield socket


def expect(server: ControlServer, kind: type[FromWorker]) -> tuple[str, FromWorker]:
    """The next message of a kind; others before it are passed over."""
    deadline = Deadline.after(LIMIT_S, f"a {kind.__name__}")
    while True:
        received = server.receive(deadline.remaining_s)
        if received is None:
            raise deadline.error()
        if isinstance(received[1], kind):
            return received


@contextmanager
def serving(server: ControlServer) -> Iterator[list[tuple[str, FromWorker]]]:
    """Drive the server in a thread, as the controller's loop does, and keep what it receives."""
    seen: list[tuple[str, FromWorker]] = []
    over = threading.Event()

    def loop() -> None:
        while not over.is_set():
            if (received := server.receive(0.02)) is not None:
                seen.append(received)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def test_messages_arrive_with_the_name_that_the_keys_were_made_for(server: ControlServer) -> None:
    with client(server, server.admit("worker-7")) as worker:
        worker.send(Hello(pid=42, host="here"))
        assert expect(server, Hello) == ("worker-7", Hello(pid=42, host="here"))


def test_all_messages_leave_before_the_channel_closes(server: ControlServer) -> None:
    with client(server, server.admit("worker-0")) as worker:
        for number in range(50):
            worker.send(Hello(pid=number, host="here"))
    assert [expect(server, Hello)[1].pid for _ in range(50)] == list(range(50))  # type: ignore[union-attr]


def test_heartbeats_go_out_by_themselves_and_show_current_progress(server: ControlServer) -> None:
    steps = iter(range(100))
    with client(server, server.admit("worker-0"), progress=lambda: Progress(step=next(steps))):
        beats = [expect(server, Heartbeat)[1] for _ in range(3)]
    assert [beat.progress.step for beat in beats] == [0, 1, 2]  # type: ignore[union-attr]


def test_a_value_reaches_those_who_ask_before_and_after_it_is_put(server: ControlServer) -> None:
    got: dict[str, bytes] = {}
    with (
        client(server, server.admit("early")) as early,
        client(server, server.admit("late")) as late,
        client(server, server.admit("giver")) as giver,
        serving(server),
    ):

        def ask_early() -> None:
            got["early"] = early.get("where", Deadline.after(LIMIT_S, "the value"))

        thread = threading.Thread(target=ask_early)
        thread.start()
        # Once the giver has an answer to a question of its own, the earlier one has been heard.
        giver.put("other", b"0")
        giver.get("other", Deadline.after(LIMIT_S, "the other value"))
        giver.put("where", b"over here")
        thread.join(LIMIT_S)
        got["late"] = late.get("where", Deadline.after(LIMIT_S, "the value"))
    assert got == {"early": b"over here", "late": b"over here"}


def test_a_value_that_nobody_puts_ends_in_the_deadline(server: ControlServer) -> None:
    with (
        client(server, server.admit("worker-0")) as worker,
        serving(server),
        pytest.raises(TimeoutExpired, match=r"waited 0\.2 s for a miracle"),
    ):
        worker.get("nothing", Deadline.after(0.2, "a miracle"))


def test_the_controller_can_ask_a_process_to_stop(server: ControlServer) -> None:
    heard = threading.Event()
    reasons = []

    def on_stop(reason: str) -> None:
        reasons.append(reason)
        heard.set()

    with client(server, server.admit("worker-0"), on_stop=on_stop):
        expect(server, Heartbeat)
        server.send("worker-0", Stop("enough"))
        assert heard.wait(LIMIT_S)
    assert reasons == ["enough"]


def test_a_message_to_someone_who_never_came_is_dropped(server: ControlServer) -> None:
    server.admit("worker-0")
    server.send("worker-0", Stop("nobody hears this"))
    server.send("never heard of", Stop("nobody hears this"))


def _put(key: str) -> bytes:
    return msgspec.msgpack.encode(PutValue(key, b"forged"))


def _without_keys(server: ControlServer) -> None:
    with raw_socket(server.address, None, server.public_key) as stranger:
        stranger.send(_put("forged"))
        assert server.receive(0.3) is None


def _with_unknown_keys(server: ControlServer) -> None:
    with raw_socket(server.address, KeyPair.make(), server.public_key) as stranger:
        stranger.send(_put("forged"))
        assert server.receive(0.3) is None


def _with_the_wrong_server_key(server: ControlServer) -> None:
    keys = server.admit("misled")
    with raw_socket(server.address, keys, KeyPair.make().public) as stranger:
        stranger.send(_put("forged"))
        assert server.receive(0.3) is None


def _with_garbage_instead_of_a_greeting(server: ControlServer) -> None:
    host, port = server.address.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(range(256)) * 40)
        assert server.receive(0.3) is None
        with contextlib.suppress(OSError):
            plain.sendall(b"\xff" * 1000)


@pytest.mark.parametrize(
    "attack",
    [
        _without_keys,
        _with_unknown_keys,
        _with_the_wrong_server_key,
        _with_garbage_instead_of_a_greeting,
    ],
)
def test_a_stranger_changes_nothing_and_the_server_still_answers(
    server: ControlServer, attack: Callable[[ControlServer], None]
) -> None:
    attack(server)
    with client(server, server.admit("worker-0")) as worker, serving(server) as seen:
        with pytest.raises(TimeoutExpired):
            worker.get("forged", Deadline.after(0.2, "the forged value"))
        worker.put("true", b"1")
        assert worker.get("true", Deadline.after(LIMIT_S, "the true value")) == b"1"
    assert {name for name, _ in seen} == {"worker-0"}


@pytest.mark.parametrize("body", [b"", b"\x00", b"\xc1" * 10, msgspec.msgpack.encode({"a": 1})])
def test_garbage_from_an_admitted_process_is_passed_over(
    server: ControlServer, body: bytes
) -> None:
    keys = server.admit("worker-0")
    with raw_socket(server.address, keys, server.public_key) as peer:
        peer.send(body)
        peer.send(msgspec.msgpack.encode(Hello(pid=1, host="here")))
        assert expect(server, Hello)[0] == "worker-0"


def test_several_frames_from_an_admitted_process_are_passed_over(server: ControlServer) -> None:
    keys = server.admit("worker-0")
    with raw_socket(server.address, keys, server.public_key) as peer:
        peer.send_multipart([b"one", b"two"])
        peer.send(msgspec.msgpack.encode(Hello(pid=1, host="here")))
        assert expect(server, Hello)[0] == "worker-0"


def test_a_message_above_the_limit_is_not_read_and_costs_only_its_sender(
    server: ControlServer,
) -> None:
    with (
        client(server, server.admit("worker-0")) as good,
        client(server, server.admit("worker-1")) as greedy,
    ):
        greedy.put("large", bytes(2 << 20))
        good.send(Hello(pid=1, host="here"))
        assert expect(server, Hello)[0] == "worker-0"
        # The connection was cut and is made anew: the process itself is not lost. What it says in
        # the moment of the cut may be.
        failed = Failed(kind="E", message="still here", traceback="", exit_code=1)

        def is_heard() -> bool:
            greedy.send(failed)
            return server.receive(0.2) == ("worker-1", failed)

        wait_until(is_heard, "a word after the cut", limit_s=LIMIT_S)
        assert "large" not in server._board


def test_new_keys_replace_the_old_ones(server: ControlServer) -> None:
    old = server.admit("worker-0")
    with client(server, old) as before:
        before.send(Hello(pid=1, host="first life"))
        expect(server, Hello)
        new = server.admit("worker-0")
        assert new.public != old.public
        # The old process is still connected, but nothing it says counts any more.
        before.send(Hello(pid=2, host="ghost"))
        with client(server, new) as after:
            after.send(Hello(pid=3, host="second life"))
            assert expect(server, Hello)[1] == Hello(pid=3, host="second life")
    with raw_socket(server.address, old, server.public_key) as ghost:
        ghost.send(msgspec.msgpack.encode(Hello(pid=4, host="ghost")))
        # What the second life said before it left may still be on its way.
        said = []
        while (found := server.receive(0.3)) is not None:
            said.append(found[1])
        assert not [one for one in said if isinstance(one, Hello)]


def test_the_server_listens_on_loopback_only(server: ControlServer) -> None:
    assert server.address.startswith("tcp://127.0.0.1:")


def test_a_secret_key_is_not_shown() -> None:
    keys = KeyPair.make()
    assert keys.secret not in repr(keys)
    assert keys.public in repr(keys)
    assert KeyPair.make() != keys


def test_a_client_learns_how_the_clocks_stand_and_the_controller_never_sees_the_questions(
    server: ControlServer,
) -> None:
    readings: list[ClockReading] = []
    with client(server, server.admit("worker-0"), on_clock=readings.append):
        deadline = Deadline.after(LIMIT_S, "a reading of the clock")
        while not readings:
            received = server.receive(0.05)
            assert received is None or isinstance(received[1], Heartbeat)
            deadline.check()
    # Both ends read the same clock here.
    assert abs(readings[0].offset_s) <= readings[0].error_s < LIMIT_S
