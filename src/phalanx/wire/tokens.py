"""Authenticate connections to an unencrypted socket by one-time tokens.

Encryption costs more than it protects between processes of one machine, where no other user can
listen in; authentication is still needed. A peer first authenticates on a CURVE socket and receives
a token there, which opens one connection to the plain socket (ZeroMQ's PLAIN mechanism). Without a
token the handshake fails, and no message of the peer is ever read. Each token works once, and
connections are never re-established: a peer that lost one authenticates again, so a process that
takes over a dead server's port gains nothing.
"""

from __future__ import annotations

import secrets
import threading
from types import TracebackType

import zmq

_ZAP_ADDRESS = "inproc://zeromq.zap.01"
_USER = b"phalanx"


class TokenGate:
    """Guard the plain sockets of one context; use as a context manager.

    Args:
        context: At most one gate each; a separate thread answers its requests.
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
        # The handler must listen before the first client connects.
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
        """Return a new token; the connection that uses it bears the name (see `peer_name`)."""
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
            # Removed at its first use: a token that was read by others opens nothing.
            name = self._names.pop(credentials[1], None)
        if name is None:
            return [version, request_id, b"400", b"no valid token", b"", b""]
        return [version, request_id, b"200", b"OK", name.encode(), b""]


def guard_server(socket: zmq.Socket[bytes]) -> None:
    """Make a listening socket check tokens with the gate of its context; call before bind."""
    socket.plain_server = True
    socket.setsockopt(zmq.ZAP_DOMAIN, b"bulk")


def present_token(socket: zmq.Socket[bytes], token: str) -> None:
    """Make a connecting socket present its token; call before connect."""
    socket.plain_username = _USER
    socket.plain_password = token.encode()


def peer_name(frame: zmq.Frame) -> str:
    """Return the name that the sender's token was issued for."""
    return str(frame.get("User-Id"))
