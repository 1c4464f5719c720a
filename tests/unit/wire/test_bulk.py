from __future__ import annotations

import math

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from phalanx.wire.bulk import (
    FRAME_SLACK_BYTES,
    HEADER,
    BulkOp,
    Header,
    Kind,
    take,
    ticket_frames,
)

HEADERS = st.builds(
    Header,
    op=st.sampled_from(list(BulkOp)),
    worker=st.integers(0, 2**32 - 1),
    generation=st.integers(0, 2**32 - 1),
    incarnation=st.integers(0, 2**32 - 1),
    sender=st.integers(0, 2**32 - 1),
    clock=st.integers(0, 2**64 - 1),
    readver=st.integers(0, 2**64 - 1),
    ticket=st.integers(0, 2**64 - 1),
    segment=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(list(Kind)),
    flags=st.integers(0, 255),
    num_samples=st.integers(0, 2**64 - 1),
    weight=st.floats(0, 1e300),
    num_bytes=st.integers(0, 2**64 - 1),
    held_s=st.floats(0, 1e300),
)


@given(HEADERS)
def test_a_header_survives_the_way(header: Header) -> None:
    data = header.pack()
    assert len(data) == HEADER.size
    assert Header.unpack(data) == header


@given(st.binary(max_size=2 * HEADER.size))
def test_garbage_is_no_header(data: bytes) -> None:
    header = Header.unpack(data)
    assert header is None or header.pack() == data


@pytest.mark.parametrize("weight", [math.nan, math.inf, -1.0])
def test_a_weight_that_would_spoil_the_sum_is_refused(weight: float) -> None:
    assert Header.unpack(Header(op=BulkOp.PUSH, worker=0, weight=weight).pack()) is None
    assert Header.unpack(Header(op=BulkOp.PARAMS, worker=0, held_s=weight).pack()) is None


@pytest.mark.parametrize("change", [slice(0, 2), slice(2, 3), slice(3, 4)])
def test_unknown_magic_op_and_kind_are_refused(change: slice) -> None:
    data = bytearray(Header(op=BulkOp.PUSH, worker=0).pack())
    data[change] = b"\xee" * (change.stop - change.start)
    assert Header.unpack(bytes(data)) is None


def frames(*parts: bytes) -> list[zmq.Frame]:
    return [zmq.Frame(part) for part in parts]


def test_payload_must_be_as_long_as_the_header_says() -> None:
    header = Header(op=BulkOp.PUSH, worker=0, num_bytes=3).pack()
    taken = take(frames(header, b"abc"))
    assert taken is not None
    assert taken[1] is not None
    assert bytes(taken[1]) == b"abc"
    assert take(frames(header, b"abcd")) is None
    assert take(frames(header)) is None
    assert take([]) is None


def test_sets_of_tickets_follow_the_payload_in_as_many_frames_as_they_need() -> None:
    header = Header(op=BulkOp.PARAMS, worker=0, num_bytes=3).pack()
    tickets = bytes(range(256)) * 1000
    cut = ticket_frames(tickets)
    assert len(cut) > 1
    assert max(map(len, cut)) <= FRAME_SLACK_BYTES
    taken = take(frames(header, b"abc", *cut))
    assert taken is not None
    assert taken[2] == tickets
    assert ticket_frames(b"") == []
    assert take([]) is None
