"""Admission to an unencrypted socket: a password that works once.

Encryption costs more than it protects between processes of one machine, where nobody can listen in.
Authentication is still needed. A peer first proves itself on a CURVE socket and is given a token
there; the token then opens one connection to the plain socket (ZeroMQ's PLAIN mechanism). Without a
token the handshake fails, and no message of the peer is ever read. Each token dies with its first
use, and connections do not re-establish themselves: a peer that lost one proves itself again, so an
impostor that takes over a dead server's port gets nothing either.
"""

from __future__ import annotations

import secrets
import threading
from types import TracebackType

import zmq

_ZAP_ADDRESS = "inproc://zeromq.zap.01"
_USER = b"phalanx"


class TokenGate:
    """Guards the plain sockets of one context; use as a context manager.

    Args:
        context: At most one gate each; the answers come from a thread of its own.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._context = context
        self._names: dict[bytes, str] = {}
        self._thread = threading.Thread(target=self._serve, name="token-gate")
        self._ready = threading.Event()

    def __enter__(self) -> TokenGate:
        self._bell: zmq.Socket[bytes] = self._context.socket(zmq.PAIR)
        self._bell.linger = 0
        self._bell.bind("inproc://token-gate")
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bell.send(b"")
        self._thread.join()
        self._bell.close()

    def issue(self, name: str) -> str:
        """A new token; the connection that uses it bears the name (see `peer_name`)."""
        token = secrets.token_hex(32)
        self._names[token.encode()] = name
        return token

    def _serve(self) -> None:
        with self._context.socket(zmq.REP) as zap, self._context.socket(zmq.PAIR) as bell:
            zap.linger = bell.linger = 0
            zap.bind(_ZAP_ADDRESS)
            bell.connect("inproc://token-gate")
            self._ready.set()
            poller = zmq.Poller()
            poller.register(zap, zmq.POLLIN)
            poller.register(bell, zmq.POLLIN)
            while True:
                ready = dict(poller.poll())
                if bell in ready:
                    return
                zap.send_multipart(self._judge(zap.recv_multipart()))

    def _judge(self, request: list[bytes]) -> list[bytes]:
        version, request_id, _, _, _, mechanism, *credentials = request
        name = None
        if mechanism == b"PLAIN" and len(credentials) == 2 and credentials[0] == _USER:
            name = self._names.pop(credentials[1], None)
        if name is None:
            return [version, request_id, b"400", b"no valid token", b"", b""]
        return [version, request_id, b"200", b"OK", name.encode(), b""]


def guard_server(socket: zmq.Socket[bytes]) -> None:
    """Make a listening socket ask the gate of its context; call before bind."""
    socket.plain_server = True
    socket.setsockopt(zmq.ZAP_DOMAIN, b"bulk")


def present_token(socket: zmq.Socket[bytes], token: str) -> None:
    """Make a connecting socket show its token; call before connect."""
    socket.plain_username = _USER
    socket.plain_password = token.encode()


def peer_name(frame: zmq.Frame) -> str:
    """The name that the sender's token was issued for."""
    return str(frame.get("User-Id"))
