"""All-reduce along trees, one per slice of the tensor, frame by frame.

Runs in the thread of the exchange. A member passes on what it has added as soon as all its children
have sent so much, and a sum as soon as it comes, so that the hops of a tree work at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import torch
from typing_extensions import override

from phalanx.comm.base import Reduction
from phalanx.comm.exchanges import Exchange, StagingBuffers, disagreement, misplaced
from phalanx.comm.frames import FrameHeader, FrameKind
from phalanx.comm.slices import byte_view, flat, fold, slice_bounds
from phalanx.topology.sum_tree import SumTree


class _Slice:
    """One slice of the tensor in the eyes of one member: its neighbours, and what has come."""

    def __init__(
        self, begin: int, end: int, tree: SumTree, rank: int, staging: StagingBuffers
    ) -> None:
        self.begin = begin
        self.end = end
        # That of the root is nobody's rank.
        self.parent = tree.parents[rank]
        self.children = tree.children[rank]
        self.is_root = self.parent not in range(len(tree.parents))
        self.staged = {child: staging.take(end - begin) for child in self.children}
        self.num_staged = dict.fromkeys(self.children, 0)
        self.num_folded = 0
        self.num_results = 0

    @property
    def length(self) -> int:
        return self.end - self.begin


class TreeReduction(Exchange):
    """All-reduce in which sums go up a tree per slice, and back down from its root.

    Args:
        number: Of this exchange.
        tensor: Reduced in place.
        reduction: How.
        rank: Of this member.
        trees: One per slice, over all members.
        staging: Where memory for contributions comes from.
    """

    needs_everybody = True

    def __init__(
        self,
        number: int,
        tensor: torch.Tensor,
        reduction: Reduction,
        *,
        rank: int,
        trees: Sequence[SumTree],
        staging: StagingBuffers,
    ) -> None:
        super().__init__(number, "all-reduce")
        self._row = flat(tensor)
        self._bytes = byte_view(self._row)
        self._reduction: Reduction = reduction
        self._rank = rank
        self._staging = staging
        width = tensor.element_size()
        bounds = slice_bounds(self._row.numel(), len(trees))
        self._slices = [
            _Slice(begin * width, end * width, tree, rank, staging)
            for tree, (begin, end) in zip(trees, bounds, strict=True)
            if end > begin
        ]
        self._begins = [one.begin for one in self._slices]
        for one in self._slices:
            neighbours = one.children if one.is_root else (*one.children, one.parent)
            for other in neighbours:
                self._expected[other] = self._expected.get(other, 0) + one.length

    @override
    def _send(self) -> None:
        # Each member begins with another slice, so that no two collide at one owner.
        first = (self._rank + 1) % max(1, len(self._slices))
        for one in self._slices[first:] + self._slices[:first]:
            if not one.children:
                self._send_up(one, one.begin, one.end)

    @override
    def place(self, rank: int, header: FrameHeader) -> memoryview:
        if header.kind not in (FrameKind.CONTRIBUTION, FrameKind.RESULT):
            raise misplaced(header)
        one = self._slice_of(header)
        first = header.offset - one.begin
        if header.kind is FrameKind.CONTRIBUTION and one.num_staged.get(rank) == first:
            return byte_view(one.staged[rank])[first : first + header.num_bytes]
        if header.kind is FrameKind.RESULT and (rank, first) == (one.parent, one.num_results):
            return self._bytes[header.offset : header.offset + header.num_bytes]
        raise disagreement()

    @override
    def _take(self, rank: int, header: FrameHeader) -> None:
        one = self._slice_of(header)
        if header.kind is FrameKind.RESULT:
            one.num_results += header.num_bytes
            self._send_down(one, header.offset, header.offset + header.num_bytes)
            return
        one.num_staged[rank] += header.num_bytes
        begin, end = one.num_folded, min(one.num_staged.values())
        if end > begin:
            self._fold(one, begin, end)

    @override
    def suspects(self) -> set[int]:
        # Whoever has contributed may lack a sum only because somebody else has not.
        silent = {
            rank
            for one in self._slices
            for rank, num_bytes in one.num_staged.items()
            if num_bytes < one.length
        }
        return silent or self.waits_for()

    def _slice_of(self, header: FrameHeader) -> _Slice:
        """Return the slice that a frame is a part of.

        Raises:
            ProtocolError: Of none.
        """
        number = bisect_right(self._begins, header.offset) - 1
        is_whole = header.num_bytes % self._row.element_size() == 0
        if (
            number < 0
            or not is_whole
            or header.offset + header.num_bytes > self._slices[number].end
        ):
            raise disagreement()
        return self._slices[number]

    def _fold(self, one: _Slice, begin: int, end: int) -> None:
        """Reduce the part of a slice that all children have sent, and pass it on."""
        one.num_folded = end
        width, dtype = self._row.element_size(), self._row.dtype
        target = self._row[(one.begin + begin) // width : (one.begin + end) // width]
        parts = {child: staged[begin:end].view(dtype) for child, staged in one.staged.items()}
        parts[self._rank] = target
        fold(target, [parts[rank] for rank in sorted(parts)], self._reduction)
        if one.is_root:
            self._send_down(one, one.begin + begin, one.begin + end)
        else:
            self._send_up(one, one.begin + begin, one.begin + end)

    def _send_up(self, one: _Slice, begin: int, end: int) -> None:
        self._put_parts(one.parent, FrameKind.CONTRIBUTION, self._bytes[begin:end], begin)

    def _send_down(self, one: _Slice, begin: int, end: int) -> None:
        for child in one.children:
            self._put_parts(child, FrameKind.RESULT, self._bytes[begin:end], begin)

    @override
    def _release(self) -> None:
        for one in self._slices:
            self._staging.give_back(list(one.staged.values()))
            one.staged = {}
