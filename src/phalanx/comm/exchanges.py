"""Exchanges of a group, frame by frame: small sums, broadcast, gather, messages.

Large sums are in `tree_reduction`.

Run in the thread of the exchange. An exchange says where each frame goes, what follows from its
arrival and whom it still waits for; it is over once everything has come and everything has left.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
from typing_extensions import override

from phalanx.comm.base import Reduction
from phalanx.comm.frames import FRAME_BYTES, FrameHeader, FrameKind
from phalanx.comm.slices import byte_view, flat, fold, slice_bounds
from phalanx.errors import PeerError, ProtocolError

Put = Callable[[int, FrameHeader, memoryview, Callable[[], None]], None]
"""Queue a frame for a member; the call at the end is made when its payload is free again."""


class StagingBuffers:
    """Memory for contributions, kept between exchanges: new memory costs as much as the sum."""

    def __init__(self) -> None:
        self._free: dict[int, list[torch.Tensor]] = {}

    def take(self, num_bytes: int) -> torch.Tensor:
        """Return memory of this size, with anything in it."""
        free = self._free.get(num_bytes)
        return free.pop() if free else torch.empty(num_bytes, dtype=torch.uint8)

    def give_back(self, buffers: Sequence[torch.Tensor]) -> None:
        """Take memory that is not used any more."""
        for one in buffers:
            self._free.setdefault(one.nbytes, []).append(one)

    def forget(self) -> None:
        """Keep nothing: sums of other sizes follow."""
        self._free.clear()


class Exchange(ABC):
    """One exchange of a group.

    Args:
        number: Of this exchange in the group, or its tag.
        activity: In words, for messages.
    """

    needs_everybody = False
    """Whether it cannot end, once somebody has given the group up, for whoever has not all of it: a
    member waits for its neighbours, and they for theirs."""

    def __init__(self, number: int, activity: str) -> None:
        self.number = number
        self.activity = activity
        self.error: PeerError | None = None
        self.finished = threading.Event()
        self._unsent: dict[int, int] = {}
        self._expected: dict[int, int] = {}
        self._put: Put | None = None

    def begin(self, put: Put) -> None:
        """Queue the first frames."""
        self._put = put
        self._send()
        self._check()

    @abstractmethod
    def place(self, rank: int, header: FrameHeader) -> memoryview:
        """Return where the payload of a frame goes.

        Raises:
            ProtocolError: The frame does not belong to this exchange.
        """

    def arrived(self, rank: int, header: FrameHeader) -> None:
        """Handle a frame whose payload is in its place."""
        self._expected[rank] -= header.num_bytes
        self._take(rank, header)
        self._check()

    def waits_for(self) -> set[int]:
        """Return the members that have not sent, or not taken, all that they must."""
        missing = {rank for rank, num_bytes in self._expected.items() if num_bytes}
        return missing | {rank for rank, count in self._unsent.items() if count}

    def suspects(self) -> set[int]:
        """Return those of them that the others may be waiting for as well."""
        return self.waits_for()

    def fail(self, error: PeerError) -> None:
        """End without a result; nothing touches the tensor afterwards."""
        if not self.finished.is_set():
            self.error = error
            self._release()
            self.finished.set()

    @abstractmethod
    def _send(self) -> None:
        """Queue what can be sent at once."""

    def _take(self, rank: int, header: FrameHeader) -> None:
        """Do what follows from a frame."""
        return

    def _complete(self) -> None:
        """Do what remains once everything has come."""
        return

    def _release(self) -> None:
        """Give memory back."""
        return

    def _check(self) -> None:
        if not self.finished.is_set() and not self.waits_for():
            self._complete()
            self._release()
            self.finished.set()

    def _put_parts(self, rank: int, kind: FrameKind, data: memoryview, offset: int = 0) -> None:
        """Queue bytes for a member, in as many frames as it takes."""
        assert self._put is not None, "frames are put after begin"

        def left() -> None:
            self._unsent[rank] -= 1
            self._check()

        for begin, end in _parts(data.nbytes):
            self._unsent[rank] = self._unsent.get(rank, 0) + 1
            header = FrameHeader(kind, end - begin, self.number, offset + begin)
            self._put(rank, header, data[begin:end], left)


class DirectCopies(Exchange):
    """Every member sends every other one a tensor.

    Args:
        number: Of this exchange.
        sources: What each member is sent, by rank; this one's own is left alone.
        targets: Where the tensor of each member goes, likewise.
        rank: Of this member.
        activity: In words.
        then: Called once all have come.
    """

    def __init__(
        self,
        number: int,
        sources: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor],
        *,
        rank: int,
        activity: str,
        then: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(number, activity)
        self._sources = [byte_view(flat(one)) for one in sources]
        self._targets = [byte_view(flat(one)) for one in targets]
        self._then = then
        others = _others(rank, len(targets))
        self._expected = {other: self._targets[other].nbytes for other in others}

    @override
    def _send(self) -> None:
        for other in self._expected:
            self._put_parts(other, FrameKind.COPY, self._sources[other])

    @override
    def place(self, rank: int, header: FrameHeader) -> memoryview:
        if header.kind is not FrameKind.COPY:
            raise misplaced(header)
        target = self._targets[rank]
        _check_place(header, target.nbytes - self._expected[rank], target.nbytes)
        return target[header.offset : header.offset + header.num_bytes]

    @override
    def _complete(self) -> None:
        if self._then is not None:
            self._then()


class SlicedBroadcast(Exchange):
    """Broadcast in which the source sends each other member a slice, which passes it on.

    No member sends the whole tensor more than about once, the source included.
    """

    def __init__(
        self, number: int, tensor: torch.Tensor, *, source: int, rank: int, size: int
    ) -> None:
        super().__init__(number, "broadcast")
        self._bytes = byte_view(flat(tensor))
        self._source = source
        self._rank = rank
        takers = [other for other in range(size) if other != source]
        bounds = slice_bounds(self._bytes.nbytes, len(takers))
        self._bounds = dict(zip(takers, bounds, strict=True))
        if rank != source:
            self._expected = {other: end - begin for other, (begin, end) in self._bounds.items()}
            # This member's own slice comes from the source.
            self._expected[source] = self._expected.pop(rank)

    @override
    def _send(self) -> None:
        if self._rank == self._source:
            for other, (begin, end) in self._bounds.items():
                self._put_parts(other, FrameKind.CONTRIBUTION, self._bytes[begin:end])

    @override
    def place(self, rank: int, header: FrameHeader) -> memoryview:
        kind = FrameKind.CONTRIBUTION if rank == self._source else FrameKind.RESULT
        if header.kind is not kind or rank not in self._expected:
            raise misplaced(header)
        begin, end = self._slice_from(rank)
        _check_place(header, end - begin - self._expected[rank], end - begin)
        return self._bytes[begin + header.offset : begin + header.offset + header.num_bytes]

    @override
    def _take(self, rank: int, header: FrameHeader) -> None:
        if rank == self._source:
            begin = self._bounds[self._rank][0] + header.offset
            part = self._bytes[begin : begin + header.num_bytes]
            for other in self._bounds:
                if other != self._rank:
                    self._put_parts(other, FrameKind.RESULT, part, header.offset)

    def _slice_from(self, rank: int) -> tuple[int, int]:
        return self._bounds[self._rank if rank == self._source else rank]


class OutgoingMessage(Exchange):
    """A tensor on its way to one member, which has said that it waits for it."""

    def __init__(self, tag: int, tensor: torch.Tensor, *, target: int, name: str) -> None:
        super().__init__(tag, f"sending to {name}")
        self._target = target
        self._bytes = byte_view(flat(tensor))
        # Until the target is ready, nothing is queued, and yet it is waited for.
        self._unsent = {target: 1}

    @override
    def begin(self, put: Put) -> None:
        self._unsent = {}
        super().begin(put)

    @override
    def _send(self) -> None:
        self._put_parts(self._target, FrameKind.MESSAGE, self._bytes)

    @override
    def place(self, rank: int, header: FrameHeader) -> memoryview:
        raise misplaced(header)


class IncomingMessage(Exchange):
    """A tensor that one member sends."""

    def __init__(self, tag: int, tensor: torch.Tensor, *, source: int, name: str) -> None:
        super().__init__(tag, f"receiving from {name}")
        self._source = source
        self._bytes = byte_view(flat(tensor))
        self._expected = {source: self._bytes.nbytes}

    @override
    def _send(self) -> None:
        assert self._put is not None, "called by begin"
        header = FrameHeader(FrameKind.READY, 0, self.number, 0)
        self._put(self._source, header, memoryview(b""), lambda: None)

    @override
    def place(self, rank: int, header: FrameHeader) -> memoryview:
        length = self._bytes.nbytes
        _check_place(header, length - self._expected[rank], length)
        return self._bytes[header.offset : header.offset + header.num_bytes]


def gathered_reduction(
    number: int,
    tensor: torch.Tensor,
    reduction: Reduction,
    *,
    rank: int,
    size: int,
) -> Exchange:
    """Return an all-reduce for small tensors: one hop, and every member adds for itself."""
    row = flat(tensor)
    parts = [row if other == rank else torch.empty_like(row) for other in range(size)]

    def reduce() -> None:
        fold(row, parts, reduction)

    sources = [row] * size
    return DirectCopies(number, sources, parts, rank=rank, activity="all-reduce", then=reduce)


def misplaced(header: FrameHeader) -> ProtocolError:
    """Return the error for a frame that nothing here waits for."""
    return ProtocolError(f"a frame ({header.kind.name.lower()}) came that nothing waits for")


def disagreement() -> ProtocolError:
    """Return the error for a frame that does not belong where it says that it does."""
    return ProtocolError("members disagree about what they exchange: a tensor's size differs")


def _others(rank: int, size: int) -> list[int]:
    """Return the other ranks; each member begins with the next one, so that no two collide."""
    return [(rank + step) % size for step in range(1, size)]


def _parts(num_bytes: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, num_bytes, FRAME_BYTES):
        yield begin, min(num_bytes, begin + FRAME_BYTES)


def _check_place(header: FrameHeader, num_taken: int, length: int) -> None:
    """Refuse a frame that is not the next one of its slice or reaches beyond it."""
    if header.offset != num_taken or header.offset + header.num_bytes > length:
        raise disagreement()
