"""Who may connect: an allow-list of public keys in front of every listening CURVE socket.

ZeroMQ asks an authenticator inside the process (its ZAP protocol) before a peer's first message
gets through. A peer without a listed key never reaches the socket, and nothing it sends is read.
"""

from __future__ import annotations

import logging
from types import TracebackType

import zmq
from zmq.auth.thread import ThreadAuthenticator

# A refused stranger is the normal case this module is for, not something to shout about.
logging.getLogger("zmq.auth").setLevel(logging.ERROR)


class AllowList:
    """Admits the peers whose public keys were added, and nobody else; use as a context manager.

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
        """Refuse new connections of a peer."""
        self._allowed.discard(public_key.encode())

    def callback(self, domain: str, key: bytes) -> bool:
        """Called by the authenticator for each connection."""
        return key in self._allowed


def peer_key(frame: zmq.Frame) -> str:
    """The authenticated public key of the peer that sent a frame."""
    return str(frame.get("User-Id"))
