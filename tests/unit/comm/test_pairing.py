"""Two members prove themselves to each other; nobody else passes, whatever they know."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from phalanx.comm.frames import CipherName
from phalanx.comm.pairing import (
    GroupSecret,
    Handshake,
    MemberCard,
    MemberPair,
    ProvenPeer,
    cipher_of,
    greet,
    make_pairs,
    receive_greeting,
)
from phalanx.errors import ProtocolError
from phalanx.wire.noise import ProofError


def secrets(size: int, host: str = "10.0.0.{}") -> list[GroupSecret]:
    return [GroupSecret(f"worker-{n}", host=host.format(n), port=1000 + n) for n in range(size)]


def pairs_of(
    members: list[GroupSecret], rank: int, *, group: str = "workers", encrypt: str = "auto"
) -> dict[int, MemberPair]:
    cards = {n: one.card for n, one in enumerate(members) if n != rank}
    return make_pairs(members[rank], rank, cards, group=group, encrypt=encrypt)  # type: ignore[arg-type]


def shake(
    one: Handshake, other: Handshake, pass_on: Callable[[bytes], bytes] = lambda data: data
) -> tuple[ProvenPeer, ProvenPeer]:
    """Let two sides talk, the greeting one first; returns what each knows of the other."""
    greeting = next(one).send
    next(other)
    reply = other.send(pass_on(greeting)).send
    confirmation = one.send(pass_on(reply)).send
    welcome = other.send(pass_on(confirmation)).send
    with pytest.raises(StopIteration) as listened:
        other.send(b"")
    with pytest.raises(StopIteration) as greeted:
        one.send(pass_on(welcome))
    return greeted.value.value, listened.value.value


def seen_by(peer: ProvenPeer, sender: ProvenPeer) -> bytes:
    """Return what one side reads of what the other side has sealed."""
    assert peer.ciphers is not None
    assert sender.ciphers is not None
    sealed, opened = memoryview(bytearray(21)), memoryview(bytearray(5))
    sender.ciphers[0].seal(memoryview(b"hello"), b"head", sealed)
    peer.ciphers[1].open(sealed, b"head", opened)
    return bytes(opened)


def test_two_members_prove_themselves_and_share_ciphers() -> None:
    members = secrets(3)
    ours, theirs = pairs_of(members, 2)[0], pairs_of(members, 0)
    greeter, listener = shake(greet(2, ours), receive_greeting(theirs))
    assert (greeter.rank, listener.rank) == (0, 2)
    assert seen_by(greeter, listener) == seen_by(listener, greeter) == b"hello"


def stranger_without_a_key(members: list[GroupSecret]) -> Handshake:
    made_up = secrets(2)
    return greet(1, pairs_of([members[0], made_up[1]], 1)[0])


def member_of_another_run(members: list[GroupSecret]) -> Handshake:
    return greet(1, pairs_of(secrets(2), 1)[0])


def member_of_another_group(members: list[GroupSecret]) -> Handshake:
    return greet(1, pairs_of(members, 1, group="workers/2")[0])


def member_in_another_s_name(members: list[GroupSecret]) -> Handshake:
    return greet(1, pairs_of(members, 2)[0])


def member_that_wants_no_encryption(members: list[GroupSecret]) -> Handshake:
    return greet(1, pairs_of(members, 1, encrypt="never")[0])


@pytest.mark.parametrize(
    "somebody",
    [
        stranger_without_a_key,
        member_of_another_run,
        member_of_another_group,
        member_in_another_s_name,
        member_that_wants_no_encryption,
    ],
)
def test_nobody_else_gets_an_answer(somebody: Callable[[list[GroupSecret]], Handshake]) -> None:
    members = secrets(3)
    greeting = next(somebody(members)).send
    listener = receive_greeting(pairs_of(members, 0))
    next(listener)
    with pytest.raises(ProofError):
        listener.send(greeting)


def test_a_repeated_greeting_proves_nothing() -> None:
    members = secrets(2)
    recorded: list[bytes] = []

    def record(data: bytes) -> bytes:
        recorded.append(data)
        return data

    shake(greet(1, pairs_of(members, 1)[0]), receive_greeting(pairs_of(members, 0)), record)
    again = receive_greeting(pairs_of(members, 0))
    next(again)
    again.send(recorded[0])
    with pytest.raises(ProofError):
        again.send(recorded[2])


@pytest.mark.parametrize("position", [0, 5, 20, 53])
def test_a_changed_byte_anywhere_fails(position: int) -> None:
    members = secrets(2)
    greeting = bytearray(next(greet(1, pairs_of(members, 1)[0])).send)
    greeting[position] ^= 1
    listener = receive_greeting(pairs_of(members, 0))
    next(listener)
    with pytest.raises(ProofError):
        listener.send(bytes(greeting))


def test_an_impostor_at_a_member_s_port_is_found_out() -> None:
    members = secrets(2)
    greeter = greet(1, pairs_of(members, 1)[0])
    next(greeter)
    with pytest.raises(ProofError):
        greeter.send(bytes(48))


AES, CHACHA, PLAIN = CipherName.AES_256_GCM, CipherName.CHACHA20_POLY1305, CipherName.PLAIN


@pytest.mark.parametrize(
    ("encrypt", "hosts", "ciphers", "expected"),
    [
        ("auto", ("10.0.0.1", "10.0.0.2"), (AES, AES), AES),
        ("auto", ("10.0.0.1", "10.0.0.2"), (AES, CHACHA), CHACHA),
        ("auto", ("10.0.0.1", "10.0.0.1"), (AES, AES), PLAIN),
        ("always", ("127.0.0.1", "127.0.0.1"), (AES, AES), AES),
        ("never", ("10.0.0.1", "10.0.0.2"), (AES, AES), PLAIN),
    ],
)
def test_encryption_between_machines_with_what_both_processors_are_fast_at(
    encrypt: str,
    hosts: tuple[str, str],
    ciphers: tuple[CipherName, CipherName],
    expected: CipherName,
) -> None:
    one, other = (
        MemberCard("worker", host, 1, bytes(32), cipher)
        for host, cipher in zip(hosts, ciphers, strict=True)
    )
    assert cipher_of(one, other, encrypt) is expected  # type: ignore[arg-type]
    assert cipher_of(other, one, encrypt) is expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "card",
    [
        b"",
        b"\xff" * 40,
        msgspec.msgpack.encode(["worker-0", "127.0.0.1", 1, b"k" * 32, 99]),
        msgspec.msgpack.encode(["worker-0", "127.0.0.1"]),
    ],
)
def test_what_is_no_card_is_refused(card: bytes) -> None:
    with pytest.raises(ProtocolError):
        MemberCard.unpack(card)


@pytest.mark.parametrize("key", [b"short", bytes(32)], ids=["short", "of low order"])
def test_a_card_with_a_key_that_is_none_is_refused(key: bytes) -> None:
    own = secrets(1)[0]
    with pytest.raises(ProtocolError, match="worker-7"):
        own.pair_key(MemberCard("worker-7", "127.0.0.1", 1, key, AES))
