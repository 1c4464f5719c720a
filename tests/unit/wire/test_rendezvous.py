"""Values that processes publish for one another, in every order and through restarts."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import PeerError, TimeoutExpired
from phalanx.wire.deadline import Deadline
from phalanx.wire.messages import StoredValues
from phalanx.wire.rendezvous import PublishedValues, ValueBoard, group_of

GROUPS = ("0/0", "0/1")


class Member:
    """A process: what it has published, asked for and heard in this life."""

    def __init__(self, rank: int, life: int) -> None:
        self.rank, self.life = rank, life
        self.values = PublishedValues()
        self.inbox: deque[StoredValues] = deque()
        self.asked: set[str] = set()

    @property
    def name(self) -> str:
        return f"worker-{self.rank}"


class Company:
    """All members, around one board."""

    def __init__(self, chance: random.Random, num_members: int) -> None:
        self.chance, self.board = chance, ValueBoard()
        self.members = [Member(rank, 1) for rank in range(num_members)]
        self.published: dict[str, bytes] = {}

    def act(self) -> None:
        member, group = self.chance.choice(self.members), self.chance.choice(GROUPS)
        match self.chance.randrange(10):
            case 0 | 1 | 2:
                self.put(member, group)
            case 3 | 4 | 5:
                self.want(member, group)
            case 6:
                # Replaced: what was on its way to it is gone, its values stay until it publishes.
                self.board.forget(member.name)
                self.members[member.rank] = Member(member.rank, member.life + 1)
            case 7:
                self.spread()
            case _ if member.inbox:
                member.values.put(member.inbox.popleft())
            case _:
                pass

    def put(self, member: Member, group: str) -> None:
        key = f"{group}/{member.rank}"
        value = f"{key} in life {member.life}".encode()
        self.board.put(member.name, key, value)
        self.published[key] = value

    def want(self, member: Member, group: str) -> None:
        member.asked.add(group)
        if member.values.wants(f"{group}/0"):
            self.board.want(member.name, group)

    def spread(self) -> None:
        for process, values in self.board.take_unsent():
            self.members[int(process.partition("-")[2])].inbox.append(values)


@given(seed=st.integers(0, 2**32), num_members=st.integers(1, 4))
def test_everybody_gets_the_newest_of_all_values_it_asked_for(seed: int, num_members: int) -> None:
    chance = random.Random(seed)
    company = Company(chance, num_members)
    for _ in range(chance.randrange(5, 120)):
        company.act()
    company.spread()
    for member in company.members:
        while member.inbox:
            member.values.put(member.inbox.popleft())
        wanted = {key for key in company.published if group_of(key) in member.asked}
        for key in wanted:
            found = member.values.get(key, Deadline.after(0.0, key))
            assert found == company.published[key], "of an earlier life"
        for key in company.published.keys() - wanted:
            with pytest.raises(TimeoutExpired):
                member.values.get(key, Deadline.after(0.0, key))
    assert list(company.board.take_unsent()) == [], "nothing is sent twice"


@pytest.mark.parametrize("owner", ["worker-0", "server-0"])
def test_a_value_of_number_0_is_its_own(owner: str) -> None:
    board = ValueBoard()
    with pytest.raises(PeerError, match=f"belongs to {owner}"):
        board.put("worker-1", f"group/{owner}", b"forged")
    board.put("worker-0", "group/0", b"first")
    with pytest.raises(PeerError, match="belongs to worker-0"):
        board.put("worker-1", "group/0", b"second")
    board.put("worker-0", "group/0", b"")
    board.want("worker-1", "group")
    assert list(board.take_unsent()) == [("worker-1", StoredValues({"group/0": b""}))]
