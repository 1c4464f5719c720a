"""Orders of the controller reach a member that waits in an exchange, or for its group to form."""

from __future__ import annotations

import queue

import pytest

from phalanx.errors import PeerError, TimeoutExpired
from phalanx.wire.deadline import Deadline
from phalanx.wire.elastic import FormGroup, HaltGroup, LeaveGroup, TurnGroup
from phalanx.wire.messages import FromCoordinator
from phalanx.worker.elastic.orders import GroupOrders
from support.waiting import wait_until

LIMIT_S = 30.0


class Group:
    """Notes why it was broken off."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def abort(self, reason: str) -> None:
        self.reasons.append(reason)


def test_a_group_is_broken_off_when_told_and_later_ones_are_not() -> None:
    inbox: queue.SimpleQueue[FromCoordinator] = queue.SimpleQueue()
    old, late, new = Group(), Group(), Group()
    with GroupOrders(inbox) as orders:
        orders.watch(1, old)  # type: ignore[arg-type]
        inbox.put(HaltGroup(1))
        wait_until(lambda: old.reasons, "the group to be broken off", limit_s=LIMIT_S)
        with pytest.raises(PeerError):
            orders.check(1)
        orders.check(2)
        orders.watch(1, late)  # type: ignore[arg-type]
        orders.watch(2, new)  # type: ignore[arg-type]
    assert (len(old.reasons), len(late.reasons), new.reasons) == (1, 1, [])


def test_orders_to_form_and_to_leave_come_in_their_order() -> None:
    inbox: queue.SimpleQueue[FromCoordinator] = queue.SimpleQueue()
    with GroupOrders(inbox) as orders:
        inbox.put(TurnGroup(3))
        inbox.put(FormGroup(4, (), 0))
        inbox.put(LeaveGroup("the job is done"))
        deadline = Deadline.after(LIMIT_S, "an order")
        assert orders.next(deadline) == FormGroup(4, (), 0)
        assert orders.next(deadline) == LeaveGroup("the job is done")
        assert orders.is_turning(3)
        assert not orders.is_turning(4)
        with pytest.raises(TimeoutExpired):
            orders.next(Deadline.after(0.01, "an order"))
