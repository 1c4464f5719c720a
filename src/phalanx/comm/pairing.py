"""Prove to one another that two processes are members of a group: pure.

Each member publishes a card over the control channel, which lets nobody publish in another's name:
its address and a public key that it made for this group alone. From its own secret and the other's
card each side of a pair computes a key that nobody else can, and Noise proves that both have it.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Generator, Mapping
from typing import NamedTuple

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from phalanx.comm.frames import CipherName, FrameCipher, preferred_cipher
from phalanx.errors import ProtocolError
from phalanx.spec.strategy import Encryption
from phalanx.wire.noise import EMPTY_MESSAGE_BYTES, TAG_BYTES, NoiseHandshake, ProofError

_GREETING = struct.Struct(">4sH")
_MAGIC = b"PHX1"


class MemberCard(msgspec.Struct, frozen=True, array_like=True):
    """What a member of a group tells the others over the control channel.

    Attributes:
        name: Of the process.
        host: Address that its listener is at.
        port: Of the listener.
        public_key: Made for this group.
        cipher: The one that its processor is fast at, by number.
    """

    name: str
    host: str
    port: int
    public_key: bytes
    cipher: int

    def pack(self) -> bytes:
        """Return the bytes to publish."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def unpack(cls, data: bytes) -> MemberCard:
        """Return the card in these bytes.

        Raises:
            ProtocolError: They are none.
        """
        try:
            card = msgspec.msgpack.decode(data, type=cls)
            CipherName(card.cipher)
        except (msgspec.DecodeError, ValueError):
            raise ProtocolError("what a member published of itself is no card") from None
        return card


class GroupSecret:
    """This process's secret for one group, and the card that goes with it."""

    def __init__(self, name: str, *, host: str, port: int) -> None:
        self._private = X25519PrivateKey.generate()
        public = self._private.public_key().public_bytes_raw()
        self.card = MemberCard(name, host, port, public, preferred_cipher())

    def pair_key(self, other: MemberCard) -> bytes:
        """Return the key that only this process and another one can compute.

        Raises:
            ProtocolError: The other's card has no key that is one.
        """
        try:
            public = X25519PublicKey.from_public_bytes(other.public_key)
            return hmac.digest(self._private.exchange(public), b"phalanx pair", "sha256")
        except ValueError:
            raise ProtocolError(f"the card of {other.name} has a key that is none") from None


def cipher_of(one: MemberCard, other: MemberCard, encrypt: Encryption) -> CipherName:
    """Return how a pair seals its frames; both sides get the same from the same cards."""
    within = one.host == other.host
    if encrypt == "never" or (encrypt == "auto" and within):
        return CipherName.PLAIN
    if one.cipher == other.cipher:
        return CipherName(one.cipher)
    # AES without instructions is slower than ChaCha20 is anywhere.
    return CipherName.CHACHA20_POLY1305


class MemberPair(NamedTuple):
    """What one member must know to prove itself to another one, and to check its proof.

    Attributes:
        rank: Of the other one in the group.
        key: Shared by the two.
        prologue: What both must agree on besides: the group, both names, the cipher.
        cipher: Of the frames that follow.
    """

    rank: int
    key: bytes
    prologue: bytes
    cipher: CipherName


def make_pairs(
    secret: GroupSecret,
    rank: int,
    cards: Mapping[int, MemberCard],
    *,
    group: str,
    encrypt: Encryption,
) -> dict[int, MemberPair]:
    """Return the pairs of this member with all others, by their ranks.

    Args:
        secret: Of this member.
        rank: Of this member.
        cards: Of all others, by rank.
        group: Name of the group.
        encrypt: Whether frames are sealed.
    """
    pairs = {}
    for other, card in cards.items():
        cipher = cipher_of(secret.card, card, encrypt)
        names = [secret.card.name, card.name]
        prologue = msgspec.msgpack.encode(
            (group, *(names if rank < other else names[::-1]), cipher)
        )
        pairs[other] = MemberPair(other, secret.pair_key(card), prologue, cipher)
    return pairs


class HandshakeTurn(NamedTuple):
    """One turn of a handshake: bytes to send, and how many to receive after them."""

    send: bytes
    receive: int


class ProvenPeer(NamedTuple):
    """A peer that has proved itself, and the ciphers for what is sent to it and what comes."""

    rank: int
    ciphers: tuple[FrameCipher, FrameCipher] | None


Handshake = Generator[HandshakeTurn, bytes, ProvenPeer]


def greet(own_rank: int, pair: MemberPair) -> Handshake:
    """Prove this member to a listening one.

    Raises:
        ProofError: Whoever listens there is not that one.
    """
    noise = NoiseHandshake(pair.key, pair.prologue)
    greeting = _GREETING.pack(_MAGIC, own_rank) + noise.open()
    noise.take_reply((yield HandshakeTurn(greeting, EMPTY_MESSAGE_BYTES)))
    # Its own confirmation says that this one arrived, so that both agree whether there is a link.
    answer = yield HandshakeTurn(noise.confirmation(of_initiator=True), TAG_BYTES)
    noise.take_confirmation(answer, of_initiator=False)
    return _proven(pair, noise, is_initiator=True)


def receive_greeting(pairs: Mapping[int, MemberPair]) -> Handshake:
    """Check whoever has connected; what it is sent before its proof helps nobody else.

    Args:
        pairs: Of the members that may greet this one, by rank.

    Raises:
        ProofError: It is none of them.
    """
    message = yield HandshakeTurn(b"", _GREETING.size + EMPTY_MESSAGE_BYTES)
    magic, rank = _GREETING.unpack(message[: _GREETING.size])
    pair = pairs.get(rank)
    if magic != _MAGIC or pair is None:
        raise ProofError("what it said is no greeting of a member")
    noise = NoiseHandshake(pair.key, pair.prologue)
    noise.take_open(message[_GREETING.size :])
    confirmation = yield HandshakeTurn(noise.reply(), TAG_BYTES)
    noise.take_confirmation(confirmation, of_initiator=True)
    yield HandshakeTurn(noise.confirmation(of_initiator=False), 0)
    return _proven(pair, noise, is_initiator=False)


def _proven(pair: MemberPair, noise: NoiseHandshake, *, is_initiator: bool) -> ProvenPeer:
    if pair.cipher is CipherName.PLAIN:
        return ProvenPeer(pair.rank, None)
    first, second = (FrameCipher(pair.cipher, secret) for secret in noise.split())
    return ProvenPeer(pair.rank, (first, second) if is_initiator else (second, first))
