"""Copy segments for replies to workers.

A reply must not change while ZeroMQ sends it, and the segment may be updated meanwhile; so replies
are copies. Memory is reused, because fresh pages cost as much as the copy, and workers that read
the same version share one copy. The number of copies has a limit, so that a server's memory depends
on the model and not on how many workers read slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from weakref import ref

import torch
from torch import Tensor

from phalanx.paramserver.ledger import SegmentTickets
from phalanx.wire.bulk import Kind

MOST_COPIES = 4
"""Copies of one segment in replies to workers: enough to keep a network busy."""
_DTYPES = {Kind.F32: torch.float32, Kind.BF16: torch.bfloat16}


@dataclass
class SegmentCopy:
    """A segment as it was at one moment.

    Attributes:
        values: Its parameters.
        applied: Updates that the segment had had.
        contents: Batches behind them.
        num_queued: Replies that wait to be sent with it.
    """

    values: Tensor
    applied: int
    contents: SegmentTickets
    num_queued: int = 0
    _lent: list[ref[memoryview]] = field(default_factory=list)

    def lend(self) -> memoryview:
        """Return the bytes to send; the copy is in use until ZeroMQ releases them."""
        # A separate view for each reply tells as much as a tracker, which costs five times more.
        payload = self.values.view(torch.uint8).numpy().data
        self._lent.append(ref(payload))
        return payload

    @property
    def tickets(self) -> bytes:
        """Encoded set of the batches behind it."""
        return self.contents.tickets

    @property
    def is_free(self) -> bool:
        """Whether no reply uses it any more."""
        self._lent = [payload for payload in self._lent if payload() is not None]
        return not self._lent and self.num_queued == 0


class Replies:
    """Provide copies of the segments of a slice.

    Args:
        parameters: The slice.
        parts: The segments within it.
        kind: Format of replies: F32 or BF16.
        most_copies: Of one segment; None: as many as there are replies.
    """

    def __init__(
        self,
        parameters: Tensor,
        parts: Sequence[slice],
        kind: Kind,
        *,
        most_copies: int | None = None,
    ) -> None:
        self.kind = kind
        self._segments = [parameters[part] for part in parts]
        self._copies: list[list[SegmentCopy]] = [[] for _ in parts]
        self._most_copies = most_copies

    def current(
        self, index: int, applied: int, contents: Callable[[int], SegmentTickets]
    ) -> SegmentCopy | None:
        """Return a copy of a segment as it is now; None: all are in use, try again later.

        Args:
            index: Of the segment.
            applied: Updates it has had; equal numbers mean equal contents.
            contents: Returns the batches behind a segment as it is now.
        """
        copies = self._copies[index]
        for copy in copies:
            if copy.applied == applied:
                return copy
        segment = self._segments[index]
        spare = next((copy for copy in copies if copy.is_free), None)
        if spare is None:
            if self._most_copies is not None and len(copies) >= self._most_copies:
                return None
            values = torch.empty(segment.numel(), dtype=_DTYPES[self.kind])
            spare = SegmentCopy(values, applied, SegmentTickets())
            copies.append(spare)
        spare.values.copy_(segment)
        spare.applied = applied
        spare.contents = contents(index)
        return spare

    def forget(self) -> None:
        """Drop all copies: the parameters were replaced."""
        for copies in self._copies:
            for copy in copies:
                copy.applied = -1

    def give_back(self) -> None:
        """Free the memory of copies that no reply uses; called while there is nothing to do."""
        for index, copies in enumerate(self._copies):
            self._copies[index] = [copy for copy in copies if not copy.is_free]
