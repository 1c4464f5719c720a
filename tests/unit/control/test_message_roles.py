"""Who may say what to a coordinator; everything else ends the one that said it."""

from __future__ import annotations

from types import UnionType
from typing import get_args

import pytest

from phalanx.control.message_roles import SENDERS, check_sender
from phalanx.errors import ProtocolError
from phalanx.wire.messages import (
    Done,
    Failed,
    FromWorker,
    Heartbeat,
    Hello,
    Ping,
    PutValue,
    WantValues,
)
from phalanx.wire.parameter_server import (
    Flushed,
    HeldVersion,
    Paused,
    RequestWork,
    Restored,
    Saved,
    ServerAddress,
    ServerUp,
    SnapshotTaken,
    WorkDone,
)
from phalanx.wire.switch import HandedOver
from support.company import Company, serving_job

# Taken by the channel or by the controller itself, of every process alike.
_OF_ALL = {Hello, Heartbeat, Failed, Ping, PutValue, WantValues}


def kinds(union: UnionType) -> set[type]:
    return set(get_args(union))


def test_every_message_to_a_coordinator_has_senders() -> None:
    assert SENDERS.keys() == kinds(FromWorker) - _OF_ALL  # type: ignore[arg-type]


@pytest.mark.parametrize("process", ["server-0", "evaluator-0", "chief-0"])
@pytest.mark.parametrize(
    "message", [RequestWork(1), WorkDone((), 1), Paused(b""), HeldVersion(0, 1, 1), HandedOver()]
)
def test_no_other_role_speaks_as_the_worker_of_its_rank(process: str, message: FromWorker) -> None:
    check_sender("worker-0", message)
    role = process.partition("-")[0]
    kind = type(message).__name__
    with pytest.raises(ProtocolError, match=f"it sent {kind}, which no {role} may send"):
        check_sender(process, message)


@pytest.mark.parametrize("message", [SnapshotTaken(1), Saved(1, "", 0, 0.0, 0, "")])
def test_only_the_evaluator_speaks_of_evaluations(message: FromWorker) -> None:
    check_sender("evaluator-0", message)
    with pytest.raises(ProtocolError, match="which no worker may send"):
        check_sender("worker-0", message)


@pytest.mark.parametrize("host", ["server", "worker"])
@pytest.mark.parametrize(
    "message",
    [
        ServerUp(ServerAddress(1, "tcp://", ""), restoring=False),
        Restored(server=1, version=0, optimizer_version=0),
        Flushed(server=1, version=0),
    ],
)
def test_a_server_speaks_for_itself_only(host: str, message: FromWorker) -> None:
    check_sender(f"{host}-1", message)
    with pytest.raises(ProtocolError, match="for server 1"):
        check_sender(f"{host}-0", message)


def test_everybody_may_be_done() -> None:
    for process in ("worker-0", "server-0", "evaluator-0", "chief-0"):
        check_sender(process, Done())


@pytest.mark.parametrize(("servers", "impostor"), [(1, "worker-0"), ("colocated", "server-0")])
def test_servers_come_up_only_where_the_job_has_them(servers: int | str, impostor: str) -> None:
    company = Company(serving_job(strategy={"servers": servers}))
    up = ServerUp(ServerAddress(0, "tcp://", ""), restoring=False)
    with pytest.raises(ProtocolError, match="it sent ServerUp, but servers are in each"):
        company.say(impostor, up)
    company.start()
    company.play(until=lambda: company.is_finished)


def test_work_is_for_those_who_have_reported() -> None:
    company = Company(serving_job())
    for message in (RequestWork(1), WorkDone((), 1)):
        with pytest.raises(ProtocolError, match="before Ready"):
            company.say("worker-0", message)
    company.start()
    company.play(until=lambda: company.is_finished)


def test_an_answer_out_of_turn_changes_nothing_for_the_evaluator() -> None:
    company = Company(serving_job()).start()
    company.play(until=lambda: not company.coordinator._run.evaluation.is_free)
    state = company.coordinator._run.evaluation.state
    number = state.request.number  # type: ignore[union-attr]
    with pytest.raises(ProtocolError, match="it sent Saved in the state ReadingServers"):
        company.say("evaluator-0", Saved(number, "", 0, 0.0, 0, ""))
    company.play(until=lambda: company.is_finished)
