"""Copy segments for replies to workers.

A reply must not change while ZeroMQ sends it, and the segment may be updated meanwhile; so replies
are copies. Memory is reused, because fresh pages cost as much as the copy, and workers that read
the same version share one copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import ref

import torch
from torch import Tensor

from phalanx.wire.bulk import Kind

_DTYPES = {Kind.F32: torch.float32, Kind.BF16: torch.bfloat16}


@dataclass
class SegmentCopy:
    """A segment as it was at one moment.

    Attributes:
        values: Its parameters.
        applied: Updates that the segment had had.
        num_queued: Replies that wait to be sent with it.
    """

    values: Tensor
    applied: int
    num_queued: int = 0
    _lent: list[ref[memoryview]] = field(default_factory=list)

    def lend(self) -> memoryview:
        """Return the bytes to send; the copy is in use until ZeroMQ releases them."""
        # A separate view for each reply tells as much as a tracker, which costs five times more.
        payload = self.values.view(torch.uint8).numpy().data
        self._lent.append(ref(payload))
        return payload

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
    """

    def __init__(self, parameters: Tensor, parts: Sequence[slice], kind: Kind) -> None:
        self.kind = kind
        self._segments = [parameters[part] for part in parts]
        self._copies: list[list[SegmentCopy]] = [[] for _ in parts]

    def current(self, index: int, applied: int) -> SegmentCopy:
        """Return a copy of a segment as it is now.

        Args:
            index: Of the segment.
            applied: Updates it has had; equal numbers mean equal contents.
        """
        copies = self._copies[index]
        for copy in copies:
            if copy.applied == applied:
                return copy
        segment = self._segments[index]
        spare = next((copy for copy in copies if copy.is_free), None)
        if spare is None:
            spare = SegmentCopy(torch.empty(segment.numel(), dtype=_DTYPES[self.kind]), applied)
            copies.append(spare)
        spare.values.copy_(segment)
        spare.applied = applied
        return spare

    def forget(self) -> None:
        """Drop all copies: the parameters were replaced."""
        for copies in self._copies:
            for copy in copies:
                copy.applied = -1
