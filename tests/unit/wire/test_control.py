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
from phalanx.wire import control_client
from phalanx.wire.clock import ClockReading
from phalanx.wire.control import ControlServer, Violation
from phalanx.wire.control_client import ControlClient
from phalanx.wire.deadline import Deadline
from phalanx.wire.delivery import MAX_MESSAGE_BYTES, Delivery, MessageTooLarge
from phalanx.wire.keys import KeyPair, secure_client
from phalanx.wire.messages import (
    Done,
    FromWorker,
    Heartbeat,
    Hello,
    Progress,
    PutValue,
    Stop,
)
from phalanx.wire.parameter_server import Pause, Paused, RequestWork, WorkDone
from phalanx.wire.server_stats import StalenessStats
from support.company import server_facts
from support.relay import Relay
from support.waiting import wait_until

LIMIT_S = 20.0
_SERVED: set[ControlServer] = set()
"""Servers that a thread drives."""


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
    is_replaced: bool = False,
) -> Iterator[ControlClient]:
    made = ControlClient(
        server.address,
        server_key=server.public_key,
        keys=keys,
        progress=progress,
        on_stop=on_stop,
        on_clock=on_clock,
    )
    with made:
        yield made
        # A channel closes once the other end has heard all of it.
        if server not in _SERVED and not is_replaced:
            wait_until(lambda: _has_heard(server, made), "the last words", limit_s=LIMIT_S)


def _has_heard(server: ControlServer, client: ControlClient) -> bool:
    server.receive(0.01)
    return client.num_undelivered == 0


@contextmanager
def raw_socket(address: str, keys: KeyPair | None, server_key: str) -> Iterator[zmq.Socket[bytes]]:
    """A peer that speaks the protocol below the messages, or not even that."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        if keys is not None:
            secure_client(socket, keys, server_key)
        socket.connect(address)
        yield socket


def first_frame(message: FromWorker) -> bytes:
    """What a process's channel sends first."""
    delivery = Delivery()
    delivery.put(msgspec.msgpack.encode(message))
    return next(delivery.frames())


def expect(
    server: ControlServer, kind: type[FromWorker | Violation]
) -> tuple[str, FromWorker | Violation]:
    """The next message of a kind; others before it are passed over."""
    deadline = Deadline.after(LIMIT_S, f"a {kind.__name__}")
    while True:
        received = server.receive(deadline.remaining_s)
        if received is None:
            raise deadline.error()
        if isinstance(received[1], kind):
            return received


@contextmanager
def serving(server: ControlServer) -> Iterator[list[tuple[str, FromWorker | Violation]]]:
    """Drive the server in a thread, as the controller's loop does, and keep what it receives."""
    seen: list[tuple[str, FromWorker | Violation]] = []
    over = threading.Event()

    def loop() -> None:
        while not over.is_set():
            if (received := server.receive(0.02)) is not None:
                seen.append(received)

    thread = threading.Thread(target=loop)
    _SERVED.add(server)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
        _SERVED.discard(server)


def test_messages_arrive_with_the_name_that_the_keys_were_made_for(server: ControlServer) -> None:
    with client(server, server.admit("worker-7")) as worker:
        worker.send(Hello(pid=42, host="here"))
        assert expect(server, Hello) == ("worker-7", Hello(pid=42, host="here"))


def test_all_messages_leave_before_the_channel_closes(server: ControlServer) -> None:
    with serving(server) as seen:
        with client(server, server.admit("worker-0")) as worker:
            for number in range(50):
                worker.send(Hello(pid=number, host="here"))
        assert worker.num_undelivered == 0
        # Acknowledged means received, so nothing is left to wait for.
        assert [one.pid for _, one in seen if isinstance(one, Hello)] == list(range(50))


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


def test_a_message_to_someone_unknown_is_dropped(server: ControlServer) -> None:
    server.send("never heard of", Stop("nobody hears this"))


def _put(key: str) -> bytes:
    return first_frame(PutValue(key, b"forged"))


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


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"\x00"],
        [b"\xc1" * 10],
        [msgspec.msgpack.encode({"a": 1})],
        [first_frame(Hello(pid=1, host="here")), b"two"],
        [first_frame(Hello(pid=1, host="here"))[:-1] + b"\xc1"],
        [first_frame(Hello(pid="one", host="here"))],  # type: ignore[arg-type]
    ],
)
def test_garbage_from_an_admitted_process_is_reported_once_with_its_name(
    server: ControlServer, frames: list[bytes]
) -> None:
    keys = server.admit("worker-0")
    with raw_socket(server.address, keys, server.public_key) as peer:
        peer.send_multipart(frames)
        peer.send_multipart(frames)
        name, violation = expect(server, Violation)
        assert name == "worker-0"
        assert isinstance(violation, Violation)
        assert violation.reason
        assert server.receive(0.3) is None


def test_a_frame_above_the_limit_is_not_read_and_costs_only_its_sender(
    server: ControlServer,
) -> None:
    keys = server.admit("worker-1")
    with (
        raw_socket(server.address, keys, server.public_key) as greedy,
        client(server, server.admit("worker-0")) as good,
    ):
        greedy.send(bytes(2 << 20))
        good.send(Hello(pid=1, host="here"))
        assert expect(server, Hello)[0] == "worker-0"
        # The connection was cut and is made anew: the process itself is not lost.
        wait_until(lambda: _is_heard(server, greedy), "a word after the cut", limit_s=LIMIT_S)


def _is_heard(server: ControlServer, peer: zmq.Socket[bytes]) -> bool:
    peer.send(first_frame(Hello(pid=2, host="greedy")))
    return server.receive(0.2) == ("worker-1", Hello(pid=2, host="greedy"))


def test_statistics_of_any_network_arrive_though_they_are_above_the_limit_of_a_frame(
    server: ControlServer,
) -> None:
    statistics = bytes(range(256)) * (1 << 14)  # a million numbers
    with client(server, server.admit("worker-0")) as worker, serving(server) as seen:
        worker.send(Paused(statistics))
        worker.send(WorkDone((), 1))
        wait_until(lambda: len(_words(seen)) == 2, "both messages", limit_s=LIMIT_S)
    assert _words(seen) == [Paused(statistics), WorkDone((), 1)]


def test_a_part_of_a_message_is_a_sign_of_life(server: ControlServer) -> None:
    delivery = Delivery()
    delivery.put(msgspec.msgpack.encode(Paused(bytes(1 << 20))))
    keys = server.admit("worker-0")
    with raw_socket(server.address, keys, server.public_key) as slow:
        slow.send(next(delivery.frames()))
        wait_until(lambda: server.receive(0.05) is None and server.take_heard(), "a part")


def test_totals_of_a_server_with_two_hundred_workers_arrive(server: ControlServer) -> None:
    staleness = {
        worker: StalenessStats({value * 97: value for value in range(2000)})
        for worker in range(200)
    }
    done = Done(server=msgspec.structs.replace(server_facts(0, 1), staleness=staleness))
    assert len(msgspec.msgpack.encode(done)) > 1 << 20
    with serving(server) as seen:
        with client(server, server.admit("server-0")) as process:
            process.send(done)
        assert _words(seen) == [done]


def test_a_message_above_the_limit_is_refused_in_one_sentence(server: ControlServer) -> None:
    with (
        client(server, server.admit("worker-0")) as worker,
        pytest.raises(MessageTooLarge, match="above the 64 MiB that the control channel carries"),
    ):
        worker.send(Paused(bytes(MAX_MESSAGE_BYTES)))


def _words(seen: list[tuple[str, FromWorker | Violation]]) -> list[FromWorker | Violation]:
    return [one for _, one in seen if not isinstance(one, Heartbeat)]


def test_cuts_of_the_connection_cost_no_message_in_either_direction(server: ControlServer) -> None:
    count = 60
    up: list[int] = []
    port = int(server.address.rsplit(":", 1)[1])
    keys = server.admit("worker-0")
    with (
        Relay(port) as relay,
        ControlClient(
            relay.address,
            server_key=server.public_key,
            keys=keys,
            progress=Progress,
            on_stop=lambda reason: None,
        ) as worker,
    ):
        deadline = Deadline.after(LIMIT_S, "all messages")
        for number in range(count):
            worker.send(RequestWork(number))
            # Now before the message has left, now after it has arrived, now in between.
            if number % 7 == 3:
                relay.cut()
            _answer(server, up, wait_s=0.01)
            if number % 11 == 5:
                relay.cut()
        while len(up) < count or worker.inbox.qsize() < count:
            _answer(server, up, wait_s=0.05)
            deadline.check()
        # Whatever would come twice has come by the time that all is acknowledged.
        while worker.num_undelivered:
            _answer(server, up, wait_s=0.05)
            deadline.check()
        orders = [worker.inbox.get() for _ in range(worker.inbox.qsize())]
        assert relay.num_cuts > 5
    assert up == list(range(count))
    assert orders == [Pause(leave=bool(number % 2)) for number in range(count)]


def _answer(server: ControlServer, up: list[int], *, wait_s: float) -> None:
    """Read what has come, and answer every request."""
    while (received := server.receive(wait_s)) is not None:
        if isinstance(received[1], RequestWork):
            up.append(received[1].count)
            server.send(received[0], Pause(leave=bool(received[1].count % 2)))


def test_a_message_waits_for_a_process_that_has_not_connected_yet(server: ControlServer) -> None:
    keys = server.admit("worker-0")
    server.send("worker-0", Pause(leave=True))
    with client(server, keys) as worker, serving(server):
        assert worker.inbox.get(timeout=LIMIT_S) == Pause(leave=True)


def test_a_successor_is_not_sent_what_was_meant_for_its_predecessor(server: ControlServer) -> None:
    server.admit("worker-0")
    server.send("worker-0", Pause(leave=True))
    keys = server.admit("worker-0")
    server.send("worker-0", Pause(leave=False))
    with client(server, keys) as worker, serving(server):
        assert worker.inbox.get(timeout=LIMIT_S) == Pause(leave=False)


def test_the_last_message_of_a_process_survives_a_cut(server: ControlServer) -> None:
    port = int(server.address.rsplit(":", 1)[1])
    keys = server.admit("worker-0")
    with Relay(port) as relay, serving(server) as seen:
        with ControlClient(
            relay.address,
            server_key=server.public_key,
            keys=keys,
            progress=Progress,
            on_stop=lambda reason: None,
        ) as worker:
            worker.send(Hello(pid=1, host="here"))
            wait_until(lambda: _words(seen), "the first message", limit_s=LIMIT_S)
            worker.send(Done())
            relay.cut()
        assert worker.num_undelivered == 0
    assert _words(seen) == [Hello(pid=1, host="here"), Done()]


def test_a_value_that_belongs_to_another_process_is_refused(server: ControlServer) -> None:
    with (
        client(server, server.admit("worker-0")) as owner,
        client(server, server.admit("worker-1")) as other,
        serving(server) as seen,
    ):
        owner.put("group/0", b"mine")
        assert owner.get("group/0", Deadline.after(LIMIT_S, "the value")) == b"mine"
        other.put("group/0", b"forged")
        other.put("tensorflow/0/worker-0", b"forged")
        wait_until(lambda: _words(seen), "the refusal", limit_s=LIMIT_S)
        assert other.get("group/0", Deadline.after(LIMIT_S, "the value")) == b"mine"
        with pytest.raises(TimeoutExpired):
            owner.get("tensorflow/0/worker-0", Deadline.after(0.2, "the forged value"))
    [(name, violation)] = [one for one in seen if isinstance(one[1], Violation)]
    assert name == "worker-1"
    assert violation == Violation("worker-1 published group/0, which belongs to worker-0")


def test_values_of_a_group_travel_together(
    server: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    send = server.send
    monkeypatch.setattr(server, "send", lambda name, one: (sent.append(name), send(name, one)))
    for rank in range(40):
        keys = server.admit(f"worker-{rank}")
        server._board.put(f"worker-{rank}", f"group/{rank}", keys.public.encode())
    keys = server.admit("worker-40")
    with client(server, keys) as worker, serving(server):
        deadline = Deadline.after(LIMIT_S, "all values")
        for rank in range(40):
            worker.get(f"group/{rank}", deadline)
    assert sent == ["worker-40"]


def test_new_keys_replace_the_old_ones(
    server: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_client, "_LAST_MESSAGE_S", 0.1)
    old = server.admit("worker-0")
    with client(server, old, is_replaced=True) as before:
        before.send(Hello(pid=1, host="first life"))
        expect(server, Hello)
        new = server.admit("worker-0")
        assert new.public != old.public
        # The old process is still connected, but nothing it says counts any more.
        before.send(Hello(pid=2, host="ghost"))
        with client(server, new) as after:
            after.send(Hello(pid=3, host="second life"))
            assert expect(server, Hello)[1] == Hello(pid=3, host="second life")
    assert before.num_undelivered > 0, "the old process learns that nobody heard it"
    with raw_socket(server.address, old, server.public_key) as ghost:
        ghost.send(first_frame(Hello(pid=4, host="ghost")))
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
