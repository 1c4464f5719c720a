"""What a member of a group knows of the others when an exchange does not go on, and whom it blames.

Pure. Along a tree a member waits for its neighbours, which may only wait for theirs. So each says
whom it waits for, and the blame follows what they say to those that say nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


class PeerNews:
    """Members that are gone, have given the group up, or wait in vain; by rank.

    Attributes:
        lost: Why, for those whose link has ended.
        farewells: Whom those waited for that have given up.

    Args:
        names: Of all members, by rank.
        own: This member's rank.
    """

    def __init__(self, names: Sequence[str], own: int) -> None:
        self._names = names
        self._own = own
        self.lost: dict[int, str] = {}
        self.farewells: dict[int, set[int]] = {}
        self._stuck: dict[int, tuple[int, set[int]]] = {}

    @property
    def gone(self) -> set[int]:
        """Those that take part in nothing any more."""
        return {*self.lost, *self.farewells}

    def hear_farewell(self, rank: int, payload: bytes) -> None:
        """Note that a member has given the group up, and whom it waited for."""
        self.farewells[rank] = self._ranks(payload)

    def hear_stuck(self, rank: int, number: int, payload: bytes) -> None:
        """Note whom a member waits for in an exchange that does not go on."""
        self._stuck[rank] = (number, self._ranks(payload))

    def pack(self, ranks: Collection[int]) -> bytes:
        """Return the bytes that name members."""
        return ",".join(self._names[rank] for rank in sorted(ranks)).encode()

    def broken(self) -> dict[int, str]:
        """Return those whose links ended without a word, and why."""
        return {rank: why for rank, why in self.lost.items() if rank not in self.farewells}

    def named_by_farewells(self) -> set[int]:
        """Return whom those that gave up waited for, without those that gave up themselves."""
        said = set().union(*self.farewells.values())
        return (said - set(self.farewells) - {self._own}) or said

    def silent(self, number: int, waits_for: Collection[int]) -> set[int]:
        """Return those at the end of all waiting: waited for, and not waiting themselves.

        Args:
            number: Of the exchange that does not go on.
            waits_for: Those that this member waits for in it.
        """
        found, seen, pending = set(), {self._own}, list(waits_for)
        while pending:
            rank = pending.pop()
            if rank in seen:
                continue
            seen.add(rank)
            said, others = self._stuck.get(rank, (-1, set()))
            if said == number:
                pending += others
            else:
                found.add(rank)
        # A circle: what one of them sent, another one never got.
        return found or set(waits_for)

    def _ranks(self, payload: bytes) -> set[int]:
        said = payload.decode(errors="replace").split(",")
        return {rank for rank, name in enumerate(self._names) if name in said}
