"""Whatever is lost, late, doubled or cut: every server ends whole, and counts every batch once."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.consistency.rule import ConsistencyRule
from phalanx.paramserver.handshake import ClientIdentity
from phalanx.paramserver.ledger import SegmentTickets
from phalanx.paramserver.slice_restore import LoadVerdict, SliceRestore
from support.restoring import World

RULES = {
    "async": ConsistencyRule(),
    "k_async": ConsistencyRule(gather=2),
}
# More than any play takes to come to rest once nothing is lost any more.
_MOST_ROUNDS = 600


def names(world: World, num_servers: int, num_workers: int) -> list[str]:
    return [f"server-{i}" for i in range(num_servers)] + [f"worker-{i}" for i in range(num_workers)]


def act(world: World, chance: random.Random, num_servers: int, num_workers: int) -> None:
    """One thing happens."""
    index, rank = chance.randrange(num_servers), chance.randrange(num_workers)
    name = chance.choice(names(world, num_servers, num_workers))
    usual = [
        lambda: world.work(rank),
        lambda: world.work(rank),
        lambda: world.reply(index, rank),
        lambda: world.reply(index, rank),
        lambda: world.obey(name),
        lambda: world.obey(name),
        lambda: world.hear(name),
        lambda: world.donate(rank),
        lambda: world.load(index, rank),
        lambda: world.report(rank),
        lambda: world.wait(0.05),
    ]
    rare = [
        lambda: world.lose_server(index),
        lambda: world.lose_worker(rank),
        lambda: world.restart_server(index),
        lambda: world.restart_server(index),
        lambda: world.restart_worker(rank),
        lambda: rank in world.workers and world.join(rank),
        lambda: world.cut(index, rank),
        lambda: world.lose_message(name),
        lambda: world.double_message(name),
        lambda: world.save(index),
        lambda: world.wait(6.0),
    ]
    chance.choice(rare if chance.random() < 0.12 else usual)()


def calm(world: World, num_servers: int, num_workers: int) -> None:
    """Nothing is lost any more; everybody acts in turn until the run has nothing left to do."""
    for index in range(num_servers):
        world.restart_server(index)
    for rank in range(num_workers):
        world.restart_worker(rank)
    for _ in range(_MOST_ROUNDS):
        for name in names(world, num_servers, num_workers):
            world.hear(name)
            world.obey(name)
        for rank in range(num_workers):
            world.join(rank)
            world.work(rank)
            world.report(rank)
            world.donate(rank)
            for index in range(num_servers):
                world.load(index, rank)
                world.reply(index, rank)
        world.wait(0.5)
        if world.is_over:
            return
    raise AssertionError("somebody waits for ever")


@given(
    seed=st.integers(0, 2**32),
    consistency=st.sampled_from(sorted(RULES)),
    num_servers=st.integers(1, 3),
    num_workers=st.integers(1, 3),
)
def test_every_server_ends_whole_and_counts_every_batch_once(
    seed: int, consistency: str, num_servers: int, num_workers: int
) -> None:
    chance = random.Random(seed)
    world = World(
        chance,
        rule=RULES[consistency],
        num_servers=num_servers,
        num_workers=num_workers,
        num_steps=8,
    )
    for _ in range(chance.randrange(50, 700)):
        act(world, chance, num_servers, num_workers)
    calm(world, num_servers, num_workers)

    tickets = set(range(1, 1 + world.plan.per_epoch))
    assert sorted(world.counted) == sorted(tickets), "the controller counts each batch once"
    for server in world.up():
        server.shard.flush()
        ledger = server.shard.ledger
        assert set(ledger.held()) == tickets
        assert ledger.num_samples == [len(tickets)] * len(ledger.num_samples)
        if consistency != "k_async":  # whose updates are means of two
            assert server.shard.updater.parameters.tolist() == [-len(tickets)] * len(
                server.shard.segments
            )


DONOR, OTHER = ClientIdentity("worker", 0, 1), ClientIdentity("worker", 1, 1)


def offer(
    restore: SliceRestore,
    segment: int,
    *,
    client: ClientIdentity = DONOR,
    number: int = 1,
    version: int = 9,
) -> LoadVerdict:
    return restore.offer(
        client, number=number, version=version, segment=segment, contents=SegmentTickets()
    )


def test_a_second_donor_begins_anew() -> None:
    restore = SliceRestore(2, restoring=True)
    restore.expect(1, DONOR)
    assert offer(restore, 0, version=10) == LoadVerdict.TAKE
    restore.expect(2, OTHER)
    assert restore.num_loaded == 0, "nothing of the first copy is kept"
    assert offer(restore, 1, version=10) == LoadVerdict.SETTLED, "late"
    for segment in range(2):
        assert restore.whole_copy() is None
        assert offer(restore, segment, client=OTHER, number=2) == LoadVerdict.TAKE
    assert restore.whole_copy() is not None


def test_segments_of_two_versions_are_never_mixed() -> None:
    restore = SliceRestore(2, restoring=True)
    restore.expect(1, DONOR)
    offer(restore, 0, version=10)
    offer(restore, 1, version=9)
    assert restore.num_loaded == 1
    assert restore.whole_copy() is None


def test_only_the_worker_that_was_asked_is_listened_to() -> None:
    restore = SliceRestore(1, restoring=True)
    assert offer(restore, 0) == LoadVerdict.UNEXPECTED
    restore.expect(1, DONOR)
    assert offer(restore, 0, client=OTHER) == LoadVerdict.FORBIDDEN
    earlier = ClientIdentity("worker", 0, 0)
    assert offer(restore, 0, client=earlier) == LoadVerdict.FORBIDDEN
    assert offer(restore, 1) == LoadVerdict.FORBIDDEN, "of no segment of this server"


@pytest.mark.parametrize("number", [1, 2])
def test_a_whole_server_settles_every_request(number: int) -> None:
    restore = SliceRestore(1, restoring=True)
    restore.expect(1, DONOR)
    offer(restore, 0)
    restore.finish(9)
    restore.expect(number, OTHER)
    assert (restore.is_over, restore.version) == (True, 9)
    assert offer(restore, 0, client=OTHER, number=number) == LoadVerdict.SETTLED
