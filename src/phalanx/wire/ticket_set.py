"""Hold a set of tickets as ranges, in memory and on the wire.

Servers, workers and the controller keep such sets between two gates: as single numbers, the tickets
of a long epoch would fill gigabytes. Workers finish the tickets of a part in order, or those of a
block that they were given; so a set is cut by part, and has hardly more ranges than tickets are
being computed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator

# Position of the part in a key; a part has fewer tickets than this.
_SHIFT = 40
_STEP_MASK = (1 << _SHIFT) - 1


class TicketSet:
    """Set of tickets, stored as ranges of the steps of each part.

    Args:
        num_parts: Tickets of one step; the sets of all processes of a run have the same.
        tickets: The first members.
    """

    def __init__(self, num_parts: int = 1, tickets: Iterable[int] = ()) -> None:
        self._num_parts = num_parts
        self._starts: list[int] = []
        self._stops: list[int] = []
        for ticket in tickets:
            self.add(ticket)

    def __contains__(self, ticket: int) -> bool:
        key = self._key(ticket)
        index = bisect_right(self._starts, key) - 1
        return index >= 0 and key < self._stops[index]

    def __len__(self) -> int:
        return sum(self._stops) - sum(self._starts)

    def __iter__(self) -> Iterator[int]:
        for start, stop in zip(self._starts, self._stops, strict=True):
            for key in range(start, stop):
                yield (key & _STEP_MASK) * self._num_parts + (key >> _SHIFT)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TicketSet)
            and (self._num_parts, self._starts, self._stops)
            == (other._num_parts, other._starts, other._stops)
        )  # fmt: skip

    __hash__ = None  # type: ignore[assignment]  # it can change

    @property
    def num_ranges(self) -> int:
        """Number of ranges, which memory and messages are proportional to."""
        return len(self._starts)

    def add(self, ticket: int) -> bool:
        """Add a ticket; False: it was a member already."""
        key = self._key(ticket)
        index = bisect_right(self._starts, key)
        if index > 0 and key < self._stops[index - 1]:
            return False
        joins_left = index > 0 and self._stops[index - 1] == key
        joins_right = index < len(self._starts) and self._starts[index] == key + 1
        if joins_left and joins_right:
            self._stops[index - 1] = self._stops.pop(index)
            del self._starts[index]
        elif joins_left:
            self._stops[index - 1] = key + 1
        elif joins_right:
            self._starts[index] = key
        else:
            self._starts.insert(index, key)
            self._stops.insert(index, key + 1)
        return True

    def copy(self) -> TicketSet:
        """Return a set of its own with the same members."""
        other = TicketSet(self._num_parts)
        other._starts, other._stops = list(self._starts), list(self._stops)
        return other

    def discard_below(self, ticket: int) -> None:
        """Remove all tickets below this one."""
        kept = TicketSet(self._num_parts)
        for start, stop in zip(self._starts, self._stops, strict=True):
            part = start >> _SHIFT
            # The first step whose ticket of this part is not below.
            step = max(0, -((part - ticket) // self._num_parts))
            start = max(start, part << _SHIFT | step)
            if start < stop:
                kept._starts.append(start)
                kept._stops.append(stop)
        self._starts, self._stops = kept._starts, kept._stops

    def difference(self, other: TicketSet) -> TicketSet:
        """Return the tickets that are here and not in another set."""
        rest = TicketSet(self._num_parts)
        for start, stop in zip(self._starts, self._stops, strict=True):
            index = max(0, bisect_right(other._starts, start) - 1)
            while start < stop and index < len(other._starts):
                begin, end = other._starts[index], other._stops[index]
                if begin >= stop:
                    break
                if begin > start:
                    rest._append(start, begin)
                start = max(start, end)
                index += 1
            if start < stop:
                rest._append(start, stop)
        return rest

    def update(self, other: TicketSet) -> None:
        """Add the tickets of another set."""
        bounds = sorted(zip(self._starts + other._starts, self._stops + other._stops, strict=True))
        self._starts, self._stops = [], []
        for start, stop in bounds:
            if self._stops and start <= self._stops[-1]:
                self._stops[-1] = max(stop, self._stops[-1])
            else:
                self._append(start, stop)

    def parts(self, num_ranges: int) -> list[TicketSet]:
        """Cut the set into some of at most so many ranges; at least one, which may be empty."""
        cut = []
        for begin in range(0, max(1, self.num_ranges), num_ranges):
            part = TicketSet(self._num_parts)
            part._starts = self._starts[begin : begin + num_ranges]
            part._stops = self._stops[begin : begin + num_ranges]
            cut.append(part)
        return cut

    def encode(self) -> bytes:
        """Return the set as bytes, 16 for each range; see `decode`."""
        return array("Q", [self._num_parts, *self._starts, *self._stops]).tobytes()

    @classmethod
    def decode(cls, data: bytes | memoryview, num_parts: int) -> TicketSet:
        """Return the set that `encode` has written; nothing stands for the empty set.

        Raises:
            ValueError: It is of a run with another number of parts, or no such set.
        """
        if not data:
            return cls(num_parts)
        if len(data) % 8 != 0 or len(data) % 16 != 8:
            raise ValueError(f"{len(data)} bytes are no set of tickets")
        numbers = array("Q")
        numbers.frombytes(data)
        bounds, half = numbers[1:], len(numbers) // 2
        starts, stops = bounds[:half].tolist(), bounds[half:].tolist()
        in_order = all(start < stop for start, stop in zip(starts, stops, strict=True)) and all(
            stop < start for stop, start in zip(stops, starts[1:], strict=False)
        )
        if numbers[0] != num_parts or not in_order:
            raise ValueError("these tickets are not of this run")
        found = cls(num_parts)
        found._starts, found._stops = starts, stops
        return found

    def _append(self, start: int, stop: int) -> None:
        self._starts.append(start)
        self._stops.append(stop)

    def _key(self, ticket: int) -> int:
        step, part = divmod(ticket, self._num_parts)
        return part << _SHIFT | step
