"""Frames over a real connection: whole and in order, or the link ends and no memory changes."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.comm.frame_stream import FrameReader, FrameWriter, ReadOutcome
from phalanx.comm.frames import (
    HEADER,
    SEALED_EXTRA_BYTES,
    CipherName,
    FrameCipher,
    FrameHeader,
    FrameKind,
)
from phalanx.errors import PeerError

SECRET = b"s" * 32
CIPHERS = [CipherName.AES_256_GCM, CipherName.CHACHA20_POLY1305]


def frame(number: int, payload: bytes) -> tuple[FrameHeader, memoryview]:
    return FrameHeader(FrameKind.COPY, len(payload), number, 0), memoryview(payload)


def on_the_wire(payloads: list[bytes], name: CipherName) -> bytes:
    """Return what a writer sends for these payloads."""
    cipher = None if name is CipherName.PLAIN else FrameCipher(name, SECRET)
    near, far = socket.socketpair()
    with near, far:
        writer = FrameWriter(near, cipher)
        for number, payload in enumerate(payloads):
            writer.put(*frame(number, payload), None)
        while not writer.is_idle:
            writer.write()
        near.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: far.recv(1 << 16), b""))


def read_all(sent: bytes, name: CipherName, memory: bytearray) -> Iterator[int]:
    """Yield the numbers of the frames in these bytes; payloads go into the memory."""
    cipher = None if name is CipherName.PLAIN else FrameCipher(name, SECRET)
    near, far = socket.socketpair()
    with near, far:
        near.sendall(sent)
        near.shutdown(socket.SHUT_WR)
        reader = FrameReader(far, cipher)
        found: list[int] = []

        def place(header: FrameHeader) -> memoryview:
            return memoryview(memory)[: header.num_bytes]

        while reader.read(place, lambda header: found.append(header.number)) is ReadOutcome.FRAME:
            yield found[-1]


@pytest.mark.parametrize("name", list(CipherName))
def test_frames_arrive_in_order_and_whole(name: CipherName) -> None:
    payloads = [b"a" * 1000, b"", b"b" * 30_000]
    memory = bytearray(30_000)
    assert list(read_all(on_the_wire(payloads, name), name, memory)) == [0, 1, 2]
    assert bytes(memory) == payloads[-1]


@pytest.mark.parametrize("name", CIPHERS)
def test_nothing_of_a_sealed_payload_can_be_read_on_the_wire(name: CipherName) -> None:
    planted = b"a pattern that nobody may see"
    assert planted not in on_the_wire([planted * 10], name)
    assert planted in on_the_wire([planted * 10], CipherName.PLAIN)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(CIPHERS),
    damage=st.sampled_from(["flip", "repeat", "cut", "swap", "drop"]),
    where=st.floats(0, 0.999),
)
def test_a_damaged_stream_ends_the_link_and_changes_no_memory(
    name: CipherName, damage: str, where: float
) -> None:
    length = 100
    whole = on_the_wire([b"\1" * length, b"\2" * length], name)
    size = HEADER.size + length + SEALED_EXTRA_BYTES
    first, second = whole[:size], whole[size:]
    position = int(where * size)
    flipped = bytearray(first)
    flipped[position] ^= 1 << (position % 8)
    damaged = {
        "flip": bytes(flipped) + second,
        "repeat": first + first,
        "cut": first + second[: max(1, position)],
        "swap": second + first,
        "drop": second,
    }[damage]
    memory = bytearray(length)
    expected = b"\1" * length if damage in ("repeat", "cut") else bytes(length)
    # A flipped length can reach beyond the memory of this test, which is refused as well.
    with pytest.raises((PeerError, ValueError)):
        list(read_all(damaged, name, memory))
    assert bytes(memory) == expected
