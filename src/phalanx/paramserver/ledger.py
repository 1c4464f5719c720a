"""Which batches a shard has taken, segment by segment, so that each counts exactly once.

When a worker dies half way through a push, its batch is computed again by another. The servers that
had taken the first push ignore the second, segment by segment; the others take it.
"""

from __future__ import annotations


class Ledger:
    """Batches are known by their ticket, a positive number; 0 stands for no ticket.

    Args:
        num_segments: Of the shard.
    """

    def __init__(self, num_segments: int) -> None:
        self._all = (1 << num_segments) - 1
        self._taken: dict[int, int] = {}

    def claim(self, ticket: int, segment: int) -> bool:
        """Take a segment of a batch; False: it has been taken before."""
        if ticket == 0:
            return True
        taken = self._taken.get(ticket, 0)
        if taken >> segment & 1:
            return False
        self._taken[ticket] = taken | 1 << segment
        return True

    def give_back(self, ticket: int, segment: int) -> None:
        """A segment that was claimed will not be applied after all."""
        if ticket:
            self._taken[ticket] &= ~(1 << segment)

    def is_complete(self, ticket: int) -> bool:
        """Whether every segment of a batch has been taken."""
        return ticket != 0 and self._taken.get(ticket) == self._all

    def forget_below(self, ticket: int) -> None:
        """Earlier tickets will never come again."""
        self._taken = {known: taken for known, taken in self._taken.items() if known >= ticket}

    def state(self) -> dict[int, int]:
        """A copy: bits of the segments taken, by ticket."""
        return dict(self._taken)

    def load_state(self, state: dict[int, int]) -> None:
        """Take over what `state` returned."""
        self._taken = dict(state)
