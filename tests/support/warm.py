"""The fork server that the tests of one session share, and tests that need both ways to start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from phalanx.launch.fork_server import chosen_fork_server, use_fork_server
from phalanx.wire.fork_client import ForkServer


@contextmanager
def starting(setting: str) -> Iterator[None]:
    """Let every run and command inside start its processes so."""
    before = chosen_fork_server()
    use_fork_server(setting)
    try:
        yield
    finally:
        use_fork_server(before)


@contextmanager
def running_fork_server() -> Iterator[ForkServer]:
    """A fork server that ends with the block."""
    server = ForkServer()
    server.start()
    try:
        yield server
    finally:
        server.close()
