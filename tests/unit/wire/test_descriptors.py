"""Limits of this process are restored after each test."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

import pytest

from phalanx.errors import PlanError
from phalanx.paramserver.connection_table import ServerSockets
from phalanx.wire.control import ControlServer
from phalanx.wire.descriptors import ensure_descriptors
from phalanx.wire.keys import KeyPair


@pytest.fixture(autouse=True)
def _limits() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_limit_is_raised_as_far_as_it_goes() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 300), hard))
    assert ensure_descriptors(num_machines=2, num_processes=4) == hard
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


def test_a_run_that_needs_more_is_refused_with_the_numbers() -> None:
    with pytest.raises(PlanError, match=r"200 machines need about \d+ open files.*may have"):
        ensure_descriptors(num_machines=200, num_processes=100_000_000)


@contextmanager
def control_socket() -> Iterator[str]:
    with ControlServer() as server:
        yield server.address


@contextmanager
def store_socket() -> Iterator[str]:
    with ControlServer() as server:
        socket, port = server.listen_beside(max_message_bytes=100, high_water=1)
        with socket:
            yield f"tcp://127.0.0.1:{port}"


@contextmanager
def bulk_socket(*, encrypt: bool) -> Iterator[str]:
    keys = KeyPair.make()
    with ServerSockets(keys, host="127.0.0.1", encrypt=encrypt, max_frame_bytes=100) as sockets:
        yield sockets.bulk_address


@contextmanager
def handshake_socket() -> Iterator[str]:
    keys = KeyPair.make()
    with ServerSockets(keys, host="127.0.0.1", encrypt=True, max_frame_bytes=100) as sockets:
        yield sockets.handshake_address


@pytest.mark.parametrize(
    "listening",
    [
        control_socket,
        store_socket,
        handshake_socket,
        partial(bulk_socket, encrypt=True),
        partial(bulk_socket, encrypt=False),
    ],
    ids=["control", "store", "handshake", "bulk, encrypted", "bulk, plain"],
)
def test_a_stranger_who_says_nothing_is_dismissed_soon(
    monkeypatch: pytest.MonkeyPatch, listening: Callable[[], AbstractContextManager[str]]
) -> None:
    """The library's own limit is half a minute."""
    monkeypatch.setattr("phalanx.wire.keys._HANDSHAKE_MS", 300)
    with listening() as address, ExitStack() as stack:
        port = int(address.rpartition(":")[2])
        strangers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20.0))
            for _ in range(50)
        ]
        begin = time.monotonic()
        for one in strangers:
            while one.recv(1024):
                pass
        assert time.monotonic() - begin < 20.0
