"""Requests that come twice and late: each takes effect once, and leaves nothing open."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import StoreError
from phalanx.store.transfers import FileTransfers, TransferId

OWNER = "key"
BEST = "checkpoints/best.safetensors"
NAMES = [f"checkpoints/samples-{index}.safetensors" for index in range(3)]


class Client:
    """Does one thing after another, and repeats each request; the repeats may come much later."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.files = FileTransfers(root)
        self.chance = chance
        self.on_old_connections: list[Callable[[], object]] = []
        self.number = 0
        self.expected: dict[str, bytes] = {}

    def act(self) -> None:
        self.number += 1
        transfer, name = (OWNER, self.number), self.chance.choice(NAMES)
        match self.chance.choice(["upload", "upload", "link", "delete", "read", "give up"]):
            case "upload":
                self._upload(transfer, name, self.chance.randbytes(self.chance.randrange(9)))
            case "link" if name in self.expected:
                self.send(lambda: self._link(transfer, name))
                self.expected[BEST] = self.expected[name]
            case "delete":
                self.send(lambda: self.files.delete(transfer, (name,)))
                self.expected.pop(name, None)
            case "read" if name in self.expected:
                self.send(lambda: self.files.open(transfer, name))
                content = self.expected[name]
                assert self.files.read(transfer, 0, len(content)) == content
            case "give up":
                self.send(lambda: self.files.begin(transfer, name))
                self.send(lambda: self.files.append(transfer, 0, memoryview(b"half")))
            case _:
                pass
        self.send(lambda: self.files.close(transfer))

    def send(self, request: Callable[[], object]) -> None:
        """The answer may be lost, so that the request is repeated at once or comes again later."""
        request()
        for _ in range(self.chance.choice([0, 0, 1, 2])):
            if self.chance.random() < 0.5:
                request()
            else:
                self.on_old_connections.append(request)

    def hear_late(self) -> None:
        """One of the old connections delivers what it still held."""
        if self.on_old_connections:
            late = self.on_old_connections.pop(self.chance.randrange(len(self.on_old_connections)))
            with suppress(StoreError):  # nobody hears this answer any more
                late()

    def _upload(self, transfer: TransferId, name: str, content: bytes) -> None:
        self.send(lambda: self.files.begin(transfer, name))
        for start in range(0, len(content), 3):
            chunk = memoryview(content)[start : start + 3]
            self.send(lambda at=start, chunk=chunk: self.files.append(transfer, at, chunk))
        self.send(lambda: self._commit(transfer, len(content)))
        self.expected[name] = content

    def _commit(self, transfer: TransferId, size: int) -> None:
        task = self.files.begin_commit(transfer, size)
        if task is not None:
            task()
            self.files.end_commit(transfer, None)

    def _link(self, transfer: TransferId, name: str) -> None:
        task = self.files.begin_link(transfer, name, BEST)
        if task is not None:
            task()
            self.files.end_link(transfer, None)


@given(seed=st.integers(0, 2**32))
def test_requests_take_effect_once_however_often_and_late_they_come(seed: int) -> None:
    chance = random.Random(seed)
    with TemporaryDirectory() as folder:
        root = Path(folder)
        client = Client(root, chance)
        for _ in range(chance.randrange(1, 40)):
            client.act()
            for _ in range(chance.randrange(4)):
                client.hear_late()
        while client.on_old_connections:
            client.hear_late()
        found = {f"checkpoints/{path.name}": path for path in (root / "checkpoints").glob("*")}
        assert {name: path.read_bytes() for name, path in found.items()} == client.expected
        assert client.files.list_files(1, "checkpoints").incoming == ()
        assert not client.files._downloads, "a file stays open"


def test_a_link_that_was_given_up_is_not_made_later(tmp_path: Path) -> None:
    files = FileTransfers(tmp_path)
    files.close((OWNER, 1))
    with pytest.raises(StoreError, match="has closed this transfer"):
        files.begin_link((OWNER, 1), NAMES[0], BEST)
    with pytest.raises(StoreError, match="has closed this transfer"):
        files.delete((OWNER, 1), (NAMES[0],))


def test_what_is_remembered_is_bounded(tmp_path: Path) -> None:
    files = FileTransfers(tmp_path)
    for number in range(10_000):
        files.delete((OWNER, number), ())
    assert len(files._settled) <= 4096
