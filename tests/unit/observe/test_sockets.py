"""What the kernel counted on this process's connections."""

from __future__ import annotations

import socket
import sys

import pytest

from phalanx.observe.process import stream_bytes
from support.waiting import wait_until

SENT = 300_000


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_bytes_that_were_sent_are_counted() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as other,
    ):
        before = stream_bytes()
        assert before is not None
        client.sendall(bytes(SENT))
        got = 0
        while got < SENT:
            got += len(other.recv(1 << 16))

        def counted() -> bool:
            now = stream_bytes()
            return now is not None and now - before == SENT

        wait_until(counted, "the kernel to count", limit_s=10.0)
