"""Who is introduced to whom, through restarts on either side."""

from __future__ import annotations

import pytest

from phalanx.control.coordinator import Process
from phalanx.control.crew import Crew
from phalanx.wire.serving import Admit, Connect, Dismiss, Donate, Offer, Recall, ServerAddress
from support.company import EVALUATOR, ScriptedDesk

WORKERS = [Process("worker", 0), Process("worker", 1)]


def address(server: int, start: int = 1) -> ServerAddress:
    return ServerAddress(server, f"tcp://server-{server}-{start}", f"key-{start}")


@pytest.fixture
def desk() -> ScriptedDesk:
    return ScriptedDesk()


@pytest.fixture
def crew(desk: ScriptedDesk) -> Crew:
    """Two servers and two workers that know each other."""
    crew = Crew(2, desk)
    for server in range(2):
        crew.server_up(f"server-{server}", address(server), restoring=False)
    for worker in WORKERS:
        crew.peer_up(worker)
    desk.sent.clear()
    return crew


def test_who_is_there(crew: Crew) -> None:
    assert crew.workers == {0, 1}
    assert sorted(crew.peers) == ["worker-0", "worker-1"]
    assert crew.hosts == ["server-0", "server-1"]
    assert crew.is_complete
    assert crew.host_of(1) == "server-1"
    assert crew.host_of(7) is None


def test_a_crew_without_servers_is_not_complete(desk: ScriptedDesk) -> None:
    crew = Crew(1, desk)
    crew.peer_up(WORKERS[0])
    assert not crew.is_complete
    assert desk.sent == []


def test_a_server_that_moved_is_announced_to_all_and_told_of_all(
    crew: Crew, desk: ScriptedDesk
) -> None:
    crew.peer_up(Process("evaluator", 0))
    crew.server_left(1)
    assert not crew.is_complete
    assert crew.hosts == ["server-0"]
    assert crew.host_of(1) == "server-1"
    desk.sent.clear()
    crew.server_up("server-1", address(1, start=2), restoring=False)
    assert not desk.sent_to("server-0", Admit)
    admitted = {(one.role, one.rank) for one in desk.sent_to("server-1", Admit)}
    assert admitted == {("worker", 0), ("worker", 1), ("reader", 0)}
    for name in ("worker-0", "worker-1", EVALUATOR):
        [connect] = desk.sent_to(name, Connect)
        assert connect.servers == (address(0), address(1, start=2))


def test_a_server_admits_before_anybody_is_told_where_it_is(desk: ScriptedDesk) -> None:
    crew = Crew(1, desk)
    crew.peer_up(WORKERS[0])
    crew.server_up("server-0", address(0), restoring=False)
    assert [type(one) for _, one in desk.sent] == [Admit, Connect]


def test_a_peer_that_left_is_shut_out_everywhere(crew: Crew, desk: ScriptedDesk) -> None:
    crew.peer_left(WORKERS[1])
    for host in crew.hosts:
        assert desk.sent_to(host, Dismiss) == [Dismiss(role="worker", rank=1)]
    assert crew.workers == {0}


def test_a_successor_comes_with_keys_of_its_own(crew: Crew, desk: ScriptedDesk) -> None:
    crew.peer_left(WORKERS[1])
    desk.incarnations["worker-1"] += 1
    desk.sent.clear()
    crew.peer_up(WORKERS[1])
    for host in crew.hosts:
        [admit] = desk.sent_to(host, Admit)
        assert (admit.public_key, admit.incarnation) == ("key-worker-1-2", 2)
    assert desk.sent_to("worker-1", Connect)


def restoring(crew: Crew) -> None:
    crew.server_left(0)
    crew.server_up("server-0", address(0, start=2), restoring=True)


def test_only_workers_are_asked_for_copies(crew: Crew, desk: ScriptedDesk) -> None:
    crew.peer_up(Process("evaluator", 0))
    restoring(crew)
    assert not desk.sent_to(EVALUATOR, Offer)
    assert desk.sent_to("worker-0", Offer) == [Offer(0)]


def test_the_donor_is_chosen_when_all_have_answered(crew: Crew, desk: ScriptedDesk) -> None:
    restoring(crew)
    crew.copy_offered("worker-1", 0, 3)
    crew.copy_offered("worker-1", 1, 9)  # of a server that asked for nothing
    crew.copy_offered("worker-7", 0, 9)  # of somebody who was not asked
    assert not any(isinstance(one, Donate | Recall) for _, one in desk.sent)
    crew.copy_offered("worker-0", 0, 2)
    assert [(name, one) for name, one in desk.sent if isinstance(one, Donate | Recall)] == [
        ("worker-1", Donate(0))
    ]
    crew.copy_offered("worker-0", 0, 8)
    assert not desk.sent_to("worker-0", Donate), "one donor is enough"


@pytest.mark.parametrize("version", [-1, None])
def test_no_copy_means_recall(crew: Crew, desk: ScriptedDesk, version: int | None) -> None:
    restoring(crew)
    for worker in WORKERS:
        if version is None:
            crew.peer_left(worker)
        else:
            crew.copy_offered(worker.name, 0, version)
    assert desk.sent_to("server-0", Recall) == [Recall()]
    assert not any(isinstance(one, Donate) for _, one in desk.sent)


def test_a_copy_of_version_0_is_as_good_as_any(crew: Crew, desk: ScriptedDesk) -> None:
    restoring(crew)
    crew.copy_offered("worker-0", 0, -1)
    crew.copy_offered("worker-1", 0, 0)
    assert desk.sent_to("worker-1", Donate) == [Donate(0)]


def test_the_last_one_to_answer_may_leave_instead(crew: Crew, desk: ScriptedDesk) -> None:
    restoring(crew)
    crew.copy_offered("worker-0", 0, 5)
    crew.peer_left(WORKERS[1])
    assert desk.sent_to("worker-0", Donate) == [Donate(0)]


def test_a_donor_that_leaves_before_the_server_is_restored_is_replaced(
    crew: Crew, desk: ScriptedDesk
) -> None:
    restoring(crew)
    crew.copy_offered("worker-0", 0, 4)
    crew.copy_offered("worker-1", 0, 5)
    crew.peer_left(WORKERS[1])
    assert desk.sent_to("worker-0", Offer) == [Offer(0), Offer(0)]
    crew.copy_offered("worker-0", 0, 4)
    assert desk.sent_to("worker-0", Donate) == [Donate(0)]
    crew.server_restored(0)
    desk.sent.clear()
    crew.peer_left(WORKERS[0])
    assert not desk.sent_to("server-0", Recall), "it has its parameters again"


def test_a_server_lost_again_while_it_was_restored_starts_over(
    crew: Crew, desk: ScriptedDesk
) -> None:
    restoring(crew)
    crew.copy_offered("worker-0", 0, 4)
    crew.server_left(0)
    crew.copy_offered("worker-1", 0, 5)
    assert not any(isinstance(one, Donate | Recall) for _, one in desk.sent)
    crew.server_up("server-0", address(0, start=3), restoring=True)
    crew.copy_offered("worker-0", 0, 4)
    crew.copy_offered("worker-1", 0, 5)
    assert desk.sent_to("worker-1", Donate) == [Donate(0)]
