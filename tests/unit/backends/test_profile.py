"""From what TensorFlow's profiler sees to operator times: pure parts, made-up calls."""

from __future__ import annotations

import pytest

pytest.importorskip("tensorflow", reason="the extra 'tensorflow' is not installed")

from phalanx.backends.tensorflow.profile import (  # only where there is TensorFlow
    GraphCall,
    share_time,
    span_of,
)

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("name", "kind", "span"),
    [
        ("phalanx_forward/net/conv1/Conv2D:Conv2D", "Conv2D", "forward"),
        ("phalanx_loss/Sum:Sum", "Sum", "loss"),
        ("gradient_tape/phalanx_forward/net/MatMul:MatMul", "MatMul", "backward"),
        ("phalanx_apply/update_0/AssignSub:AssignSubVariableOp", "AssignSubVariableOp", "apply"),
        ("phalanx_all_reduce/pack:ConcatV2", "ConcatV2", "all_reduce"),
        ("CollectiveReduceV2:CollectiveReduceV2", "CollectiveReduceV2", "all_reduce"),
        ("IteratorGetNext:IteratorGetNext", "IteratorGetNext", "input"),
        ("timestamp:Timestamp", "Timestamp", ""),
    ],
)
def test_a_span_is_read_from_the_name(name: str, kind: str, span: str) -> None:
    assert span_of(name, kind) == span


def test_moments_are_shared_among_operators_that_run_at_once() -> None:
    calls = [
        GraphCall(0, 4 * SECOND, "forward", "a"),
        GraphCall(2 * SECOND, 4 * SECOND, "forward", "b"),
        GraphCall(6 * SECOND, 7 * SECOND, "apply", "a"),
    ]
    found = share_time(reversed(calls))
    assert found == {("forward", "a"): 3.0, ("forward", "b"): 1.0, ("apply", "a"): 1.0}
    # Five of seven seconds were spent in operators, however many ran at once.
    assert sum(found.values()) == 5.0


def test_nothing_happened() -> None:
    assert share_time([]) == {}
