from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.records.profile import OperatorTime
from phalanx.worker.operators import OperatorCall, OperatorSums


def sums(*calls: OperatorCall) -> dict[tuple[str, str], tuple[int, int]]:
    total = OperatorSums()
    total.add(calls)
    return {(o.span, o.name): (o.calls, round(o.self_s * 1e9)) for o in total.operators()}


def test_a_call_is_counted_without_those_inside_it() -> None:
    found = sums(
        OperatorCall(0, 100, "phalanx::forward", False),
        OperatorCall(10, 60, "conv", False),
        OperatorCall(20, 50, "copy", False),
        OperatorCall(60, 90, "relu", False),
        OperatorCall(200, 210, "add", False),
    )
    assert found == {
        ("forward", ""): (1, 20),
        ("forward", "conv"): (1, 20),
        ("forward", "copy"): (1, 30),
        ("forward", "relu"): (1, 30),
        ("", "add"): (1, 10),
    }


def test_the_innermost_span_decides_what_an_operator_was_for() -> None:
    found = sums(
        OperatorCall(0, 100, "phalanx::apply", False),
        OperatorCall(10, 40, "phalanx::regulariser", False),
        OperatorCall(20, 30, "add", False),
        OperatorCall(50, 60, "add", False),
    )
    assert found["regulariser", "add"] == (1, 10)
    assert found["apply", "add"] == (1, 10)
    assert found["apply", ""] == (1, 60)


def test_what_runs_beside_is_kept_apart_from_begin_to_end() -> None:
    total = OperatorSums()
    total.add([OperatorCall(0, 50, "work", False), OperatorCall(10, 500, "gloo:all_reduce", True)])
    assert [(o.name, o.self_s) for o in total.operators()] == [("work", 50e-9)]
    assert [(o.name, o.self_s) for o in total.beside()] == [("gloo:all_reduce", 490e-9)]


def test_memory_goes_to_the_call_that_claimed_it() -> None:
    total = OperatorSums()
    total.add(
        [
            OperatorCall(0, 50, "conv", False),
            OperatorCall(5, 5, "[memory]", False, 4096),
            OperatorCall(10, 20, "copy", False),
            OperatorCall(15, 15, "[memory]", False, -1024),
            OperatorCall(90, 90, "[memory]", False, 7),
        ]
    )
    assert {o.name: (o.memory_bytes, o.calls) for o in total.operators()} == {
        "conv": (4096, 1),
        "copy": (-1024, 1),
    }


def test_stretches_of_one_epoch_add_up() -> None:
    total = OperatorSums()
    total.add([OperatorCall(0, 50, "conv", False)])
    total.include(
        [OperatorTime(span="", name="conv", calls=2, self_s=1e-6, memory_bytes=3)],
        [OperatorTime(span="", name="gloo", calls=1, self_s=2e-6)],
    )
    (conv,) = total.operators()
    assert (conv.calls, conv.self_s, conv.memory_bytes) == (3, pytest.approx(1.05e-6), 3)
    assert total.beside()[0].self_s == 2e-6


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=20))
def test_self_times_never_exceed_the_time_on_the_clock(edges: list[tuple[int, int]]) -> None:
    calls = [OperatorCall(min(pair), max(pair), "op", False) for pair in edges]
    found = sums(*calls)
    assert all(nanoseconds >= 0 for _, nanoseconds in found.values())
    covered = {ns for begin, end, *_ in calls for ns in range(begin, end)}
    assert sum(nanoseconds for _, nanoseconds in found.values()) <= len(covered)
