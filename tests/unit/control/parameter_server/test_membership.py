"""Who is introduced to whom, through restarts on either side."""

from __future__ import annotations

import pytest

from phalanx.control.coordinator import Process
from phalanx.control.parameter_server.membership import Membership
from phalanx.wire.parameter_server import (
    Admit,
    Connect,
    Dismiss,
    HeldVersion,
    QueryVersion,
    RestoreFromDisk,
    SendParameters,
    ServerAddress,
    ServerUp,
)
from support.company import EVALUATOR, ScriptedApi

WORKERS = [Process("worker", 0), Process("worker", 1)]


def address(server: int, start: int = 1) -> ServerAddress:
    return ServerAddress(server, f"tcp://server-{server}-{start}", f"key-{start}")


def up(members: Membership, host: str, where: ServerAddress, *, restoring: bool) -> None:
    members.server_up(host, ServerUp(where, restoring=restoring))


def offer(members: Membership, worker: str, server: int, number: int, version: int) -> None:
    members.copy_offered(worker, HeldVersion(server, number, version))


@pytest.fixture
def api() -> ScriptedApi:
    return ScriptedApi()


@pytest.fixture
def members(api: ScriptedApi) -> Membership:
    """Two servers and two workers that know each other."""
    members = Membership(2, api, num_workers=2)
    for server in range(2):
        up(members, f"server-{server}", address(server), restoring=False)
    for worker in WORKERS:
        members.peer_up(worker)
    api.sent.clear()
    return members


def test_who_is_there(members: Membership) -> None:
    assert members.workers == {0, 1}
    assert sorted(members.peers) == ["worker-0", "worker-1"]
    assert members.hosts == ["server-0", "server-1"]
    assert members.is_complete
    assert members.host_of(1) == "server-1"
    assert members.host_of(7) is None


def test_a_membership_without_servers_is_not_complete(api: ScriptedApi) -> None:
    members = Membership(1, api, num_workers=2)
    members.peer_up(WORKERS[0])
    assert not members.is_complete
    assert api.sent == []


def test_a_server_that_moved_is_announced_to_all_and_told_of_all(
    members: Membership, api: ScriptedApi
) -> None:
    members.peer_up(Process("evaluator", 0))
    members.server_left(1)
    assert not members.is_complete
    assert members.hosts == ["server-0"]
    assert members.host_of(1) == "server-1"
    api.sent.clear()
    up(members, "server-1", address(1, start=2), restoring=False)
    assert not api.sent_to("server-0", Admit)
    admitted = {(one.role, one.rank) for one in api.sent_to("server-1", Admit)}
    assert admitted == {("worker", 0), ("worker", 1), ("reader", 0)}
    for name in ("worker-0", "worker-1", EVALUATOR):
        [connect] = api.sent_to(name, Connect)
        assert connect.servers == (address(0), address(1, start=2))


def test_a_server_admits_before_anybody_is_told_where_it_is(api: ScriptedApi) -> None:
    members = Membership(1, api, num_workers=2)
    members.peer_up(WORKERS[0])
    up(members, "server-0", address(0), restoring=False)
    assert [type(one) for _, one in api.sent] == [Admit, Connect]


def test_a_peer_that_left_is_shut_out_everywhere(members: Membership, api: ScriptedApi) -> None:
    members.peer_left(WORKERS[1])
    for host in members.hosts:
        assert api.sent_to(host, Dismiss) == [Dismiss(role="worker", rank=1)]
    assert members.workers == {0}


def test_a_successor_comes_with_keys_of_its_own(members: Membership, api: ScriptedApi) -> None:
    members.peer_left(WORKERS[1])
    api.incarnations["worker-1"] += 1
    api.sent.clear()
    members.peer_up(WORKERS[1])
    for host in members.hosts:
        [admit] = api.sent_to(host, Admit)
        assert (admit.public_key, admit.incarnation) == ("key-worker-1-2", 2)
    assert api.sent_to("worker-1", Connect)


def restoring(members: Membership) -> None:
    members.server_left(0)
    up(members, "server-0", address(0, start=2), restoring=True)


def test_only_workers_are_asked_for_copies(members: Membership, api: ScriptedApi) -> None:
    members.peer_up(Process("evaluator", 0))
    restoring(members)
    assert not api.sent_to(EVALUATOR, QueryVersion)
    assert api.sent_to("worker-0", QueryVersion) == [QueryVersion(0, number=1)]


def test_the_donor_is_chosen_when_all_have_answered(members: Membership, api: ScriptedApi) -> None:
    restoring(members)
    offer(members, "worker-1", 0, 1, 3)
    offer(members, "worker-1", 1, 1, 9)  # of a server that asked for nothing
    offer(members, "worker-7", 0, 1, 9)  # of somebody who was not asked
    assert not any(isinstance(one, SendParameters | RestoreFromDisk) for _, one in api.sent)
    offer(members, "worker-0", 0, 1, 2)
    assert [
        (name, one) for name, one in api.sent if isinstance(one, SendParameters | RestoreFromDisk)
    ] == [("worker-1", SendParameters(0, number=1))]
    offer(members, "worker-0", 0, 1, 8)
    assert not api.sent_to("worker-0", SendParameters), "one donor is enough"


@pytest.mark.parametrize("version", [-1, None])
def test_no_copy_means_recall(members: Membership, api: ScriptedApi, version: int | None) -> None:
    restoring(members)
    for worker in WORKERS:
        if version is None:
            members.peer_left(worker)
        else:
            offer(members, worker.name, 0, 1, version)
    assert api.sent_to("server-0", RestoreFromDisk) == [RestoreFromDisk(number=1)]
    assert not any(isinstance(one, SendParameters) for _, one in api.sent)


def test_a_copy_of_version_0_is_as_good_as_any(members: Membership, api: ScriptedApi) -> None:
    restoring(members)
    offer(members, "worker-0", 0, 1, -1)
    offer(members, "worker-1", 0, 1, 0)
    assert api.sent_to("worker-1", SendParameters) == [SendParameters(0, number=1)]


def test_the_last_one_to_answer_may_leave_instead(members: Membership, api: ScriptedApi) -> None:
    restoring(members)
    offer(members, "worker-0", 0, 1, 5)
    members.peer_left(WORKERS[1])
    assert api.sent_to("worker-0", SendParameters) == [SendParameters(0, number=1)]


def test_a_donor_that_leaves_before_the_server_is_restored_is_replaced(
    members: Membership, api: ScriptedApi
) -> None:
    restoring(members)
    offer(members, "worker-0", 0, 1, 4)
    offer(members, "worker-1", 0, 1, 5)
    members.peer_left(WORKERS[1])
    assert api.sent_to("worker-0", QueryVersion) == [
        QueryVersion(0, number=1),
        QueryVersion(0, number=2),
    ]
    offer(members, "worker-0", 0, 1, 4)  # late: the answer to a question that no longer counts
    assert not api.sent_to("worker-0", SendParameters)
    offer(members, "worker-0", 0, 2, 4)
    assert api.sent_to("worker-0", SendParameters) == [SendParameters(0, number=2)]
    members.server_restored(0)
    api.sent.clear()
    members.peer_left(WORKERS[0])
    assert not api.sent_to("server-0", RestoreFromDisk), "it has its parameters again"


def test_a_server_lost_again_while_it_was_restored_starts_over(
    members: Membership, api: ScriptedApi
) -> None:
    restoring(members)
    offer(members, "worker-0", 0, 1, 4)
    members.server_left(0)
    offer(members, "worker-1", 0, 1, 5)
    assert not any(isinstance(one, SendParameters | RestoreFromDisk) for _, one in api.sent)
    up(members, "server-0", address(0, start=3), restoring=True)
    offer(members, "worker-0", 0, 2, 4)
    offer(members, "worker-1", 0, 2, 5)
    assert api.sent_to("worker-1", SendParameters) == [SendParameters(0, number=2)]


def test_a_restarted_server_does_not_wait_for_workers_that_were_sent_away(
    members: Membership, api: ScriptedApi
) -> None:
    members.worker_left_servers(1)
    restoring(members)
    assert {one.rank: one.expected for one in api.sent_to("server-0", Admit)} == {0: True, 1: False}
    members.worker_called(1)
    api.sent.clear()
    restoring(members)
    assert {one.rank: one.expected for one in api.sent_to("server-0", Admit)} == {0: True, 1: True}


def test_a_worker_learns_of_each_successor_while_other_servers_are_away(
    members: Membership, api: ScriptedApi
) -> None:
    for server in range(2):
        members.server_left(server)
    up(members, "server-0", address(0, start=2), restoring=True)
    for worker in WORKERS:
        [connect] = api.sent_to(worker.name, Connect)
        assert connect.servers[0] == address(0, start=2)
        assert api.sent_to(worker.name, QueryVersion) == [QueryVersion(0, number=1)]
    assert not members.is_complete
    late = Process("worker", 7)
    members.peer_up(late)
    assert not api.sent_to(late.name, Connect), "a newcomer waits until all servers are there"
