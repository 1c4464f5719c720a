"""Record which batches a shard has taken, segment by segment, so that each counts once.

When a worker dies half way through a push, another computes its batch again; the shard ignores the
segments of the second push that it has taken from the first. Batches are known by their ticket, a
positive number; 0 stands for no ticket. A segment of a batch is *claimed* when it arrives and
*applied* when it has changed the parameters: only what was applied is in a copy of the parameters,
and so only that is part of the state that goes with a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from phalanx.wire.ticket_set import TicketSet


@dataclass(frozen=True)
class SegmentTickets:
    """What is in a copy of one segment.

    Attributes:
        tickets: Encoded set of the batches that were applied to it.
        num_samples: Samples behind all of its updates.
    """

    tickets: bytes = b""
    num_samples: int = 0


class Ledger:
    """Account for the batches of one shard.

    Memory is in proportion to the batches being computed, not to those that are done.

    Args:
        num_segments: Segments of the shard.
        num_parts: Tickets of one step of the run.
    """

    def __init__(self, num_segments: int, num_parts: int = 1) -> None:
        self._num_parts = num_parts
        self._all = (1 << num_segments) - 1
        self._whole = TicketSet(num_parts)
        self._applied: dict[int, int] = {}  # bits of segments, where some are missing
        self._claimed: dict[int, int] = {}  # bits of segments that wait to be applied
        self._encoded: bytes | None = None
        self.num_samples = [0] * num_segments
        """Samples behind the updates of each segment."""

    def claim(self, ticket: int, segment: int) -> bool:
        """Claim a segment of a batch; False: it was taken before."""
        if ticket == 0:
            return True
        if ticket in self._whole or self._taken(ticket) >> segment & 1:
            return False
        self._claimed[ticket] = self._claimed.get(ticket, 0) | 1 << segment
        return True

    def give_back(self, ticket: int, segment: int) -> None:
        """Release a claim: the segment will not be applied after all."""
        if ticket:
            self._drop_claim(ticket, segment)

    def apply(self, segment: int, batches: Iterable[tuple[int, int]]) -> None:
        """Note the claimed batches, with their samples, that have now changed a segment."""
        for ticket, num_samples in batches:
            self.num_samples[segment] += num_samples
            if ticket == 0:
                continue
            self._drop_claim(ticket, segment)
            self._add(ticket, 1 << segment)

    def is_complete(self, ticket: int) -> bool:
        """Return whether every segment of a batch has been taken."""
        return ticket != 0 and (ticket in self._whole or self._taken(ticket) == self._all)

    def is_known(self, ticket: int) -> bool:
        """Return whether any segment of a batch has been taken."""
        return ticket != 0 and (ticket in self._whole or self._taken(ticket) != 0)

    def forget_below(self, ticket: int) -> None:
        """Forget earlier tickets, which will never be pushed again."""
        self._whole.discard_below(ticket)
        self._applied = {known: bits for known, bits in self._applied.items() if known >= ticket}
        self._encoded = None

    def held(self) -> TicketSet:
        """Return the batches that have changed every segment, as a copy."""
        return self._whole.copy()

    def of_segment(self, segment: int) -> SegmentTickets:
        """Return what has changed one segment so far."""
        extra = [ticket for ticket, bits in self._applied.items() if bits >> segment & 1]
        if extra:
            tickets = self._whole.copy()
            for ticket in extra:
                tickets.add(ticket)
            return SegmentTickets(tickets.encode(), self.num_samples[segment])
        if self._encoded is None:
            # An empty set takes no bytes: runs without tickets send nothing.
            self._encoded = self._whole.encode() if self._whole.num_ranges else b""
        return SegmentTickets(self._encoded, self.num_samples[segment])

    def state(self) -> list[SegmentTickets]:
        """Return what has changed each segment."""
        return [self.of_segment(index) for index in range(len(self.num_samples))]

    def check(self, contents: SegmentTickets) -> None:
        """Check what came with a copy of a segment.

        Raises:
            ValueError: It is not of this run.
        """
        TicketSet.decode(contents.tickets, self._num_parts)

    def load_state(self, state: Sequence[SegmentTickets]) -> None:
        """Take over what `state` returned, or what came with the copies of all segments.

        Raises:
            ValueError: It is not of this run.
        """
        sets = [TicketSet.decode(one.tickets, self._num_parts) for one in state]
        self._claimed = {}
        self._applied = {}
        self._encoded = None
        # In all segments: what is in the first and missing in none.
        whole = sets[0]
        for other in sets[1:]:
            whole = whole.difference(whole.difference(other))
        self._whole = whole
        for index, tickets in enumerate(sets):
            for ticket in tickets.difference(whole):
                self._applied[ticket] = self._applied.get(ticket, 0) | 1 << index
        self.num_samples = [one.num_samples for one in state]

    def _taken(self, ticket: int) -> int:
        return self._applied.get(ticket, 0) | self._claimed.get(ticket, 0)

    def _add(self, ticket: int, bit: int) -> None:
        self._encoded = None
        bits = self._applied.pop(ticket, 0) | bit
        if bits == self._all:
            self._whole.add(ticket)
        else:
            self._applied[ticket] = bits

    def _drop_claim(self, ticket: int, segment: int) -> None:
        left = self._claimed.get(ticket, 0) & ~(1 << segment)
        if left:
            self._claimed[ticket] = left
        else:
            self._claimed.pop(ticket, None)
