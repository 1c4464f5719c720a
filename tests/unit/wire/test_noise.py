"""The handshake of pairs: equal to a published vector, and closed to everybody without the key."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from phalanx.wire.noise import EMPTY_MESSAGE_BYTES, NoiseHandshake, ProofError

KEY = b"k" * 32


def ephemeral(first: int) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(bytes(range(first, first + 32)))


def test_all_messages_equal_the_published_vector() -> None:
    shared = b"!verysecretverysecretverysecret!"
    one = NoiseHandshake(shared, ephemeral=ephemeral(0x20))
    other = NoiseHandshake(shared, ephemeral=ephemeral(0x41))
    opening = one.open()
    assert other.take_open(opening) == b""
    assert opening.hex() == (
        "358072d6365880d1aeea329adf9121383851ed21a28e3b75e965d0d2cd1662544833316e6c21d899aec6c5f0"
        "c6e85e13"
    )
    reply = other.reply()
    assert one.take_reply(reply) == b""
    assert reply.hex() == (
        "64b101b1d0be5a8704bd078f9895001fc03e8e9f9522f188dd128d9846d48466d3ec4419885d86e6d7310fb1"
        "d2263afd"
    )
    assert one.split() == other.split()
    first, second = one.split()
    sealed = AESGCM(first).encrypt(bytes(12), b"yellowsubmarine", b"")
    assert sealed.hex() == "6a7b199c69a64cc2ea3c556cf17489fd2ae452d3f3c2a0871cebd327fc31c6"
    sealed = AESGCM(second).encrypt(bytes(12), b"submarineyellow", b"")
    assert sealed.hex() == "e58d43e0c69d8c15df523586b2c58ca40cb0472b5b3775f1cca807fee28a71"


def test_payloads_and_the_confirmation_pass() -> None:
    one, other = NoiseHandshake(KEY, b"group 7"), NoiseHandshake(KEY, b"group 7")
    assert other.take_open(one.open(b"hello")) == b"hello"
    assert one.take_reply(other.reply(b"welcome")) == b"welcome"
    other.take_confirmation(one.confirmation(of_initiator=True), of_initiator=True)
    one.take_confirmation(other.confirmation(of_initiator=False), of_initiator=False)


@pytest.mark.parametrize(("key", "prologue"), [(b"x" * 32, b"group 7"), (KEY, b"group 6")])
def test_another_key_or_another_group_is_refused_at_the_first_message(
    key: bytes, prologue: bytes
) -> None:
    stranger = NoiseHandshake(key, prologue)
    with pytest.raises(ProofError):
        NoiseHandshake(KEY, b"group 7").take_open(stranger.open())


def test_whoever_repeats_a_recorded_greeting_cannot_confirm_it() -> None:
    recorded = NoiseHandshake(KEY).open()
    responder = NoiseHandshake(KEY)
    responder.take_open(recorded)
    responder.reply()
    with pytest.raises(ProofError):
        responder.take_confirmation(bytes(16), of_initiator=True)


@pytest.mark.parametrize("length", [0, 5, 32, EMPTY_MESSAGE_BYTES - 1])
def test_a_greeting_that_is_cut_is_refused(length: int) -> None:
    message = NoiseHandshake(KEY).open()[:length]
    with pytest.raises(ProofError):
        NoiseHandshake(KEY).take_open(message)


def test_a_key_of_low_order_is_refused() -> None:
    responder = NoiseHandshake(KEY)
    forger = NoiseHandshake(KEY)
    forger._mix_shared_key()
    zero = bytes(32)
    forger._mix_hash(zero)
    forger._mix_key(zero)
    responder.take_open(zero + forger._encrypt(b""))
    with pytest.raises(ProofError, match="a key that is none"):
        responder.reply()
