"""Memory of replies is that of a few copies of the slice, however many workers read slowly."""

from __future__ import annotations

import torch

from phalanx.paramserver.ledger import SegmentTickets
from phalanx.paramserver.replies import MOST_COPIES, Replies
from phalanx.wire.bulk import Kind

PARTS = [slice(0, 4), slice(4, 8)]


def make(most_copies: int | None = MOST_COPIES) -> tuple[torch.Tensor, Replies]:
    parameters = torch.zeros(8)
    return parameters, Replies(parameters, PARTS, Kind.F32, most_copies=most_copies)


def contents(index: int) -> SegmentTickets:
    return SegmentTickets(bytes([index]), index)


def test_slow_readers_do_not_add_memory() -> None:
    parameters, replies = make()
    on_their_way = []
    for version in range(50):
        parameters.fill_(version)
        copy = replies.current(0, version, contents)
        if copy is not None:
            on_their_way.append((copy, copy.lend()))
    assert len(on_their_way) == MOST_COPIES
    assert [float(copy.values[0]) for copy, _ in on_their_way] == list(range(MOST_COPIES))
    assert replies.current(1, 49, contents) is not None, "another segment has copies of its own"
    # As soon as one has been sent, the next reply gets what is current then.
    del copy
    on_their_way.pop(0)
    again = replies.current(0, 49, contents)
    assert again is not None
    assert float(again.values[0]) == 49.0


def test_readers_of_one_version_share_a_copy_and_its_contents() -> None:
    _, replies = make()
    copy = replies.current(1, 3, contents)
    assert copy is not None
    assert replies.current(1, 3, contents) is copy
    assert copy.tickets == b"\1"


def test_idle_memory_is_given_back() -> None:
    parameters, replies = make(None)
    kept = replies.current(0, 1, contents)
    assert kept is not None
    payload = kept.lend()
    parameters.fill_(1.0)
    other = replies.current(0, 2, contents)
    assert other is not None
    replies.give_back()
    assert replies.current(0, 1, contents) is kept, "still on its way"
    assert replies.current(0, 2, contents) is not other
    assert payload.nbytes == 16
