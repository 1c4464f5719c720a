"""Make and apply the keys of one run; only their holders can take part.

CURVE (elliptic-curve keys of ZeroMQ) authenticates both sides and encrypts the traffic. The
controller makes the keys at launch and passes each process its own over the launch channel, never
on a command line or in the environment, where other users of the machine could read them.
"""

from __future__ import annotations

import msgspec
import zmq

_HANDSHAKE_MS = 5000


class KeyPair(msgspec.Struct, frozen=True):
    """A public key and its secret, in ZeroMQ's printable Z85 form."""

    public: str
    secret: str

    @classmethod
    def make(cls) -> KeyPair:
        """Make a random pair."""
        public, secret = zmq.curve_keypair()
        return cls(public=public.decode(), secret=secret.decode())

    def __repr__(self) -> str:
        return f"KeyPair(public={self.public!r}, secret=…)"


def secure_server(socket: zmq.Socket[bytes], keys: KeyPair) -> None:
    """Make a listening socket accept only authenticated peers; call before bind."""
    socket.curve_server = True
    limit_handshake(socket)
    socket.curve_publickey = keys.public.encode()
    socket.curve_secretkey = keys.secret.encode()


def secure_client(socket: zmq.Socket[bytes], keys: KeyPair, server_public: str) -> None:
    """Make a connecting socket authenticate with its own keys; call before connect."""
    socket.curve_publickey = keys.public.encode()
    socket.curve_secretkey = keys.secret.encode()
    socket.curve_serverkey = server_public.encode()
    limit_handshake(socket)


def limit_handshake(socket: zmq.Socket[bytes]) -> None:
    """End a connection whose handshake is not over soon; call before bind or connect.

    Whoever connects and says nothing costs a descriptor for no longer, and a client whose
    connection breaks in the middle of its handshake makes another as soon as that.
    """
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
