"""The rules of all consistencies, over random schedules with workers that come and go."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.consistency.policy import ConsistencyPolicy
from phalanx.consistency.rule import ConsistencyRule, rule_for
from phalanx.spec.parameter_server import ParameterServerSpec
from support.schedule import Cluster

BSP = rule_for(ParameterServerSpec(consistency="bsp"))
ASYNC = rule_for(ParameterServerSpec(consistency="async"))


def spec_rule(**fields: object) -> ConsistencyRule:
    return rule_for(ParameterServerSpec.model_validate(fields))


@st.composite
def rules(draw: st.DrawFn) -> ConsistencyRule:
    consistency = draw(st.sampled_from(["async", "bsp", "ssp", "dssp", "k_sync", "k_async"]))
    fields: dict[str, object] = {"consistency": consistency}
    if consistency == "ssp":
        fields["staleness"] = draw(st.integers(0, 4))
    elif consistency == "dssp":
        least = draw(st.integers(0, 3))
        fields["staleness_range"] = [least, draw(st.integers(least, 8))]
    elif consistency in ("k_sync", "k_async"):
        fields["k"] = draw(st.integers(1, 4))
    elif consistency == "bsp":
        fields["backup"] = draw(st.integers(0, 2))
    return spec_rule(**fields)


sizes = st.integers(1, 5)
# Who of those that can moves next, and how long it took; "join" and "leave" change the membership.
moves = st.lists(st.tuples(st.integers(0, 99), st.floats(0.01, 5.0)), max_size=120)
events = st.lists(
    st.tuples(st.sampled_from(["act"] * 5 + ["join", "leave"]), st.integers(0, 99)),
    max_size=120,
)


def play(cluster: Cluster, script: list[tuple[str, int]]) -> None:
    for event, choice in script:
        if event == "join" and len(cluster.workers) < 8:
            cluster.join()
        elif event == "leave" and len(cluster.workers) > 1:
            cluster.leave(sorted(cluster.workers)[choice % len(cluster.workers)])
        else:
            able = cluster.able()
            assert able, "nobody can move"
            cluster.act(able[choice % len(able)])
        policy = cluster.policy
        assert policy.num_pushes == (
            policy.num_applied + policy.num_dropped + policy.num_lost + policy.num_gathered
        )


@given(rules(), sizes, events)
def test_nobody_is_ever_stuck_and_every_push_is_accounted_for(
    rule: ConsistencyRule, size: int, script: list[tuple[str, int]]
) -> None:
    cluster = Cluster(rule, size)
    play(cluster, script)
    assert cluster.able()
    # Left alone with its colleagues, everyone gets on, not just somebody.
    before = {name: worker.started for name, worker in cluster.workers.items()}
    for _ in range(200):
        for name in cluster.able():
            cluster.act(name)
    assert all(worker.started > before[name] for name, worker in cluster.workers.items())


@given(rules(), sizes, events)
def test_updates_are_numbered_and_hold_what_was_accepted(
    rule: ConsistencyRule, size: int, script: list[tuple[str, int]]
) -> None:
    cluster = Cluster(rule, size)
    play(cluster, script)
    assert [update.number for update in cluster.updates] == list(
        range(1, cluster.policy.version + 1)
    )
    assert sum(len(update.members) for update in cluster.updates) == cluster.policy.num_applied
    assert all(update.members for update in cluster.updates)


@given(st.integers(1, 4), sizes, moves)
def test_ssp_lets_nobody_run_further_ahead_than_its_bound(
    staleness: int, size: int, script: list[tuple[int, float]]
) -> None:
    cluster = Cluster(spec_rule(consistency="ssp", staleness=staleness), size)
    for choice, took_s in script:
        able = cluster.able()
        cluster.act(able[choice % len(able)], took_s)
    assert max(cluster.leads, default=0) <= staleness


@given(st.integers(0, 3), st.integers(0, 6), sizes, moves)
def test_dssp_stays_within_its_range(
    least: int, width: int, size: int, script: list[tuple[int, float]]
) -> None:
    cluster = Cluster(spec_rule(consistency="dssp", staleness_range=[least, least + width]), size)
    for choice, took_s in script:
        able = cluster.able()
        cluster.act(able[choice % len(able)], took_s)
    assert max(cluster.leads, default=0) <= least + width


def test_dssp_stretches_its_bound_for_a_worker_that_would_wait_long() -> None:
    cluster = Cluster(spec_rule(consistency="dssp", staleness_range=[1, 5]), 2)
    # Worker 1 takes ten times as long as worker 0; its pace has to be known first.
    for _ in range(2):
        cluster.act(1, 10.0)
        cluster.act(1, 0.0)
        for _ in range(3):
            if 0 in cluster.able():
                cluster.act(0, 1.0)
                cluster.act(0, 0.0)
    while 0 in cluster.able():
        cluster.act(0, 1.0)
        cluster.act(0, 0.0)
    assert 1 < max(cluster.leads) <= 5


@given(sizes, st.lists(st.integers(0, 99), max_size=120))
def test_bsp_advances_once_per_round_with_one_push_of_everyone(
    size: int, choices: list[int]
) -> None:
    cluster = Cluster(BSP, size)
    for choice in choices:
        able = cluster.able()
        cluster.act(able[choice % len(able)])
    assert cluster.policy.version == cluster.policy.num_pushes // size
    for update in cluster.updates:
        assert sorted(member.worker for member in update.members) == list(range(size))
        assert {member.staleness for member in update.members} == {0}


@given(sizes, events)
def test_ssp_with_bound_0_is_bsp(size: int, script: list[tuple[str, int]]) -> None:
    first, second = Cluster(BSP, size), Cluster(spec_rule(consistency="ssp", staleness=0), size)
    play(first, script)
    play(second, script)
    assert first.updates == second.updates
    assert first.releases == second.releases


@given(sizes, events)
def test_k_async_with_k_1_is_async(size: int, script: list[tuple[str, int]]) -> None:
    first, second = Cluster(ASYNC, size), Cluster(spec_rule(consistency="k_async", k=1), size)
    play(first, script)
    play(second, script)
    assert first.updates == second.updates
    assert first.releases == second.releases


@given(st.integers(1, 4), sizes, st.lists(st.integers(0, 99), max_size=120))
def test_k_sync_takes_k_fresh_gradients_and_drops_the_late(
    k: int, size: int, choices: list[int]
) -> None:
    cluster = Cluster(spec_rule(consistency="k_sync", k=k), size)
    for choice in choices:
        able = cluster.able()
        cluster.act(able[choice % len(able)])
    for update in cluster.updates:
        assert len(update.members) == min(k, size)
        assert {member.staleness for member in update.members} == {0}
        assert len({member.worker for member in update.members}) == len(update.members)


@given(st.integers(1, 6), sizes, st.lists(st.integers(0, 99), max_size=120))
def test_k_async_takes_any_k_gradients(k: int, size: int, choices: list[int]) -> None:
    cluster = Cluster(spec_rule(consistency="k_async", k=k), size)
    for choice in choices:
        able = cluster.able()
        cluster.act(able[choice % len(able)])
    assert cluster.policy.version == cluster.policy.num_pushes // k
    assert cluster.policy.num_dropped == 0


def test_backup_workers_do_not_hold_up_an_update() -> None:
    cluster = Cluster(spec_rule(consistency="bsp", backup=1), 3)
    cluster.push(0)
    assert cluster.policy.version == 0
    cluster.push(1)
    assert cluster.policy.version == 1
    cluster.push(2)
    assert cluster.policy.num_dropped == 1
    assert sorted(cluster.able()) == [0, 1, 2], "a dropped worker reads the new version at once"


def test_staleness_counts_the_updates_of_others_since_the_read() -> None:
    cluster = Cluster(ASYNC, 3)
    for _ in range(4):
        for worker in range(3):
            cluster.push(worker)
    assert cluster.staleness == [0, 1] + [2] * 10


def test_a_worker_that_leaves_releases_those_who_waited_for_it() -> None:
    cluster = Cluster(spec_rule(consistency="ssp", staleness=1), 2)
    for _ in range(2):
        cluster.push(0)
    assert cluster.able() == [1]
    cluster.leave(1)
    assert cluster.able() == [0]


def test_a_half_arrived_push_is_taken_out_when_its_worker_leaves() -> None:
    cluster = Cluster(BSP, 2)
    cluster.act(0)
    cluster.leave(0)
    assert cluster.policy.num_lost == 1
    cluster.push(1)
    assert [[m.worker for m in update.members] for update in cluster.updates] == [[1]]


def test_a_finished_push_counts_even_if_its_worker_has_left() -> None:
    cluster = Cluster(BSP, 3)
    cluster.push(0)
    cluster.leave(0)
    cluster.push(1)
    assert cluster.policy.version == 0, "worker 2 is still to come"
    cluster.push(2)
    assert [m.worker for m in cluster.updates[0].members] == [0, 1, 2]


def test_a_newcomer_joins_a_barrier_at_the_next_round() -> None:
    cluster = Cluster(BSP, 2)
    cluster.push(0)
    newcomer = cluster.join()
    assert newcomer not in cluster.able()
    cluster.push(1)
    assert cluster.policy.version == 1
    assert newcomer in cluster.able()
    for worker in (0, 1):
        cluster.push(worker)
    assert cluster.policy.version == 1
    cluster.push(newcomer)
    assert cluster.policy.version == 2


def test_a_newcomer_left_alone_need_not_wait_for_a_round_that_nobody_makes() -> None:
    cluster = Cluster(BSP, 1)
    newcomer = cluster.join()
    assert newcomer not in cluster.able()
    cluster.leave(0)
    assert cluster.able() == [newcomer]


def test_a_newcomer_left_alone_sees_what_those_who_left_had_finished() -> None:
    cluster = Cluster(BSP, 2)
    cluster.push(0)
    newcomer = cluster.join()
    cluster.leave(0)
    assert cluster.policy.version == 0
    cluster.leave(1)
    assert [m.worker for m in cluster.updates[0].members] == [0]
    assert cluster.able() == [newcomer]


def test_flush_applies_what_has_been_gathered() -> None:
    policy = ConsistencyPolicy(ConsistencyRule(gather=3), [0])
    policy.join(0, 0)
    policy.offer(0, readver=0)
    policy.finish(0)
    assert [update.number for update in policy.flush().closed] == [1]
    assert policy.flush().closed == ()


def test_a_restored_server_does_not_count_a_gradient_twice() -> None:
    policy = ConsistencyPolicy(BSP, [0, 1])
    policy.restore(7)
    for worker in (0, 1):
        policy.join(worker, 6)
    late = policy.offer(0, readver=6)
    assert late.update is None
    assert policy.num_dropped == 1


@pytest.mark.parametrize(
    ("rule", "workers", "expected"),
    [
        (ASYNC, 4, 1),
        (BSP, 4, 4),
        (spec_rule(consistency="bsp", backup=1), 4, 3),
        (spec_rule(consistency="k_sync", k=3), 2, 2),
        (spec_rule(consistency="k_async", k=3), 2, 3),
    ],
)
def test_gradients_per_update(rule: ConsistencyRule, workers: int, expected: int) -> None:
    assert rule.gradients_per_update(workers) == expected


@given(sizes, st.lists(st.integers(0, 99), max_size=200))
def test_async_staleness_matches_an_independent_count(size: int, choices: list[int]) -> None:
    cluster = Cluster(ASYNC, size)
    pushes = 0
    since: Counter[int] = Counter()
    expected: list[int] = []
    for choice in choices:
        able = cluster.able()
        name = able[choice % len(able)]
        if not cluster.workers[name].arriving:
            expected.append(pushes - since[name])
            pushes += 1
            since[name] = pushes
        cluster.act(name)
    assert cluster.staleness == expected


@pytest.mark.parametrize("gathered", [False, True])
def test_a_worker_that_joined_just_before_a_flush_begins_with_the_next_update(
    gathered: bool,
) -> None:
    # Worker 1 is lost at a gate; its successor asks for its clock before the servers are flushed.
    policy = ConsistencyPolicy(BSP, members=[0, 1])
    for worker in (0, 1):
        policy.join(worker, 0)
    for worker in (0, 1):
        policy.offer(worker, readver=0, num_samples=4)
        policy.finish(worker)
    policy.leave(1)
    policy.join(2, 1)
    assert policy.join(1, policy.entry_clock(1)).released == ()
    if gathered:
        policy.offer(0, readver=1, num_samples=4)
        policy.finish(0)
    released = policy.flush().released
    assert 1 in {release.worker for release in released}
    assert all(release.version == policy.version for release in released)
    for worker in (0, 1, 2):
        outcome = policy.offer(worker, readver=policy.version, num_samples=4)
        policy.finish(worker)
    assert [len(update.members) for update in outcome.closed] == [3]


def test_a_flush_without_samples_makes_no_update_that_others_would_be_late_for() -> None:
    policy = ConsistencyPolicy(BSP, range(2))
    for worker in range(2):
        policy.join(worker, 0)
    # Worker 0 pushes once more than worker 1, without samples, when the gate closes.
    policy.offer(0, readver=0)
    policy.finish(0)
    outcome = policy.flush()
    assert (policy.version, outcome.closed) == (0, ())
    assert [release.worker for release in outcome.released] == [0]
    assert policy.num_gathered == 0
    for worker in (1, 0):
        assert policy.offer(worker, readver=0, num_samples=1).update == 1, "neither is stale"
    assert (policy.version, policy.num_dropped) == (1, 0)
    assert policy.num_pushes == policy.num_applied


def test_a_newcomer_at_a_restored_server_need_not_make_up_for_all_clocks() -> None:
    policy = ConsistencyPolicy(ConsistencyRule(lead=1))
    for worker in (0, 1):
        policy.expect(worker)
    policy.restore(40)
    policy.join(0, 20)
    assert policy.entry_clock(1) == 20
    assert not policy.offer(0, readver=40).released, "the other one is waited for"
    policy.finish(0)
    assert [one.worker for one in policy.join(1, policy.entry_clock(1)).released] == [0, 1]


def test_a_newcomer_that_is_first_at_a_restored_server_does_not_begin_at_the_first_push() -> None:
    policy = ConsistencyPolicy(ConsistencyRule(lead=1))
    for worker in (0, 1):
        policy.expect(worker)
    policy.restore(40)
    policy.join(1, policy.entry_clock(1))
    policy.join(0, 20)
    for _ in range(2):
        policy.offer(0, readver=40)
        policy.finish(0)
    released = policy.offer(1, readver=40).released
    assert [one.worker for one in (*released, *policy.finish(1).released)] == [1, 0]
