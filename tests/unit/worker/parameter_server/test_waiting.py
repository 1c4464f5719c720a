"""How long a worker waits for servers: as long as they are there, or are being replaced."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from phalanx.errors import SpecError
from phalanx.wire.delivery import MAX_MESSAGE_BYTES
from phalanx.wire.parameter_server import Connect, ServerAddress, ServerLost
from phalanx.worker.parameter_server.handover import check_statistics
from phalanx.worker.parameter_server.known_servers import KnownServers
from phalanx.worker.parameter_server.worker import _Servers
from support.company import Company, serving_job


def servers(*unreachable: int, lost: tuple[int, ...] = ()) -> _Servers:
    client: Any = SimpleNamespace(unreachable=list(unreachable), relocate=lambda address: None)
    return _Servers(client=client, lost=set(lost))


def test_a_worker_whose_servers_are_all_connected_waits_as_long_as_it_takes() -> None:
    assert servers().is_moving()


def test_a_server_that_cannot_be_reached_is_waited_for_only_while_it_is_being_replaced() -> None:
    assert not servers(0).is_moving()
    assert servers(0, lost=(0,)).is_moving()
    assert not servers(0, 1, lost=(0,)).is_moving()


def test_a_server_is_excused_until_its_successor_is_known() -> None:
    found = servers(0, lost=(0, 1))
    old = (ServerAddress(0, "tcp://old", "key"), ServerAddress(1, "tcp://old", "key"))
    found.addresses = dict(enumerate(old))
    found.update(old)
    assert found.lost == {0, 1}, "these are the addresses of their predecessors"
    found.update((ServerAddress(0, "tcp://new", "key"), old[1]))
    assert found.lost == {1}
    assert not found.is_moving()


def test_a_server_that_was_lost_before_any_address_came_is_excused_no_longer() -> None:
    """As for a process that starts while a server is away."""
    found = KnownServers[Any](lost={0})
    found.update((ServerAddress(0, "tcp://first-known", "key"),))
    found.client = servers(0).client
    assert not found.is_moving()


@pytest.mark.parametrize("kind", ["apart", "colocated"])
def test_everybody_learns_of_a_lost_server_before_of_its_successor(kind: str) -> None:
    apart = kind == "apart"
    company = Company(serving_job(strategy={"servers": 2 if apart else "colocated"})).start()
    company.play(until=lambda: company.used.total() > 2)
    victim = "server-1" if apart else "worker-1"
    company.api.sent.clear()
    company.lose(victim)
    company.restart(victim)
    for name in ("worker-0", "evaluator-0"):
        kinds = [
            type(message)
            for message in company.api.sent_to(name, object)
            if isinstance(message, ServerLost | Connect)
        ]
        assert kinds[0] is ServerLost, name
        assert Connect in kinds[1:], name
    company.play(until=lambda: company.is_finished)


def test_statistics_that_cannot_be_sent_are_refused_before_training() -> None:
    small: Any = SimpleNamespace(buffers=torch.zeros(300_000))
    check_statistics(small)
    large: Any = SimpleNamespace(buffers=torch.zeros(MAX_MESSAGE_BYTES // 4))
    with pytest.raises(SpecError, match=r"64 MiB, more than the 64 MiB.*persistent=False"):
        check_statistics(large)
