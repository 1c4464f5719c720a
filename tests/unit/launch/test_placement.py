from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import PlanError
from phalanx.launch.placement import (
    HostAssignment,
    HostCapacity,
    SlotInfo,
    place,
    place_as_planned,
    slot_for_helper,
    slot_for_worker,
    spread_workers,
)

ROOMS = [
    HostCapacity("a", cores=4, slots=2, cpus=(0, 1, 2, 3)),
    HostCapacity("b", cores=0.5, slots=1),
    HostCapacity("c", cores=2, slots=3, cpus=(0, 1)),
]


def test_every_machine_gets_one_worker_before_any_gets_a_second() -> None:
    assert spread_workers(2, ROOMS) == {"a": 1, "b": 1, "c": 0}
    assert spread_workers(4, ROOMS) == {"a": 2, "b": 1, "c": 1}
    assert spread_workers(6, ROOMS) == {"a": 2, "b": 1, "c": 3}


def test_more_workers_than_slots_is_one_sentence_with_the_way_out() -> None:
    with pytest.raises(PlanError, match="7 workers do not fit: 3 machines have 6 slots") as error:
        spread_workers(7, ROOMS)
    assert "'workers: 6'" in str(error.value)
    assert error.value.exit_code == 2


def test_ranks_count_through_the_machines_and_cores_are_shared_per_machine() -> None:
    workers = place(4, ROOMS).workers
    assert [seat.machine for seat in workers] == ["a", "a", "b", "c"]
    assert [seat.threads for seat in workers] == [2, 2, 1, 2]
    assert [seat.cpus for seat in workers] == [(0, 1), (2, 3), (), (0, 1)]


def test_threads_and_binding_as_the_job_says() -> None:
    workers = place(4, ROOMS, threads=1, pin=False).workers
    assert {seat.threads for seat in workers} == {1}
    assert {seat.cpus for seat in workers} == {()}


def test_a_plan_decides_who_sits_where() -> None:
    assignments = [
        HostAssignment("c", workers=2, threads=1, servers=1),
        HostAssignment("a", workers=1, threads=3, servers=1, evaluator=True),
    ]
    found = place_as_planned(assignments, {room.machine: room for room in ROOMS})
    assert [(seat.machine, seat.threads) for seat in found.workers] == [
        ("c", 1),
        ("c", 1),
        ("a", 3),
    ]
    assert found.helpers == {"server-0": "c", "server-1": "a", "evaluator-0": "a"}


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (
            HostAssignment("x", workers=1),
            "gives work to 'x', which is not among the machines a, b, c",
        ),
        (HostAssignment("b", workers=2), "puts 2 workers on 'b', which has 1 slots"),
    ],
)
def test_a_plan_that_does_not_fit_the_machines(assignment: HostAssignment, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        place_as_planned([assignment], {room.machine: room for room in ROOMS})


def test_helpers_go_where_they_disturb_least() -> None:
    seated = [SlotInfo("a", 2), SlotInfo("a", 2), SlotInfo("b", 1), SlotInfo("c", 1)]
    assert slot_for_helper(seated, ROOMS) == SlotInfo("c")
    assert slot_for_helper([SlotInfo("c", 1)], ROOMS) == SlotInfo("a")
    assert slot_for_helper([], []) is None


def test_a_newcomer_gets_a_free_slot_or_none() -> None:
    workers = [SlotInfo("a", 2), SlotInfo("b", 1), SlotInfo("c", 1), SlotInfo("c", 1)]
    assert slot_for_worker(workers, ROOMS) == SlotInfo("a", threads=2)
    workers += [SlotInfo("a", 2), SlotInfo("c", 1)]
    assert slot_for_worker(workers, ROOMS) is None


@given(
    st.lists(st.tuples(st.integers(1, 4), st.floats(0.1, 8)), min_size=1, max_size=6),
    st.data(),
)
def test_any_workers_fit_into_their_slots_as_evenly_as_these_allow(
    machines: list[tuple[int, float]], data: st.DataObject
) -> None:
    rooms = [HostCapacity(f"m{i}", cores=c, slots=s) for i, (s, c) in enumerate(machines)]
    count = data.draw(st.integers(1, sum(room.slots for room in rooms)))
    seats = place(count, rooms).workers
    assert len(seats) == count
    taken = Counter(seat.machine for seat in seats)
    slots = {room.machine: room.slots for room in rooms}
    assert all(taken[name] <= slots[name] for name in taken)
    most = max(taken.values())
    assert all(taken[name] >= min(slots[name], most - 1) for name in slots)
    order = [room.machine for room in rooms]
    assert [seat.machine for seat in seats] == sorted(
        [seat.machine for seat in seats], key=order.index
    )
