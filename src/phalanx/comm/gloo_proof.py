"""Prove the members of a Gloo group to one another, over its own connections.

Gloo pairs a connection with a member by a small number, so that a stranger who connects first takes
a worker's place. It cannot answer for that worker: the answer needs the key of the pair. A stranger
cannot pass the question on either, because each real member reaches the listener of the other one.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroupGloo

from phalanx.comm.pairing import MemberPair
from phalanx.wire.deadline import Deadline

PROOF_S = 10.0
"""Time in which all members must have proved themselves, once the group has formed."""
_BYTES = 32
_QUESTION_TAG, _ANSWER_TAG = 1, 2


def unproven_members(
    group: ProcessGroupGloo, rank: int, pairs: Mapping[int, MemberPair]
) -> list[int]:
    """Return the ranks at which somebody else may be; all members call this together.

    Args:
        group: The group.
        rank: Of this member.
        pairs: With every other member.
    """
    deadline = Deadline.after(PROOF_S, "the members of a group to prove themselves")
    questions = {other: os.urandom(_BYTES) for other in pairs}
    asked = _swap(group, questions, _QUESTION_TAG, deadline)
    answers = {other: _answer(pairs[other], rank, asked.get(other, b"")) for other in pairs}
    answered = _swap(group, answers, _ANSWER_TAG, deadline)
    return [
        other
        for other, pair in pairs.items()
        if not hmac.compare_digest(answered.get(other, b""), _answer(pair, other, questions[other]))
    ]


def _answer(pair: MemberPair, rank: int, question: bytes) -> bytes:
    return hmac.digest(pair.key, pair.prologue + b"gloo %d " % rank + question, "sha256")


def _swap(
    group: ProcessGroupGloo, messages: Mapping[int, bytes], tag: int, deadline: Deadline
) -> dict[int, bytes]:
    """Send each member a message and return those that came in time."""
    arrived: dict[int, bytes] = {}
    buffers = {other: torch.zeros(_BYTES, dtype=torch.uint8) for other in messages}
    send, receive = group.send, group.recv  # type: ignore[attr-defined]  # no stubs in torch
    works = [
        _started(send, torch.frombuffer(bytearray(data), dtype=torch.uint8), other, tag)
        for other, data in messages.items()
    ]
    for other, buffer in buffers.items():
        work = _started(receive, buffer, other, tag)
        if work is not None and _is_over(work, deadline):
            arrived[other] = bytes(buffer.numpy())
    for work in works:
        if work is not None:
            _is_over(work, deadline)
    return arrived


def _started(
    begin: Callable[..., dist.Work], tensor: torch.Tensor, other: int, tag: int
) -> dist.Work | None:
    try:
        return begin([tensor], other, tag)
    except RuntimeError:  # its connection is broken
        return None


def _is_over(work: dist.Work, deadline: Deadline) -> bool:
    try:
        # At least a moment: none at all means without limit.
        return bool(work.wait(timedelta(seconds=max(0.01, deadline.remaining_s))))
    except RuntimeError:
        return False
