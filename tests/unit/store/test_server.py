"""The store server over real sockets: broken connections, strangers, half-done transfers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from phalanx.errors import StoreError, TimeoutExpired
from phalanx.store import atomic
from phalanx.store import client as store_client
from phalanx.store import server as store_server
from phalanx.store.client import Download, StoreClient, _Session
from phalanx.store.messages import (
    CHUNK_BYTES,
    WINDOW,
    ChunkContent,
    OpenFile,
    ReadChunk,
    StillWorking,
    StoreResponse,
)
from phalanx.store.server import StoreServer
from phalanx.store.transfers import FileTransfers
from phalanx.wire.control import ControlServer
from phalanx.wire.keys import KeyPair, secure_client
from support.relay import Relay
from support.stores import ServedStore, serve_store
from support.waiting import wait_until

NAME = "checkpoints/samples-000000000064.safetensors"
LARGE = os.urandom(3 * WINDOW * CHUNK_BYTES + 4321)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedStore]:
    with serve_store(tmp_path) as served:
        yield served


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_client, "_RETRY_S", 0.3)


def read(file: Download, offset: int, length: int) -> bytes:
    content = bytearray(length)
    file.read_into(memoryview(content), offset)
    return bytes(content)


def store(client: StoreClient, content: bytes, name: str = NAME) -> None:
    with client.upload(name) as upload:
        upload.write(content)


def fetch(client: StoreClient, name: str = NAME) -> bytes:
    with client.download(name) as file:
        return read(file, 0, file.size)


def leftovers(served: ServedStore) -> list[str]:
    return [path.name for path in served.root.rglob(".*")]


def test_large_and_empty_files_arrive_whole(served: ServedStore) -> None:
    client = served.client()
    for content in (LARGE, b"", b"x"):
        store(client, content)
        assert (served.root / NAME).read_bytes() == content
        assert fetch(client) == content
    assert leftovers(served) == []


def test_a_transfer_survives_a_connection_that_breaks(served: ServedStore) -> None:
    for move in (store, None):
        cut_after = len(LARGE) // 2 if move else 2000
        with Relay(served.port, cut_after=cut_after, stays_cut=False) as relay:
            client = served.client(address=relay.address)
            if move:
                move(client, LARGE)
            else:
                assert fetch(client) == LARGE
            assert relay.num_cuts == 1, "nothing was cut"
            assert relay.num_connections >= 2
    assert (served.root / NAME).read_bytes() == LARGE


def test_a_transfer_that_is_cut_half_way_leaves_the_old_file_whole(served: ServedStore) -> None:
    keys = served.control.admit("worker-0")
    store(served.client(keys=keys), b"old")
    with Relay(served.port, cut_after=len(LARGE) // 2, stays_cut=True) as relay:
        client = served.client(keys=keys, address=relay.address, limit_s=1.5)
        with pytest.raises(TimeoutExpired, match=rf"waited 1.5 s for {NAME} to reach the store"):
            store(client, LARGE)
        assert relay.num_cuts == 1, "nothing was cut"
    assert (served.root / NAME).read_bytes() == b"old"
    assert served.client("worker-1").list_files("checkpoints").incoming == (NAME,)
    # Its successor has another key; what the lost one had begun is swept away.
    served.control.admit("worker-0")
    wait_until(lambda: not leftovers(served), "the store to forget it", limit_s=20)
    assert served.client("worker-1").list_files("checkpoints").incoming == ()


def test_a_writer_that_gives_up_leaves_nothing(served: ServedStore) -> None:
    client = served.client()
    store(client, b"old")

    def break_off() -> None:
        with client.upload(NAME) as upload:
            upload.write(LARGE)
            raise RuntimeError("crash in the middle")

    with pytest.raises(RuntimeError):
        break_off()
    wait_until(lambda: not leftovers(served), "the store to forget it", limit_s=20)
    assert fetch(client) == b"old"


def test_a_reader_gets_one_file_whatever_becomes_of_its_name(served: ServedStore) -> None:
    client = served.client()
    store(client, LARGE)
    with client.download(NAME) as file:
        store(client, b"new")
        client.delete((NAME,))
        assert read(file, 100, len(LARGE) - 100) == LARGE[100:]
        with pytest.raises(StoreError, match=f"the file ends after {len(LARGE)} bytes"):
            read(file, len(LARGE) - 1, 2)
    with pytest.raises(StoreError, match="No such file"):
        fetch(client)


def test_strangers_are_not_heard(served: ServedStore) -> None:
    with pytest.raises(TimeoutExpired):
        served.client(keys=KeyPair.make(), limit_s=1.0).list_files("checkpoints")


def test_one_that_was_replaced_is_not_heard_any_longer(served: ServedStore) -> None:
    old = served.client("worker-0", limit_s=1.0)

    def go_on_as_a_zombie() -> None:
        with old.upload(NAME) as upload:
            upload.write(b"of the old one")
            store(served.client("worker-0"), b"of the new one")

    with pytest.raises(TimeoutExpired):
        go_on_as_a_zombie()
    assert (served.root / NAME).read_bytes() == b"of the new one"


@pytest.mark.parametrize(
    "name",
    [
        "checkpoints/../status.json",
        "/etc/passwd",
        "events/worker-0.safetensors",
        "checkpoints/.hidden.safetensors",
        "checkpoints/a/b.safetensors",
        "checkpoints/a.json",
    ],
)
def test_only_files_of_the_store_have_names(served: ServedStore, name: str) -> None:
    client = served.client()
    for move in (
        lambda: store(client, b"", name),
        lambda: fetch(client, name),
        lambda: client.delete((name,)),
        lambda: client.link(NAME, name),
        lambda: client.link(name, NAME),
    ):
        with pytest.raises(StoreError, match="is not the name of a file in the store"):
            move()
    with pytest.raises(StoreError, match="the store has no folder 'events'"):
        client.list_files("events")


def test_a_disk_that_refuses_is_told_to_the_writer(served: ServedStore) -> None:
    (served.root / "servers").rmdir()
    (served.root / "servers").touch()
    with pytest.raises(StoreError, match=r"cannot write .*servers"):
        store(served.client(), b"x", "servers/server-0.safetensors")


def test_transfers_of_several_processes_do_not_mix(served: ServedStore) -> None:
    one, two = served.client("server-0"), served.client("server-1")
    names = [f"servers/server-{index}.safetensors" for index in range(2)]
    reverse = LARGE[::-1]
    with one.upload(names[0]) as first, two.upload(names[1]) as second:
        for start in range(0, len(LARGE), 10 * CHUNK_BYTES):
            first.write(memoryview(LARGE)[start : start + 10 * CHUNK_BYTES])
            second.write(memoryview(reverse)[start : start + 10 * CHUNK_BYTES])
    assert (served.root / names[0]).read_bytes() == LARGE
    assert (served.root / names[1]).read_bytes() == reverse
    assert one.list_files("servers").names == tuple(names)


def test_a_name_that_is_no_text_is_ignored(served: ServedStore) -> None:
    broken = msgspec.msgpack.encode(OpenFile(1, "name")).replace(b"name", b"\xff\xff\xff\xff")
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        secure_client(socket, served.control.admit("worker-9"), served.control.public_key)
        socket.connect(served.address)
        socket.send(broken)
        socket.send(msgspec.msgpack.encode(OpenFile(2, "checkpoints/none")))
        # The second request is answered, so the first was read, and the thread still lives.
        assert socket.poll(20_000)
        assert msgspec.msgpack.decode(socket.recv(), type=StoreResponse).number == 2


def test_without_a_start_there_is_no_thread_and_no_port(tmp_path: Path) -> None:
    before = threading.active_count()
    with ControlServer() as control, StoreServer(control, tmp_path) as server:
        with_control = threading.active_count()
        assert not server.is_running
        port = server.start()
        assert (server.start(), server.is_running) == (port, True)
        assert threading.active_count() == with_control + 1
    assert not server.is_running
    assert threading.active_count() == before


class SlowDisk:
    """Holds every fsync until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_busy, self.go_on = threading.Event(), threading.Event()
        self.num_answers = 0
        self._send = StoreServer._send
        monkeypatch.setattr(atomic.os, "fsync", self._fsync)
        monkeypatch.setattr(store_server, "_SWEEP_S", 0.05)
        monkeypatch.setattr(StoreServer, "_send", lambda server, *args: self._count(server, *args))

    def _fsync(self, descriptor: int) -> None:
        self.is_busy.set()
        assert self.go_on.wait(30)

    def _count(self, server: StoreServer, route: bytes, response: object, *rest: object) -> None:
        self.num_answers += isinstance(response, StillWorking)
        self._send(server, route, response, *rest)  # type: ignore[arg-type]


def in_thread(task: Callable[[], None]) -> tuple[threading.Thread, list[Exception]]:
    errors: list[Exception] = []

    def run() -> None:
        try:
            task()
        except Exception as error:  # asserted by the test
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


def test_a_slow_disk_holds_up_nobody_else_and_fails_nobody(
    served: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = served.client("worker-1")
    store(other, b"old")
    disk = SlowDisk(monkeypatch)
    writer, errors = in_thread(lambda: store(served.client(limit_s=1.5), b"new"))
    assert disk.is_busy.wait(20)
    # While the disk is busy, others are answered; the file is as it was, and announced.
    assert fetch(other) == b"old"
    assert other.list_files("checkpoints").incoming == (NAME,)
    # Fifty answers take longer than the writer would wait in silence.
    wait_until(lambda: disk.num_answers >= 50, "the writer to be told often", limit_s=20)
    disk.go_on.set()
    writer.join(20)
    assert errors == []
    assert fetch(other) == b"new"
    assert leftovers(served) == []


def test_commits_take_effect_in_the_order_in_which_they_came(
    served: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SlowDisk(monkeypatch)
    first, _ = in_thread(lambda: store(served.client("worker-0"), b"first"))
    assert disk.is_busy.wait(20)
    second, errors = in_thread(lambda: store(served.client("worker-1"), b"second"))
    answers = disk.num_answers
    wait_until(lambda: disk.num_answers >= answers + 6, "both to be told", limit_s=20)
    disk.go_on.set()
    first.join(20)
    second.join(20)
    assert errors == []
    assert (served.root / NAME).read_bytes() == b"second"


def test_a_disk_that_refuses_at_the_end_is_told_and_leaves_the_old_file(
    served: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = served.client()
    store(client, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(atomic.os, "fsync", full)
        with pytest.raises(StoreError, match="No space left on device"):
            store(client, b"new")
    wait_until(lambda: not leftovers(served), "the store to forget it", limit_s=20)
    assert fetch(client) == b"old"
    store(client, b"new")
    assert fetch(client) == b"new"


def test_half_a_chunk_on_a_full_disk_never_becomes_part_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transfers, upload = FileTransfers(tmp_path), ("key", 1)
    transfers.begin(upload, NAME)
    assert transfers.append(upload, 0, memoryview(b"abcd")) == 4
    whole = atomic.Replacement.write

    def short(self: atomic.Replacement, content: bytes | memoryview) -> None:
        whole(self, content[:2])
        raise StoreError("No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(atomic.Replacement, "write", short)
        with pytest.raises(StoreError, match="No space left"):
            transfers.append(upload, 4, memoryview(b"efgh"))
    # The answer was lost and there is space again: the repeated chunk must not follow its half.
    with pytest.raises(StoreError, match="No space left"):
        transfers.append(upload, 4, memoryview(b"efgh"))
    with pytest.raises(StoreError, match="No space left"):
        transfers.begin_commit(upload, 8)
    assert list((tmp_path / "checkpoints").iterdir()) == []


@pytest.mark.parametrize(("offset", "length"), [(2**64 - 1, 1), (2**63, 1), (-1, 1), (0, -1)])
def test_absurd_offsets_are_refused_and_the_store_serves_on(
    served: ServedStore, offset: int, length: int
) -> None:
    client = served.client()
    store(client, b"content")
    with client.download(NAME) as file:
        session: _Session = file._session
        with pytest.raises(StoreError, match="the file has no"):
            session.request(ReadChunk(session.number, offset, length), ChunkContent)
    assert fetch(client) == b"content"
