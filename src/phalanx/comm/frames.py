"""Encode the frames of a link: a short header, then payload, plain or sealed.

A sealed frame is encrypted under a key of its direction; the header travels in the clear and is
authenticated with it. The nonce is the number of the frame, so a frame that was changed, repeated,
left out or moved does not open.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

from phalanx.errors import ProtocolError
from phalanx.wire.noise import TAG_BYTES

HEADER = struct.Struct("<B3xIQQ")
FRAME_BYTES = 1 << 18
"""Payload of a frame at most: long enough that Python hardly counts, short enough to overlap."""


class FrameKind(IntEnum):
    """What a frame brings."""

    CONTRIBUTION = 1  # part of a slice, to be added to others or passed on
    RESULT = 2  # part of a slice as all will have it
    COPY = 3  # part of the sender's whole tensor
    READY = 4  # this member waits for a message with this tag
    MESSAGE = 5  # part of such a message
    FAREWELL = 6  # the sender gives the group up; the payload names whom it waited for
    STUCK = 7  # an exchange does not go on for the sender; the payload names whom it waits for


_KINDS = {kind.value: kind for kind in FrameKind}


class FrameHeader(NamedTuple):
    """Header of a frame.

    Attributes:
        kind: What it brings.
        num_bytes: Length of the payload.
        number: Of the exchange within its group; of a message, its tag.
        offset: Where the payload begins within its tensor or slice, in bytes.
    """

    kind: FrameKind
    num_bytes: int
    number: int
    offset: int

    def pack(self) -> bytes:
        """Return the bytes on the wire."""
        return HEADER.pack(self.kind, self.num_bytes, self.number, self.offset)

    @classmethod
    def unpack(cls, data: bytes | bytearray) -> FrameHeader:
        """Return the header in these bytes.

        Raises:
            ProtocolError: They are none.
        """
        kind, num_bytes, number, offset = HEADER.unpack(data)
        if kind not in _KINDS or num_bytes > FRAME_BYTES:
            raise ProtocolError("what came over a link of the exchange is no frame")
        return cls(_KINDS[kind], num_bytes, number, offset)


class CipherName(IntEnum):
    """How the frames of a link are sealed; on the wire in the handshake."""

    PLAIN = 0
    AES_256_GCM = 1
    CHACHA20_POLY1305 = 2


_ALGORITHMS: dict[CipherName, Callable[[bytes], AESGCM | ChaCha20Poly1305]] = {
    CipherName.AES_256_GCM: AESGCM,
    CipherName.CHACHA20_POLY1305: ChaCha20Poly1305,
}


@cache
def preferred_cipher() -> CipherName:
    """Return the cipher that this processor is fast at: AES where it has instructions for it."""
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return CipherName.AES_256_GCM
    return CipherName.AES_256_GCM if "aes" in words else CipherName.CHACHA20_POLY1305


class FrameCipher:
    """Seal or open the frames of one direction of a link, in order.

    Args:
        name: The algorithm; not PLAIN.
        secret: Of this direction, from the handshake.
    """

    def __init__(self, name: CipherName, secret: bytes) -> None:
        # Never the handshake's own key, which has sealed a message of the handshake.
        key = hmac.digest(secret, b"frames " + name.name.encode(), "sha256")
        self._algorithm = _ALGORITHMS[name](key)
        self._count = 0

    def seal(self, payload: memoryview, header: bytes, target: memoryview) -> None:
        """Write an encrypted payload and its tag."""
        self._algorithm.encrypt_into(self._nonce(), payload, header, target)

    def open(self, sealed: memoryview, header: bytes, target: memoryview) -> None:
        """Write a decrypted payload; what it wrote counts only if this returns.

        Raises:
            ProtocolError: The frame is not the next one that the peer sent, or was changed.
        """
        try:
            self._algorithm.decrypt_into(self._nonce(), sealed, header, target)
        except InvalidTag:
            raise ProtocolError("a frame was changed, repeated or left out on its way") from None

    def _nonce(self) -> bytes:
        nonce = struct.pack("<IQ", 0, self._count)
        self._count += 1
        return nonce


SEALED_EXTRA_BYTES = TAG_BYTES
"""By how much a sealed payload is longer."""
