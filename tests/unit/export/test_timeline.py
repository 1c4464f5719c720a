from __future__ import annotations

from phalanx.export.timeline import OverlappedSteps, Span, lay_out
from support.written import step

PHASES = {"input_s": 1.0, "forward_s": 2.0, "backward_s": 3.0, "exchange_s": 4.0, "apply_s": 5.0}


def test_a_step_is_laid_out_backwards_from_its_stamp() -> None:
    begin_s, spans = lay_out(step(1, 100.0, **PHASES), 1.5)
    assert begin_s == 85.0
    assert spans == [
        Span("input", 85.0, 86.0),
        Span("forward", 86.0, 88.0),
        Span("backward", 88.0, 91.0),
        Span("waiting", 91.0, 92.5),
        Span("exchange", 92.5, 95.0),
        Span("apply", 95.0, 100.0),
    ]


def test_local_sgd_applies_before_it_exchanges() -> None:
    _, spans = lay_out(step(1, 100.0, **PHASES), 0.0, apply_first=True)
    assert [span.name for span in spans][3:] == ["apply", "exchange"]
    assert spans[3] == Span("apply", 91.0, 96.0)


def test_overlapped_exchange_ends_with_backward_on_a_lane_of_its_own() -> None:
    _, spans = lay_out(step(1, 100.0, overlapped_s=2.5, **PHASES), 0.0)
    assert spans[-1] == Span("overlapped exchange", 88.5, 91.0, beside=True)


def test_it_never_begins_before_the_computation_that_it_hides_behind() -> None:
    _, spans = lay_out(step(1, 100.0, overlapped_s=50.0, **PHASES), 0.0)
    assert spans[-1] == Span("overlapped exchange", 86.0, 91.0, beside=True)


def test_steps_that_are_answered_after_the_next_is_computed() -> None:
    # Computed 1 (0-2), fetched 2 (2-3), computed 2 (3-5), awaited 1 (5-6); fetched 3 (6-7),
    # computed 3 (7-9), awaited 2 (9-10); nothing left to compute, awaited 3 (10-12).
    compute = {"forward_s": 0.5, "backward_s": 1.5}
    layout = OverlappedSteps()
    steps = [
        step(1, 6.0, input_s=1.0, exchange_s=1.0, wait_s=0.25, **compute),
        step(2, 10.0, input_s=1.0, exchange_s=1.0, wait_s=0.0, overlapped_s=3.0, **compute),
        step(3, 12.0, input_s=0.0, exchange_s=2.0, wait_s=2.0, **compute),
        # After a pause: computed 4 (20-22), fetched 5 (22-23), computed 5 (23-25), awaited 4.
        step(4, 26.0, input_s=1.0, exchange_s=1.0, wait_s=0.0, **compute),
        step(5, 27.0, input_s=0.0, exchange_s=1.0, wait_s=0.0, **compute),
    ]
    found = [pair for one in steps for pair in layout.add(one)] + list(layout.finish())
    spans: dict[int, list[tuple[str, float, float]]] = {}
    for one, placed in found:
        spans.setdefault(one.step, []).extend(span[:3] for span in placed)
    ends = [span.end_s for _, placed in found for span in placed if not span.beside]
    assert ends == sorted(ends)
    assert spans == {
        1: [("forward", 0, 0.5), ("backward", 0.5, 2), ("waiting", 5, 5.25), ("exchange", 5.25, 6)],
        2: [
            ("input", 2, 3), ("forward", 3, 3.5), ("backward", 3.5, 5), ("exchange", 9, 10),
            ("overlapped exchange", 6, 9),
        ],
        3: [("input", 6, 7), ("forward", 7, 7.5), ("backward", 7.5, 9), ("waiting", 10, 12)],
        4: [("forward", 20, 20.5), ("backward", 20.5, 22), ("exchange", 25, 26)],
        5: [("input", 22, 23), ("forward", 23, 23.5), ("backward", 23.5, 25), ("exchange", 26, 27)],
    }  # fmt: skip
