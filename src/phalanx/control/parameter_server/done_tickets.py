"""Remember which tickets of a stretch are done, and which of them a restored server lacks. Pure.

A lost server takes updates with it that no copy contains, or whose copy was older. Their tickets
are computed again: the restored server takes them, the others recognise and ignore them, so that
each counts once on every server.
"""

from __future__ import annotations

from collections.abc import Collection

from phalanx.wire.ticket_set import TicketSet


class DoneTickets:
    """Done tickets up to the next gate.

    Args:
        num_parts: Tickets of one step.
    """

    def __init__(self, num_parts: int) -> None:
        self.first = 0
        """The first ticket of the stretch; earlier ones are on all servers for good."""
        self._num_parts = num_parts
        self._done = TicketSet(num_parts)
        self._required: dict[int, TicketSet] = {}
        self._held: dict[int, TicketSet] = {}
        self._again_when_done: set[int] = set()

    def begin(self, first: int) -> None:
        """Begin a stretch with this ticket: all before it are done and will not be pushed again."""
        self.first = first
        self._done = TicketSet(self._num_parts)
        self._required.clear()

    def complete(self, ticket: int) -> bool:
        """Note that a ticket is done; False: it was before, and counts no second time."""
        return self._done.add(ticket)

    def is_due_again(self, ticket: int) -> bool:
        """Return whether a ticket that has just been done must be computed once more."""
        if ticket in self._again_when_done:
            self._again_when_done.discard(ticket)
            return True
        return False

    def returned(self, ticket: int) -> None:
        """Note that a ticket goes to another worker, which pushes it to every server."""
        self._again_when_done.discard(ticket)

    def source_chosen(self, server: int, acknowledged: Collection[int]) -> None:
        """Note what a server must contain that is about to be restored.

        Args:
            server: Which one.
            acknowledged: Tickets that are not done, but that the lost server has acknowledged.
        """
        self._held.pop(server, None)
        self._required[server] = self._done.copy()
        for ticket in acknowledged:
            self._required[server].add(ticket)

    def note_held(self, server: int, tickets: bytes) -> None:
        """Note a part of the tickets that a restored server contains."""
        held = self._held.setdefault(server, TicketSet(self._num_parts))
        held.update(TicketSet.decode(tickets, self._num_parts))

    def lacking(self, server: int, in_work: Collection[int]) -> list[int]:
        """Return the tickets to compute again, now that all held by a server were noted.

        Args:
            server: The restored one.
            in_work: Tickets that workers hold; what the server lacks of them follows when done.
        """
        held = self._held.pop(server, TicketSet(self._num_parts))
        required = self._required.pop(server, TicketSet(self._num_parts))
        missing = sorted(required.difference(held))
        self._again_when_done.update(
            ticket for ticket in missing if ticket in in_work and ticket not in self._done
        )
        return [ticket for ticket in missing if ticket in self._done and ticket not in in_work]
