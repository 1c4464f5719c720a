"""Prove to a peer that one holds a shared key, and agree on fresh keys: Noise_NNpsk0.

The Noise protocol framework (revision 34), pattern NNpsk0 with X25519, AES-256-GCM and SHA-256. Two
messages; the keys that follow are secret even to somebody who later learns the shared key. Message
2 proves the responder; the first message under the new keys (`confirmation`) proves the initiator,
because message 1 alone can be a recording; the responder's own says that it has arrived. Pure:
bytes in, bytes out, no socket.
"""

from __future__ import annotations

import hashlib
import hmac
import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from phalanx.errors import PeerError

KEY_BYTES = 32
TAG_BYTES = 16
EMPTY_MESSAGE_BYTES = KEY_BYTES + TAG_BYTES
"""Length of either message around an empty payload."""
_NAME = b"Noise_NNpsk0_25519_AESGCM_SHA256"


class ProofError(PeerError):
    """The other side does not hold the key, or speaks of another group, peer or mode."""


class NoiseHandshake:
    """One side of a handshake; its calls follow the pattern, in order.

    Args:
        shared_key: 32 bytes that both sides hold.
        prologue: What both sides must agree on beforehand; a difference fails the handshake.
        ephemeral: Private key of this handshake; None: a new one.
    """

    def __init__(
        self, shared_key: bytes, prologue: bytes = b"", *, ephemeral: X25519PrivateKey | None = None
    ) -> None:
        # A name of exactly 32 bytes is not hashed.
        self._hash = _NAME
        self._chaining = _NAME
        self._key = b""
        self._count = 0
        self._shared_key = shared_key
        self._own = ephemeral or X25519PrivateKey.generate()
        self._other: X25519PublicKey | None = None
        self._mix_hash(prologue)

    def open(self, payload: bytes = b"") -> bytes:
        """Return message 1 of the initiator (psk, e)."""
        self._mix_shared_key()
        return self._send_ephemeral() + self._encrypt(payload)

    def take_open(self, message: bytes) -> bytes:
        """Return the payload of message 1, as the responder.

        Raises:
            ProofError: It was not made with the shared key.
        """
        self._mix_shared_key()
        self._take_ephemeral(message[:KEY_BYTES])
        return self._decrypt(message[KEY_BYTES:])

    def reply(self, payload: bytes = b"") -> bytes:
        """Return message 2 of the responder (e, ee)."""
        ephemeral = self._send_ephemeral()
        self._mix_exchange()
        return ephemeral + self._encrypt(payload)

    def take_reply(self, message: bytes) -> bytes:
        """Return the payload of message 2, as the initiator.

        Raises:
            ProofError: It was not made with the shared key.
        """
        self._take_ephemeral(message[:KEY_BYTES])
        self._mix_exchange()
        return self._decrypt(message[KEY_BYTES:])

    def split(self) -> tuple[bytes, bytes]:
        """Return the keys that follow: of what the initiator sends, and the responder."""
        first, second = _derive(self._chaining, b"", 2)
        return first, second

    def confirmation(self, *, of_initiator: bool) -> bytes:
        """Return one side's first message under the new keys, which is empty."""
        return AESGCM(self._confirming_key(of_initiator)).encrypt(_nonce(0), b"", self._hash)

    def take_confirmation(self, message: bytes, *, of_initiator: bool) -> None:
        """Check that message, as the other side.

        Raises:
            ProofError: The peer does not hold the key of its own part of the handshake.
        """
        try:
            AESGCM(self._confirming_key(of_initiator)).decrypt(_nonce(0), message, self._hash)
        except (InvalidTag, ValueError):
            raise ProofError("the peer repeated somebody else's greeting") from None

    def _confirming_key(self, of_initiator: bool) -> bytes:
        return self.split()[0 if of_initiator else 1]

    def _mix_hash(self, data: bytes) -> None:
        self._hash = hashlib.sha256(self._hash + data).digest()

    def _mix_key(self, material: bytes) -> None:
        self._chaining, self._key = _derive(self._chaining, material, 2)
        self._count = 0

    def _mix_shared_key(self) -> None:
        self._chaining, mixed, self._key = _derive(self._chaining, self._shared_key, 3)
        self._mix_hash(mixed)
        self._count = 0

    def _send_ephemeral(self) -> bytes:
        public = self._own.public_key().public_bytes_raw()
        self._mix_hash(public)
        self._mix_key(public)
        return public

    def _take_ephemeral(self, public: bytes) -> None:
        try:
            self._other = X25519PublicKey.from_public_bytes(public)
        except ValueError:
            raise ProofError("the peer's greeting is cut short") from None
        self._mix_hash(public)
        self._mix_key(public)

    def _mix_exchange(self) -> None:
        assert self._other is not None, "message 1 comes first"
        try:
            self._mix_key(self._own.exchange(self._other))
        except ValueError:
            # A point of low order would give a secret that anyone can compute.
            raise ProofError("the peer's greeting has a key that is none") from None

    def _encrypt(self, payload: bytes) -> bytes:
        sealed = AESGCM(self._key).encrypt(self._next_nonce(), payload, self._hash)
        self._mix_hash(sealed)
        return sealed

    def _decrypt(self, sealed: bytes) -> bytes:
        try:
            payload = AESGCM(self._key).decrypt(self._next_nonce(), sealed, self._hash)
        except (InvalidTag, ValueError):
            raise ProofError("the peer does not hold the key of this pair and group") from None
        self._mix_hash(sealed)
        return payload

    def _next_nonce(self) -> bytes:
        nonce = _nonce(self._count)
        self._count += 1
        return nonce


def _nonce(count: int) -> bytes:
    return struct.pack(">IQ", 0, count)


def _derive(chaining: bytes, material: bytes, count: int) -> list[bytes]:
    """Return so many keys by HKDF with SHA-256."""
    secret = hmac.digest(chaining, material, "sha256")
    keys: list[bytes] = []
    for number in range(1, count + 1):
        previous = keys[-1] if keys else b""
        keys.append(hmac.digest(secret, previous + bytes([number]), "sha256"))
    return keys
