"""Delivery over lines that lose, repeat and reorder: every message once and in order, or a word."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import PeerError
from phalanx.wire import delivery as module
from phalanx.wire.delivery import (
    MAX_FRAME_BYTES,
    MAX_MESSAGE_BYTES,
    Delivery,
    MalformedFrame,
    MessageTooLarge,
)


class Line:
    """Two ends and the frames between them, which a cut swallows."""

    def __init__(self) -> None:
        self.ends = (Delivery(), Delivery())
        self.wires: tuple[deque[bytes], deque[bytes]] = (deque(), deque())
        self.got: tuple[list[bytes], list[bytes]] = ([], [])
        self.num_frames = 0

    def send(self, end: int) -> None:
        for frame in self.ends[end].frames():
            self.carry(end, frame)
        if self.ends[end].must_answer:
            self.carry(end, self.ends[end].note())

    def beat(self, end: int) -> None:
        self.carry(end, self.ends[end].note())

    def carry(self, end: int, frame: bytes) -> None:
        assert len(frame) <= MAX_FRAME_BYTES
        self.num_frames += 1
        self.wires[end].append(frame)

    def arrive(self, end: int) -> None:
        """The next frame that this end has sent is read at the other."""
        if self.wires[end]:
            body = self.ends[1 - end].take(self.wires[end].popleft())
            if body is not None:
                self.got[1 - end].append(body)
            self.send(1 - end)

    def settle(self) -> None:
        """Nothing is lost any more."""
        for _ in range(20):
            for end in (0, 1):
                self.send(end)
                self.beat(end)
                while self.wires[0] or self.wires[1]:
                    self.arrive(0)
                    self.arrive(1)
            if not any(one.num_unacknowledged for one in self.ends):
                return
        raise AssertionError("the two ends never agree")


@given(seed=st.integers(0, 2**32))
def test_messages_arrive_once_and_in_order_whatever_the_line_swallows(seed: int) -> None:
    chance, line = random.Random(seed), Line()
    sent: tuple[list[bytes], list[bytes]] = ([], [])
    for _ in range(chance.randrange(1, 200)):
        end = chance.randrange(2)
        match chance.randrange(8):
            case 0 | 1:
                size = chance.choice([0, 1, 10, 10, MAX_FRAME_BYTES, 3 * MAX_FRAME_BYTES])
                body = bytes([len(sent[end]) % 256]) * (size + 1)
                sent[end].append(body)
                line.ends[end].put(body)
                line.send(end)
            case 2:
                line.beat(end)
            case 3 if chance.random() < 0.3:
                # The connection breaks with all that is on its way; only one end may notice.
                for wire in line.wires:
                    wire.clear()
                for one in range(2):
                    if chance.random() < 0.5:
                        line.ends[one].repeat()
                        line.send(one)
            case 4 if line.wires[end]:
                line.wires[end].popleft()  # a full queue drops a frame
            case 5 if line.wires[end]:
                line.wires[end].append(line.wires[end][0])  # from a queue of the old connection
            case _:
                line.arrive(end)
    line.settle()
    assert line.got == (sent[1], sent[0])


def test_a_loss_is_noticed_by_the_next_heartbeat_alone() -> None:
    line = Line()
    line.ends[0].put(b"lost")
    line.send(0)
    line.wires[0].clear()
    line.beat(0)
    line.arrive(0)
    line.arrive(1)  # asks for it
    line.arrive(0)
    assert line.got[1] == [b"lost"]


def test_a_long_message_travels_in_parts_within_the_limit_of_a_frame() -> None:
    line = Line()
    long = random.Random(1).randbytes(5 << 20)
    line.ends[0].put(long)
    line.ends[0].put(b"after")
    line.settle()
    assert line.got[1] == [long, b"after"]
    assert line.num_frames > (5 << 20) // MAX_FRAME_BYTES


def test_no_more_is_on_its_way_than_a_reconnect_can_repeat() -> None:
    one = Delivery()
    one.put(bytes(MAX_MESSAGE_BYTES))
    under_way = sum(len(frame) for frame in one.frames())
    assert under_way <= module._WINDOW_BYTES + 100 * module._WINDOW_FRAMES
    assert list(one.frames()) == []
    one.repeat()
    assert sum(len(frame) for frame in one.frames()) == under_way


def test_a_message_above_the_limit_is_refused_in_one_sentence_before_it_is_sent() -> None:
    one = Delivery()
    with pytest.raises(MessageTooLarge, match=r"64\.0 MiB is above the 64 MiB"):
        one.put(bytes(MAX_MESSAGE_BYTES + 1))
    assert one.num_unacknowledged == 0


def test_the_queue_is_bounded_and_the_sender_learns_that_it_is_full() -> None:
    one = Delivery()
    for _ in range(4):
        one.put(bytes(MAX_MESSAGE_BYTES))
    with pytest.raises(PeerError, match="takes none of them"):
        one.put(b"one more")


def test_an_end_that_lives_and_takes_nothing_is_noticed() -> None:
    line = Line()
    line.ends[0].put(b"never taken")
    for _ in range(module._PATIENCE_NOTES):
        assert not line.ends[0].is_stuck
        list(line.ends[0].frames())
        line.ends[0].take(Delivery().note())
    assert line.ends[0].is_stuck


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00" * 28,
        bytes(MAX_FRAME_BYTES + 1),
        module._HEADER.pack(module._MAGIC, 64, 0, 0, 0),
        module._HEADER.pack(module._MAGIC, 0, 0, 0, 1),  # acknowledges what was never sent
        module._HEADER.pack(module._MAGIC, 0, 2, 1, 0),  # sent before it was sent
    ],
)
def test_frames_that_cannot_be_are_refused(frame: bytes) -> None:
    with pytest.raises(MalformedFrame):
        Delivery().take(frame)


def test_parts_without_an_end_do_not_fill_the_memory() -> None:
    one = Delivery()
    body = bytes(module._PART_BYTES)

    def flood() -> None:
        for number in range(1, 1000):
            one.take(module._HEADER.pack(module._MAGIC, 1, number, number, 0) + body)

    with pytest.raises(MalformedFrame, match="longer than any message"):
        flood()
    assert sum(map(len, one._parts)) <= MAX_MESSAGE_BYTES + 2 * module._PART_BYTES


def test_a_lost_acknowledgement_is_asked_for() -> None:
    """The last message has arrived; only the sender does not know, and the other end is silent."""
    line = Line()
    line.ends[0].put(b"done")
    line.send(0)
    line.arrive(0)
    assert line.got[1] == [b"done"]
    assert line.ends[1].note()  # swallowed with its connection
    for _ in range(10):
        line.beat(0)
        line.send(0)
        while line.wires[0]:
            line.arrive(0)
        if line.ends[1].has_news:
            line.beat(1)
            line.arrive(1)
    assert line.ends[0].num_unacknowledged == 0
    assert line.got[1] == [b"done"], "it came twice"
