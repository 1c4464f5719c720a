"""Authenticate connections: an allow-list of public keys for every listening CURVE socket.

ZeroMQ asks an authenticator inside the process (its ZAP protocol) before a peer's first message
gets through. Without a listed key a peer never reaches the socket, and nothing it sends is read.
"""

from __future__ import annotations

import logging
from types import TracebackType

import zmq
from zmq.auth.thread import ThreadAuthenticator

# A refused stranger is the normal case here and no warning.
logging.getLogger("zmq.auth").setLevel(logging.ERROR)


class AllowList:
    """Admit exactly the peers whose public keys were added; use as a context manager.

    Args:
        context: The ZeroMQ context whose CURVE servers are guarded; one allow-list per context.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._allowed: set[bytes] = set()
        self._authenticator = ThreadAuthenticator(context)

    def __enter__(self) -> AllowList:
        self._authenticator.start()
        self._authenticator.configure_curve_callback(domain="*", credentials_provider=self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._authenticator.stop()

    def add(self, public_key: str) -> None:
        """Admit a peer from now on."""
        self._allowed.add(public_key.encode())

    def remove(self, public_key: str) -> None:
        """Refuse new connections of a peer; open ones stay."""
        self._allowed.discard(public_key.encode())

    def callback(self, domain: str, key: bytes) -> bool:
        """Decide about one connection; called by the authenticator."""
        return key in self._allowed


def peer_key(frame: zmq.Frame) -> str:
    """Return the authenticated public key of a frame's sender."""
    return str(frame.get("User-Id"))
