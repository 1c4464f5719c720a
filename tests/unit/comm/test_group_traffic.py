"""Frames that come before, while and after an exchange begins all count once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import pytest
import torch

from phalanx.comm.exchanges import DirectCopies
from phalanx.comm.frames import HEADER, FrameHeader, FrameKind
from phalanx.comm.group_traffic import GroupTraffic
from phalanx.comm.io_loop import IoLoop
from phalanx.comm.pairing import ProvenPeer
from phalanx.errors import PeerError
from support.waiting import wait_until

LIMIT_S = 60.0
THEIRS = torch.arange(6, dtype=torch.float32)
SENT = FrameHeader(FrameKind.COPY, THEIRS.nbytes, 0, 0).pack() + THEIRS.numpy().tobytes()


@dataclass
class Link:
    """Traffic of worker-0 with the thread it runs in, and the end of worker-1."""

    loop: IoLoop
    traffic: GroupTraffic
    far: socket.socket


@pytest.fixture
def link() -> Iterator[Link]:
    near, far = socket.socketpair()
    near.setblocking(False)
    with far, closing(IoLoop()) as loop:
        traffic = GroupTraffic(loop, ["worker-0", "worker-1"], 0)
        loop.call(partial(traffic.add, ProvenPeer(1, None), near))
        yield Link(loop, traffic, far)
        loop.call(traffic.close)


def exchange_of() -> tuple[DirectCopies, torch.Tensor]:
    target = torch.zeros(6)
    own = torch.ones(6)
    return DirectCopies(0, [own, own], [own, target], rank=0, activity="all-gather"), target


@pytest.mark.parametrize("num_early", [0, HEADER.size - 1, HEADER.size, HEADER.size + 5, len(SENT)])
def test_a_frame_counts_wherever_it_was_when_its_exchange_began(link: Link, num_early: int) -> None:
    traffic = link.traffic
    exchange, target = exchange_of()
    link.far.sendall(SENT[:num_early])
    if num_early:
        wait_until(lambda: traffic.moved_s, "the first bytes to be read")
    link.loop.call(lambda: traffic.begin(exchange))
    link.far.sendall(SENT[num_early:])
    assert exchange.finished.wait(LIMIT_S)
    assert exchange.error is None
    assert torch.equal(target, THEIRS)


@pytest.mark.parametrize(
    "sent",
    [
        FrameHeader(FrameKind.RESULT, 0, 0, 0).pack(),
        FrameHeader(FrameKind.COPY, 24, 0, 4).pack(),
        FrameHeader(FrameKind.COPY, 28, 0, 0).pack() + bytes(28),
        FrameHeader(FrameKind.MESSAGE, 4, 9, 0).pack() + bytes(4),
        b"\xff" * HEADER.size,
    ],
    ids=["another kind", "not the next", "too long", "a message for nobody", "no frame"],
)
def test_what_does_not_belong_to_an_exchange_ends_it_with_a_name(link: Link, sent: bytes) -> None:
    traffic = link.traffic
    exchange, target = exchange_of()
    begun = threading.Event()
    link.loop.call(lambda: traffic.begin(exchange))
    link.loop.call(begun.set)
    # Of what comes before, a frame is judged once it is whole; here most of it never comes.
    assert begun.wait(LIMIT_S)
    link.far.sendall(sent)
    assert exchange.finished.wait(LIMIT_S)
    assert exchange.error is not None
    assert exchange.error.facts["suspects"] == ("worker-1",)
    assert torch.equal(target, torch.zeros(6))
    with pytest.raises(PeerError, match="worker-1"):
        traffic.check()
