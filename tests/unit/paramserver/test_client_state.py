"""Calls of a client out of order are refused, and change nothing."""

from __future__ import annotations

import pytest

from phalanx.paramserver.client import Client
from phalanx.paramserver.client_state import (
    Attached,
    Awaiting,
    ClientEvent,
    Detached,
    Detaching,
    Pushing,
    check_transition,
)
from phalanx.wire.bulk import BulkOp, Header
from phalanx.wire.keys import KeyPair
from phalanx.wire.parameter_server import ServerAddress
from support.paramserver import client_for, small_layout, soon

PUSH = Header(op=BulkOp.PUSH, worker=0)


@pytest.fixture
def client() -> Client:
    return client_for(small_layout(30), [], KeyPair.make())[0]


def test_nothing_is_pushed_without_a_place(client: Client) -> None:
    with pytest.raises(ValueError, match="a client that is detached cannot take 'begin'"):
        client.begin(num_samples=1)
    with pytest.raises(ValueError, match="detached cannot take 'leave'"):
        client.leave(soon())
    assert client.state == Detached()
    assert client.clock == 0
    assert client.facts().pushes == 0


@pytest.mark.parametrize("state", [Pushing(PUSH), Awaiting(PUSH)])
@pytest.mark.parametrize("event", [ClientEvent.BEGIN, ClientEvent.PULL, ClientEvent.LEAVE])
def test_one_push_is_outstanding_at_a_time(state: Pushing | Awaiting, event: ClientEvent) -> None:
    with pytest.raises(ValueError, match="a push is still on its way; wait for it first"):
        check_transition(state, event, Detaching())


def test_a_step_that_the_table_does_not_have_is_a_fault_of_the_client() -> None:
    with pytest.raises(AssertionError, match="begin leads from"):
        check_transition(Attached(), ClientEvent.BEGIN, Detached())


def test_a_gradient_is_final_when_its_last_slice_is() -> None:
    # No server answers there: segments wait for a connection.
    nowhere = ServerAddress(0, "ipc://@phalanx-nowhere", KeyPair.make().public)
    with client_for(small_layout(30), [nowhere], KeyPair.make())[0] as client:
        client.state = Attached()
        client.begin(num_samples=1)
        client.ready(20, 30)
        assert isinstance(client.state, Pushing)
        client.ready(0, 20)
        assert isinstance(client.state, Awaiting)
        assert client.state.push.clock == client.clock == 1
